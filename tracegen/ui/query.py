"""Questions to a trace, answered by Perfetto's own trace processor: SQL, and the usual figures.

The views in views.sql are there in every query; `views()` is their text, for the Perfetto UI.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tracegen.errors import QueryError

Cell = int | float | str | bytes | None

IMPORT_PROBLEMS = """
    SELECT name, value FROM stats
    WHERE value > 0 AND (
        severity IN ('error', 'data_loss')
        OR name IN ('flow_end_without_start', 'flow_step_without_start')
    )
    ORDER BY name
"""
"""What Perfetto dropped. A lost arrow is only 'info' to it, so those two are asked for by name."""


@dataclass(frozen=True)
class Table:
    """The rows that a query gave, with the names of its columns."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def records(self) -> list[dict[str, Cell]]:
        """The rows as dictionaries; of columns with the same name the last is kept."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True)
class Stats:
    """The usual figures of a trace; `bubble`, `ranks` and `waits` are empty without tiles."""

    bubble: Table
    ranks: Table
    waits: Table
    tracks: Table
    problems: Table


@cache
def views() -> str:
    """The SQL of the views: tracegen_tile, _wait, _rank, _bubble and _track."""
    return Path(__file__).with_name("views.sql").read_text(encoding="utf-8")


def query(trace: str | Path, sql: str, processor: str | None = None) -> Table:
    """The rows that the last statement of `sql` gives for a trace.

    Args:
        trace: any trace that Perfetto reads.
        sql: PerfettoSQL; the views of `views()` are there.
        processor: see `tracegen.ui.trace_processor.open_trace`.

    Raises:
        FileError: the trace cannot be read.
        QueryError: the SQL is wrong.
        ToolMissing: there is no trace processor.
    """
    from tracegen.ui.trace_processor import open_trace

    with open_trace(trace, processor) as opened:
        ask(opened, views())
        return ask(opened, sql)


def stats(trace: str | Path, processor: str | None = None, num_waits: int = 10) -> Stats:
    """Bubble, ranks, longest waits and tracks of a trace, and what Perfetto could not import.

    Raises:
        FileError: the trace cannot be read.
        ToolMissing: there is no trace processor.
    """
    from tracegen.ui.trace_processor import open_trace

    with open_trace(trace, processor) as opened:
        ask(opened, views())
        return Stats(
            bubble=ask(opened, "SELECT * FROM tracegen_bubble"),
            ranks=ask(opened, "SELECT * FROM tracegen_rank"),
            waits=ask(opened, f"SELECT * FROM tracegen_wait LIMIT {int(num_waits)}"),
            tracks=ask(opened, "SELECT * FROM tracegen_track"),
            problems=ask(opened, IMPORT_PROBLEMS),
        )


def ask(opened: Any, sql: str) -> Table:
    """The rows that an open trace processor gives.

    Raises:
        QueryError: the SQL is wrong.
    """
    from perfetto.trace_processor import TraceProcessorException  # type: ignore[import-untyped]

    try:
        result = opened.query(sql)
    except TraceProcessorException as error:
        raise QueryError(f"SQL: {_reason(str(error))}") from error
    except UnicodeError:
        raise QueryError("SQL: it is not UTF-8") from None
    width = len(result.column_names)
    cells = list(result.cells)
    rows = [tuple(cells[start : start + width]) for start in range(0, len(cells), width or 1)]
    return Table(tuple(result.column_names), tuple(rows))


def _reason(message: str) -> str:
    """What is wrong and where, from a message that ends with it after a picture of the place."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    place = re.findall(r'File "stdin" line (\d+) col (\d+)', message)
    where = f"line {place[-1][0]}, column {place[-1][1]}: " if place else ""
    return where + (lines[-1] if lines else "refused without a reason")
