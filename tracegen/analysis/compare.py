"""Schedules of one model held against each other: rows, the best of each, and who cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tracegen import registry
from tracegen.analysis.measure import Figures, Impossible, Size, measured
from tracegen.analysis.normalise import Source
from tracegen.errors import ScheduleError

# What a table may be sorted by, and the best of which is marked: the least is the best.
KEYS = {
    "makespan": "makespan_us",
    "ratio": "bubble_ratio",
    "overhead": "bubble_overhead",
    "span-rate": "span_rate",
    "input": "peak_at_input",
    "weight": "peak_at_weight",
    "weights": "weights",
    "transfers": "transfers",
    "exposed": "exposed_us",
}

# Figures closer than this are one figure that was rounded in two ways.
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out.

    Attributes:
        rows: the figures, sorted; equal ones by name.
        impossible: the others, in the order asked.
    """

    rows: list[Figures]
    impossible: list[Impossible]

    def best(self, figure: str) -> float | None:
        """The least of a figure, None where all rows have the same, or none: it says nothing."""
        values = [value for row in self.rows if (value := getattr(row, figure)) is not None]
        least = min(values, default=0.0)
        return least if any(not same(value, least) for value in values) else None


def same(a: float, b: float) -> bool:
    """Whether two figures differ by rounding alone."""
    return abs(a - b) <= SAME * max(abs(a), abs(b), 1.0)


def compare(sizes: Iterable[Size], source: Callable[[Size], Source], by: str) -> Comparison:
    """The figures of schedules at sizes.

    Args:
        sizes: which.
        source: of each one's costs.
        by: a key of KEYS.
    """
    return sorted_rows([measured(size, source(size)) for size in sizes], by)


def sorted_rows(found: Sequence[Figures | Impossible], by: str) -> Comparison:
    """Figures sorted, and apart from what is impossible."""
    rows = [row for row in found if isinstance(row, Figures)]
    key = KEYS[by]
    rows.sort(key=lambda row: (round(getattr(row, key), 9), row.schedule, row.v))
    return Comparison(rows, [row for row in found if isinstance(row, Impossible)])


def schedules(names: str | None) -> list[str]:
    """The schedules of a list with commas; all that there are unless given.

    Raises:
        UnknownSchedule: naming the nearest.
    """
    if names is None:
        return sorted(registry.available()[0])
    found = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        schedule = registry.find(name).name if not name.endswith((".py", ".csv")) else name
        if schedule not in found:
            found.append(schedule)
    if not found:
        raise ScheduleError("no schedule is named; give some, as gpipe,1f1b,zbv")
    return found
