"""`tracegen query` and `tracegen stats`: what Perfetto's trace processor knows about a trace."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracegen.ui.query import Cell, Stats, Table

JSON_SCHEMA_VERSION = 1

processor_option = click.option(
    "--trace-processor",
    "processor",
    metavar="PATH|HOST:PORT",
    help="A native trace_processor_shell, or one that runs and holds no trace yet.",
)


@click.command("query")
@click.argument("trace", required=False)
@click.argument("sql", required=False)
@click.option("--json", "as_json", is_flag=True, help="Rows as JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Rows as CSV.")
@click.option("--views", "show_views", is_flag=True, help="Print the SQL of the views and stop.")
@processor_option
def command(
    trace: str | None,
    sql: str | None,
    as_json: bool,
    as_csv: bool,
    show_views: bool,
    processor: str | None,
) -> None:
    """Ask TRACE a question in Perfetto's SQL; `-` reads the SQL from standard input.

    Views that are always there: tracegen_tile, tracegen_rank, tracegen_wait (longest first),
    tracegen_bubble and tracegen_track. --views prints them, to paste into the Perfetto UI.
    """
    from tracegen.ui.query import query, views

    if show_views:
        click.echo(views(), nl=False)
        return
    if trace is None or sql is None:
        raise click.UsageError("give a TRACE and the SQL, or --views")
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two forms of one answer; choose one")
    table = query(trace, sys.stdin.read() if sql == "-" else sql, processor)
    if as_json:
        _echo_json({"columns": table.columns, "rows": table.rows})
    elif as_csv:
        _echo_csv(table)
    else:
        click.echo(layout(table.columns, table.rows))


@click.command("stats")
@click.argument("trace")
@click.option("--waits", "num_waits", default=10, show_default=True, help="How many waits to list.")
@click.option("--json", "as_json", is_flag=True, help="The figures as JSON, times in nanoseconds.")
@processor_option
def stats_command(trace: str, num_waits: int, as_json: bool, processor: str | None) -> None:
    """Bubble, busy time per rank and longest waits of TRACE, as Perfetto sees it."""
    from tracegen.ui.query import stats

    figures = stats(trace, processor, num_waits)
    if as_json:
        bubble = figures.bubble.records()
        _echo_json(
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
    for name, value in figures.problems.rows:
        click.echo(f"warning: Perfetto could not import everything: {name} {value}", err=True)


def describe(figures: "Stats") -> str:
    """The figures for people; times in microseconds."""
    if not figures.bubble.rows:
        shown = ("group_name", "track_name", "slices", "busy", "first_start", "last_end")
        return "no tiles; every track with slices, in us\n\n" + _in_us(figures.tracks, shown)
    bubble = figures.bubble.records()[0]
    ratio, overhead, span_rate = (_percent(bubble[n]) for n in ("ratio", "overhead", "span_rate"))
    parts = [
        f"{bubble['ranks']} ranks, makespan {_us(bubble['makespan'])} us",
        f"bubble ratio {ratio}, overhead {overhead}, span rate {span_rate}",
        "",
        "per rank, in us",
        _in_us(figures.ranks, ("rank", "tiles", "busy", "idle", "bubble", "span")),
    ]
    if figures.waits.rows:
        shown = ("rank", "wait", "wait_start", "tile", "waited_for")
        parts += ["", "longest waits, in us", _in_us(figures.waits, shown)]
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


def layout(columns: Sequence[str], rows: Sequence[Sequence["Cell"]]) -> str:
    """Columns of text: what is a number on every row to the right, the rest to the left."""
    texts = [list(columns), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [all(_is_number(row[i]) for row in texts[1:]) for i in range(len(columns))]
    lines = []
    for row in texts:
        cells = zip(row, widths, right, strict=True)
        line = "  ".join(c.rjust(width) if r else c.ljust(width) for c, width, r in cells)
        lines.append(line.rstrip())
    return "\n".join(lines)


def _text(cell: "Cell") -> str:
    if cell is None:
        return "NULL"
    return f"<{len(cell)} bytes>" if isinstance(cell, bytes) else str(cell)


def _is_number(text: str) -> bool:
    return text.removesuffix(" %").removeprefix("-").replace(".", "", 1).isdigit()


def _us(cell: "Cell") -> str:
    """Nanoseconds as microseconds, exactly."""
    assert isinstance(cell, int)
    return f"{'-' if cell < 0 else ''}{abs(cell) // 1000}.{abs(cell) % 1000:03d}"


def _percent(cell: "Cell") -> str:
    return f"{100 * cell:.1f} %" if isinstance(cell, (int, float)) else ""


def _echo_json(answer: dict[str, object]) -> None:
    import json

    document = {"schema_version": JSON_SCHEMA_VERSION, **answer}
    click.echo(json.dumps(document, indent=2, default=lambda data: data.hex()))


def _echo_csv(table: "Table") -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
