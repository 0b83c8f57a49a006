"""Constructive heuristics: every rank takes, in the order of time, what a rule prefers.

The rules differ in how far forwards run ahead, how long weight gradients wait,
and what a rank does in a gap that is shorter than a weight gradient. Which is
best depends on costs and memory, so all are tried. The elements are those of the
Zero Bubble papers (arXiv:2401.10241, section 3; arXiv:2405.15362): a depth of the
warm-up, and weight gradients that go where a rank would stand still.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product
from math import ceil

from tracegen.analysis.solve.bounds import round_trips
from tracegen.analysis.solve.problem import KINDS, NO_ACTION, F, I, Order, Problem, W

NEVER = 1 << 62

# A backlog without a limit.
ALL = 99.0


@dataclass(frozen=True, slots=True)
class Rule:
    """What a rank prefers.

    Attributes:
        depth: how many microbatches a stage has between F and I at most, in multiples of what
            keeps the slowest rank busy while one of them is on its way to the loss and back.
        backlog: how many W a rank puts off at most, in the same measure; those that are more
            come before anything else.
        gap: the part of a W that must fit into a gap for the W to go there, 0 to 1.
        forward_first: whether an F goes before an I that is ready too.
    """

    depth: float
    backlog: float
    gap: float
    forward_first: bool


# In the order in which they are tried: those first that were best most often.
DEPTHS = (2.0, 2.5, 4.0, 1.5, 3.0, 1.75, 99.0, 1.25, 1.0)
BACKLOGS = (ALL, 0.67, 1.0, 0.34)
GAPS = (0.5, 1.0, 0.01)


def rules(problem: Problem) -> Iterator[Rule]:
    """The rules to try."""
    if not problem.split:
        yield from (Rule(depth, ALL, 1.0, first) for depth in DEPTHS for first in (False, True))
        return
    for backlog, first, depth, gap in product(BACKLOGS, (False, True), DEPTHS, GAPS):
        yield Rule(depth, backlog, gap, first)


def construct(problem: Problem, rule: Rule) -> Order | None:
    """The order that a rule gives; None if it runs out of room."""
    return _Growing(problem, rule).order()


class _Growing:
    """An order in the making.

    Attributes:
        done: by slot (stage * KINDS + kind), how many have been placed.
        arrivals: by slot, of each count when the result that the action waits for is here,
            as far as that is known.
        owed, paid: by rank, the stages of all I so far, and how many W followed them.
        left: by rank, how many actions are still to come.
        waiting: whether a rank waits for something that is not known yet.
        agenda: (ns, rank) at which a rank is to choose.
    """

    def __init__(self, problem: Problem, rule: Rule) -> None:
        self.problem, self.rule = problem, rule
        p, slots = problem.num_ranks, problem.num_stages * KINDS
        self.done, self.held, self.free, self.paid = [0] * slots, [0] * p, [0] * p, [0] * p
        self.waiting = [False] * p
        self.agenda = [(0, rank) for rank in range(p)]
        self.owed: list[list[int]] = [[] for _ in range(p)]
        self.rows: Order = [[] for _ in range(p)]
        self.arrivals: list[list[int]] = [[] for _ in range(slots)]
        for kind, other in zip((F, I), problem.neighbours, strict=True):
            for stage in range(problem.num_stages):
                if other[stage] == NO_ACTION:
                    self.arrivals[stage * KINDS + kind] = [0] * problem.count[stage]
        kinds = len(problem.kinds)
        self.left = [sum(problem.count[s] * kinds for s in row) for row in problem.stages_of]
        self.depth, self.backlog = self._depths()
        self.later = self._later()

    def _depths(self) -> tuple[list[int], list[int]]:
        """By stage, what the rule's depth is in microbatches; by rank, its backlog in W."""
        problem, rule = self.problem, self.rule
        each = max(problem.work) / problem.num_microbatches or 1
        trips = round_trips(problem)
        depth = [max(1, ceil(rule.depth * trip / each)) for trip in trips]
        if rule.backlog == ALL:
            return depth, [sum(problem.count)] * problem.num_ranks
        behind = [max(trips) - trips[stages[0]] for stages in problem.stages_of]
        return depth, [round(rule.backlog * ns / each) for ns in behind]

    def _later(self) -> list[int]:
        """By stage, the room that F leaves for its rank's later stages of the chain."""
        problem, found = self.problem, [0] * self.problem.num_stages
        chain_of = problem.placement.chain_of_stages()
        for stages in problem.stages_of:
            for at, stage in enumerate(stages):
                later = [s for s in stages[at + 1 :] if chain_of[s] == chain_of[stage]]
                found[stage] = sum(problem.change[F][s] for s in later)
        return found

    def order(self) -> Order | None:
        while self.agenda:
            now, rank = heappop(self.agenda)
            if self.left[rank] == 0 or now < self.free[rank]:
                continue
            slot, then = self.choice(rank, now)
            if slot != NO_ACTION:
                self.place(rank, now, slot)
            elif then < NEVER:
                heappush(self.agenda, (then, rank))
            else:
                self.waiting[rank] = True
        return None if any(self.left) else self.rows

    def place(self, rank: int, now: int, slot: int) -> None:
        problem, (stage, kind) = self.problem, divmod(slot, KINDS)
        self.rows[rank].append(slot * problem.num_microbatches + self.done[slot])
        self.done[slot] += 1
        self.held[rank] += problem.change[kind][stage]
        self.left[rank] -= 1
        self.free[rank] = end = now + problem.ns[kind][stage]
        heappush(self.agenda, (end, rank))
        if kind == W:
            self.paid[rank] += 1
            return
        if kind == I and problem.split:
            self.owed[rank].append(stage)
        other = problem.neighbours[1 if kind == F else 0][stage]
        if other == NO_ACTION:
            return
        lag = problem.lag_forward[other] if kind == F else problem.lag_backward[other]
        self.arrivals[other * KINDS + kind].append(end + lag)
        to = problem.placement.ranks[other]
        if self.waiting[to]:
            self.waiting[to] = False
            heappush(self.agenda, (max(now, self.free[to]), to))

    def choice(self, rank: int, now: int) -> tuple[int, int]:
        """The slot to run now, or NO_ACTION and when to look again."""
        backward, at_i = self.next_input(rank, now)
        forward, at_f, blocked = self.next_forward(rank, now)
        owed = self.owed[rank]
        weight = NO_ACTION
        if self.paid[rank] < len(owed):
            weight = owed[self.paid[rank]] * KINDS + W
            if len(owed) - self.paid[rank] > self.backlog[rank]:
                return weight, now
        if at_f <= now and self.rule.forward_first:
            return forward, now
        if at_i <= now:
            return backward, now
        if blocked and weight != NO_ACTION:
            return weight, now
        if at_f <= now:
            return forward, now
        then = min(at_i, at_f)
        if weight != NO_ACTION:
            takes = self.problem.ns[W][weight // KINDS]
            if then - now >= self.rule.gap * takes:
                return weight, now
        return NO_ACTION, then

    def next_input(self, rank: int, now: int) -> tuple[int, int]:
        """The slot of the I that is ready first, of the latest stage of several; and when."""
        found, at = NO_ACTION, NEVER
        for stage in reversed(self.problem.stages_of[rank]):
            slot = stage * KINDS + I
            n, come = self.done[slot], self.arrivals[slot]
            if n < self.done[slot - I + F] and n < len(come) and (ready := max(now, come[n])) < at:
                found, at = slot, ready
        return found, at

    def next_forward(self, rank: int, now: int) -> tuple[int, int, bool]:
        """As `next_input`, for F; and whether one is ready that there is no room for."""
        problem, found, at, blocked = self.problem, NO_ACTION, NEVER, False
        room = None if problem.room is None else problem.room[rank] - self.held[rank]
        for stage in reversed(problem.stages_of[rank]):
            slot = stage * KINDS + F
            n, come = self.done[slot], self.arrivals[slot]
            if n >= len(come) or n - self.done[slot + I] >= self.depth[stage]:
                continue
            ready = max(now, come[n])
            if room is not None and problem.change[F][stage] + self.later[stage] > room:
                blocked = blocked or ready <= now
            elif ready < at:
                found, at = slot, ready
        return found, at, blocked
