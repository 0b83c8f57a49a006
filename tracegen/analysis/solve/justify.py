"""Justification: an order is built anew from its end, and that again from its start.

Read backwards, a problem is one of the same kind: gradients before forwards, room taken where
it was given back. So an order can be pushed against its end as well as against its start, and
each push closes gaps that the other cannot see (double justification: Valls, Ballestin and
Quintanilla 2005, "Justification and RCPSP: a technique that pays"). A push takes the actions
one by one; a rank starts that which began (or, backwards, ended) first before, of those that
can start before one could be done (Giffler and Thompson 1960, "Algorithms for solving
production-scheduling problems").

Room is kept in one of two ways. Strictly: what takes room does so in the order it did, so
that a push ends where the order before it did, however tight the room. Or loosely: whatever
comes first takes it, as long as what its microbatch still needs on the rank is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from random import Random

from tracegen.analysis.solve.orders import ends, value, value_of
from tracegen.analysis.solve.problem import KINDS, F, Objective, Order, Problem

# How far into the time until an action could be done others may start in its place, in turn.
WINDOWS = (1.0, 0.5, 0.0)

# How wrong `shaken` is about times at most, in multiples of the longest action, in turn.
SHAKES = (1.0, 1.5)

NOBODY = 1 << 62


@dataclass(frozen=True, slots=True)
class Push:
    """What a push made.

    Attributes:
        order: each rank's actions as they were taken.
        end: by action, when it ends.
    """

    order: Order
    end: list[int]


@dataclass(frozen=True, slots=True)
class Both:
    """A problem read both ways, which serves for all its orders."""

    problem: Problem
    there: Reading
    back: Reading


def read_both_ways(problem: Problem) -> Both:
    return Both(problem, Reading(problem, backwards=False), Reading(problem, backwards=True))


def justified(both: Both, order: Order, rounds: int) -> Iterator[Order]:
    """Orders that come of pushing an order back and forth, twice a round.

    Args:
        both: the question.
        order: to start from; it runs and fits.
        rounds: how many at most.
    """
    problem, there, back = both.problem, both.there, both.back
    for strict in (True, False) if problem.room is not None else (False,):
        end = ends(problem, order)
        assert end is not None
        rows = order
        for count in range(rounds):
            window = WINDOWS[count % len(WINDOWS)]
            late = push(back, [-t for t in end], window, _begins(problem, rows, end), strict)
            if late is None:
                break
            early = push(there, [-t for t in late.end], window, [0] * len(rows), strict)
            if early is None:
                break
            rows, end = early.order, early.end
            yield rows


def shaken(both: Both, order: Order, tries: int, goal: int, seed: int = 0) -> Order:
    """The order, or a better one, by pushes that are told times a little wrong.

    Args:
        both: the question.
        order: to start from; it runs and fits.
        tries: how many rounds to make.
        goal: the value at which to stop.
        seed: of the errors.
    """
    problem, random = both.problem, Random(seed)
    end = ends(problem, order)
    assert end is not None
    best = value_of(problem, order, end)
    for count in range(tries):
        if best <= goal:
            break
        most = round(SHAKES[count % len(SHAKES)] * max(problem.duration))
        by = [random.randint(-most, most) - t for t in end]
        _in_order(both.back, by)
        window = WINDOWS[count % 2]
        late = push(both.back, by, window, _begins(problem, order, end), strict=True)
        if late is None:
            continue
        early = push(both.there, [-t for t in late.end], window, [0] * len(order), strict=True)
        if early is None:
            continue
        found = value(problem, early.order)
        if found is not None and found <= best:
            best, order, end = found, early.order, early.end
    return order


def _in_order(reading: Reading, by: list[int]) -> None:
    """Let what decides between actions never put one before those before it in its slot."""
    for row in reading.slots:
        for slot in row:
            for action, most in zip(slot, accumulate((by[a] for a in slot), max), strict=True):
                by[action] = most


def _begins(problem: Problem, order: Order, end: list[int]) -> list[int]:
    """By rank, the ns after which it may be busy in a push backwards.

    Where only the ranks' own spans count, one that starts later may end later.
    """
    if problem.objective is Objective.MAKESPAN:
        return [0] * len(order)
    starts = [end[row[0]] - problem.duration[row[0]] for row in order]
    return [max(starts) - start for start in starts]


class Reading:
    """A problem read forwards or backwards.

    Attributes:
        problem: what is read.
        slots: by rank, the actions of each stage and kind one after the other.
        after: by action, those that wait for it and the ns on the way.
        waits: by action, for how many it waits.
        takes: by action, what it adds to what its rank holds.
        leaves: by action, the room that its microbatch needs on the rank later on.
    """

    def __init__(self, problem: Problem, *, backwards: bool) -> None:
        self.problem, self.backwards = problem, backwards
        size = len(problem.duration)
        sign = -1 if backwards else 1
        self.takes = [sign * change for change in problem.taken]
        self.after: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        self.waits = [0] * size
        self.leaves = [0] * size
        m = problem.num_microbatches
        self.rank_of = [problem.placement.ranks[a // m // KINDS] for a in range(size)]
        self.slots = [list(self._slots(stages)) for stages in problem.stages_of]
        for stages in problem.stages_of:
            self._leave(stages[::-1] if backwards else stages)

    def _slots(self, stages: list[int]) -> Iterator[list[int]]:
        problem, m = self.problem, self.problem.num_microbatches
        for stage in stages:
            for kind in problem.kinds:
                first = (stage * KINDS + kind) * m
                row = list(range(first, first + problem.count[stage]))
                for action in row:
                    if action > first:
                        self._wait(action - 1, action, 0)
                    if kind != F:
                        self._wait(action - m, action, 0)
                    if (source := problem.source[action]) >= 0:
                        self._wait(source, action, problem.lag[action])
                yield row[::-1] if self.backwards else row

    def _wait(self, first: int, then: int, lag: int) -> None:
        if self.backwards:
            first, then = then, first
        self.after[first].append((then, lag))
        self.waits[then] += 1

    def _leave(self, stages: list[int]) -> None:
        problem, size = self.problem, KINDS * self.problem.num_microbatches
        chain_of = problem.placement.chain_of_stages()
        for at, stage in enumerate(stages):
            later = (s for s in stages[at + 1 :] if chain_of[s] == chain_of[stage])
            room = sum(problem.change[F][s] for s in later)
            self.leaves[stage * size : (stage + 1) * size] = [room] * size


def push(
    reading: Reading, rank_by: list[int], window: float, begins: list[int], strict: bool
) -> Push | None:
    """All actions as early as they can be, as the problem is read; None if room runs out.

    Args:
        reading: which way.
        rank_by: by action, what decides between two: the smaller goes first.
        window: 1 if whatever can start before another could be done may go in its place, 0 if
            only what can start as early.
        begins: by rank, the ns before which it does nothing.
        strict: whether what takes room does so in the order of `rank_by`.
    """
    return _Pushing(reading, rank_by, window, begins, strict).pushed()


class _Pushing:
    """A push in the making.

    Attributes:
        at: by rank and slot, how many have been placed.
        ready: by action, the ns at which what it waits for is there, as far as that is placed.
        open: by action, for how many it still waits.
        takers: by rank, if strict, what takes room, the last of all first.
        choices: by rank, what could be placed: what decides, start, action and slot.
        agenda: (ns at which a rank could be done with something, rank, version of its choices).
    """

    def __init__(
        self, reading: Reading, by: list[int], window: float, begins: list[int], strict: bool
    ) -> None:
        self.reading, self.by, self.window = reading, by, window
        self.problem, takes = reading.problem, reading.takes
        p, size = self.problem.num_ranks, len(by)
        self.free, self.held, self.version = begins[:], [0] * p, [0] * p
        self.ready, self.open, self.end = [0] * size, reading.waits[:], [0] * size
        self.at = [[0] * len(row) for row in reading.slots]
        self.left = sum(len(slot) for row in reading.slots for slot in row)
        self.rows: Order = [[] for _ in range(p)]
        self.choices: list[list[tuple[int, int, int, int]]] = [[] for _ in range(p)]
        self.agenda: list[tuple[int, int, int]] = []
        self.takers: list[list[int]] | None = None
        if strict:
            taking = [[a for slot in row for a in slot if takes[a] > 0] for row in reading.slots]
            self.takers = [sorted(row, key=lambda a: (-by[a], -a)) for row in taking]

    def pushed(self) -> Push | None:
        for rank in range(self.problem.num_ranks):
            self.look(rank)
        while self.agenda:
            done, rank, version = heappop(self.agenda)
            if version == self.version[rank]:
                self.place(rank, done)
        return None if self.left else Push(self.rows, self.end)

    def place(self, rank: int, done: int) -> None:
        choices, reading = self.choices[rank], self.reading
        first = min(start for _, start, _, _ in choices)
        last = first + self.window * (done - first)
        _, start, action, slot = min(c for c in choices if c[1] < last or c[1] == first)
        self.at[rank][slot] += 1
        self.rows[rank].append(action)
        self.left -= 1
        self.held[rank] += reading.takes[action]
        if self.takers is not None and reading.takes[action] > 0:
            self.takers[rank].pop()
        self.free[rank] = self.end[action] = end = start + self.problem.duration[action]
        told = {rank}
        for other, lag in reading.after[action]:
            self.open[other] -= 1
            if end + lag > self.ready[other]:
                self.ready[other] = end + lag
            if not self.open[other]:
                told.add(reading.rank_of[other])
        for one in sorted(told):
            self.look(one)

    def look(self, rank: int) -> None:
        """What a rank could place now, and when the first of it would be done."""
        found, soonest, free = [], NOBODY, self.free[rank]
        for slot, (actions, at) in enumerate(
            zip(self.reading.slots[rank], self.at[rank], strict=True)
        ):
            if at == len(actions) or self.open[action := actions[at]]:
                continue
            if self.reading.takes[action] > 0 and not self.has_room(rank, action):
                continue
            start = max(free, self.ready[action])
            found.append((self.by[action], start, action, slot))
            soonest = min(soonest, start + self.problem.duration[action])
        self.choices[rank] = found
        self.version[rank] += 1
        if found:
            heappush(self.agenda, (soonest, rank, self.version[rank]))

    def has_room(self, rank: int, action: int) -> bool:
        if self.problem.room is None:
            return True
        room, takes = self.problem.room[rank] - self.held[rank], self.reading.takes[action]
        if self.takers is None:
            return takes + self.reading.leaves[action] <= room
        return takes <= room and self.takers[rank][-1] == action
