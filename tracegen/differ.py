"""Two timelines -> what changed, in the terms of the subject."""

from __future__ import annotations

from bisect import bisect_right
from os import PathLike
from pathlib import Path

from tracegen.comparison import rest, steps
from tracegen.comparison import rows as rows_of
from tracegen.comparison import times as times_of
from tracegen.comparison.model import Difference, StepChange, Tolerance, What
from tracegen.deps import NOTHING
from tracegen.errors import DiffError
from tracegen.readers.chrome import read_any
from tracegen.timeline import Timeline

Side = Timeline | str | Path


def diff(golden: Side, new: Side, times: str = "exact") -> Difference:
    """Compare what two timelines or traces mean. The difference is false if there is none.

    Not compared is what means nothing: the order of events and keys, ids, the form of the
    file and the tool's version.

    Args:
        golden: the one that is right: a timeline, or the path of a trace.
        new: the other.
        times: "exact"; a percentage such as "5%", of its golden duration for a duration and of
            the golden makespan for a start; or "order-only".

    Raises:
        FileError: if a trace cannot be read.
        DiffError: if `times` is none of these, or a side neither a timeline nor a path.
    """
    tolerance = Tolerance.parse(times)
    a, b = _timeline("golden", golden), _timeline("new", new)
    matching = steps.match(a.program, b.program)
    own, shifted = times_of.compare(a, b, matching, tolerance)
    placed = times_of.passed(a, b, matching, matching.changes)
    changes = [*steps.stage_moves(a.program, b.program, placed), *own]
    changes, stand = rows_of.passed(a, b, matching, rows_of.swapped(a, b, changes))
    touched = _ranks(a, b, [*placed, *own, *shifted, *changes])
    moved = any(change.what in (What.MOVED, What.STAGE_MOVED) for change in changes)
    arrows, arrows_follow = rest.arrows(a, b, matching)
    counters, counters_follow = rest.counters(a, b, tolerance)
    rows, rows_follow = rows_of.rows(a, b, bool(touched), tolerance)
    rows = [*rest.recomputations(a, b, matching, tolerance), *stand, *rows]
    figures, figures_follow = rest.figures(a, b)
    follows = {
        "arrows": arrows_follow,
        "counters": counters_follow,
        "rows": rows_follow,
        "figures": figures_follow,
    }
    return Difference(
        a,
        b,
        tolerance,
        rest.configuration(a, b, moved, tolerance),
        times_of.by_time(a, b, changes),
        shifted,
        arrows,
        counters,
        rows,
        figures,
        {what: count for what, count in follows.items() if count},
    )


def _timeline(name: str, side: Side) -> Timeline:
    if isinstance(side, Timeline):
        return side
    if not isinstance(side, str | PathLike):
        what = f"{type(side).__name__} is neither a Timeline nor a path"
        raise DiffError(f"{name}: {what}; tracegen.replay or tracegen.read makes a Timeline")
    return read_any(side)


def _ranks(golden: Timeline, new: Timeline, changes: list[StepChange]) -> set[int]:
    """The ranks on which something changed."""
    a, b = golden.program.offsets, new.program.offsets
    of_golden = {bisect_right(a, c.golden) - 1 for c in changes if c.golden != NOTHING}
    return of_golden | {bisect_right(b, c.new) - 1 for c in changes if c.new != NOTHING}
