"""`tracegen explain`: why a step takes as long as it does, and what would make it shorter."""

from __future__ import annotations

import json
from typing import Any

import click

from tracegen.cli import progress
from tracegen.cli.choosing import model_of, model_options
from tracegen.cli.common import (
    console,
    cost_options,
    is_trace,
    not_itself,
    program_of,
    replay_options,
    say,
    size_options,
    timeline_of,
)
from tracegen.cli.sections import Sectioned


@click.command("explain", cls=Sectioned)
@click.argument("schedule_or_trace")
@size_options
@cost_options
@model_options
@replay_options
@click.option("-o", "--output", metavar="FILE", help="The trace with the critical path drawn in.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=8,
    metavar="N",
    help="How many gaps and changes are shown; 8.",
)
@click.option("--json", "as_json", is_flag=True, help="All of it as one JSON object.")
def command(
    schedule_or_trace: str, output: str | None, top: int, as_json: bool, **options: Any
) -> None:
    r"""Why a schedule or a trace takes as long as it does.

    The critical path, whose pieces add up to the makespan; why each rank stands still and
    what happened meanwhile; and what 1 % off a stage or a rank, or a link twice as fast,
    would buy, exactly. Of a run, its profiles or a trace of them, the times are its own, and
    what lies between them is kept.

    \b
        tracegen explain 1f1b -p 4 -m 8 --alpha 50
        tracegen explain profiles/ -o explained.json
    """
    if as_json and output == "-":
        raise click.UsageError("--json and -o - both want stdout; give -o a file or leave one out")
    not_itself(schedule_or_trace, output or "-")
    from tracegen.analysis import told
    from tracegen.analysis.explain import Explained

    with progress.at(f"reading {schedule_or_trace}"):
        explained = Explained(_line(schedule_or_trace, options))
    with progress.at("asking what would help"):
        path, gains = explained.path(), explained.what_if.gains()
    if output is not None:
        from tracegen.emit import write_layout

        write_layout(told.drawn(explained, path), output)
        if output != "-":
            say(f"wrote {output}")
    if as_json:
        data = told.as_data(explained, path, gains)
        click.echo(json.dumps(data, allow_nan=False))
    elif output != "-":
        _print(explained, path, gains, top)


def _line(name: str, options: dict[str, Any]) -> Any:
    model = model_of(options)
    if model is None:
        return timeline_of(name, options)
    if is_trace(name):
        raise click.UsageError(f"{name} has times of its own; leave the model out")
    from tracegen.cli.common import mode_of
    from tracegen.engine import replay

    program = program_of(name, options)
    return replay(program, model.costs(program.placement), **mode_of(options).given())


def _print(explained: Any, path: Any, gains: Any, top: int) -> None:
    from rich.text import Text

    from tracegen.analysis import told
    from tracegen.view import duration
    from tracegen.view_idle import causes

    out = console()
    for text in told.heading(explained, path):
        out.print(text, soft_wrap=True)
    out.print(told.path_table(path))
    out.print(Text("\nwhy ranks wait", style="bold"))
    for table in causes(explained.line, out.width):
        out.print(table)
    if gaps := list(explained.gaps()):
        out.print(Text("\nthe longest gaps, and what happened meanwhile", style="bold"))
        for text in told.gap_texts(gaps, top):
            out.print(text, soft_wrap=True)
    how = "slack" if explained.what_if.from_slack else "replays"
    out.print(Text(f"\nwhat would help, from {how}", style="bold"))
    out.print(told.gain_table(gains, explained.line.makespan_ns, top))
    idle = sum(gain.saves_ns <= 0 for gain in gains)
    if idle:
        out.print(f"{idle} of {len(gains)} such changes would buy nothing")
    if left := explained.what_if.left_out:
        most = duration(left[0].saves_ns)
        out.print(f"{len(left)} more are not worked out at this size; none buys more than {most}")
