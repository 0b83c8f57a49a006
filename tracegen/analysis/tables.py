"""Comparisons and sweeps -> the terminal, as rich renderables, and as CSV, JSON or Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from tracegen.analysis.compare import KEYS, Comparison, same
from tracegen.analysis.grid import Axis
from tracegen.analysis.measure import Figures, Impossible
from tracegen.analysis.sweep import Row
from tracegen.errors import FileError, ToolMissing
from tracegen.files import opened, write_text
from tracegen.metrics import SCHEMA_VERSION

GIB = 2**30
FORMATS = (".csv", ".json", ".parquet")

# figure -> its column's two lines and how a value is written
COLUMNS = {
    "makespan_us": ("makespan", "ms"),
    "bubble_ratio": ("bubble", "ratio"),
    "bubble_overhead": ("over-", "head"),
    "span_rate": ("span", "rate"),
    "peak_at_input": ("peak,", "input"),
    "peak_at_weight": ("peak,", "weight"),
    "weights": ("weights", ""),
    "held_at_weight": ("all", "held"),
    "transfers": ("trans-", "fers"),
    "exposed_us": ("exposed", "ms"),
}
SHARES = ("bubble_ratio", "bubble_overhead", "span_rate")
TIMES = ("makespan_us", "exposed_us")
# What is left out first where there is no room.
LEAST_MISSED = (
    "span_rate",
    "peak_at_input",
    "transfers",
    "exposed_us",
    "weights",
    "bubble_overhead",
    "bubble_ratio",
    "peak_at_weight",
    "held_at_weight",
)
HELD = ("peak_at_input", "peak_at_weight", "weights", "held_at_weight")


def value(figure: str, number: Any, in_bytes: object) -> str:
    """A figure as people read it."""
    if number is None:
        return ""
    if figure in TIMES:
        return f"{number / 1000:.3f}"
    if figure in SHARES:
        return f"{number:.2%}"
    if figure in HELD:
        return f"{number / GIB:.2f}" if in_bytes else f"{number:.2f}".removesuffix(".00")
    return f"{number:g}" if isinstance(number, float) else str(number)


def table(found: Comparison, in_bytes: bool, width: int, by: str | None) -> Table:
    """The rows; the best of each figure marked with *, unless all are the same.

    Args:
        found: the rows.
        in_bytes: whether memory is in bytes, not in 1F1B stages.
        width: in columns of the terminal; figures that do not fit are left out, and named.
        by: what the rows are sorted by, a key of KEYS; that figure stays.
    """
    best = {name: found.best(name) for name in COLUMNS}

    def marked(row: Figures, name: str) -> str:
        number, mark = getattr(row, name), best[name]
        is_best = mark is not None and number is not None and same(number, mark)
        counted = in_bytes and (name != "weights" or row.held_at_weight is not None)
        return "*" * is_best + value(name, number, counted)

    heads = {"schedule": [row.schedule for row in found.rows]}
    heads["v"] = [str(row.v) for row in found.rows]
    figures = {name: [marked(row, name) for row in found.rows] for name in COLUMNS}
    return _drawn(heads, figures, width, by)


def sweep_table(
    rows: Sequence[Row], axes: Sequence[Axis], in_bytes: bool, width: int, by: str | None
) -> Table:
    """The rows of a sweep, with a column for all that was swept; see `table`."""
    extra = [axis.name for axis in axes if axis.name not in ("p", "m", "v")]
    heads = {"schedule": [str(row["schedule"]) for row in rows]}
    heads |= {name: [f"{row[name]:g}" for row in rows] for name in ("p", "m", "v", *extra)}
    figures = {
        name: [
            value(name, row[name], in_bytes and (name != "weights" or row["held_at_weight"]))
            for row in rows
        ]
        for name in COLUMNS
    }
    return _drawn(heads, figures, width, by)


def _drawn(
    heads: dict[str, list[str]], figures: dict[str, list[str]], width: int, by: str | None
) -> Table:
    """Columns as wide as they need to be; which figures there is no room for stands below."""
    titles = {name: ("", name) for name in heads}
    titles |= {name: COLUMNS[name] for name in figures}
    columns = heads | {name: cells for name, cells in figures.items() if any(cells)}
    wide = {name: 1 + max(map(len, [*titles[name], *cells])) for name, cells in columns.items()}
    left_out = []
    for name in LEAST_MISSED:
        droppable = name in columns and (by is None or name != KEYS[by])
        if droppable and sum(wide.values()) - 1 > width:
            del columns[name], wide[name]
            left_out.append(" ".join(titles[name]).replace("- ", "").replace(",", "").rstrip())
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    if left_out:
        drawn.caption = f"no room for: {', '.join(left_out)}"
        drawn.caption_style, drawn.caption_justify = "", "left"
    for name in columns:
        side: Literal["left", "right"] = "left" if name == "schedule" else "right"
        drawn.add_column("\n".join(titles[name]), justify=side, no_wrap=True)
    for cells in zip(*columns.values(), strict=True):
        drawn.add_row(*(Text(cell, "bold" if cell.startswith("*") else "") for cell in cells))
    return drawn


def reasons(found: Sequence[Figures | Impossible]) -> Iterator[str]:
    """A line for each schedule some of whose points are not possible, with the first reason."""
    counts: dict[str, list[Impossible]] = {}
    for row in found:
        if isinstance(row, Impossible):
            counts.setdefault(row.size.schedule, []).append(row)
    for name, rows in counts.items():
        size = rows[0].size
        at = f"p={size.p} m={size.m}" + (f" v={size.v}" if size.v else "")
        more = f", and {len(rows) - 1} more" if len(rows) > 1 else ""
        yield f"not possible: {name} at {at}: {rows[0].reason}{more}"


def impossible(rows: Sequence[Impossible]) -> Table:
    """Who cannot, and why."""
    drawn = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    for row in rows:
        drawn.add_row(row.size.schedule, Text(row.reason))
    return drawn


def comparison_json(found: Comparison, request: dict[str, Any], by: str) -> dict[str, Any]:
    """A comparison as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        **request,
        "sorted_by": by,
        "rows": [row.as_dict() for row in found.rows],
        "impossible": [
            {"schedule": row.size.schedule, "reason": row.reason} for row in found.impossible
        ],
    }


def write(rows: Sequence[Row], target: str) -> None:
    """Write a sweep's rows to a .csv, .json or .parquet file; CSV to stdout for "-".

    Raises:
        FileError: if the name has another ending or the file cannot be written.
        ToolMissing: for Parquet without pyarrow.
    """
    if target == "-" or target.endswith(".csv"):
        write_text(target, [_csv(rows)])
    elif target.endswith(".json"):
        data = {"schema_version": SCHEMA_VERSION, "rows": list(rows)}
        write_text(target, [json.dumps(data, allow_nan=False), "\n"])
    elif target.endswith(".parquet"):
        _parquet(rows, target)
    else:
        raise FileError(f"{target}: a sweep's file ends in {', '.join(FORMATS)}")


def check_target(target: str) -> None:
    """Raise what `write` would raise for the name alone, before the work is done."""
    if target != "-" and not target.endswith(FORMATS):
        raise FileError(f"{target}: a sweep's file ends in {', '.join(FORMATS)}")
    if target.endswith(".parquet"):
        _pyarrow(target)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _pyarrow(target: str) -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise ToolMissing(
            f"{target}: Parquet needs pyarrow; pip install pyarrow, or write .csv or .json"
        ) from None


def _parquet(rows: Sequence[Row], target: str) -> None:
    pyarrow, parquet = _pyarrow(target)
    with opened(Path(target)) as file:
        parquet.write_table(pyarrow.Table.from_pylist(list(rows)), file)
