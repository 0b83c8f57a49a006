"""What `solve` holds to be impossible is so, and its justified orders are sound."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import pytest
from test_solve import TRIPLES, asked, costs, needs_solver, random_case

from tracegen.analysis.solve import exact
from tracegen.analysis.solve.bounds import bound
from tracegen.analysis.solve.greedy import construct, rules
from tracegen.analysis.solve.justify import justified, read_both_ways, shaken
from tracegen.analysis.solve.named import named
from tracegen.analysis.solve.orders import fits, to_program, value
from tracegen.analysis.solve.problem import Objective, Problem
from tracegen.analysis.solve.search import best_order
from tracegen.ir import Placement
from tracegen.order import both_ways, loop, v_shape
from tracegen.passes.validate import validate


class Blind:
    """In the place of `bounds.Earliest`: no action ends before it could if it were alone."""

    def __init__(self, problem: Problem) -> None:
        stages = range(problem.num_stages)
        self.end = [[[ns[s]] * problem.count[s] for s in stages] for ns in problem.ns]


PLACES = (v_shape(2, 2), v_shape(3, 2), v_shape(2, 3), loop(2, 2), loop(2, 3), both_ways(2, 2))


def case(seed: int) -> Problem:
    """A problem whose ranks have several stages, with limits near what is least possible."""
    rng = random.Random(seed)
    place: Placement = rng.choice(PLACES)
    n = place.num_stages
    m = 2 if len(place.chains) > 1 else rng.choice([2, 3, 3])
    triple = rng.choice(TRIPLES)
    f, i, w = ([rng.choice([x, x, rng.randint(1, 15)]) for _ in range(n)] for x in triple)
    limit = rng.choice([n // max(place.ranks), n / 2, n / 2 + 1])
    at, objective = rng.choice(["weight", "input"]), rng.choice(["makespan", "span", "steady"])
    given = costs(f, i, w, rng.choice([0, 1, 9]))
    return asked(place, m, given, objective, limit, at, split=rng.random() < 0.8)


def refuted(problem: Problem, monkeypatch: pytest.MonkeyPatch, work: float) -> bool:
    """Whether a solver that knows no bound shows that nothing is below it; fails if some is."""
    monkeypatch.setattr(exact, "Earliest", Blind)
    least = bound(problem)
    known = next(filter(None, (construct(problem, rule) for rule in rules(problem))))
    found = exact.solve(problem, known, least, 0, exact.Effort(work=work))
    assert found.order is None, value(problem, found.order)
    return found.bound == least


@needs_solver
def test_nothing_is_below_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(refuted(case(seed), monkeypatch, 0.3) for seed in range(7)) > 4


@needs_solver
@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n < 12 else pytest.mark.nightly) for n in range(120)]
)
def test_which_of_two_is_first_rules_out_no_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = Objective.SPAN if seed % 2 else Objective.MAKESPAN
    problem = replace(case(seed), objective=objective)
    if seed % 3 == 0:  # some actions that take no time
        free = tuple(
            tuple(ns * ((s + k) % 3 > 0) for s, ns in enumerate(column))
            for k, column in enumerate(problem.ns)
        )
        problem = replace(problem, ns=free)
    orders = filter(None, (construct(problem, rule) for rule in rules(problem)))
    known = max(orders, key=lambda order: value(problem, order) or 0)
    worst = value(problem, known)
    assert worst is not None
    bounds = set()
    for most in (0, exact.MOST_PAIRS):
        monkeypatch.setattr(exact, "MOST_PAIRS", most)
        bounds.add(exact.solve(problem, known, worst, 0, exact.Effort(work=20)).bound)
    assert len(bounds) == 1  # both prove the same least value


@needs_solver
@pytest.mark.parametrize("seed", range(8))
def test_a_mirror_image_is_looked_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least value is the same where both of two mirror images may be found."""
    rng = random.Random(seed)
    p, m = rng.choice([(2, 2), (2, 4), (4, 2)])
    f, i, w = ([rng.randint(1, 9) for _ in range(p)] * 2 for _ in range(3))
    limit = None if seed % 2 else p + 1.0
    objective = ("makespan", "span")[seed // 2 % 2]
    problem = asked(both_ways(p, 2), m, costs(f, i, w, rng.choice([0, 2])), objective, limit)
    assert exact.mirrored(problem)
    orders = filter(None, (construct(problem, rule) for rule in rules(problem)))
    known = max(orders, key=lambda order: value(problem, order) or 0)
    worst = value(problem, known)
    assert worst is not None
    least = [exact.solve(problem, known, worst, 0, exact.Effort(work=20)).bound]
    monkeypatch.setattr(exact, "mirrored", lambda _: False)
    least.append(exact.solve(problem, known, worst, 0, exact.Effort(work=20)).bound)
    assert least[0] == least[1]


def test_what_has_no_mirror_image() -> None:
    apart = costs([1, 2, 3, 4], 1, 1, 0)  # the second chain is slower than the first
    for place, m, given in (
        (both_ways(2, 2), 2, apart),
        (both_ways(4, 4), 4, costs(1, 1, 1, 0)),
        (v_shape(2, 2), 2, costs(1, 1, 1, 0)),
    ):
        assert not exact.mirrored(asked(place, m, given))


@needs_solver
@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(7, 150))
def test_nothing_is_below_the_bound_anywhere(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refuted(case(seed), monkeypatch, 3)


@pytest.mark.parametrize(
    ("p", "m", "objective", "limit", "best"),
    [(4, 6, "makespan", 8, 71), (4, 6, "span", 8, 71), (4, 8, "span", 8, 83)],
)
def test_the_turn_of_a_v_is_bounded_by_its_room(
    p: int, m: int, objective: str, limit: int, best: int
) -> None:
    """F, I and W of 1 and a latency of 2, proven best: a microbatch holds two activations."""
    problem = asked(v_shape(p, 2), m, costs(1, 1, 1, 2), objective, limit)
    assert best_order(problem, use_solver=False).value_ns == bound(problem) == best * 1000


@pytest.mark.parametrize("seed", range(0, 40, 2))
def test_justified_orders_run_and_fit(seed: int) -> None:
    problem, _ = random_case(seed)
    both, made = read_both_ways(problem), 0
    for rule in list(rules(problem))[::24]:
        order = construct(problem, rule)
        if order is None:
            continue
        for other in (*justified(both, order, 2), shaken(both, order, 4, 0)):
            assert fits(problem, other)
            validate(to_program(problem, other, "justified"))
            assert bound(problem) <= value(problem, other)
            made += 1
        assert value(problem, other) <= value(problem, order)
    assert made > 3


def test_justification_closes_gaps_that_named_schedules_leave() -> None:
    problem = asked(v_shape(4, 2), 12, costs(10, 9, 8, 1), "makespan", 4)
    (order,) = (one.order for one in named(problem) if one.schedule == "v-min")
    values = [value(problem, other) for other in justified(read_both_ways(problem), order, 3)]
    assert min(values) < value(problem, order)


# V-Half, V-Min and ZB-V as sail-sg's generators give them at these sizes: p, m, costs, what
# they hold at most and their makespan. At some the orders of this package's schedules are longer.
SAIL_ELSEWHERE = [
    (4, 12, (10, 9, 8, 0), 4, 813),
    (4, 12, (10, 9, 8, 1), 4, 867),
    (5, 5, (14, 13, 11, 1), 10, 457),
    (5, 6, (1, 1, 1, 0), 10, 40),
    (6, 6, (14, 13, 11, 1), 12, 561),
    (6, 7, (1, 1, 1, 0), 12, 47),
    (6, 9, (10, 9, 8, 0), 6, 687),
    (7, 8, (14, 13, 11, 1), 14, 728),
    (7, 9, (10, 9, 8, 1), 6, 802),
    (8, 10, (1, 1, 1, 0), 16, 67),
    (8, 10, (1, 1, 1, 0), 10, 77),
    (10, 5, (1, 1, 1, 0), 8, 65),
]


@pytest.mark.parametrize(("p", "m", "given", "limit", "makespan"), SAIL_ELSEWHERE)
def test_is_no_worse_than_sail_sgs_heuristics_at_other_sizes(
    p: int, m: int, given: tuple[int, ...], limit: int, makespan: int
) -> None:
    problem = asked(v_shape(p, 2), m, costs(*given), "makespan", limit)
    assert best_order(problem, use_solver=False).value_ns <= makespan * 1000


def test_the_bound_is_no_worse_for_less_room() -> None:
    for triple, objective in product(TRIPLES, ("makespan", "span", "steady")):
        by_room = [
            bound(asked(v_shape(4, 2), 6, costs(*triple, 1), objective, limit))
            for limit in (3, 4, 6, 8, 12, 16)
        ]
        assert by_room == sorted(by_room, reverse=True)
