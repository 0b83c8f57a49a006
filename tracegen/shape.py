"""Rows of a trace and their slices: what a layout is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """What slices of a kind have in common: their category and the names of their arguments.

    An argument whose name ends in `_us` is held in ns and written in µs.
    """

    category: str
    keys: tuple[str, ...]


# start_ns, end_ns, name, shape, the values of its arguments
Slice = tuple[int, int, str, Shape, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a process: a thread of the trace.

    Attributes:
        process: the group of rows that it belongs to.
        name: zero-padded, so that the order of names is that of rows.
        slices: its slices by time, none empty, none across another.
    """

    process: str
    name: str
    slices: Callable[[], Iterator[Slice]]
