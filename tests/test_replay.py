"""When every step runs: against the oracle, against what must always hold, against what is printed.

Costs are whole nanoseconds here, so that both computations are exact.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from golden import SHIPPED, case_of, golden
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Case, Times, parts, peaks, waits_of
from oracle import replay as oracle_replay
from strategies import programs
from test_schedules import SAME_ORDER

import tracegen
from tracegen import deps, longest_path, metrics
from tracegen.clock import Clock
from tracegen.costs import Costs
from tracegen.engine import replay, run
from tracegen.errors import CostError, DeadlockError, ProgramError, ScheduleError
from tracegen.ir import Program, Stream, parse
from tracegen.order import loop
from tracegen.timeline import Timeline
from tracegen.work import lower

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)

ns = st.integers(0, 12)
every_schedule = pytest.mark.parametrize("name", SHIPPED)


def as_case(program: Program) -> Case:
    rows = [[str(step) for step in stream] for stream in program.ranks]
    place = program.placement
    return Case(rows, place.ranks, place.chains, program.num_microbatches)


def costs_of(f: int, i: int, w: int, fb: int | None = None, latency: int = 0) -> Costs:
    us = {"f_us": f, "i_us": i, "w_us": w, "fb_us": fb, "alpha_us": latency}
    return Costs(**{key: value / 1000 for key, value in us.items() if value is not None})


def by_rank(line: Timeline) -> tuple[list[list[int]], list[list[int]]]:
    cuts = [*pairwise(line.program.offsets)]
    return (
        [[*line.start_ns[a:b]] for a, b in cuts],
        [[*line.end_ns[a:b]] for a, b in cuts],
    )


def agree(line: Timeline, times: Times) -> None:
    assert by_rank(line) == (times.starts, times.ends)
    ranks = range(line.program.num_ranks)
    assert line.makespan_ns == times.makespan
    assert line.busy_ns == [times.busy(rank) for rank in ranks]
    assert line.idle_ns == [times.idle(rank) for rank in ranks]


# The oracle


@SETTINGS
@given(programs(4, 4), ns, ns, ns, st.none() | ns, ns)
def test_every_step_of_any_program_runs_when_the_oracle_says(
    program: Program, f: int, i: int, w: int, fb: int | None, latency: int
) -> None:
    line = replay(program, costs_of(f, i, w, fb, latency))
    agree(line, oracle_replay(as_case(program), f, i, w, fb, latency))
    assert line.peak_activations == {
        "freed_at_input": peaks(as_case(program), "I"),
        "freed_at_weight": peaks(as_case(program), "W"),
    }


@every_schedule
@pytest.mark.parametrize("costs", [(1, 1, 1, 0), (9, 8, 10, 0), (9, 8, 10, 3), (5, 1, 0, 7)])
def test_every_shipped_schedule_runs_when_the_oracle_says(
    name: str, costs: tuple[int, int, int, int]
) -> None:
    f, i, w, latency = costs
    for p in (1, 2, 4, 6):
        if p == 1 and name in ("chimera", "dualpipe"):
            continue
        program = tracegen.compile(name, p)
        line = tracegen.replay(program, costs_of(f, i, w, None, latency))
        agree(line, oracle_replay(as_case(program.compute_only()), f, i, w, latency=latency))


@pytest.mark.parametrize("stem", SAME_ORDER)
def test_recorded_orders_have_the_recorded_figures(stem: str) -> None:
    for recorded in golden(stem):
        found = case_of(SAME_ORDER[stem], recorded)
        program = Program(
            "recorded",
            recorded["m"],
            SHIPPED[SAME_ORDER[stem]]
            .pipe(recorded["p"], recorded["m"], _v(SAME_ORDER[stem], recorded))
            .placement,
            tuple(Stream.of(map(parse, row)) for row in found.rows),
        )
        for row in recorded["replay"]:
            line = replay(
                program,
                Costs(
                    f_us=row["f"], i_us=row["i"], w_us=row["w"], fb_us=row["fb"], alpha_us=row["c"]
                ),
            )
            assert line.makespan_ns == 1000 * row["makespan"], recorded["id"]
            assert sum(line.busy_ns) == 1000 * row["busy_total"]
            assert max(line.idle_ns) == 1000 * row["max_idle"]
            assert min(line.idle_ns) == 1000 * row["min_idle"]
            held = line.peak_activations
            assert max(held["freed_at_input"]) == row["peak_inflight_I_pair"]
            assert max(held["freed_at_weight"]) == row["peak_inflight_W_pair"]


def _v(name: str, recorded: dict[str, int]) -> int | None:
    v = recorded["stages"] // recorded["p"]
    return v if SHIPPED[name].stages_per_rank is None else None


# What must always hold


@st.composite
def any_costs(draw: st.DrawFn, program: Program) -> Costs:
    """Costs of everything that can have its own."""
    S, M, p = program.num_stages, program.num_microbatches, program.num_ranks
    us = st.integers(0, 9000).map(lambda n: n / 1000)
    times = st.fixed_dictionaries({}, optional=dict.fromkeys(("f_us", "i_us", "w_us", "fb_us"), us))
    of_microbatch = st.dictionaries(st.integers(0, M - 1), times, max_size=2)
    of_stage = st.builds(lambda own, mb: own | {"microbatch": mb}, times, of_microbatch)
    links = [f"{a}-{b}" for a in range(p) for b in range(p) if a != b]
    link = st.fixed_dictionaries(
        {}, optional={"alpha_us": us, "bandwidth_GBps": st.integers(1, 9).map(float)}
    )
    return Costs(
        f_us=draw(us),
        i_us=draw(us),
        w_us=draw(us),
        fb_us=draw(st.none() | us),
        alpha_us=draw(us),
        bandwidth_GBps=draw(st.none() | st.integers(1, 9).map(float)),
        boundary_bytes=draw(st.integers(0, 9000)),
        stage=draw(st.dictionaries(st.integers(0, S - 1), of_stage, max_size=3)),
        microbatch=draw(of_microbatch),
        link=draw(st.dictionaries(st.sampled_from(links), link, max_size=2)) if links else {},
    )


@SETTINGS
@given(programs(4, 4), st.data())
def test_what_holds_at_any_costs(program: Program, data: st.DataObject) -> None:
    costs = data.draw(any_costs(program))
    line = replay(program, costs)
    times = costs.times(program)
    starts, ends = by_rank(line)
    for rank, stream in enumerate(program.ranks):
        # Work is conserved, in order, one step at a time.
        lasts = [times.duration(*pair) for pair in zip(stream.codes, stream.mates, strict=True)]
        assert [b - a for a, b in zip(starts[rank], ends[rank], strict=True)] == lasts
        assert line.busy_ns[rank] == sum(lasts)
        assert line.idle_ns[rank] == line.makespan_ns - sum(lasts) >= 0
        assert all(e <= s for e, s in zip(ends[rank], starts[rank][1:], strict=False))
    check_waits(program, costs, starts, ends)
    for move in line.transfers():
        assert line.end_ns[move.source] <= move.start_ns <= move.end_ns
        assert move.end_ns <= line.start_ns[move.target]


def check_waits(
    program: Program, costs: Costs, starts: list[list[int]], ends: list[list[int]]
) -> None:
    """Nothing starts before what it waits for, plus the least its transfer takes."""
    found, times = as_case(program), costs.times(program)
    node = {
        part: (rank, at)
        for rank, row in enumerate(found.rows)
        for at, step in enumerate(row)
        for part in parts(step)
    }
    sources = waits_of(found)
    for part, (rank, at) in node.items():
        for need in sources(part):
            made = next(n for n in need if n in node)
            other, where = node[made]
            link = (other, rank)
            lag = 0
            if other != rank:
                boundary = min(made[0], part[0])
                lag = times.latency(link) + times.occupancy(link, boundary)
            assert starts[rank][at] >= ends[other][where] + lag


@SETTINGS
@given(programs(4, 3), st.data())
def test_the_engine_with_a_clock_gives_the_same(program: Program, data: st.DataObject) -> None:
    costs = data.draw(any_costs(program))
    costs = Costs(**{**costs.given(), "bandwidth_GBps": None, "link": {}, "boundary_bytes": 0})
    work = lower(program, costs.times(program))
    plain, clocked = run(work), Clock(work).run()
    assert plain.start == clocked.start
    assert plain.end == clocked.end
    assert plain.blocker == clocked.blocker
    if longest_path.applies(costs.times(program)):
        assert longest_path.run(program, costs.times(program)) == plain


@SETTINGS
@given(programs(4, 3), st.booleans())
def test_waits_found_by_result_are_those_of_every_step(program: Program, doubled: bool) -> None:
    """The quick way of `deps.waits`, against the plain one; where two make the same, plain."""
    if doubled:
        rank = max(range(program.num_ranks), key=lambda rank: len(program.ranks[rank]))
        codes, mates = program.ranks[rank].codes, program.ranks[rank].mates
        streams = list(program.ranks)
        streams[rank] = Stream(codes + codes[:1], mates + mates[:1])
        program = program.with_ranks(streams)
    made = deps.index(program)

    def columns(needs: deps.Waits) -> tuple[object, ...]:
        return needs.own, needs.forward, needs.backward

    plain = columns(deps._waits_by_step(program, made))
    assert made.unique is not doubled
    assert columns(deps.waits(program)) == plain
    if not doubled:
        assert columns(deps._waits_by_result(program, made)) == plain


@SETTINGS
@given(programs(4, 3), st.data())
def test_the_critical_path_has_no_gap(program: Program, data: st.DataObject) -> None:
    costs = data.draw(any_costs(program))
    line = replay(program, costs)
    path = metrics.critical_path(line)
    assert line.end_ns[path[-1]] == line.makespan_ns
    assert line.start_ns[path[0]] == 0
    for a, b in pairwise(path):
        assert line.end_ns[a] <= line.start_ns[b]
        if program.rank_of_step(a) == program.rank_of_step(b):
            assert line.end_ns[a] == line.start_ns[b]


TWICE = """
import sys, tracegen
costs = tracegen.Costs(f_us=1/3, i_us=0.1, w_us=0.013, alpha_us=0.7, bandwidth_GBps=3.0,
                       boundary_bytes=100)
for name in sys.argv[1:]:
    tracegen.write(tracegen.replay(tracegen.compile(name), costs), "-")
"""


def test_the_same_request_gives_the_same_bytes(tmp_path: Path) -> None:
    """Also in another process, whose sets are in another order."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", TWICE, *SHIPPED],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    line = replay(tracegen.compile("zbv"), Costs(f_us=1 / 3))
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        tracegen.write(line, tmp_path / name)
    for suffix in ("json", "json.gz"):
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_a_program_that_cannot_finish_is_refused() -> None:
    rows = ["0F0 0B0 0F1 0B1", "1F1 1B1 1F0 1B0"]
    stuck = Program("mine", 2, loop(2, 1), tuple(Stream.of(map(parse, r.split())) for r in rows))
    with pytest.raises(DeadlockError):
        replay(stuck)
    with pytest.raises(ProgramError):
        replay(Program("mine", 2, loop(1, 1), (Stream.of(map(parse, ["0F0", "0B0"])),)))


def test_wrong_types_are_refused_by_name() -> None:
    with pytest.raises(ScheduleError) as size:
        tracegen.compile("1f1b", num_ranks="4")  # type: ignore[arg-type]
    assert str(size.value) == "num_ranks = '4' is no whole number; use one, such as 4"
    with pytest.raises(CostError) as costs:
        replay(tracegen.compile("1f1b", 2, 2), {"f_us": 1})  # type: ignore[arg-type]
    assert str(costs.value) == (
        "costs = {'f_us': 1} are no Costs; use Costs(...) or Costs.from_dict(...)"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("1f1b", "1f1b: it is no Program; tracegen.compile('1f1b') makes one"),
        (Path("mine.py"), "mine.py: it is no Program; tracegen.compile('mine.py') makes one"),
        (None, "NoneType: it is no Program; tracegen.compile makes one"),
    ],
)
def test_what_is_no_program_is_told_what_makes_one(given: object, said: str) -> None:
    with pytest.raises(ProgramError) as error:
        replay(given)  # type: ignore[arg-type]
    assert str(error.value) == said
