"""`tracegen run`: compile, replay, write the trace, print the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import execute, progress
from tracegen.cli.common import (
    SIZES,
    TRACES,
    console,
    cost_options,
    costs_of,
    program_of,
    refuse,
    replay_options,
    say,
    size_options,
)
from tracegen.cli.replaying import over_limit, replayed, replaying_options, warn_of_idle
from tracegen.cli.sections import Sectioned
from tracegen.errors import DeadlockError

if TYPE_CHECKING:
    from tracegen.costs import Costs
    from tracegen.ir import Program
    from tracegen.readers.request import Request
    from tracegen.timeline import Timeline


@click.command("run", cls=Sectioned, context_settings={"allow_extra_args": True})
@click.option("-s", "--schedule", metavar="NAME|FILE", help="A schedule, or a .py or .csv file.")
@click.option("--like", metavar="TRACE", help="Make the trace of a trace's request again.")
@size_options
@cost_options
@replay_options
@replaying_options
@execute.execute_options
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="SCHEDULE.json unless given; or .json.gz, .pftrace; - is stdout.",
)
@click.option("--no-trace", is_flag=True, help="Figures only; write no trace.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
@click.option("-q", "--quiet", is_flag=True, help="Neither tiling nor figures nor messages.")
def command(
    schedule: str | None,
    like: str | None,
    output: str | None,
    no_trace: bool,
    as_json: bool,
    quiet: bool,
    **options: Any,
) -> None:
    r"""Compile a schedule, replay it, write its trace and print the figures.

    \b
        tracegen run --schedule dualpipev
        tracegen run --schedule interleaved-1f1b -p 8 -m 32 -v 4 --f 900 --b 1900 --alpha 15
        tracegen run --schedule ./mine.py -o - | gzip > mine.json.gz
        tracegen run --schedule dualpipev -p 2 --execute
        torchrun --nproc-per-node 4 -m tracegen run --schedule zbv --execute

    --execute runs it on real torch stages, measures every action and shows the prediction
    beside it. --device cuda, NCCL and --share-gpu have not been run on a GPU yet.
    """
    if as_json and output == "-":
        raise click.UsageError("--json and -o - both want stdout; give -o a file or leave one out")
    if no_trace and output is not None:
        raise click.UsageError("--no-trace and -o contradict each other; leave one out")
    measure = execute.wanted(options)
    with progress.at("compiling"):
        program, costs, request = _request(schedule, like, output, options)
    target = None if no_trace else output or f"{Path(program.name).stem}.json"
    if measure:
        execute.execute(program, options, target, as_json, quiet)
        return
    with progress.at(f"replaying {len(program)} actions"):
        line = replayed(program, costs, options, request, output)
    warn_of_idle(program, costs, options, quiet)
    if target is not None:
        from tracegen.emit import JSON_HOLDS_NS, write

        with progress.writing() as watched:
            write(line, target, watched)
        if target != "-":
            say(f"wrote {target}", quiet)
        if line.makespan_ns >= JSON_HOLDS_NS and not target.endswith(".pftrace"):
            say("warning: Perfetto reads times past 2**42 us from JSON inexactly; write .pftrace")
    for problem in over_limit(line):
        say(f"over the memory limit: {problem}", quiet)
    if as_json:
        click.echo(json.dumps(_report(line, target, options["explain"]), allow_nan=False))
    elif not quiet:
        _print(line, options["explain"], to_stderr=target == "-")


def _request(
    schedule: str | None, like: str | None, output: str | None, options: dict[str, Any]
) -> tuple[Program, Costs, Request | None]:
    if extra := click.get_current_context().args:
        if len(extra) > 1 or (schedule or like) is not None:
            raise click.UsageError(
                f"unexpected {' '.join(extra)!r}; one schedule is given as --schedule NAME"
            )
        schedule = extra[0]
    if (schedule is None) == (like is None):
        raise click.UsageError("give either --schedule NAME or --like TRACE")
    if schedule is not None and schedule.endswith(TRACES):
        raise click.UsageError(
            f"{schedule} is a trace; --like {schedule} makes it again, `tracegen show` draws it"
        )
    if schedule is not None:
        try:
            program = program_of(schedule, options)
        except DeadlockError as error:
            if error.program is None or output is None:
                raise
            program = error.program  # its replay will say so again, and show where it hangs
        return program, costs_of(options, program), None
    from tracegen.readers.request import request_of

    assert like is not None
    refuse(SIZES, f"{like} has sizes of its own")
    asked = request_of(Path(like))
    return asked.program, costs_of(options, asked.program, asked.costs), asked


def _report(line: Timeline, target: str | None, explain: bool) -> dict[str, Any]:
    from tracegen import attribution, metrics

    return {
        **metrics.summary(line),
        "critical_path": _critical_path(line),
        **({"idle_parts": attribution.rows(line)} if explain else {}),
        "trace": target,
    }


def _critical_path(line: Timeline) -> list[dict[str, Any]]:
    """The steps that the makespan is the sum of; kernels and what holds a rank, where known."""
    if line.kernels is None and not line.held and not line.collectives:
        from tracegen import metrics

        return metrics.critical_steps(line)
    from tracegen.analysis.explain import Explained
    from tracegen.analysis.told import piece_as_data

    return [piece_as_data(piece) for piece in Explained(line).path()]


def _print(line: Timeline, explain: bool, to_stderr: bool) -> None:
    from tracegen import view

    out = console(stderr=to_stderr)
    out.print(view.heading(line))
    out.print(view.Tiling(line))
    for figure in view.figures(line, out.width):
        out.print(figure)
    if explain:
        from tracegen import view_idle

        view_idle.explain(line, out)
