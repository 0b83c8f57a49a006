"""`solve`: sound answers, true bounds, never worse than what is known, best where that is known."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import brute_force
import pytest
from click.testing import CliRunner
from golden import GOLDEN, golden

import tracegen
from tracegen import Costs, metrics
from tracegen.analysis.solve import exact, steady
from tracegen.analysis.solve.bounds import bound
from tracegen.analysis.solve.exact import Effort
from tracegen.analysis.solve.extend import extended, patterns, shorter
from tracegen.analysis.solve.greedy import construct, rules
from tracegen.analysis.solve.improve import improve
from tracegen.analysis.solve.named import named
from tracegen.analysis.solve.orders import fits, from_program, to_program, value
from tracegen.analysis.solve.problem import Objective, Problem, problem_of
from tracegen.analysis.solve.search import Answer, best_order
from tracegen.cli import main
from tracegen.engine import replay
from tracegen.errors import CostError, ScheduleError
from tracegen.ir import Placement
from tracegen.memory import Limit, peaks
from tracegen.order import both_ways, loop, v_shape
from tracegen.passes.validate import validate

ROOT = Path(__file__).parent.parent

needs_solver = pytest.mark.skipif(not exact.is_installed(), reason="OR-tools is not installed")

TRIPLES = ((1, 1, 1), (10, 9, 8), (9, 8, 10), (14, 13, 11))
UNEVEN = ((7, 11, 12, 17), (6, 10, 11, 16), (7, 10, 10, 17))
OBJECTIVES = ("makespan", "span", "steady")


def costs(f: object, i: object, w: object, alpha: float = 0) -> Costs:
    return Costs(f_us=f, i_us=i, w_us=w, alpha_us=alpha)


def asked(
    placement: Placement,
    m: int,
    given: Costs,
    objective: str = "makespan",
    limit: float | None = None,
    at: str = "weight",
    **options: bool,
) -> Problem:
    most = None if limit is None else Limit(limit, f"freed_at_{at}", str(limit))
    return problem_of(placement, m, given, Objective(objective), most, **options)


def measured(answer: Answer, problem: Problem, given: Costs) -> int:
    """The objective of the answer's program as the package's replay has it."""
    line = replay(validate(answer.program), given)
    if problem.objective is Objective.MAKESPAN:
        return line.makespan_ns
    if problem.objective is Objective.SPAN:
        return max(metrics.span_ns(line, rank) for rank in range(problem.num_ranks))
    few, many = (replay(answer.program, given, steps=n).makespan_ns for n in (60, 120))
    return -(-(many - few) // 60)


def check(problem: Problem, given: Costs, answer: Answer, limit: float | None, at: str) -> None:
    """What holds of every answer."""
    assert measured(answer, problem, given) == answer.value_ns
    assert bound(problem) == answer.analytic_ns <= answer.bound_ns <= answer.value_ns
    if limit is not None:
        assert max(peaks(answer.program, given)[f"freed_at_{at}"]) <= limit
    for one in answer.named:
        assert not one.fits or one.value is None or answer.value_ns <= one.value


PLACEMENTS = {"loop": loop(3, 1), "loop2": loop(2, 2), "v": v_shape(3, 2), "both": both_ways(2, 2)}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("place", PLACEMENTS)
@pytest.mark.parametrize(("limit", "at"), [(None, "weight"), (4, "weight"), (3, "input")])
def test_answers_run_fit_and_are_what_they_say(
    place: str, objective: str, limit: float | None, at: str
) -> None:
    given = costs(14, 13, 11, 1)
    problem = asked(PLACEMENTS[place], 6, given, objective, limit, at)
    answer = best_order(problem, use_solver=False)
    check(problem, given, answer, limit, at)
    assert answer.bound_ns == answer.analytic_ns


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_full_backward_can_be_kept_in_one_piece(objective: str) -> None:
    given = costs(10, 9, 8, 1)
    problem = asked(loop(3, 1), 5, given, objective, 3, split=False)
    answer = best_order(problem, use_solver=False)
    check(problem, given, answer, 3, "weight")
    kinds = {step.kind.value for row in answer.program.ranks for step in row}
    assert kinds == {"F", "B"}


def random_case(seed: int) -> tuple[Problem, Costs]:
    """A small problem with costs of each stage, limits of both kinds, and ties."""
    rng = random.Random(seed)
    place = rng.choice([loop(2, 1), loop(3, 1), v_shape(2, 2), loop(2, 2), both_ways(2, 2)])
    n = place.num_stages
    m = rng.choice([2, 4] if n == max(place.ranks) + 1 else [2])
    f, i, w = ([rng.randint(1, 4) for _ in range(n)] for _ in range(3))
    given = costs(f, i, w, rng.choice([0, 1, 3]))
    at = rng.choice(["weight", "input"])
    limit = rng.choice([None, place.num_stages / 2 + 1, place.num_stages + 1])
    return asked(place, m, given, rng.choice(OBJECTIVES), limit, at), given


@pytest.mark.parametrize("seed", range(40))
def test_no_order_is_better_than_the_analytic_bound(seed: int) -> None:
    problem, _ = random_case(seed)
    least = bound(problem)
    tried = 0
    for rule in rules(problem):
        order = construct(problem, rule)
        if order is None:
            continue
        assert fits(problem, order)
        better = improve(problem, order, 30, 0, seed)
        assert fits(problem, better)
        assert least <= value(problem, better) <= value(problem, order)
        tried += 1
    assert tried


@needs_solver
@pytest.mark.parametrize("seed", range(40))
def test_the_solver_agrees_with_the_analytic_bound_and_the_replay(seed: int) -> None:
    problem, given = random_case(seed)
    answer = best_order(problem, Effort(work=4), use_solver=True)
    # Where ranks may begin with either pipe, the solver lets them begin later than a replay does.
    free = len(problem.placement.chains) > 1 and problem.objective is Objective.SPAN
    assert answer.is_best or free
    assert measured(answer, problem, given) == answer.value_ns


QUESTIONS = [
    brute_force.Question(f, i, w, alpha, limit, freed_at)
    for (f, i, w), alpha, limit, freed_at in product(
        [
            *(tuple((x, x) for x in triple) for triple in TRIPLES),
            ((7, 12), (6, 13), (9, 8)),
        ],
        (0, 1),
        (1, 2, 3),
        (1, 2),
    )
]


def as_problem(asked_for: brute_force.Question, m: int, objective: str) -> Problem:
    given = costs(list(asked_for.f), list(asked_for.i), list(asked_for.w), asked_for.alpha)
    at = "input" if asked_for.freed_at == 1 else "weight"
    return asked(loop(asked_for.num_ranks, 1), m, given, objective, asked_for.limit, at)


@needs_solver
@pytest.mark.parametrize("number", range(0, len(QUESTIONS), 4))
def test_equals_brute_force_at_p_2_m_3(number: int) -> None:
    question = QUESTIONS[number]
    for objective, best in brute_force.best(question, 3).items():
        answer = best_order(as_problem(question, 3, objective), use_solver=True)
        assert answer.is_best
        # The steady step is rounded up to whole ns.
        assert answer.value_ns == -(-round(best * 2000) // 2)


@needs_solver
@pytest.mark.nightly
@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_equals_brute_force_at_p_2_m_3_everywhere(question: brute_force.Question) -> None:
    for objective, best in brute_force.best(question, 3).items():
        answer = best_order(as_problem(question, 3, objective), use_solver=True)
        assert answer.is_best
        assert answer.value_ns == -(-round(best * 2000) // 2)


@pytest.mark.parametrize("number", range(0, len(QUESTIONS), 7))
def test_microbatches_may_be_in_order_everywhere(number: int) -> None:
    """Orders in which microbatches overtake each other are never better: all are tried."""
    question = QUESTIONS[number]
    every, in_order = (brute_force.best(question, 2, in_order=b) for b in (False, True))
    assert every["makespan"] == in_order["makespan"]
    assert every["span"] == in_order["span"]


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(0, len(QUESTIONS), 11))
def test_microbatches_may_be_in_order_everywhere_at_m_3(number: int) -> None:
    question = QUESTIONS[number]
    every, in_order = (brute_force.best(question, 3, in_order=b) for b in (False, True))
    assert every["makespan"] == in_order["makespan"]
    assert every["span"] == in_order["span"]


GRID = list(product((*TRIPLES, UNEVEN), (0, 1), (4, 6, 8), ("makespan", "span")))


@needs_solver
@pytest.mark.parametrize(("triple", "alpha", "limit", "objective"), GRID)
def test_p_4_m_6_is_proven_best(
    triple: tuple[object, ...], alpha: int, limit: int, objective: str
) -> None:
    given = costs(*triple, alpha)
    problem = asked(loop(4, 1), 6, given, objective, limit)
    answer = best_order(problem, use_solver=True)
    assert answer.gap == 0
    check(problem, given, answer, limit, "weight")


# Of the V, what start times alone do not prove in minutes; everything is nightly.
HARD = {(UNEVEN, 1, 4, "makespan"), (UNEVEN, 1, 4, "span")}


@needs_solver
@pytest.mark.parametrize(
    ("triple", "alpha", "limit", "objective"),
    [pytest.param(*one, marks=() if one in HARD else pytest.mark.nightly) for one in GRID],
)
def test_p_4_m_6_is_proven_best_on_a_v(
    triple: tuple[object, ...], alpha: int, limit: int, objective: str
) -> None:
    place = v_shape(4, 2)
    if triple == UNEVEN:  # the grid's of benchmarks: of p stages, each half of one
        of_stage = ([7, 13, 12, 15], [6, 12, 11, 14], [7, 12, 10, 15])
        triple = tuple([x[min(s, 7 - s)] / 2 for s in range(8)] for x in of_stage)
    given = costs(*triple, alpha)
    problem = asked(place, 6, given, objective, 2 * limit)
    answer = best_order(problem, use_solver=True)
    assert answer.gap == 0
    check(problem, given, answer, 2 * limit, "weight")


SAIL = sorted(path.stem for path in GOLDEN.glob("sail_*.jsonl"))


@pytest.mark.parametrize(
    ("stem", "most"),
    [(stem, 8) for stem in SAIL]
    + [pytest.param(stem, 16, marks=pytest.mark.nightly) for stem in SAIL],
)
def test_is_no_worse_than_sail_sgs_heuristics(stem: str, most: int) -> None:
    """Within the memory that each of them takes, at all costs of its rows."""
    assert len(SAIL) == 6
    least: dict[tuple[int, ...], float] = {}
    for recorded in golden(stem):
        for row in recorded["replay"]:
            sizes = (recorded[name] for name in ("p", "m", "stages"))
            rest = (row[name] for name in ("f", "i", "w", "c", "peak_inflight_W_pair"))
            key = (*sizes, *rest)
            least[key] = min(least.get(key, row["makespan"]), row["makespan"])
    for (p, m, stages, f, i, w, c, limit), makespan in least.items():
        if m > most:
            continue
        place = loop(p, 1) if stages == p else v_shape(p, stages // p)
        problem = asked(place, m, costs(f, i, w, c), "makespan", limit)
        found = best_order(problem, use_solver=False).value_ns
        assert found <= makespan * 1000, (p, m, f, i, w, c, limit)


def test_is_strictly_better_than_every_named_schedule_somewhere() -> None:
    """p=4 m=16, f i w = 14 13 11, latency 1, 1.5p activations: the span."""
    problem = asked(loop(4, 1), 16, costs(14, 13, 11, 1), "span", 6)
    answer = best_order(problem, use_solver=False)
    best = min(one.value for one in answer.named if one.fits)
    assert (answer.value_ns, best) == (640_000, 668_000)


def test_a_step_in_the_long_run_is_the_largest_mean_of_a_cycle_of_ways() -> None:
    given = costs(14, 13, 11, 1)
    for name in ("1f1b", "zb-h1", "zb-h2", "gpipe"):
        program = tracegen.compile(name, 4, 8)
        problem = asked(program.placement, 8, given, "steady")
        order = from_program(problem, program)
        line = [replay(to_program(problem, order, name), given, steps=n) for n in (60, 120)]
        late = (line[1].makespan_ns - line[0].makespan_ns) / 60
        assert steady.period(problem, order) == late
        assert late <= value(replace(problem, objective=Objective.SPAN), order)


def test_a_program_and_its_order_are_the_same() -> None:
    for name in ("zb-h1", "zbv", "interleaved-zb"):
        program = tracegen.compile(name, 4, 8, communication=False)
        problem = asked(program.placement, 8, Costs())
        again = to_program(problem, from_program(problem, program), name)
        assert again.ranks == program.ranks


def test_a_pattern_repeats_and_holds_no_more() -> None:
    given = costs(14, 13, 11, 1)
    problem = asked(loop(4, 1), 24, given, "makespan", 6)
    found = 0
    for rule in rules(problem):
        order = construct(problem, rule)
        assert order is not None
        for pattern in patterns(problem, order)[:2]:
            m = 24 + 5 * pattern.microbatches
            longer = shorter(problem, m)
            more = extended(problem, order, pattern, m)
            assert fits(longer, more)
            validate(to_program(longer, more, "more"))
            assert value(longer, more) is not None
            found += 1
    assert found > 50


@pytest.mark.parametrize(("p", "m"), [(4, 600), pytest.param(8, 512, marks=pytest.mark.nightly)])
def test_large_batches_are_solved_in_linear_time_within_a_percent(p: int, m: int) -> None:
    given = costs(10, 9, 8, 1)
    problem = asked(loop(p, 1), m, given, "span", 1.5 * p)
    answer = best_order(problem, use_solver=False)
    check(problem, given, answer, 1.5 * p, "weight")
    assert answer.gap < 0.01


def test_the_same_question_has_the_same_answer() -> None:
    problem = asked(v_shape(3, 2), 6, costs(14, 13, 11, 1), "span", 5)
    first, second = (best_order(problem, use_solver=False) for _ in range(2))
    assert first.program.ranks == second.program.ranks


@needs_solver
def test_the_solver_gives_the_same_answer_again() -> None:
    problem = asked(loop(4, 1), 8, costs(*UNEVEN, 1), "span", 6)
    first, second = (best_order(problem, use_solver=True) for _ in range(2))
    assert first.program.ranks == second.program.ranks
    assert first.is_best


def test_a_limit_that_one_microbatch_breaks_is_refused() -> None:
    problem = asked(loop(4, 1), 6, Costs(), "makespan", 0.5)
    with pytest.raises(ScheduleError) as error:
        best_order(problem)
    assert str(error.value) == (
        "rank 0 has no room for one microbatch's activations of one of its stages; "
        "give a larger memory limit"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            Costs(fb_us=1500),
            "solve does not take the cost of a pair; give --f, --i and --w: it orders no pairs",
        ),
        (
            Costs(jitter=0.1),
            "solve does not take jitter; give costs without it, and replay the answer with it",
        ),
        (
            Costs(bandwidth_GBps=1, boundary_bytes=1e6),
            "solve does not take bandwidths, for which transfers take turns on a link; "
            "give what a hand-over takes in all as --alpha",
        ),
    ],
)
def test_costs_that_it_cannot_take_are_refused(given: Costs, message: str) -> None:
    with pytest.raises(CostError) as error:
        asked(loop(4, 1), 6, given)
    assert str(error.value) == message


def test_pipes_need_equal_shares() -> None:
    with pytest.raises(ScheduleError) as error:
        asked(both_ways(4, 2), 5, Costs())
    assert str(error.value) == (
        "solve: m = 5 microbatches for 2 pipes; use a multiple of 2, an equal share for each"
    )


def test_named_schedules_of_another_placement_are_left_out() -> None:
    found = [one.schedule for one in named(asked(v_shape(4, 2), 8, Costs()))]
    assert "zbv" in found
    assert "1f1b" not in found


def run(command: str) -> str:
    done = CliRunner().invoke(main, ["solve", *command.split()])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_writes_a_trace_and_an_order(tmp_path: Path) -> None:
    trace, order = tmp_path / "best.json", tmp_path / "best.csv"
    text = run(
        "-p 4 -m 6 --f 10 --i 9 --w 8 --alpha 1 --objective span --memory-limit 6 "
        f"--no-solver --json -o {trace} --save-order {order}"
    )
    found = json.loads(text)
    assert found["value_us"] >= found["bound_us"] >= found["analytic_bound_us"]
    line = tracegen.read(trace)
    assert line.makespan_ns == found["makespan_us"] * 1000
    again = replay(tracegen.compile(order), costs(10, 9, 8, 1))
    assert max(metrics.span_ns(again, rank) for rank in range(4)) == found["value_us"] * 1000
    assert max(again.peak_activations["freed_at_weight"]) <= 6


def test_the_limit_is_in_1f1b_stages_whatever_the_placement() -> None:
    found = json.loads(run("-p 4 -m 8 --placement v --memory-limit 3 --no-solver --json"))
    assert max(found["peak_activations"]["freed_at_weight"]) <= 6
    assert found["busy_us"] == [24000.0] * 4


OPEN = "-p 4 -m 8 --placement v --f 14 --i 13 --w 11 --memory-limit 2 --objective span"


def test_without_the_extra_the_heuristic_answers_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    text = " ".join(run(OPEN).split())
    assert (
        "pip install 'tracegen-pp[solve]' adds an exact solver, which may find a better order or "
        "prove this one best named schedule: "
    ) in text
    assert "no order is better than " in text


def test_the_best_named_schedule_is_one_that_run_gives_the_same_time() -> None:
    # 1F1B takes as long, but only with its backwards split.
    told = run("-p 8 -m 24 --alpha 1000 --memory-limit 12 --no-solver")
    assert "best named schedule: zb-h1, 120.000 ms" in told
    program = tracegen.compile("zb-h1", num_ranks=8, num_microbatches=24)
    assert replay(program, Costs(alpha_us=1000)).makespan_ns == 120_000_000


def test_an_answer_that_is_not_proven_shows_the_gap() -> None:
    found = json.loads(run(f"{OPEN} --no-solver --json"))
    assert not found["proven_best"]
    assert found["gap"] == pytest.approx(found["value_us"] / found["bound_us"] - 1)
    assert found["value_us"] <= min(one["value_us"] for one in found["named"] if one["fits"])


def test_two_bounds_on_the_solver_are_one_too_many() -> None:
    for one in ("--effort", "--time-limit"):
        done = CliRunner().invoke(main, ["solve", one, "nan"])
        assert (done.exit_code, done.stdout) == (2, "")
        assert "nan bounds no solver; give a number, 0 or more" in done.output
    command = ["solve", "--effort", "1", "--time-limit", "1"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 2
    assert "--effort and --time-limit both bound the solver; give one of them" in done.output


@pytest.mark.nightly
@pytest.mark.parametrize("placement", ["loop", "v", "bidirectional"])
def test_is_never_worse_than_a_named_schedule(placement: str) -> None:
    """A part of the grid of benchmarks/solve_grid.py, which runs all of it."""
    done = subprocess.run(
        [sys.executable, "benchmarks/solve_grid.py", "--placement", placement, "--every", "13"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
