"""The best order that named schedules, rules, justification, local search and CP-SAT give."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tracegen.analysis.solve import exact
from tracegen.analysis.solve.bounds import bound
from tracegen.analysis.solve.exact import Effort
from tracegen.analysis.solve.extend import extended, patterns, shorter
from tracegen.analysis.solve.greedy import Rule, construct, rules
from tracegen.analysis.solve.improve import improve
from tracegen.analysis.solve.justify import Both, justified, read_both_ways, shaken
from tracegen.analysis.solve.named import Named, named
from tracegen.analysis.solve.orders import fits, to_program, value
from tracegen.analysis.solve.problem import Objective, Order, Problem
from tracegen.errors import ScheduleError
from tracegen.ir import Program

# How many orders are justified, and how many of what comes of it local search starts from.
KEPT = 12
BEST = 2

# How many of an order's patterns are repeated, to take the best.
PATTERNS = 2

# Actions up to which every rule is tried on the whole problem, and up to which the best few are.
ALL_RULES = 3_000
BEST_RULES = 60_000

# What justification spends, in actions placed: of an order at most ROUNDS rounds of PUSHES pushes.
JUSTIFY = 400_000
ROUNDS = 3
PUSHES = 4

# What shaking spends, in actions placed, two pushes a try.
SHAKE = 150_000
MOST_SHAKES = 100

# What local search spends, in actions replayed.
SEARCH = 2_000_000
MOST_TRIES = 4_000


@dataclass(frozen=True)
class Answer:
    """The best order that was found, and what is known about better ones.

    Attributes:
        program: the order.
        value_ns: what the objective makes short.
        bound_ns: that no order is better than.
        analytic_ns: the part of that which needs no solver.
        source: where the order comes from: a named schedule, or the method.
        solver: whether OR-tools was asked.
        named: the named schedules of the same placement, for comparison.
    """

    program: Program
    value_ns: int
    bound_ns: int
    analytic_ns: int
    source: str
    solver: bool
    named: list[Named] = field(repr=False)

    @property
    def gap(self) -> float:
        """How much shorter a better order might be at most, as a share of the bound."""
        return (self.value_ns - self.bound_ns) / self.bound_ns if self.bound_ns else 0.0

    @property
    def is_best(self) -> bool:
        """Whether no order is better."""
        return self.value_ns == self.bound_ns


@dataclass(frozen=True, slots=True)
class _Best:
    value: int
    order: Order
    source: str


def best_order(
    problem: Problem,
    effort: Effort | None = None,
    *,
    use_solver: bool | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Answer:
    """The best order that can be found, with a proof of how good it is.

    Args:
        problem: the question.
        effort: what the exact solver may spend.
        use_solver: whether to ask it; unless given, where OR-tools is installed.
        say: is told what is being done.

    Raises:
        ScheduleError: if no order was found that has room.
        ToolMissing: if the solver is asked for and not there.
    """
    effort = effort or Effort()
    solver = exact.is_installed() if use_solver is None else use_solver
    least = bound(problem)
    others = list(named(problem))
    say(f"lower bound {least} ns; {len(others)} named schedules")
    best = _heuristic(problem, others, least)
    if best is None:
        raise ScheduleError(_no_room(problem))
    say(f"{best.source}: {best.value} ns")
    proven, asked = least, False
    actions = sum(map(len, best.order))
    if solver and best.value > least and actions <= effort.most_actions:
        asked = True
        found = exact.solve(problem, best.order, best.value, least, effort)
        new = exact.better(problem, found, best.value)
        if found.order is not None and new is not None and fits(problem, found.order):
            best = _Best(new, found.order, "CP-SAT")
        proven = min(found.bound, best.value)
    program = to_program(problem, best.order, "solve")
    return Answer(program, best.value, proven, least, best.source, asked, others)


def _no_room(problem: Problem) -> str:
    from tracegen.analysis.solve.problem import F

    assert problem.room is not None
    for rank, stages in enumerate(problem.stages_of):
        if max(problem.change[F][s] for s in stages) > problem.room[rank]:
            return (
                f"rank {rank} has no room for one microbatch's activations of one of its stages; "
                "give a larger memory limit"
            )
    return "no order was found that keeps the memory limit; give a larger one"


def _heuristic(problem: Problem, others: list[Named], least: int) -> _Best | None:
    """The best order without the solver."""
    candidates = [
        _Best(one.value, one.order, str(one))
        for one in others
        if one.fits and one.value is not None
    ]
    if all(one.value > least for one in candidates):
        candidates += list(_constructed(problem, least))
    if not candidates:
        return None
    candidates = _best_first(candidates, KEPT)
    if candidates[0].value > least:
        both = read_both_ways(problem)
        candidates = _best_first([*candidates, *_justified(both, candidates, least)], BEST)
        candidates = _best_first([*_shaken(both, candidates, least), *candidates], BEST)
    return _searched(problem, candidates, least)


def _justified(both: Both, candidates: list[_Best], least: int) -> Iterator[_Best]:
    """What justification makes of each, as far as its budget goes."""
    problem = both.problem
    left = JUSTIFY // (PUSHES * sum(map(len, candidates[0].order)))
    for one in candidates:
        if not (rounds := min(ROUNDS, left)):
            return
        left -= rounds
        for order in justified(both, one.order, rounds):
            found = value(problem, order)
            assert found is not None
            if found < one.value:
                yield _Best(found, order, f"{one.source}, justified")
            if found <= least:
                return


def _shaken(both: Both, candidates: list[_Best], least: int) -> Iterator[_Best]:
    size = sum(map(len, candidates[0].order))
    tries = min(MOST_SHAKES, SHAKE // (2 * size))
    for one in candidates:
        order = shaken(both, one.order, tries, least)
        found = value(both.problem, order)
        assert found is not None
        if found < one.value:
            yield _Best(found, order, f"{one.source.removesuffix(', justified')}, justified")


def _searched(problem: Problem, candidates: list[_Best], least: int) -> _Best:
    """What local search makes of the candidates, the best first."""
    size = sum(map(len, candidates[0].order))
    if problem.objective is Objective.STEADY:
        size *= 4 * problem.num_ranks  # each value is a way from every rank
    tries = min(MOST_TRIES, SEARCH // size)
    improved = []
    for one in candidates:
        if one.value <= least:
            return one
        order = improve(problem, one.order, tries, least)
        found = value(problem, order)
        assert found is not None
        source = one.source if found == one.value else f"local search from {one.source}"
        improved.append(_Best(found, order, source))
        if found <= least:
            break
    return min(improved, key=lambda one: one.value)


def _best_first(candidates: list[_Best], most: int) -> list[_Best]:
    """The best of the candidates that differ."""
    kept: list[_Best] = []
    for one in sorted(candidates, key=lambda one: one.value):
        if all(one.order != other.order for other in kept):
            kept.append(one)
        if len(kept) == most:
            break
    return kept


def _constructed(problem: Problem, least: int) -> Iterator[_Best]:
    """Orders of the rules, or of a shorter batch's whose pattern is repeated."""
    size = sum(problem.count) * len(problem.kinds)
    if size <= ALL_RULES:
        yield from (one for one, _ in _of_rules(problem, rules(problem), least))
        return
    short = _short(problem)
    small = shorter(problem, short)
    ranked = sorted(_of_rules(small, rules(small), bound(small)), key=lambda one: one[0].value)
    if size <= BEST_RULES:
        yield from (one for one, _ in _of_rules(problem, [r for _, r in ranked[:KEPT]], least))
    yield from _repeated(problem, small, [one.order for one, _ in ranked[:KEPT]])


def _short(problem: Problem) -> int:
    """So many microbatches that a batch has a steady part, and every rule can be tried."""
    whole = problem.num_stages * len(problem.kinds)
    chains = len(problem.placement.chains)
    short = max(4 * problem.num_ranks, ALL_RULES // whole)
    return min(problem.num_microbatches, short // chains * chains)


def _of_rules(
    problem: Problem, tried: Iterator[Rule] | list[Rule], least: int
) -> Iterator[tuple[_Best, Rule]]:
    for rule in tried:
        order = construct(problem, rule)
        if order is None or (found := value(problem, order)) is None:
            continue
        yield _Best(found, order, "list scheduling"), rule
        if found <= least:
            return


def _repeated(problem: Problem, small: Problem, orders: list[Order]) -> Iterator[_Best]:
    m = problem.num_microbatches
    more = m - small.num_microbatches
    for order in orders:
        whole = [one for one in patterns(small, order) if more % one.microbatches == 0]
        for pattern in whole[:PATTERNS]:
            longer = extended(small, order, pattern, m)
            if fits(problem, longer) and (found := value(problem, longer)) is not None:
                yield _Best(found, longer, "list scheduling, its steady pattern repeated")
