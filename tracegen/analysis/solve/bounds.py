"""How good an order can be at best: lower bounds that need no solver.

1. Work. A rank's span is at least its work, and its first microbatch must have come to it.
2. Paths. A microbatch goes through the chain and back, on each stage behind the one before it.
3. Room. The n-th F of a stage that has room for K microbatches waits for the (n-K)-th W, or I
   where that gives the activation back.
4. Work between. Between the start of a rank's n-th F and the end of its j-th I lie all F and I
   from the n-th to the j-th, of all its stages on the way. And from the start of its n-th I on,
   a rank with one stage has still to do all later I and W and, of forwards, those from n+K on,
   which wait for room. So what comes after enough of these is later by their sum.
5. Room and time. An activation is held at least for a microbatch's way to the loss and back,
   so of m such times at most K side by side, ceil(m/K) must follow each other; of several stages
   on a rank, the sum of sizes times times is no more than room times span.
6. Several stages on a rank share its room and its time: see `together`.
7. A rank does one action at a time, each after its head and before its tail: see `one_rank`.

2 to 4 and 6 are applied to the earliest ends of all actions again and again until nothing
changes. For the steady step, a rank's clock starts with its own first action, so the way
to it counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracegen.analysis.solve.one_rank import end_of
from tracegen.analysis.solve.problem import NO_ACTION, F, I, Objective, Problem, W
from tracegen.analysis.solve.together import UNKNOWN, Together

NO_LIMIT = 1 << 40
ROUNDS = 12


def bound(problem: Problem) -> int:
    """What no order can be better than, in ns."""
    ranks = range(problem.num_ranks)
    starts = first_starts(problem)
    if problem.objective is Objective.STEADY or (
        problem.objective is Objective.SPAN and None in starts
    ):
        return max(_end(problem, rank, Earliest(problem, rank), own=True) for rank in ranks)
    found = Earliest(problem)
    if problem.objective is Objective.MAKESPAN:
        return max(_end(problem, rank, found) for rank in ranks)
    return max(_end(problem, rank, found, own=True) - (starts[rank] or 0) for rank in ranks)


def first_starts(problem: Problem) -> list[int | None]:
    """By rank, when its first action starts in every order; None where that depends on the order.

    A rank of one chain begins with its first stage's F of the first microbatch, as do all
    ranks before it.
    """
    if len(problem.placement.chains) > 1:
        return [None] * problem.num_ranks
    found: list[int | None] = []
    for stages in problem.stages_of:
        stage, ns = stages[0], 0
        while (other := problem.neighbours[0][stage]) != NO_ACTION:
            ns += problem.lag_forward[stage] + problem.ns[F][other]
            stage = other
        found.append(ns)
    return found


@dataclass(frozen=True, slots=True)
class Slots:
    """How many microbatches a stage has room for, and which kind of action ends one."""

    count: int
    until: int


def slots_of(problem: Problem, stage: int) -> Slots:
    until = W if problem.split and problem.change[I][stage] >= 0 else I
    taken = problem.change[F][stage]
    if problem.room is None or taken <= 0:
        return Slots(NO_LIMIT, until)
    return Slots(max(1, problem.room[problem.placement.ranks[stage]] // taken), until)


class Earliest:
    """By kind, stage and count, the ns at which an action can end at the soonest.

    Args:
        problem: the question.
        clock: the rank whose first start is 0; unless given, 0 is the start of all.

    Attributes:
        end: by kind, stage and count; UNKNOWN where a clock says nothing.
    """

    def __init__(self, problem: Problem, clock: int | None = None) -> None:
        self.problem = problem
        self.end = [
            [[UNKNOWN] * problem.count[s] for s in range(problem.num_stages)] for _ in range(3)
        ]
        self.slots = [slots_of(problem, s) for s in range(problem.num_stages)]
        self.known = self._known(clock)
        several = [rank for rank, stages in enumerate(problem.stages_of) if len(stages) > 1]
        self.together = {rank: Together(problem, rank) for rank in several}
        for _ in range(ROUNDS):
            before = [[column[-1] for column in kind] for kind in self.end]
            self._sweep()
            if before == [[column[-1] for column in kind] for kind in self.end]:
                break

    def _known(self, clock: int | None) -> list[list[int]]:
        """By chain, its stages from where the clock says anything."""
        chains = [list(chain) for chain in self.problem.placement.chains]
        if clock is None:
            return chains
        ranks = self.problem.placement.ranks
        firsts = [next(n for n, s in enumerate(chain) if ranks[s] == clock) for chain in chains]
        return [chain[first:] for chain, first in zip(chains, firsts, strict=True)]

    def _sweep(self) -> None:
        for together in self.together.values():
            together.raise_to(self.end)
        for chain in self.known:
            for stage in chain:
                self._forwards(stage)
            for stage in reversed(chain):
                self._inputs(stage)
                self._between(stage, chain)
                self._weights(stage)

    def _forwards(self, stage: int) -> None:
        """2 to 4 of the module's head, for F."""
        problem, (F_end, I_end) = self.problem, (self.end[F][stage], self.end[I][stage])
        f, i, w = (problem.ns[kind][stage] for kind in (F, I, W))
        slots, lag = self.slots[stage], problem.lag_forward[stage]
        before = problem.neighbours[0][stage]
        come = None if before == NO_ACTION else self.end[F][before]
        freed = self.end[slots.until][stage]
        alone = len(problem.stages_of[problem.placement.ranks[stage]]) == 1
        each = f + i + (w if slots.until == W else 0)
        now, best = 0, UNKNOWN
        for n, known in enumerate(F_end):
            if come is not None:
                now = max(now, come[n] + lag)
            if (at := n - slots.count) >= 0:
                now = max(now, freed[at])
                if alone:
                    best = max(best, I_end[at] - i - at * each)
                    now = max(now, best + (at + 1) * each - f)
            F_end[n] = now = max(known, now + f)

    def _inputs(self, stage: int) -> None:
        problem, I_end = self.problem, self.end[I][stage]
        i, own, slots = problem.ns[I][stage], self.end[F][stage], self.slots[stage]
        f, w = problem.ns[F][stage], problem.ns[W][stage] if slots.until == W else 0
        after, lag = problem.neighbours[1][stage], problem.lag_backward[stage]
        come = None if after == NO_ACTION else self.end[I][after]
        alone = len(problem.stages_of[problem.placement.ranks[stage]]) == 1
        now, best = 0, UNKNOWN
        for n, known in enumerate(I_end):
            now = max(now, own[n])
            if come is not None:
                now = max(now, come[n] + lag)
            if alone and (at := n - slots.count) >= 0:
                best = max(best, I_end[at] - i - at * (f + i + w))
                now = max(now, best + (at + 1) * (f + i + w) + (slots.count - 1) * i)
            I_end[n] = now = max(known, now + i)

    def _between(self, stage: int, chain: list[int]) -> None:
        """4 of the module's head, for I from F on."""
        problem, rank_of = self.problem, self.problem.placement.ranks
        here = [s for s in chain if rank_of[s] == rank_of[stage]]
        f = sum(problem.ns[F][s] for s in here)
        each = f + sum(problem.ns[I][s] for s in here[here.index(stage) :])
        first, I_end, best = here[0], self.end[I][stage], UNKNOWN
        for n, end in enumerate(self.end[F][first]):
            best = max(best, end - problem.ns[F][first] - n * each)
            I_end[n] = max(I_end[n], best + (n + 1) * each)

    def _weights(self, stage: int) -> None:
        ends, own, w = self.end[W][stage], self.end[I][stage], self.problem.ns[W][stage]
        now = 0
        for n, known in enumerate(ends):
            ends[n] = now = max(known, max(now, own[n]) + w)


def _end(problem: Problem, rank: int, found: Earliest, own: bool = False) -> int:
    """When a rank, and unless only its own end counts all before it, can be done."""
    stages = problem.stages_of[rank]
    start = min(found.end[F][s][0] - problem.ns[F][s] for s in stages)
    last = W if problem.split else I
    ends = [found.end[last][s][-1] for s in (stages if own else range(problem.num_stages))]
    ends += [start + problem.work[rank], start + _held(problem, rank)]
    ends.append(end_of(problem, rank, found.end, own))
    if len(stages) == 1:
        ends.append(_from_inputs(problem, stages[0], found))
    else:
        ends.append(_from_first_input(problem, rank, found, start))
        if found.together[rank].alike:
            ends.append(found.together[rank].end(found.end))
    return max(ends)


def _from_inputs(problem: Problem, stage: int, found: Earliest) -> int:
    """4 of the module's head, for the end of a rank with one stage."""
    f, i, w = (problem.ns[kind][stage] for kind in (F, I, W))
    m, count = problem.count[stage], found.slots[stage].count
    return max(
        end - i + (m - n) * (i + w) + max(0, m - n - count) * f
        for n, end in enumerate(found.end[I][stage])
    )


def _from_first_input(problem: Problem, rank: int, found: Earliest, start: int) -> int:
    """4, of the first I of a rank with several stages: what forwards do not fit before it."""
    stages = problem.stages_of[rank]
    first = min(found.end[I][s][0] - problem.ns[I][s] for s in stages)
    before = min(first - start, sum(problem.count[s] * problem.ns[F][s] for s in stages))
    least = min(problem.change[F][s] for s in stages)
    if problem.room is not None and least > 0:
        fit = problem.room[rank] // least
        before = min(before, fit * max(problem.ns[F][s] for s in stages))
    return first + problem.work[rank] - before


def _held(problem: Problem, rank: int) -> int:
    """5 of the module's head: the ns for which activations take turns in a rank's room."""
    if problem.room is None:
        return 0
    trips, held = round_trips(problem), 0
    stages = problem.stages_of[rank]
    for stage in stages:
        slots, trip, m = slots_of(problem, stage), trips[stage], problem.count[stage]
        if slots.until == W:
            trip += problem.ns[W][stage]
        if len(stages) == 1:
            return -(-m // slots.count) * trip
        if problem.change[I][stage] <= 0:
            w = problem.ns[W][stage]
            held -= m * problem.change[I][stage] * trips[stage]
            held -= m * problem.change[W][stage] * (trips[stage] + w)
    return -(-held // problem.room[rank]) if problem.room[rank] > 0 else 0


def round_trips(problem: Problem) -> list[int]:
    """By stage, the ns from the start of an F to the end of its I, if nothing is in the way."""
    ns, after = problem.ns, problem.neighbours[1]
    found = [0] * problem.num_stages
    for chain in problem.placement.chains:
        for stage in reversed(chain):
            found[stage] = ns[F][stage] + ns[I][stage]
            if (other := after[stage]) != NO_ACTION:
                way = problem.lag_forward[other] + problem.lag_backward[stage]
                found[stage] += way + found[other]
    return found
