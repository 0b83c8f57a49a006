"""`tracegen query`: any question to a trace, in SQL, answered by Perfetto's trace processor."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tracegen.cli.common import TRACES
from tracegen.errors import FileError
from tracegen.files import with_endings

if TYPE_CHECKING:
    from tracegen.ui.query import Cell, Table

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
    tracegen_bubble and tracegen_track; their times are in nanoseconds. --views prints them, to
    paste into the Perfetto UI.
    """
    from tracegen.ui.query import query, views

    if show_views:
        click.echo(views(), nl=False)
        return
    if trace is None or sql is None:
        raise click.UsageError("give a TRACE and the SQL, or --views")
    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two forms of one answer; choose one")
    check_trace(trace)
    table = query(trace, sys.stdin.read() if sql == "-" else sql, processor)
    if as_json:
        echo_json({"columns": table.columns, "rows": table.rows})
    elif as_csv:
        _echo_csv(table)
    else:
        click.echo(layout(table.columns, table.rows))


def check_trace(name: str) -> None:
    """Refuse what is no file, with what would be one.

    Raises:
        FileError: saying where traces come from.
    """
    if os.path.isdir(name):
        what = "it is a folder; `tracegen import` makes a trace of the profiles in it"
        raise FileError(f"{name}: {what}")
    if not os.path.exists(name):
        raise no_such(name)


def no_such(name: str) -> FileError:
    """What is wrong with a trace's name that no file has, and what would be right."""
    files = with_endings(name, TRACES)
    whole = f"give the whole name: {files}"
    trace = "expected a trace: `tracegen run -s SCHEDULE` writes one"
    return FileError(f"{name}: no such file; {whole if files else trace}")


def layout(columns: Sequence[str], rows: Sequence[Sequence["Cell"]]) -> str:
    """Columns of text: what is a number on every row to the right, the rest to the left."""
    texts = [list(columns), *([cell_text(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right = [all(_is_number(row[i]) for row in texts[1:]) for i in range(len(columns))]
    lines = []
    for row in texts:
        cells = zip(row, widths, right, strict=True)
        line = "  ".join(c.rjust(width) if r else c.ljust(width) for c, width, r in cells)
        lines.append(line.rstrip())
    return "\n".join(lines)


def cell_text(cell: "Cell") -> str:
    """A cell as a table shows it."""
    if cell is None:
        return "NULL"
    return f"<{len(cell)} bytes>" if isinstance(cell, bytes) else str(cell)


def _is_number(text: str) -> bool:
    return text.removesuffix(" %").removeprefix("-").replace(".", "", 1).isdigit()


def echo_json(answer: dict[str, object]) -> None:
    """An answer as JSON on standard output."""
    import json

    document = {"schema_version": JSON_SCHEMA_VERSION, **answer}
    click.echo(json.dumps(document, indent=2, default=lambda data: data.hex()))


def _echo_csv(table: "Table") -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
