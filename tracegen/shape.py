"""Rows of a trace and their slices: what a layout is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

# The process of the rows of kernels: those of MoE stages, and of data parallelism's.
KERNELS = "kernels"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shape:
    """What slices of a kind have in common.

    An argument whose name ends in `_us` is held in ns and written in µs.

    Attributes:
        category: of all of them.
        keys: the names of the arguments whose values are the slice's own.
        fixed: (name, value) of those that are the same for all.
    """

    category: str
    keys: tuple[str, ...]
    fixed: tuple[tuple[str, Any], ...] = ()


class Series(NamedTuple):
    """A counter: from each `ns` on it has the value beside it.

    Attributes:
        track, key: what the counter is called and what it counts, as `rank 3` and `activations`.
    """

    track: str
    key: str
    ns: list[int]
    values: list[float]

    @property
    def name(self) -> str:
        return f"{self.track} {self.key}".strip()


# start_ns, end_ns, name, shape, the values of its arguments
Slice = tuple[int, int, str, Shape, tuple[Any, ...]]


class Row(NamedTuple):
    """One row of a process: a thread of the trace.

    Attributes:
        process: the group of rows that it belongs to.
        name: zero-padded, so that the order of names is that of rows.
        slices: its slices by time, none empty, none across another.
    """

    process: str
    name: str
    slices: Callable[[], Iterator[Slice]]
