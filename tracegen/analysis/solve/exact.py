"""The exact solver: CP-SAT of OR-tools on the whole problem, for sizes that it can take.

One start time an action. Actions of a rank do not overlap; each waits for what the replay's rules
say, and for the one before it of its kind and stage (see `problem`: some best order has
the microbatches in order everywhere, which leaves no two orders that differ in names
alone). Room is a wait where each stage has a rank of its own, else a cumulative
constraint. The earliest times of `bounds` narrow the domains, the best order known is
the hint, and only what is better than that is looked for: where there is nothing, that
order is proven best.

Where there are not too many pairs of a rank's actions, which of the two is first is a variable
too. That rules out no order: of two actions that do not overlap, one is first. And where a is
before b, so is what is before a of its kind and stage, and b before what is after it. The solver
can learn about these variables, and so refutes in seconds what it does not in minutes by
start times alone.

Two chains that cross are often each other's mirror image. Then so is every order of another,
and only those are looked at in which the first chain's second stage begins first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from math import gcd
from typing import Any

from tracegen.analysis.solve.bounds import Earliest, first_starts, slots_of
from tracegen.analysis.solve.orders import ends, value_of
from tracegen.analysis.solve.problem import KINDS, F, I, Objective, Order, Problem, W
from tracegen.errors import ToolMissing

# Pairs of actions up to which it is a variable which of them is first.
MOST_PAIRS = 6_000


@dataclass(frozen=True, slots=True)
class Effort:
    """How long the solver may look.

    Attributes:
        work: in the solver's own deterministic measure, a second or a few each: the same
            problem then gives the same answer on any machine.
        seconds: of wall-clock time, None for no limit; with it, a slower machine may find less.
        most_actions: leave larger problems alone.
    """

    work: float | None = 15.0
    seconds: float | None = None
    most_actions: int = 3000


@dataclass(frozen=True, slots=True)
class Found:
    """What the solver came to.

    Attributes:
        order: one better than was known; None if it found none.
        bound: that no order is better than, in ns.
    """

    order: Order | None
    bound: int


def is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("ortools") is not None


def solve(problem: Problem, known: Order, value: int, bound: int, effort: Effort) -> Found:
    """Look for an order that is better than one that is known.

    Args:
        problem: the question.
        known: an order that runs and fits.
        value: its value in ns.
        bound: that no order is better than, in ns.
        effort: how long to look.

    Raises:
        ToolMissing: without OR-tools.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise ToolMissing(
            "the exact solver is OR-tools; pip install 'tracegen-pp[solve]'"
        ) from None
    model = _Model(problem, cp_model.CpModel(), known, value, bound)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # one, with a seed: the same answer every time
    solver.parameters.random_seed = 0
    if effort.work is not None:
        solver.parameters.max_deterministic_time = effort.work
    if effort.seconds is not None:
        solver.parameters.max_time_in_seconds = effort.seconds
    status = solver.solve(model.model)
    if status == cp_model.INFEASIBLE:
        return Found(None, value)
    assert status != cp_model.MODEL_INVALID, model.model.validate()
    proven = max(bound, round(solver.best_objective_bound) * model.unit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Found(None, min(proven, value))
    order = [
        sorted(
            row,
            key=lambda a: (
                solver.value(model.start[a]),
                solver.value(model.start[a]) + problem.duration[a],
                a,
            ),
        )
        for row in known
    ]
    return Found(order, proven)


class _Model:
    """The constraints.

    Attributes:
        unit: the ns of one of its ticks: what all times are multiples of.
        start: by action, its start in ticks.
    """

    def __init__(self, problem: Problem, model: Any, known: Order, value: int, bound: int) -> None:
        self.problem, self.model = problem, model
        self.unit = gcd(*problem.duration, *problem.lag) or 1
        end = ends(problem, known)
        assert end is not None
        place = problem.placement
        self.chain_of = place.chain_of_stages()
        self.at = {stage: at for chain in place.chains for at, stage in enumerate(chain)}
        self.length = [ns // self.unit for ns in problem.duration]
        self.latest = max(end) // self.unit
        if problem.objective is not Objective.MAKESPAN:
            self.latest += value // self.unit
        if problem.objective is Objective.STEADY:
            self.latest += problem.num_ranks * value // self.unit
        self.best = value
        self.start = self._starts(known)
        for action, variable in self.start.items():
            model.add_hint(variable, (end[action] - problem.duration[action]) // self.unit)
        self._waits()
        every = (pair for row in known for pair in self._open_pairs(row))
        pairs = list(islice(every, MOST_PAIRS + 1))
        if len(pairs) <= MOST_PAIRS:
            self._firsts(pairs)
        for rank, row in enumerate(known):
            self._one_at_a_time(row)
            self._room(rank)
        if mirrored(problem):
            one, other = (
                (chain[min(1, len(chain) - 1)] * KINDS + F) * problem.num_microbatches
                for chain in place.chains
            )
            self.model.add(self.start[one] <= self.start[other])
        self._objective(value, bound)

    def _starts(self, known: Order) -> dict[int, Any]:
        problem, found = self.problem, Earliest(self.problem)
        m, starts = problem.num_microbatches, {}
        for row in known:
            for action in row:
                slot, n = divmod(action, m)
                stage, kind = divmod(slot, KINDS)
                first = (found.end[kind][stage][n] - problem.duration[action]) // self.unit
                starts[action] = self.model.new_int_var(first, self.latest, f"{action}")
        return starts

    def _waits(self) -> None:
        problem, start, m = self.problem, self.start, self.problem.num_microbatches
        for action, variable in start.items():
            slot, n = divmod(action, m)
            waits = [(action - 1, 0)] if n else []
            if slot % KINDS != F:
                waits.append((action - m, 0))
            if (source := problem.source[action]) >= 0:
                waits.append((source, problem.lag[action] // self.unit))
            for other, lag in waits:
                self.model.add(variable >= start[other] + self.length[other] + lag)

    def _open_pairs(self, row: list[int]) -> Iterator[tuple[int, int]]:
        """The pairs of a rank's actions of which either may be first."""
        for a, b in combinations(sorted(row), 2):
            if not self._always_first(a, b) and not self._always_first(b, a):
                yield a, b

    def _always_first(self, a: int, b: int) -> bool:
        """Whether a microbatch's way through its chain, or the order of microbatches, says so.

        It goes through F and back through I, and W of a stage is after its I.
        """
        m, chain_of = self.problem.num_microbatches, self.chain_of
        (slot_a, n_a), (slot_b, n_b) = divmod(a, m), divmod(b, m)
        if slot_a == slot_b:
            return n_a < n_b
        (stage_a, kind_a), (stage_b, kind_b) = divmod(slot_a, KINDS), divmod(slot_b, KINDS)
        if n_a > n_b or kind_a > kind_b or chain_of[stage_a] != chain_of[stage_b]:
            return False
        if kind_a == kind_b:
            return kind_a != W and (self.at[stage_a] < self.at[stage_b]) == (kind_a == F)
        return kind_a == F or self.at[stage_a] >= self.at[stage_b]

    def _firsts(self, pairs: list[tuple[int, int]]) -> None:
        """A variable for each pair: the one is first, or the other."""
        model, start, m = self.model, self.start, self.problem.num_microbatches
        first: dict[tuple[int, int], Any] = {}
        for a, b in pairs:
            first[a, b] = model.new_bool_var(f"{a} before {b}")
            first[b, a] = first[a, b].negated()
            for one, other in ((a, b), (b, a)):
                wait = start[other] >= start[one] + self.length[one]
                model.add(wait).only_enforce_if(first[one, other])
        for a, b in first:
            if a % m and (a - 1, b) in first:
                model.add_implication(first[a, b], first[a - 1, b])

    def _one_at_a_time(self, row: list[int]) -> None:
        self.model.add_no_overlap(
            self.model.new_fixed_size_interval_var(self.start[a], self.length[a], f"run {a}")
            for a in row
        )

    def _room(self, rank: int) -> None:
        problem, start, m = self.problem, self.start, self.problem.num_microbatches
        if problem.room is None:
            return
        stages = problem.stages_of[rank]
        for stage in stages:
            slots = slots_of(problem, stage)
            for n in range(problem.count[stage] - slots.count):
                action = (stage * KINDS + F) * m + n + slots.count
                freed = (stage * KINDS + slots.until) * m + n
                self.model.add(start[action] >= start[freed] + self.length[freed])
        partly = any(problem.change[I][s] * problem.change[W][s] for s in stages)
        if len(stages) > 1 or partly:
            self._held(stages, problem.room[rank])

    def _held(self, stages: list[int], room: int) -> None:
        """What is held at a time, as intervals from what takes it to what gives it back."""
        problem, m = self.problem, self.problem.num_microbatches
        intervals, sizes = [], []
        for stage in stages:
            f, i, w = (problem.change[kind][stage] for kind in (F, I, W))
            spans = [(F, I, -i), (F, W, -w)] if i <= 0 else [(F, W, f), (I, W, i)]
            for first, last, size in spans:
                for n in range(problem.count[stage] if size else 0):
                    a, b = (stage * KINDS + first) * m + n, (stage * KINDS + last) * m + n
                    end = self.start[b] + self.length[b]
                    size_ns = self.model.new_int_var(0, self.latest, "")
                    intervals.append(self.model.new_interval_var(self.start[a], size_ns, end, ""))
                    sizes.append(size)
        self.model.add_cumulative(intervals, sizes, room)

    def _objective(self, value: int, bound: int) -> None:
        problem, model, m = self.problem, self.model, self.problem.num_microbatches
        whole = model.new_int_var(-(-bound // self.unit), (value - 1) // self.unit, "value")
        firsts = first_starts(problem)
        for rank, stages in enumerate(problem.stages_of):
            begins = [self.start[(s * KINDS + F) * m] for s in stages]
            begin: Any = 0
            if problem.objective is Objective.SPAN and firsts[rank] is not None:
                begin = (firsts[rank] or 0) // self.unit
                model.add(begins[0] == begin)
            elif problem.objective is not Objective.MAKESPAN:
                begin = model.new_int_var(0, self.latest, f"begin {rank}")
                for first in begins:
                    model.add(begin <= first)
            for stage in stages:
                last = (stage * KINDS + problem.kinds[-1]) * m + problem.count[stage] - 1
                model.add(whole >= self.start[last] + self.length[last] - begin)
        model.minimize(whole)


def mirrored(problem: Problem) -> bool:
    """Whether two chains that change places, and their ranks with them, leave the same problem."""
    place, room = problem.placement, problem.room
    if len(place.chains) != 2 or len(set(map(len, place.chains))) != 1:
        return False
    pairs = list(zip(*place.chains, strict=True))
    pairs += [(other, one) for one, other in pairs]
    columns = [*problem.ns, *problem.change, problem.lag_forward, problem.lag_backward]
    if any(
        column[one] != column[other] for column in (*columns, problem.count) for one, other in pairs
    ):
        return False
    image = {place.ranks[one]: place.ranks[other] for one, other in pairs}
    if any(image[place.ranks[one]] != place.ranks[other] for one, other in pairs):
        return False
    return room is None or all(room[rank] == room[other] for rank, other in image.items())


def better(problem: Problem, found: Found, value: int) -> int | None:
    """The value of what was found, which a replay may find shorter; None if it is not better."""
    if found.order is None:
        return None
    end = ends(problem, found.order)
    if end is None:
        return None
    new = value_of(problem, found.order, end)
    return new if new < value else None
