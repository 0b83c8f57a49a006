"""The same action streams on real stages: loss, gradients, order and waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tracegen
from tests import execute_team
from tests.execute_team import FAULTS, SMALL, Team
from tracegen import registry
from tracegen.errors import ExecuteError, ScheduleError
from tracegen.execute.clock import Cpu, HostEvent, Recorder, cost_of_measuring_ns, offset
from tracegen.execute.measure import broken_waits, check_order, measured
from tracegen.execute.options import Options
from tracegen.execute.outcome import Offset, Outcome
from tracegen.execute.progress import unshared
from tracegen.execute.shared import run_shared
from tracegen.execute.transport import check_order as check_links
from tracegen.ir import Program, Stream

EXACT = Options(dtype="float64", **SMALL)
# Tiny stages make tiny gradients; float32 rounds them to about 1e-7 of the largest.
SINGLE = Options(dtype="float32", **SMALL)


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Team]]:
    made = {p: Team(p) for p in (1, 2, 4)}
    yield made
    for team in made.values():
        team.end()


def programs(p: int, most: int) -> list[Program]:
    """Every schedule at up to `most` sizes of m from 1 to 3p it accepts, and v of 2 and 3."""
    found = []
    for name, schedule in sorted(registry.available()[0].items()):
        for v in (None, 2, 3) if schedule.stages_per_rank is None else (None,):
            sizes: list[Program] = []
            for m in range(1, 3 * p + 1):
                try:
                    sizes.append(tracegen.compile(name, p, m, v))
                except ScheduleError:
                    continue
            found += [*sizes[: most - 1], *sizes[-1:]] if len(sizes) > most else sizes
    return found


def judge(team: Team, cases: list[Program], options: Options) -> int:
    """Every case as the whole model has it, in the program's order, no wait broken."""
    found = team.run(execute_team.execute_all, cases, options)[0]
    for program, (verdict, times, offsets) in zip(cases, found, strict=True):
        here = f"{program.name} p={program.num_ranks} m={program.num_microbatches}: {verdict}"
        assert verdict.good, f"{here} at {verdict.worst}"
        compute = program.compute_only()
        for rank, of_rank in enumerate(times):
            check_order(compute, rank, of_rank)
        assert measured(program, Outcome([times], offsets, verdict, 0, None, {})).broken_waits == []
    return len(cases)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_gradients_are_the_whole_models_for_every_schedule(teams: dict[int, Team], p: int) -> None:
    cases = programs(p, most=2)
    assert {c.name for c in cases} >= {"1f1b", "zbv", "dualpipev", "gpipe", "interleaved-1f1b"}
    assert ("dualpipe" in {c.name for c in cases}) == (p > 1)
    assert judge(teams[p], cases, EXACT) >= 25


@pytest.mark.nightly
@pytest.mark.parametrize("p", [1, 2, 4])
def test_gradients_at_every_size(teams: dict[int, Team], p: int) -> None:
    for options in (EXACT, SINGLE):
        judge(teams[p], programs(p, most=99), options)


def test_gradients_in_single_precision_stay_within_the_stated_bound(teams: dict[int, Team]) -> None:
    names = ("zbv", "dualpipe", "interleaved-1f1b", "zb-h1")
    judge(teams[4], [tracegen.compile(name, 4, 8) for name in names], SINGLE)


def test_evaluation_checks_the_loss_alone(teams: dict[int, Team]) -> None:
    judge(teams[2], [tracegen.compile("1f1b", 2, 4, forward_only=True)], EXACT)


@pytest.mark.parametrize("gate", ["comm", "dag"])
def test_where_a_rank_waits_changes_the_trace_and_nothing_else(
    teams: dict[int, Team], gate: str
) -> None:
    program = tracegen.compile("1f1b", 2, 4)
    (verdict, times, _) = teams[2].run(
        execute_team.execute_all, [program], replace(EXACT, gate=gate)
    )[0][0]
    assert verdict.good
    assert any(ns >= 0 for of_rank in times for ns in of_rank.wait_ns) == (gate == "comm")


@pytest.mark.parametrize("order", ["naive", "fused"])
def test_the_order_of_messages_does_not_matter_on_gloo(teams: dict[int, Team], order: str) -> None:
    from tracegen.passes import messages

    lower = getattr(messages, f"add_{order}")
    judge(
        teams[4],
        [lower(tracegen.compile(n, 4, 8, communication=False)) for n in ("zbv", "1f1b")],
        EXACT,
    )


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipe", "dualpipev"])
def test_experts_on_processes_of_their_own(teams: dict[int, Team], name: str) -> None:
    options = replace(EXACT, ep=2, experts=4, microbatch_size=2)
    program = tracegen.compile(name, 2, 4)
    verdict = teams[4].run(execute_team.execute_all, [program], options)[0][0][0]
    assert verdict.good, verdict


@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_catches(teams: dict[int, Team], fault: str) -> None:
    name = "dualpipe" if fault == "replicas apart" else "zbv"
    program = tracegen.compile(name, 2, 4)
    outcome = teams[2].run(execute_team.execute_with, fault, program, EXACT)[0]
    assert not outcome.verdict.good
    assert max(outcome.verdict.gradient_error, outcome.verdict.loss_error) > 1e-4
    with pytest.raises(ExecuteError, match="not what the whole model gives: loss"):
        outcome.verdict.insist()


def test_without_a_fault_the_same_harness_finds_none(teams: dict[int, Team]) -> None:
    program = tracegen.compile("zbv", 2, 4)
    assert teams[2].run(execute_team.execute_with, "", program, EXACT)[0].verdict.good


def changed(program: Program, rank: int, text: str, instead: list[str]) -> Program:
    """The program with other actions in the place of one."""
    from tracegen.ir import parse

    steps = [str(s) for s in program.ranks[rank]]
    at = steps.index(text)
    steps[at : at + 1] = instead
    streams = list(program.ranks)
    streams[rank] = Stream.of(map(parse, steps))
    return program.with_ranks(streams)


@pytest.mark.parametrize(
    ("text", "instead", "message"),
    [
        ("1W0", ["1W0", "1W0"], "1W0: no I of it has run, or its W has already"),
        (
            "1RECV_F0",
            [],
            "rank 0 waits at 0I0, rank 1 waits at 1F0: a message is not sent, or no RECV takes it",
        ),
        ("1F0", ["1SEND_F0", "1F0"], "1SEND_F0 stands where there is nothing to send"),
        ("1I0", ["1I0", "1I0"], "the backward of 1F0 runs before it, or twice"),
    ],
)
def test_a_program_that_lacks_something_is_refused_by_name(
    text: str, instead: list[str], message: str
) -> None:
    program = changed(tracegen.compile("zb-h1", 2, 2), 1, text, instead)
    with pytest.raises(ExecuteError) as caught:
        run_shared(program, EXACT, unshared())
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["zbv", "dualpipe", "1f1b", "interleaved-zb"])
@pytest.mark.parametrize("gate", ["comm", "dag"])
def test_all_ranks_as_streams_of_one_process(name: str, gate: str) -> None:
    """What --share-gpu runs, with the host's clock for events."""
    program = tracegen.compile(name, 4, 8)
    outcome = run_shared(program, replace(EXACT, share_gpu=True, gate=gate), unshared())
    assert outcome.verdict is not None
    assert outcome.verdict.good, outcome.verdict
    assert measured(program, outcome).broken_waits == []


def test_nccl_needs_both_sides_in_one_order() -> None:
    program = tracegen.compile("zbv", 4, 8)
    check_links(program)
    swapped = changed(program, 0, "0SEND_F0", [])
    swapped = changed(swapped, 0, "0SEND_F1", ["0SEND_F1", "0SEND_F0"])
    with pytest.raises(ExecuteError) as caught:
        check_links(swapped)
    assert str(caught.value) == (
        "zbv: rank 0 sends 0SEND_F1 where rank 1 does 1RECV_F0; NCCL matches messages in "
        "order, use the order of torch's lowering (--p2p-order torch)"
    )


class SlowClock(Cpu):
    """A device whose clock starts anywhere and whose events must be read through the anchor."""

    class Event(HostEvent):
        def record(self) -> None:
            self.ns = time.monotonic_ns() - 123_456_789_000

    def event(self) -> HostEvent:
        return self.Event()


def test_event_times_come_out_on_the_hosts_clock() -> None:
    recorder = Recorder(SlowClock())
    recorder.start_step()
    before = time.monotonic_ns()
    start, end = recorder.mark(), recorder.mark()
    after = time.monotonic_ns()
    recorder.note(7, -1, None, start, end)
    times = recorder.read()
    slack = times.uncertainty_ns + 1000
    assert before - slack <= times.start_ns[0] <= times.end_ns[0] <= after + slack
    assert list(times.wait_ns) == [-1]


def test_events_are_used_again() -> None:
    recorder = Recorder(Cpu())
    for _ in range(3):
        recorder.start_step()
        recorder.note(0, -1, recorder.mark(), recorder.mark(), recorder.mark())
        assert len(recorder.read().codes) == 1
    assert len(recorder.pool) == 3


def test_measuring_costs_microseconds() -> None:
    assert 0 < cost_of_measuring_ns(Cpu()) < 1_000_000


def test_the_offset_of_a_clock_is_found_within_its_uncertainty() -> None:
    ahead = 5_000_000_000
    found = offset(lambda: time.monotonic_ns() + ahead)
    assert abs(found.ns + ahead) <= found.uncertainty_ns


def test_the_exchange_of_clocks_between_processes(teams: dict[int, Team]) -> None:
    first, second = teams[2].run(execute_team.offset_to_next)
    assert second is None
    assert abs(first.ns) <= first.uncertainty_ns


def test_an_order_that_differs_from_the_program_is_named() -> None:
    program = tracegen.compile("1f1b", 1, 2)
    outcome = run_shared(program, replace(EXACT, share_gpu=True), unshared())
    times = outcome.steps[0][0]
    times.start_ns[0], times.start_ns[1] = times.start_ns[1], times.start_ns[0]
    with pytest.raises(ExecuteError) as caught:
        measured(program, outcome)
    assert str(caught.value) == "rank 0, action 0: 0B0 ran where 0F0 stands"


def test_a_broken_wait_is_named() -> None:
    program = tracegen.compile("1f1b", 2, 2)
    outcome = run_shared(program, replace(EXACT, share_gpu=True), unshared())
    line = measured(program, outcome).line
    moved = replace(line, start_ns=line.start_ns[:])
    moved.start_ns[line.program.offsets[1]] -= 10**9
    assert broken_waits(moved, 1000)[0].startswith("1F0 starts ")


def test_another_hosts_clock_is_brought_to_ours() -> None:
    program = tracegen.compile("1f1b", 2, 2)
    outcome = run_shared(program, replace(EXACT, share_gpu=True), unshared())
    plain = measured(program, outcome).line
    for of_step in outcome.steps:
        for column in (of_step[1].start_ns, of_step[1].end_ns, of_step[1].wait_ns):
            for at, ns in enumerate(column):
                column[at] = ns if ns < 0 else ns - 777_000
    moved = measured(program, replace(outcome, offsets=[Offset(), Offset(777_000, 50)])).line
    assert moved.start_ns == plain.start_ns
    assert moved.end_ns == plain.end_ns
    assert moved.config["executed"]["clock_uncertainty_us"] > 0.05


@pytest.mark.parametrize(
    ("calibrated", "predicted", "stages"),
    [("zb-h1", "gpipe", "two"), ("zbv", "interleaved-zb", "four")],
)
def test_costs_of_one_schedule_predict_another(
    teams: dict[int, Team], calibrated: str, predicted: str, stages: str
) -> None:
    """With stages that sleep, so that a busy machine only adds to what a rank does between."""
    model = Path(__file__).parent / f"sleeping_stages.py:{stages}"
    options = Options(model=str(model), warmup_steps=1, measure_steps=3, dtype="float64")
    first, second = tracegen.compile(calibrated, 2, 4), tracegen.compile(predicted, 2, 8)
    costs = measured(first, teams[2].run(execute_team.execute, first, options)[0]).costs
    line = tracegen.replay(second, costs.for_program(second))
    found = measured(second, teams[2].run(execute_team.execute, second, options)[0])
    assert line.makespan_ns == pytest.approx(found.spread.p50_ns, rel=0.2)
