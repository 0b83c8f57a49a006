"""Which actions are longer or late of themselves, and which only follow.

An action is late of itself if it starts later than what it waits for explains: the
end of the action before it on its rank, and the arrival of what it needs. Where
the latency of a link is known (a plain replay of tracegen's), that is exact. Of
another tool's trace, a start may have moved no less and no more than the ends it
waits for; of a replay in which more than that holds a rank (kernels, links that
queue, messages that block), whatever moves behind something that moved follows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from tracegen.comparison.model import StepChange, Tolerance, What
from tracegen.comparison.steps import Matching
from tracegen.deps import NOTHING, Waits, neighbours, waits
from tracegen.ir import NO_MATE, STAGE_MASK, STAGE_SHIFT, Program
from tracegen.timeline import Timeline
from tracegen.times import Times

# A hand-over inside one rank, or none at all: nothing to wait for but the rank's own order.
NO_WAIT = -1


def compare(
    golden: Timeline, new: Timeline, matching: Matching, tolerance: Tolerance
) -> tuple[list[StepChange], list[StepChange]]:
    """Actions that are longer or late of themselves; and those that only follow, by rank."""
    if tolerance.ordered_only:
        return [], []
    same = golden.start_ns == new.start_ns and golden.end_ns == new.end_ns
    if same and matching.identical:
        return [], []
    own: list[StepChange] = []
    shifted: list[StepChange] = []
    causes = _Causes(golden, new, matching, tolerance)
    for a, b, longer, moved in _changed(golden, new, matching, tolerance):
        late = moved and not causes.explain(a, b)
        if longer:
            own.append(StepChange(What.DURATION, a, b, b if late else NOTHING))
        elif late:
            own.append(StepChange(What.DELAYED, a, b))
        else:
            shifted.append(StepChange(What.DELAYED, a, b))
    return own, shifted


def _changed(
    golden: Timeline, new: Timeline, matching: Matching, tolerance: Tolerance
) -> Iterator[tuple[int, int, bool, bool]]:
    """(golden step, new step, whether its duration differs, whether its start does)."""
    start_a, end_a, start_b, end_b = golden.start_ns, golden.end_ns, new.start_ns, new.end_ns
    share, apart = tolerance.share, tolerance.share * golden.makespan_ns
    rearranged = matching.rearranged
    for a, b in enumerate(matching.new_of):
        if b == NOTHING or (start_a[a] == start_b[b] and end_a[a] == end_b[b]):
            continue
        if rearranged and a in rearranged:
            continue
        lasts = end_a[a] - start_a[a]
        longer = abs(end_b[b] - start_b[b] - lasts) > share * lasts
        moved = abs(start_b[b] - start_a[a]) > apart
        if longer or moved:
            yield a, b, longer, moved


class _Causes:
    """What the starts of both timelines wait for."""

    def __init__(
        self, golden: Timeline, new: Timeline, matching: Matching, tolerance: Tolerance
    ) -> None:
        self._a, self._b = _Side(golden), _Side(new)
        self._new_of = matching.new_of
        self._slack = tolerance.share * golden.makespan_ns
        self._exact = self._a.lags_known and self._b.lags_known
        self._complex = self._a.complex or self._b.complex

    def explain(self, a: int, b: int) -> bool:
        """Whether the start of golden step a, new step b, moved as what it waits for did."""
        side_a, side_b, new_of = self._a, self._b, self._new_of
        late_a, late_b = side_a.start[a], side_b.start[b]
        move, least, most, any_cause = late_b - late_a, 0, 0, False
        for waits_a, waits_b in zip(side_a.columns, side_b.columns, strict=True):
            v, w = waits_a[a], waits_b[b]
            if v == NOTHING and w == NOTHING:
                continue
            if v == NOTHING or new_of[v] != w:
                return True  # what it waits for is another: that is the change
            shift = side_b.end[w] - side_a.end[v]
            least = min(least, shift) if any_cause else shift
            most = max(most, shift) if any_cause else shift
            any_cause = True
        if self._exact:
            late = side_b.lateness(b) - side_a.lateness(a)
            return abs(late) <= self._slack
        if self._complex:
            return least != 0 or most != 0
        return least - self._slack <= move <= most + self._slack


class _Side:
    """One timeline, and what each of its steps waits for.

    Attributes:
        columns: by step, the one before it on its rank, and the steps of other ranks whose
            forward result and gradient it needs; NOTHING where there is none.
        lags: for the latter two, the ns from their end until it may start.
        lags_known: whether these are exact.
        complex: whether more than its actions holds a rank.
    """

    def __init__(self, line: Timeline) -> None:
        program = line.program
        self.start, self.end = line.start_ns, line.end_ns
        own = line.found is None or line.found.own
        times = line.costs.times(program) if own else None
        queues = times is not None and times.links_queue
        more = line.costs.moe is not None or bool(line.held) or "replay" in line.config
        self.complex = own and (queues or more)
        self.lags_known = own and not self.complex
        steps = len(program)
        before = array("q", range(-1, steps - 1))
        for base in program.offsets[:-1]:
            if base < steps:
                before[base] = NOTHING
        nothing = array("q", [NOTHING]) * steps
        self.columns = (before, nothing[:], nothing)
        self.lags = (nothing[:], nothing[:])
        if (needs := _needs(program)) is not None:
            self._fill(program, needs, times)

    def _fill(self, program: Program, needs: Waits, times: Times | None) -> None:
        """Keep the waits for other ranks, with the latency of the link."""
        ranks = program.placement.ranks
        for number, (wanted, neighbour) in enumerate(
            zip((needs.forward, needs.backward), neighbours(program), strict=True)
        ):
            column, lag = self.columns[1 + number], self.lags[number]
            lag_of = [
                NO_WAIT
                if other < 0 or ranks[other] == ranks[stage]
                else times.latency((ranks[other], ranks[stage]))
                if times is not None
                else 0
                for stage, other in enumerate(neighbour)
            ]
            for stream, base in zip(program.ranks, program.offsets, strict=False):
                both = zip(stream.codes, stream.mates, strict=True)
                for step, (code, mate) in enumerate(both, base):
                    if (source := wanted[step]) != NOTHING:
                        half = mate if number and mate != NO_MATE else code
                        if (late := lag_of[half >> STAGE_SHIFT & STAGE_MASK]) != NO_WAIT:
                            column[step], lag[step] = source, late

    def lateness(self, step: int) -> int:
        """The ns by which it starts after all it waits for is there."""
        before, forward, backward = self.columns
        ready = self.end[before[step]] if before[step] != NOTHING else 0
        if (source := forward[step]) != NOTHING:
            ready = max(ready, self.end[source] + self.lags[0][step])
        if (source := backward[step]) != NOTHING:
            ready = max(ready, self.end[source] + self.lags[1][step])
        return self.start[step] - ready


def _needs(program: Program) -> Waits | None:
    """What each step waits for; None where steps cannot be told apart, since some are missing."""
    uneven = program.num_steps > 1 and any(len(s) % program.num_steps for s in program.ranks)
    return None if uneven else waits(program)


def by_time(golden: Timeline, new: Timeline, changes: list[StepChange]) -> list[StepChange]:
    """The changes in the order of the golden timeline; what is only new, of the new one."""

    def when(change: StepChange) -> tuple[int, int]:
        if change.golden == NOTHING:
            return new.start_ns[change.new], change.new
        return golden.start_ns[change.golden], change.golden

    return sorted(changes, key=when)


def passed(
    golden: Timeline, new: Timeline, matching: Matching, changes: list[StepChange]
) -> list[StepChange]:
    """The changes, with what is out of order only since one action is late told apart.

    An action that is late enough is passed by those behind it, which keep their
    times. If it then runs beside another, as no rank does, it did not change
    places: it is late.
    """
    told = []
    for change in changes:
        if change.what not in (What.SWAPPED, What.REORDERED):
            told.append(change)
            continue
        halves = [(change.golden, change.new)]
        if change.what is What.SWAPPED:
            halves.append((change.other, matching.new_of[change.other]))
        late = [(a, b) for a, b in halves if not _unmoved(golden, new, a, b)]
        alone = change.what is What.REORDERED and _overlaps(new, change.new)
        if alone or (change.what is What.SWAPPED and len(late) == 1):
            a, b = late[0] if late else halves[0]
            what = What.DELAYED if _overlaps(new, b) else What.REORDERED
            told.append(StepChange(what, a, b))
        else:
            told.append(change)
    return told


def _unmoved(golden: Timeline, new: Timeline, a: int, b: int) -> bool:
    return golden.start_ns[a] == new.start_ns[b] and golden.end_ns[a] == new.end_ns[b]


def _overlaps(line: Timeline, step: int) -> bool:
    """Whether a step runs beside its neighbour on its rank."""
    rank = line.program.rank_of_step(step)
    first, last = line.program.offsets[rank], line.program.offsets[rank + 1] - 1
    before = step > first and line.end_ns[step - 1] > line.start_ns[step]
    return before or (step < last and line.end_ns[step] > line.start_ns[step + 1])
