"""`tracegen stats`: the usual figures of a trace, as Perfetto's trace processor sees it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tracegen.cli.query import cell_text, check_trace, echo_json, layout, processor_option

if TYPE_CHECKING:
    from tracegen.ui.query import Cell, Stats, Table


@click.command("stats")
@click.argument("trace")
@click.option(
    "--waits",
    "num_waits",
    type=click.IntRange(min=0),
    default=10,
    metavar="N",
    help="How many waits to list; 10.",
)
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON, times in nanoseconds.")
@processor_option
def command(trace: str, num_waits: int, as_json: bool, processor: str | None) -> None:
    """Bubble, busy time per rank and longest waits of TRACE, as Perfetto sees it."""
    from tracegen.ui.query import stats

    check_trace(trace)
    figures = stats(trace, processor, num_waits)
    if as_json:
        bubble = figures.bubble.records()
        echo_json(
            {
                "bubble": bubble[0] if bubble else None,
                "ranks": figures.ranks.records(),
                "waits": figures.waits.records(),
                "tracks": figures.tracks.records(),
                "import_problems": figures.problems.records(),
            }
        )
    else:
        click.echo(describe(figures))
    for row in figures.problems.rows:
        name, times = map(cell_text, row)
        click.echo(f"warning: Perfetto dropped part of the trace: {name}, {times} times", err=True)


def describe(figures: "Stats") -> str:
    """The figures for people; times in microseconds."""
    if not figures.bubble.rows:
        shown = ("group_name", "track_name", "slices", "busy", "first_start", "last_end")
        return "no tiles; every track with slices, in us\n\n" + _in_us(figures.tracks, shown)
    bubble = figures.bubble.records()[0]
    ratio, overhead, span_rate = (_percent(bubble[n]) for n in ("ratio", "overhead", "span_rate"))
    makespan = _us(bubble["makespan"])
    parts = [
        f"{len(figures.ranks.rows)} ranks, makespan {makespan} us",
        f"bubble ratio {ratio}, overhead {overhead}, span rate {span_rate}",
        "",
        "per rank, in us",
        _in_us(figures.ranks, ("rank", "tiles", "busy", "idle", "bubble", "span")),
    ]
    if figures.waits.rows:
        waits = ("rank", "wait", "wait_start", "tile", "waited_for")
        parts += ["", "longest waits, in us", _in_us(figures.waits, waits)]
    return "\n".join(parts)


TIMES = {"busy", "idle", "span", "wait", "wait_start", "first_start", "last_end"}


def _in_us(table: "Table", shown: Sequence[str]) -> str:
    rows = []
    for record in table.records():
        cells: list[Cell] = []
        for name in shown:
            cell = record[name]
            if name in TIMES:
                cells.append(_us(cell))
            elif name == "bubble":
                cells.append(_percent(cell))
            else:
                cells.append("" if cell is None else cell)
        rows.append(cells)
    return layout([name.replace("_", " ") for name in shown], rows)


def _us(cell: "Cell") -> str:
    """Nanoseconds as microseconds, exactly."""
    assert isinstance(cell, int)
    return f"{'-' if cell < 0 else ''}{abs(cell) // 1000}.{abs(cell) % 1000:03d}"


def _percent(cell: "Cell") -> str:
    return f"{100 * cell:.1f} %" if isinstance(cell, (int, float)) else ""
