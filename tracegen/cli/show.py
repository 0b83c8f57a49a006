"""`tracegen show`: the tiling in the terminal, or as a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import progress
from tracegen.cli.common import (
    check_ending,
    console,
    cost_options,
    not_itself,
    replay_options,
    say,
    size_options,
    timeline_of,
)
from tracegen.cli.sections import Sectioned

if TYPE_CHECKING:
    from tracegen.timeline import Timeline


@click.command("show", cls=Sectioned)
@click.argument("schedule_or_trace")
@size_options
@cost_options
@replay_options
@click.option("--svg", metavar="FILE", help="Write it as SVG, for papers and pages; - is stdout.")
@click.option("--html", metavar="FILE", help="Write it as a page that zooms; - is stdout.")
@click.option(
    "--theme",
    type=click.Choice(["paper", "dark"]),
    help="Of a picture: paper unless given; a page follows its reader's setting.",
)
@click.option("--arrows", is_flag=True, help="Draw every hand-over between ranks in the picture.")
@click.option("--memory", is_flag=True, help="Draw each rank's activations under its tiles.")
@click.option("--legend/--no-legend", default=True, help="Heading and legend of the picture.")
@click.option("--width", type=click.IntRange(200, 20_000), metavar="PX", help="Of the SVG.")
def command(
    schedule_or_trace: str,
    svg: str | None,
    html: str | None,
    theme: str | None,
    arrows: bool,
    memory: bool,
    legend: bool,
    width: int | None,
    **options: Any,
) -> None:
    r"""Draw the tiling of a schedule or a trace: in the terminal, or to a file.

    Time runs across; each rank is a line. In the terminal it is scaled to the width.

    \b
        tracegen show dualpipe -p 8 -m 20
        tracegen show dualpipe -p 8 -m 20 --svg dualpipe.svg
        tracegen show trace.json --html trace.html --arrows --memory
        tracegen run --schedule zbv --quiet -o - | tracegen show -
    """
    look = {"theme": theme, "arrows": arrows, "memory": memory, "legend": legend}
    if svg is None and html is None:
        given = [f"--{name}" for name in ("theme", "arrows", "memory") if look[name]]
        given += [] if legend else ["--no-legend"]
        given += [] if width is None else ["--width"]
        if given:
            raise click.UsageError(f"{given[0]} is about a picture; add --svg FILE or --html FILE")
    if width is not None and svg is None:
        raise click.UsageError("--width is about an SVG; a page takes its window's")
    if svg == html == "-":
        raise click.UsageError("--svg - and --html - both want stdout; give one of them a file")
    _check_target(schedule_or_trace, svg, ".svg")
    _check_target(schedule_or_trace, html, ".html")
    with progress.at(f"reading {schedule_or_trace}"):
        line = timeline_of(schedule_or_trace, options)
    if line.found is not None:
        from tracegen.readers.from_rows import with_kernels

        line = with_kernels(line)
    if svg is not None:
        _svg(line, svg, width, look)
    if html is not None:
        _html(line, html, look)
    if svg is None and html is None:
        _print(line)


def _check_target(source: str, target: str | None, ending: str) -> None:
    """Refuse to write over what is read, or what the name says is another format."""
    if target is None:
        return
    not_itself(source, target)
    check_ending(target, ending.replace(".", "--"), ending)


def _svg(line: Timeline, target: str, width: int | None, look: dict[str, Any]) -> None:
    from tracegen.ui import svg

    svg.write(line, target, svg.Look(**look | {"theme": look["theme"] or "paper"}, width=width))
    if target != "-":
        say(f"wrote {target}")


def _html(line: Timeline, target: str, look: dict[str, Any]) -> None:
    from tracegen.ui import html

    html.write(line, target, html.Look(**look))
    if target != "-":
        say(f"wrote {target}")


def _print(line: Timeline) -> None:
    from tracegen import view

    out = console()
    out.print(view.heading(line))
    out.print(view.Tiling(line))
