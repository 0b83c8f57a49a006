"""`--execute` of `tracegen run`: its options, and what it prints beside a replay's figures."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import sections
from tracegen.cli.common import console, say
from tracegen.cli.sections import Command, with_options

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from tracegen.execute.measure import Measurement, Spread
    from tracegen.execute.options import Options
    from tracegen.ir import Program
    from tracegen.timeline import Timeline


MODEL = (
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="cpu unless given."),
    click.option("--layers", type=int, metavar="N", help="Transformer layers; one a stage."),
    click.option("--hidden", type=int, metavar="N", help="Hidden size; 128."),
    click.option("--heads", type=int, metavar="N", help="Attention heads; 4."),
    click.option("--vocab", type=int, metavar="N", help="Vocabulary; 256."),
    click.option("--seq", "sequence", type=int, metavar="N", help="Tokens of a sequence; 128."),
    click.option("--microbatch-size", type=int, metavar="N", help="Sequences in one; 2."),
    click.option(
        "--dtype",
        type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
        help="float32 unless given.",
    ),
    click.option("--split", metavar="N,N,..", help="Layers of each stage; else evenly."),
    click.option(
        "--experts", type=int, metavar="N", help="Experts of each layer; dense unless given."
    ),
    click.option("--model", metavar="FILE.py:FUNCTION", help="Your own stages and example input."),
    click.option("--model-seed", type=int, metavar="N", help="Seed of parameters and data; 0."),
    click.option("--threads", type=int, metavar="N", help="torch threads of each process; 1."),
    click.option("--warmup-steps", type=int, metavar="N", help="Before measuring; 3."),
    click.option("--measure-steps", type=int, metavar="N", help="Steps measured; 10."),
    click.option(
        "--hang-timeout",
        "hang_s",
        type=float,
        metavar="S",
        help="Give up after so long without progress; 10.",
    ),
)

RUN = (
    click.option(
        "--execute",
        is_flag=True,
        help="Run it on real torch stages and measure: the options from here to --no-check.",
    ),
    *MODEL,
    click.option("--share-gpu", is_flag=True, help="All ranks as streams of one process."),
    click.option("--ep", type=int, metavar="N", help="Expert-parallel processes of each rank; 1."),
    click.option(
        "--gate",
        type=click.Choice(["comm", "dag"]),
        help="Wait in the communication operator (the default), or on the host before an action.",
    ),
    click.option("--port", type=int, metavar="N", help="Port of the rendezvous; any free one."),
    click.option(
        "--no-check", is_flag=True, help="Do not compare gradients with the whole model's."
    ),
)
NAMES = (
    *("device", "layers", "hidden", "heads", "vocab", "sequence", "microbatch_size", "dtype"),
    *("split", "experts", "model", "model_seed", "threads", "warmup_steps", "measure_steps"),
    *("hang_s", "share_gpu", "ep", "gate", "port", "no_check"),
)


def execute_options(command: Command) -> Command:
    """--execute and what goes with it."""
    return with_options(sections.EXECUTE, RUN, command)


def model_options(command: Command) -> Command:
    """The model, the device and the measuring alone."""
    return with_options(sections.EXECUTE, MODEL, command)


def take(options: dict[str, Any]) -> dict[str, Any]:
    """What is said of an execution, out of all options."""
    return {name: options.pop(name) for name in NAMES if name in options}


# What an execution shares with a replay; every other option says how to replay.
SHARED = (
    *("schedule", "like", "ranks", "microbatches", "stages_per_rank", "pipes", "forward_only"),
    *("p2p_order", "output", "no_trace", "as_json", "quiet", "execute"),
)


def wanted(options: dict[str, Any]) -> bool:
    """Whether `--execute` was given. Takes its options out of the others."""
    context = click.get_current_context()
    asked = options.pop("execute")
    options["_execute"] = take(options)
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source is not click.core.ParameterSource.COMMANDLINE or name in SHARED:
            continue
        flag = max(parameter.opts, key=len)
        if name in NAMES and not asked:
            raise click.UsageError(f"{flag} goes with --execute")
        if name not in NAMES and asked:
            raise click.UsageError(f"{flag} says how to replay; leave it or --execute out")
    return bool(asked)


def options_of(given: dict[str, Any]) -> Options:
    """The execution that the options ask for.

    Raises:
        ToolMissing: if torch is not installed.
        ExecuteError: if they contradict each other.
    """
    from importlib.util import find_spec

    from tracegen.errors import ToolMissing
    from tracegen.execute.options import Options

    if find_spec("torch") is None:
        raise ToolMissing("executing needs torch: pip install 'tracegen-pp[execute]'")

    said = {name: value for name, value in given.items() if value is not None}
    if "model_seed" in said:
        said["seed"] = said.pop("model_seed")
    said["check"] = not said.pop("no_check", False)
    if "split" in said:
        try:
            said["split"] = tuple(int(part) for part in said["split"].split(","))
        except ValueError:
            raise click.UsageError(
                f"--split {said['split']}: expected the layers of each stage, such as 2,2,1"
            ) from None
    return Options(**said)


def execute(
    program: Program, options: dict[str, Any], target: str | None, as_json: bool, quiet: bool
) -> None:
    """Execute the program, write its trace, print what was measured and what was predicted."""
    lowered, asked = _lowered(program, options["p2p_order"]), options_of(options["_execute"])
    if target is not None and os.environ.get("RANK", "0") == "0":  # torchrun's first writes it
        from tracegen.emit import check_target

        check_target(target)
    found = _measured(lowered, asked, quiet)
    if found is not None:  # None in all of torchrun's processes but the first
        _tell(found, target, as_json, quiet)
    from tracegen.execute import launch

    if launch.under_torchrun():
        launch.leave()


def _tell(found: Measurement, target: str | None, as_json: bool, quiet: bool) -> None:
    """Write the trace, and say what was measured."""
    if target is not None:
        from tracegen.emit import write

        write(found.line, target)
        if target != "-":
            say(f"wrote {target}", quiet)
    if as_json:
        click.echo(json.dumps(_report(found, target), allow_nan=False))
    elif not quiet:
        from tracegen import view

        out = console(stderr=target == "-")
        out.print(view.heading(found.line))
        out.print(view.Tiling(found.line))
        for figure in view.figures(found.line, out.width):
            out.print(figure)
        for figure in figures(found):
            out.print(figure)


def _lowered(program: Program, order: str | None) -> Program:
    """The program with SEND and RECV: its own, or in the order asked for, or in torch's."""
    from tracegen.passes import communication, messages

    if order is None and messages.has_messages(program):
        return messages.check_messages(program)
    lower = {"naive": messages.add_naive, "fused": messages.add_fused}
    return lower.get(order or "torch", communication.add_communication)(program)


def _measured(program: Program, options: Options, quiet: bool) -> Measurement | None:
    from tracegen.execute import launch
    from tracegen.execute.measure import measured

    task = launch.Task("share" if options.share_gpu else "run", program, options)
    if launch.under_torchrun() and not options.share_gpu:
        from tracegen.execute.worker import run_under_torchrun

        outcome = run_under_torchrun(task)
    else:
        say(f"executing on {options.device}, processes: {task.processes}", quiet)
        warn_of_turns(task.processes, options, quiet)
        outcome = launch.run(task)
    if outcome is None:
        return None
    if outcome.verdict is not None:
        outcome.verdict.insist()
    return measured(program, outcome)


def warn_of_turns(processes: int, options: Options, quiet: bool) -> None:
    """Say it where there are fewer cores than the processes' threads: prediction knows no turns."""
    from tracegen.analysis.sweep import cores

    threads, have = options.threads, cores()
    if options.device == "cpu" and processes > 1 and processes * threads > have:
        say(
            f"warning: {processes} processes{f' of {threads} threads' * (threads > 1)} take turns "
            f"on {have} core{'s' * (have > 1)}: an action's time has that of others in it",
            quiet,
        )


def _report(found: Measurement, target: str | None) -> dict[str, Any]:
    from tracegen import metrics

    return {
        **metrics.summary(found.line),
        "critical_path": metrics.critical_steps(found.line),
        "executed": found.line.config["executed"],
        "predicted": metrics.summary(found.predicted),
        "ops": [
            {"stage": stage, "op": op, "measured_us": measured, "predicted_us": predicted}
            for stage, op, measured, predicted in ops(found)
        ],
        "trace": target,
    }


def ops(found: Measurement) -> list[tuple[int, str, float, float]]:
    """(stage, op, the traced step's median, the prediction's) in µs, of every op."""
    from tracegen.execute.op_costs import NAMES, OpCosts

    traced, predicted = (
        OpCosts.of_steps(line.program, [(line.start_ns, line.end_ns)])
        for line in (found.line, found.predicted)
    )
    return [
        (stage, NAMES[kind], ns / 1000, predicted.ns[kind, stage] / 1000)
        for (kind, stage), ns in sorted(traced.ns.items(), key=lambda item: item[0][::-1])
    ]


# A share of less says nothing: that long a process may be kept waiting for nothing at all.
TINY_US = 10.0


def _error(measured_us: float, predicted_us: float) -> str:
    """How far off the prediction is: a share of what was measured, of what is tiny the time."""
    if measured_us < TINY_US:
        return f"{predicted_us - measured_us:+.3f} us"
    return f"{predicted_us / measured_us - 1:+.1%}"


def _slowest(spread: Spread) -> str:
    """Which rank made the slowest step slow, if one did."""
    from tracegen.view import duration

    rank, beyond = spread.straggler
    if len(spread.makespans_ns) == 1:
        return ""
    if beyond <= 0:
        return "; in the slowest, no rank computed longer than it mostly does"
    return f"; in the slowest, rank {rank} computed {duration(beyond)} longer than it mostly does"


def figures(found: Measurement) -> Iterator[Text | Table]:
    """What an execution says beyond a replay's figures."""
    from rich.table import Table
    from rich.text import Text

    from tracegen.view import duration

    spread, facts = found.spread, found.line.config["executed"]
    yield Text(
        f"steps            {len(spread.makespans_ns)} measured: p50 {duration(spread.p50_ns)}, "
        f"p95 {duration(spread.p95_ns)}{_slowest(spread)}"
    )
    yield Text(f"measuring        {facts['measuring_share']:.3%} of the step")
    if facts["clock_uncertainty_us"]:
        yield Text(f"clocks           within {facts['clock_uncertainty_us']:.3f} us")
    if found.outcome.verdict is not None:
        yield Text(f"check            {found.outcome.verdict}")
    for broken in found.broken_waits[:3]:
        yield Text(f"warning          {broken}")
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("", "measured", "predicted", "error"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for row in _rows(found.line, found.predicted):
        table.add_row(*row)
    for stage, op, measured, predicted in ops(found):
        table.add_row(
            f"stage {stage} {op}",
            f"{measured / 1000:.3f} ms",
            f"{predicted / 1000:.3f} ms",
            _error(measured, predicted),
        )
    yield table
    if facts["device"] == "cpu":
        yield Text("predicted from what each stage's ops took; no GPU took part")


def _rows(line: Timeline, predicted: Timeline) -> Iterator[tuple[str, ...]]:
    from tracegen.metrics import bubble_ratio
    from tracegen.view import duration

    both = (line.makespan_ns, predicted.makespan_ns)
    yield ("makespan", *map(duration, both), _error_ns(*both))
    ratios = (bubble_ratio(line), bubble_ratio(predicted))
    yield ("bubble ratio", *(f"{ratio:.2%}" for ratio in ratios), "")
    for rank, busy in enumerate(zip(line.busy_ns, predicted.busy_ns, strict=True)):
        yield (f"rank {rank} busy", *map(duration, busy), _error_ns(*busy))


def _error_ns(measured_ns: int, predicted_ns: int) -> str:
    return _error(measured_ns / 1000, predicted_ns / 1000)
