"""The rows beside the ranks' steps: what differs, and what changed places with an action."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator

from tracegen import drawn, layout_more
from tracegen.comparison.model import Change, StepChange, Tolerance, What
from tracegen.comparison.rest import own
from tracegen.comparison.steps import Matching
from tracegen.deps import NOTHING
from tracegen.found import Row
from tracegen.layout import PIPELINE, layout
from tracegen.readers.actions import identity
from tracegen.shape import Slice
from tracegen.timeline import Timeline


def rows(
    golden: Timeline, new: Timeline, touched: bool, tolerance: Tolerance
) -> tuple[list[Change], int]:
    """Rows beside the ranks' that differ; of tracegen's own, how many follow from the actions."""
    before, after = _other_rows(golden), _other_rows(new)
    changes: list[Change] = []
    follows = 0
    for name in [*before, *(name for name in after if name not in before)]:
        a, b = before.get(name) or Row(name), after.get(name) or Row(name)
        change = _row(a, b, tolerance, golden.makespan_ns)
        if change is not None and touched and own(golden) and own(new):
            follows += 1
        elif change is not None:
            changes.append(change)
    return changes, follows


def _other_rows(line: Timeline) -> dict[str, Row]:
    if line.found is not None:
        return {row.name: row for row in line.found.rows}
    p = line.program.num_ranks
    beside = {
        f"{PIPELINE} / {drawn.rank_name(rank, p)}": list(layout_more.held(line, rank))
        for rank in range(p)
    }
    for row in layout(line).rows:
        if row.process != PIPELINE:
            beside[f"{row.process} / {row.name}"] = list(row.slices())
    return {name: _as_row(name, slices) for name, slices in beside.items() if slices}


def _as_row(name: str, slices: list[Slice]) -> Row:
    start, end = array("q", [s[0] for s in slices]), array("q", [s[1] for s in slices])
    about = [
        identity({**dict(shape.fixed), **dict(zip(shape.keys, values, strict=True))})
        for _, _, _, shape, values in slices
    ]
    return Row(name, start, end, [s[2] for s in slices], about)


def _row(a: Row, b: Row, tolerance: Tolerance, makespan_ns: int) -> Change | None:
    said_a, said_b = _names(a, b), _names(b, a)
    exact = said_a == said_b
    if exact and a.start_ns == b.start_ns and a.end_ns == b.end_ns:
        return None
    here, there = Counter(said_a), Counter(said_b)
    gone, come = (here - there).total(), (there - here).total()
    if exact:
        late = 0 if tolerance.ordered_only else _apart(a, b, tolerance, makespan_ns)
        if not late:
            return None
        said = f"{late} slices at other times"
    elif gone or come:
        said = ", ".join(
            f"{n} slices {what}" for n, what in ((gone, "missing"), (come, "added")) if n
        )
    else:
        said = "slices in another order"
    both = zip(_slices(a, said_a), _slices(b, said_b), strict=False)
    shorter = min(len(a.labels), len(b.labels))
    at = next((i for i, (x, y) in enumerate(both) if x != y), shorter)
    row = a if at < len(a.labels) else b
    alike = at < shorter and a.labels[at] == b.labels[at] and said_a[at] != said_b[at]
    which = f" ({row.about[at]})" if alike else ""
    first = f"; the first {row.labels[at]!r}{which} at {row.start_ns[at] / 1000:.3f} us"
    return Change(
        f"row {a.name}",
        len(a.labels),
        len(b.labels),
        f"row {a.name}: {said}{first}",
        row.start_ns[at],
    )


def _names(row: Row, other: Row) -> list[str] | list[tuple[str, str]]:
    """What each slice is, with what its arguments say where both rows have that."""
    if row.about == other.about or not (row.about and other.about):
        return row.labels
    return list(zip(row.labels, row.about, strict=True))


def _slices(
    row: Row, names: list[str] | list[tuple[str, str]]
) -> Iterator[tuple[int, int, str | tuple[str, str]]]:
    return zip(row.start_ns, row.end_ns, names, strict=True)


def _apart(a: Row, b: Row, tolerance: Tolerance, makespan_ns: int) -> int:
    apart, share = tolerance.share * makespan_ns, tolerance.share
    both = zip(a.start_ns, a.end_ns, b.start_ns, b.end_ns, strict=True)
    return sum(
        abs(y - x) > apart or abs((end_y - y) - (end_x - x)) > share * (end_x - x)
        for x, end_x, y, end_y in both
    )


_MAY_BE_SWAPS = (What.DELAYED, What.DURATION, What.REORDERED)


def swapped(golden: Timeline, new: Timeline, changes: list[StepChange]) -> list[StepChange]:
    """The changes, with actions told apart that changed places with what else held their rank."""
    told = []
    sides: tuple[dict[str, Row], dict[str, Row]] | None = None
    for change in changes:
        a, b = change.golden, change.new
        if change.what in _MAY_BE_SWAPS and golden.start_ns[a] != new.start_ns[b]:
            sides = sides or (_held_rows(golden), _held_rows(new))
            rank, span = golden.program.rank_of_step(a), (new.start_ns[b], new.end_ns[b])
            there = _at(golden, sides[0], rank, span)
            here = _at(new, sides[1], rank, (golden.start_ns[a], golden.end_ns[a]))
            if there and there == here:
                change = StepChange(What.SWAPPED, a, b, beside=there[0])
        told.append(change)
    return told


def passed(
    golden: Timeline, new: Timeline, matching: Matching, changes: list[StepChange]
) -> tuple[list[StepChange], list[Change]]:
    """Where what else holds a rank stands before other actions: the changes, and those of rows.

    Looked at whatever times may be, on ranks whose actions have kept their order: one that only
    changed places with its neighbour is told as that.
    """
    sides = _held_rows(golden), _held_rows(new)
    p = min(golden.program.num_ranks, new.program.num_ranks)
    by_step = {change.golden: change for change in changes if change.golden != NOTHING}
    others: list[Change] = []
    for rank in range(p):
        a, b = (sides[0].get(_row_name(golden, rank)), sides[1].get(_row_name(new, rank)))
        steps = range(golden.program.offsets[rank], golden.program.offsets[rank + 1])
        first = new.program.offsets[rank]
        kept = range(first, new.program.offsets[rank + 1])
        if a is None or b is None or _names(a, b) != _names(b, a):
            continue
        if matching.new_of[steps.start : steps.stop] != array("q", kept):
            continue
        places = zip(_places(golden, a, steps), _places(new, b, kept), strict=True)
        for at, (x, y) in enumerate(places):
            if abs(x - y) == 1:
                step = steps.start + min(x, y)
                told = by_step.get(step)
                if told is None or told.what is What.DELAYED:
                    beside = a.labels[at]
                    swap = StepChange(What.SWAPPED, step, first + min(x, y), beside=beside)
                    by_step[step] = swap
            elif x != y:
                others.append(_stands(golden, a, at, steps, (x, y)))
    gone = [change for change in changes if change.golden == NOTHING]
    return [*by_step.values(), *gone], others


def _places(line: Timeline, row: Row, steps: range) -> list[int]:
    """How many of the rank's steps are over when each of the row begins."""
    ends = line.end_ns[steps.start : steps.stop]
    return [bisect_right(ends, ns) for ns in row.start_ns]


def _stands(golden: Timeline, row: Row, at: int, steps: range, places: tuple[int, int]) -> Change:
    x, y = (_behind(golden, steps, place) for place in places)
    text = f"row {row.name}: {row.labels[at]!r} stands {y} instead of {x}"
    return Change(f"row {row.name}", x, y, text, row.start_ns[at])


def _behind(line: Timeline, steps: range, place: int) -> str:
    rank = line.program.rank_of_step(steps.start)
    return f"behind {line.program.ranks[rank][place - 1]}" if place else "before all actions"


def _row_name(line: Timeline, rank: int) -> str:
    return f"{PIPELINE} / {drawn.rank_name(rank, line.program.num_ranks)}"


def _held_rows(line: Timeline) -> dict[str, Row]:
    """What else held each rank, by the name of its row."""
    if line.found is not None:
        return {row.name: row for row in line.found.rows if row.name.startswith(f"{PIPELINE} / ")}
    p = line.program.num_ranks
    names = [f"{PIPELINE} / {drawn.rank_name(rank, p)}" for rank in range(p)]
    held = {name: layout_more.held(line, rank) for rank, name in enumerate(names)}
    return {name: _as_row(name, slices) for name, slices in held.items() if slices}


def _at(
    line: Timeline, rows: dict[str, Row], rank: int, span: tuple[int, int]
) -> tuple[str, str] | None:
    """What held the rank then, beside its steps."""
    row = rows.get(_row_name(line, rank))
    if row is None:
        return None
    at = bisect_left(row.start_ns, span[0])
    if at == len(row.start_ns) or (row.start_ns[at], row.end_ns[at]) != span:
        return None
    return row.labels[at], row.about[at] if row.about else ""
