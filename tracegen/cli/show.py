"""`tracegen show`: the tiling in the terminal."""

from __future__ import annotations

from typing import Any

import click

from tracegen.cli.common import console, cost_options, size_options, timeline_of


@click.command("show")
@click.argument("schedule_or_trace")
@size_options
@cost_options
def command(schedule_or_trace: str, **options: Any) -> None:
    """Draw the tiling of a schedule or a trace in the terminal.

    Time runs across, scaled to the terminal's width; each rank is a line.
    """
    from tracegen import view

    line = timeline_of(schedule_or_trace, options)
    out = console()
    out.print(view.heading(line))
    out.print(view.Tiling(line))
