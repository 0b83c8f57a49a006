"""`tracegen solve`: the best order for sizes, costs and a memory limit, and how good it is."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import progress
from tracegen.cli.choosing import base_of, choosing_options
from tracegen.cli.common import check_ending, console, say
from tracegen.cli.counts import COUNT
from tracegen.cli.replaying import limit_of, memory_options
from tracegen.cli.sections import Sectioned

if TYPE_CHECKING:
    from tracegen.analysis.solve.problem import Problem
    from tracegen.analysis.solve.search import Answer
    from tracegen.costs import Costs
    from tracegen.memory import Limit
    from tracegen.timeline import Timeline

PLACEMENTS = ("loop", "v", "bidirectional")
OBJECTIVES = ("makespan", "span", "steady")


@click.command("solve", cls=Sectioned)
@click.option("-p", "--ranks", type=COUNT, default=4, show_default=True, metavar="P")
@click.option("-m", "--microbatches", type=COUNT, metavar="M", help="2p unless given.")
@click.option("-v", "--stages-per-rank", type=COUNT, metavar="V", help="1 for a loop, else 2.")
@click.option("--placement", type=click.Choice(PLACEMENTS), default="loop", show_default=True)
@click.option("--objective", type=click.Choice(OBJECTIVES), default="makespan", show_default=True)
@click.option("--full-backward", is_flag=True, help="B in one piece: I and W are not to be split.")
@choosing_options
@memory_options
@click.option("--no-solver", is_flag=True, help="The heuristics alone, even with OR-tools there.")
@click.option(
    "--effort", type=click.FloatRange(0), metavar="N", help="Of the solver; 15 unless given."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(0),
    metavar="S",
    help="Seconds for the solver, in place of --effort; answers then depend on the machine.",
)
@click.option("-o", "--output", metavar="FILE", help="Write its trace; - is stdout.")
@click.option("--save-order", metavar="CSV", help="Write the order as PyTorch's schedule CSV.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Neither tiling nor figures nor messages.")
def command(
    output: str | None, save_order: str | None, as_json: bool, quiet: bool, **options: Any
) -> None:
    r"""The best order of F, I and W for these sizes, with a lower bound that proves how good.

    \b
        tracegen solve -p 4 -m 6 --memory-limit 4
        tracegen solve -p 8 -m 32 --f 14 --i 13 --w 11 --alpha 1 --objective span
        tracegen solve -p 4 -m 8 --placement v --memory-limit 3 -o best.json --save-order best.csv
    \b
    makespan is the end of the last action, span the longest of the ranks' spans, steady what each
    of many steps takes in a row. Costs and the memory limit are those of one model, in
    1F1B stages. OR-tools (pip install 'tracegen-pp[solve]') proves or betters small orders.
    """
    if as_json and output == "-":
        raise click.UsageError("--json and -o - both want stdout; give -o a file or leave one out")
    if save_order is not None:
        check_ending(save_order, "--save-order", ".csv")
    problem, costs, limit = _asked(options)
    answer = _answer(problem, options)
    line = _line(answer, costs, limit)
    _write(line, output, save_order, quiet)
    if as_json:
        click.echo(json.dumps(report(answer, problem, line), allow_nan=False))
    elif not quiet:
        _print(answer, problem, line, to_stderr=output == "-")


def _asked(options: dict[str, Any]) -> tuple[Problem, Costs, Limit | None]:
    """The question, the costs of its stages and the limit in their unit."""
    from tracegen import memory
    from tracegen.analysis.solve.named import PLACES, STAGES_PER_RANK
    from tracegen.analysis.solve.problem import Objective, problem_of

    p, name = options["ranks"], options["placement"]
    placement = PLACES[name](p, options["stages_per_rank"] or STAGES_PER_RANK[name])
    m = options["microbatches"] or 2 * p
    source = base_of(options, p).source(p)
    costs = source.costs(placement)
    limit = None
    if (given := limit_of(options)) is not None:
        limit = memory.limit(*given, costs)
        if not memory.counts_bytes(costs):
            size = limit.size / source.unit(placement)
            limit = limit._replace(size=size, text=f"{size:g}")
    objective, split = Objective(options["objective"]), not options["full_backward"]
    return problem_of(placement, m, costs, objective, limit, split=split), costs, limit


def _answer(problem: Problem, options: dict[str, Any]) -> Answer:
    from tracegen.analysis.solve.exact import Effort
    from tracegen.analysis.solve.search import best_order

    effort, seconds = options["effort"], options["time_limit"]
    if effort is not None and seconds is not None:
        raise click.UsageError("--effort and --time-limit both bound the solver; give one of them")
    if effort != effort or seconds != seconds:  # it is neither in the range nor out of it
        raise click.UsageError("nan bounds no solver; give a number, 0 or more")
    if seconds is not None:
        asked = Effort(work=None, seconds=seconds)
    else:
        asked = Effort() if effort is None else Effort(work=effort)
    with progress.at("looking for the best order"):
        return best_order(problem, asked, use_solver=False if options["no_solver"] else None)


def _line(answer: Answer, costs: Costs, limit: Limit | None) -> Timeline:
    from tracegen.engine import replay
    from tracegen.memory import CONVENTIONS

    line = replay(answer.program, costs)
    if limit is None:
        return line
    at = next(name for name, convention in CONVENTIONS.items() if convention == limit.at)
    return replace(line, config=line.config | {"memory_limit": [limit.text, at]})


def _write(line: Timeline, output: str | None, save_order: str | None, quiet: bool) -> None:
    if save_order is not None:
        from tracegen import torch_csv
        from tracegen.files import write_text

        write_text(save_order, [torch_csv.write(line.program)])
        say(f"wrote {save_order}", quiet)
    if output is not None:
        from tracegen.emit import write

        write(line, output)
        if output != "-":
            say(f"wrote {output}", quiet)


def report(answer: Answer, problem: Problem, line: Timeline) -> dict[str, Any]:
    """What was found, as plain data; times in us."""
    from tracegen import metrics

    return {
        **metrics.summary(line),
        "placement": problem.placement.name,
        "objective": problem.objective.value,
        "value_us": metrics.us(answer.value_ns),
        "bound_us": metrics.us(answer.bound_ns),
        "analytic_bound_us": metrics.us(answer.analytic_ns),
        "gap": answer.gap,
        "proven_best": answer.is_best,
        "source": answer.source,
        "asked_solver": answer.solver,
        "named": [
            {
                "schedule": one.schedule,
                "value_us": None if one.value is None else metrics.us(one.value),
                "fits": one.fits,
            }
            for one in answer.named
        ],
    }


def _print(answer: Answer, problem: Problem, line: Timeline, to_stderr: bool) -> None:
    from tracegen import view

    out = console(stderr=to_stderr)
    out.print(view.heading(line))
    out.print(view.Tiling(line))
    for figure in view.figures(line, out.width):
        out.print(figure)
    for text in described(answer, problem):
        out.print(text)


def described(answer: Answer, problem: Problem) -> list[str]:
    """What was found, in lines for people."""
    from tracegen.analysis.solve.exact import is_installed
    from tracegen.view import duration

    found = f"{problem.objective}: {duration(answer.value_ns)}, by {answer.source}"
    if answer.is_best:
        lines = [f"{found}; no order is better"]
    else:
        bound = f"no order is better than {duration(answer.bound_ns)}, a gap of {answer.gap:.2%}"
        lines = [found, bound]
        if answer.solver:
            lines.append("more --effort or --time-limit may close the gap")
        elif not is_installed():
            lines.append(
                "pip install 'tracegen-pp[solve]' adds an exact solver, which may find a better "
                "order or prove this one"
            )
    kept = [one for one in answer.named if one.fits and one.value is not None]
    if kept:
        best = min(kept, key=lambda one: (one.value or 0, one.was_split))
        more = (best.value or 0) / answer.value_ns - 1 if answer.value_ns else 0.0
        than = f"{more:.2%} longer" if more else "as good"
        lines.append(f"best named schedule: {best}, {duration(best.value or 0)} ({than})")
    return lines
