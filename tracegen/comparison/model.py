"""What a difference between two timelines consists of (data, and how times are held)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from tracegen.deps import NOTHING
from tracegen.errors import DiffError
from tracegen.timeline import Timeline


class What(StrEnum):
    """What is different about an action, most telling first."""

    MISSING = "missing"
    ADDED = "added"
    STAGE_MOVED = "stage moved"
    MOVED = "moved"
    SWAPPED = "swapped"
    REORDERED = "reordered"
    SPLIT = "split"
    JOINED = "joined"
    DURATION = "duration"
    DELAYED = "delayed"


class StepChange(NamedTuple):
    """One action that is different.

    Attributes:
        golden, new: its step in each, NOTHING where it is in one only.
        other: the step (of golden) that a swapped action changed places with.
        actions: the actions of a stage that moved as one; else 1.
        beside: the name of what else held the rank, if a swapped action changed places with that.
    """

    what: What
    golden: int
    new: int
    other: int = NOTHING
    actions: int = 1
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A value that is different: of the configuration, a counter, an arrow, a figure.

    Attributes:
        where: what it is the value of.
        golden, new: plain data; None where one side has none.
        text: the change in a line, where the two values alone do not say it.
        at_ns: when, for what has a time.
    """

    where: str
    golden: Any
    new: Any
    text: str = ""
    at_ns: int | None = None

    def __str__(self) -> str:
        return self.text or f"{self.where}: {_short(self.golden)} -> {_short(self.new)}"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far times may be apart.

    Attributes:
        text: exact, order-only or a percentage such as 5%.
        share: of a golden duration for a duration, of the golden makespan for a start.
        ordered_only: whether times are not looked at.
    """

    text: str
    share: float
    ordered_only: bool

    @classmethod
    def parse(cls, text: str) -> Tolerance:
        """As the option has it.

        Raises:
            DiffError: if it is none of the three.
        """
        if text in ("exact", "order-only"):
            return cls(text, 0.0, text == "order-only")
        if match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", str(text)):
            return cls(text, float(match[1]) / 100, False)
        raise DiffError(f"times {text!r}: expected exact, order-only or a percentage such as 5%")


@dataclass(frozen=True)
class Difference:
    """What is different between a golden timeline and a new one.

    Attributes:
        configuration: what they were made of: said first, since the rest may follow from it.
        steps: actions missing, added, moved, out of order, longer or late of themselves,
            by time.
        shifted: actions whose start only follows from what they wait for.
        arrows, counters, rows: what differs though the actions it belongs to do not.
        figures: what the traces state otherwise than it follows from their tiles.
        follows: how much else is different only because of the above, by kind.
    """

    golden: Timeline
    new: Timeline
    tolerance: Tolerance
    configuration: list[Change] = field(default_factory=list)
    steps: list[StepChange] = field(default_factory=list)
    shifted: list[StepChange] = field(default_factory=list)
    arrows: list[Change] = field(default_factory=list)
    counters: list[Change] = field(default_factory=list)
    rows: list[Change] = field(default_factory=list)
    figures: list[Change] = field(default_factory=list)
    follows: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = ("configuration", "steps", "shifted", "arrows", "counters", "rows", "figures")
        found = ", ".join(f"{len(of)} {part}" for part in parts if (of := getattr(self, part)))
        return f"<Difference: {found or 'none'}>"

    @property
    def same(self) -> bool:
        """Whether the two mean the same."""
        return not any(
            (
                self.configuration,
                self.steps,
                self.shifted,
                self.arrows,
                self.counters,
                self.rows,
                self.figures,
            )
        )

    def __bool__(self) -> bool:
        """Whether there is a difference."""
        return not self.same


def equal(a: Any, b: Any) -> bool:
    """Whether plain data is the same; NaN is like nothing, itself included."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b) and not (isinstance(a, float) and math.isnan(a))


def changed(golden: dict[str, Any], new: dict[str, Any], prefix: str = "") -> Iterator[Change]:
    """Where two tables differ, to the innermost value."""
    for key in [*golden, *(key for key in new if key not in golden)]:
        a, b = golden.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from changed(a, b, f"{prefix}{key}.")
        elif not equal(a, b):
            yield Change(f"{prefix}{key}", a, b)


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
