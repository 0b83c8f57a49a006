"""What a trace that was read holds beyond its steps and their times (data, no logic)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tracegen.shape import Series


@dataclass(frozen=True, slots=True)
class Row:
    """The slices of a thread that are no steps of the program: kernels, transfers, a profiler's.

    Attributes:
        name: the process and the thread.
        start_ns, end_ns: of each slice, by start; outer slices before those inside.
        labels: the name of each.
        about: what each is beyond its name, as `stage 3, op SUM_REPLICAS`; empty where unknown.
    """

    name: str
    start_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    labels: list[str] = field(default_factory=list)
    about: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Arrows:
    """Arrows between steps: (source step, target step, what it carries) of each, as columns."""

    source: array[int] = field(default_factory=lambda: array("q"))
    target: array[int] = field(default_factory=lambda: array("q"))
    names: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, arrows: Iterable[tuple[int, int, str]]) -> Arrows:
        found = cls()
        for source, target, name in arrows:
            found.add(source, target, name)
        return found

    def add(self, source: int, target: int, name: str) -> None:
        self.source.append(source)
        self.target.append(target)
        self.names.append(name)

    def __iter__(self) -> Iterator[tuple[int, int, str]]:
        return zip(self.source, self.target, self.names, strict=True)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class Found:
    """The arrows, counters and other rows as a trace has them, and what it says of itself.

    Attributes:
        own: whether tracegen wrote it.
        arrows: between two steps.
        other_arrows: (from, to, what it carries) of arrows that touch other rows' slices.
        counters: in the order of the file.
        rows: the other rows, by process and thread.
        stated: the figures that the file gives of itself, as `metrics.summary`.
        of_program: the chains, and whether it is of forwards only, as the file states them.
        until_ns: of a trace of tracegen's, the end of the last slice beside the steps that is
            part of the replay: of what else held a rank, and of kernels.
        warnings: what is odd about the file, a line each.
    """

    own: bool = False
    arrows: Arrows = field(default_factory=Arrows)
    other_arrows: list[tuple[str, str, str]] = field(default_factory=list)
    counters: list[Series] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    stated: dict[str, Any] = field(default_factory=dict)
    of_program: dict[str, Any] = field(default_factory=dict)
    until_ns: int = 0
    warnings: list[str] = field(default_factory=list)
