"""Transfers that hold both ranks: hand-worked cases, deadlocks, and a second computation.

Costs are whole ns (thousandths of a us), so that both computations are exact.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from full_oracle import Machine
from golden import SHIPPED
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Case, parts
from strategies import programs

import tracegen
from tracegen import attribution, metrics
from tracegen.cli import main
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.errors import CostError, DeadlockError, ProgramError, ScheduleError
from tracegen.ir import Exchange, Program, Stream, parse
from tracegen.order import loop
from tracegen.passes.communication import add_communication
from tracegen.passes.messages import add_fused, add_naive, check_messages
from tracegen.timeline import Timeline
from tracegen.torch_csv import write as to_csv

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)

ORDERS = {"torch": add_communication, "naive": add_naive, "fused": add_fused}

# What torch.distributed.pipelining has.
OF_TORCH = ("gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1", "zbv", "dualpipev")

# F = 1, B = 2, half a us from rank to rank.
HALF = Costs(f_us=1, b_us=2, alpha_us=0.5)


def compiled(name: str, p: int, m: int) -> Program:
    return tracegen.compile(name, p, m, communication=False)


def built(m: int, *rows: str) -> Program:
    streams = tuple(Stream.of(map(parse, row.split())) for row in rows)
    return Program("mine", m, loop(len(rows), 1), streams)


def rows_of(line: Timeline, rank: int) -> list[tuple[str, float, float]]:
    """What a rank does, compute and messages, with start and end in us."""
    base = line.program.offsets[rank]
    found = [
        (line.start_ns[base + at], line.end_ns[base + at], str(step))
        for at, step in enumerate(line.program.ranks[rank])
    ]
    found += [(one.start_ns, one.end_ns, str(one)) for one in line.held[rank]]
    return [(text, start / 1000, end / 1000) for start, end, text in sorted(found)]


def test_two_ranks_two_microbatches() -> None:
    """F = 1, B = 2, 0.5 between. Rank 1 sends B0's gradient when rank 0 waits for it, but rank 0
    sends F1 only at 2.5, after which rank 1 has taken it at 3 instead of starting B0 at 2.5:

        rank 0  F0 0-1, send 1-1.5, F1 1.5-2.5, send 2.5-3, receive 3-5.5 B0 5.5-7.5,
                receive 7.5-9, B1 9-11
        rank 1  receive 0-1.5, F0 1.5-2.5, receive F1 2.5-3, B0 3-5, send 5-5.5, F1 5.5-6.5,
                B1 6.5-8.5, send 8.5-9
    """
    line = replay(compiled("1f1b", 2, 2), HALF, p2p="blocking")
    assert rows_of(line, 0) == [
        ("0F0", 0, 1),
        ("0SEND_F0", 1, 1.5),
        ("0F1", 1.5, 2.5),
        ("0SEND_F1", 2.5, 3),
        ("0RECV_B0", 3, 5.5),
        ("0B0", 5.5, 7.5),
        ("0RECV_B1", 7.5, 9),
        ("0B1", 9, 11),
    ]
    assert rows_of(line, 1) == [
        ("1RECV_F0", 0, 1.5),
        ("1F0", 1.5, 2.5),
        ("1RECV_F1", 2.5, 3),
        ("1B0", 3, 5),
        ("1SEND_B0", 5, 5.5),
        ("1F1", 5.5, 6.5),
        ("1B1", 6.5, 8.5),
        ("1SEND_B1", 8.5, 9),
    ]
    assert line.busy_ns == [6000, 6000]  # compute only


def test_a_fused_exchange_is_over_when_both_its_messages_are() -> None:
    """Rank 1 need not take F1 before B0: it takes it when it gives B0's gradient away.

    rank 0  F0 0-1, send 1-1.5, F1 1.5-2.5, exchange 2.5-5, B0 5-7, receive 7-8.5, B1 8.5-10.5
    rank 1  receive 0-1.5, F0 1.5-2.5, B0 2.5-4.5, exchange 4.5-5, F1 5-6, B1 6-8, send 8-8.5
    """
    line = replay(compiled("1f1b", 2, 2), HALF, p2p="blocking", p2p_order="fused")
    assert line.makespan_ns == 10_500
    assert rows_of(line, 0)[3] == ("(0SEND_F1;0RECV_B0)SEND_RECV", 2.5, 5)
    assert rows_of(line, 1)[3] == ("(1SEND_B0;1RECV_F1)SEND_RECV", 4.5, 5)


def test_four_ranks_eight_microbatches() -> None:
    """Each mode's last gradient leaves rank 3 and takes 3 (0.5 + 2) = 7.5 to rank 0's end.

    async: rank 3 ends B0 at 3 (1 + 0.5) + 1 + 2 = 7.5 and B1 at 10.5; F2 comes from rank 2 at 11.5
        and F3 at 15.5, so B3 ends there at 18.5 and on rank 0 at 26. Only then has rank 0 a place
        for F7: 26 and a whole round of 4 (1 + 2) + 6 x 0.5 = 15 is 41.
    fused: B0 ends at 7.5 as well, B1 after an exchange at 7.5 + 0.5 + 3 = 11; from then on rank 3
        waits for its exchange: 4 a microbatch, to B7 at 11 + 6 x 4 = 35. 35 + 7.5 = 42.5.
    torch: rank 3 takes F1 before B0, which ends at 5.5 + 1 + 2 = 8.5; each next microbatch takes
        0.5 (send) + 1 (F) + 3.5 (F of the next must first be made and sent) + 2 = 7, to B6 at 50.5,
        and B7 0.5 + 1 + 2 = 3.5 more, 54. 54 + 7.5 = 61.5.
    naive: rank 2 sends F1, which rank 3 takes only after it has sent B0's gradient, which rank 2
        takes only after F1 is sent.
    """
    program = compiled("1f1b", 4, 8)
    assert replay(program, HALF).makespan_ns == 41_000
    assert replay(program, HALF, p2p="blocking", p2p_order="fused").makespan_ns == 42_500
    assert replay(program, HALF, p2p="blocking", p2p_order="torch").makespan_ns == 61_500
    with pytest.raises(DeadlockError) as caught:
        replay(program, HALF, p2p="blocking", p2p_order="naive")
    assert str(caught.value) == (
        "1f1b:\n"
        "  deadlock after 23 of 160 actions\n"
        "  rank 2, action 5: 2SEND_F1 waits for rank 3, action 4: 3RECV_F1\n"
        "  rank 3, action 3: 3SEND_B0 waits for rank 2, action 6: 2RECV_B0"
    )


@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("m", [1, 2, 3, 8])
def test_naive_1f1b_deadlocks_from_two_ranks_and_two_microbatches_on(p: int, m: int) -> None:
    def go() -> Timeline:
        return replay(compiled("1f1b", p, m), HALF, p2p="blocking", p2p_order="naive")

    if p >= 2 and m >= 2:
        with pytest.raises(DeadlockError):
            go()
    else:
        go()


@pytest.mark.parametrize("name", SHIPPED)
def test_torchs_order_finishes_for_every_schedule(name: str) -> None:
    """Its two ends of a message are placed at one moment of one order of all actions, and in that
    order everything can run.
    """
    tried = 0
    for p in (1, 2, 3, 4, 6):
        for m in (1, 2, 3, 4, 6, 8, 12):
            try:
                program = compiled(name, p, m)
            except ScheduleError:
                continue
            replay(program, HALF, p2p="blocking")
            tried += 1
    assert tried >= 4
    assert set(OF_TORCH) <= SHIPPED.keys()


@pytest.mark.parametrize("m", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
def test_fused_1f1b_finishes(p: int, m: int) -> None:
    replay(compiled("1f1b", p, m), HALF, p2p="blocking", p2p_order="fused")


def test_a_receive_posted_too_early_holds_up_what_is_ready() -> None:
    """Rank 1 could do B0 at 2.5. It waits for F1 instead, which rank 0 sends at 6, after 4.5 us:
    3.5 of waiting and 0.5 on the way, of which 2 are lost in the end.

    early  rank 1: receive F1 2.5-6.5, B0 6.5-8.5, send 8.5-9, F1 9-10, B1 10-12, send 12-12.5;
           rank 0: B1 12.5-14.5
    late   rank 1: B0 2.5-4.5, send 4.5-6.5 (rank 0 comes at 6), receive F1 6.5-7, F1 7-8, B1 8-10,
           send 10-10.5; rank 0: B1 10.5-12.5
    """
    early = built(
        2,
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    )
    late = built(
        2,
        "0F0 0SEND_F0 0F1 0RECV_B0 0SEND_F1 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1",
    )
    costs = Costs(f_us=1, b_us=2, alpha_us=0.5, stage={0: {"microbatch": {1: {"f_us": 4.5}}}})
    slow, quick = (replay(program, costs, p2p="blocking") for program in (early, late))
    assert (slow.makespan_ns, quick.makespan_ns) == (14_500, 12_500)
    causes = [
        (part.at, part.on, part.rank, part.start_ns, part.end_ns)
        for part in attribution.idle(slow, 1)
        if part.cause is attribution.Cause.WAIT
    ]
    assert causes[0] == ("1RECV_F1", "0SEND_F1", 0, 2500, 6000)
    assert max(causes, key=lambda one: one[4] - one[3]) == causes[0]
    assert not any("RECV_F1" in part.at and part.ns > 500 for part in attribution.idle(quick, 1))


def test_bytes_on_a_link_hold_both_ends_too() -> None:
    """1000 bytes at 1 GB/s are 1 us, and 0.5 of latency: each message takes 1.5.

    F0 0-1, send 1-2.5, F0 2.5-3.5, B0 3.5-5.5, send 5.5-7, B0 7-9.
    """
    costs = Costs(f_us=1, b_us=2, alpha_us=0.5, bandwidth_GBps=1, boundary_bytes=1000)
    line = replay(compiled("1f1b", 2, 1), costs, p2p="blocking")
    assert line.makespan_ns == 9000
    parts = attribution.totals(line, 0)
    assert parts[attribution.Cause.BANDWIDTH] == 2000
    assert parts[attribution.Cause.LATENCY] == 1000


def test_a_csv_with_its_own_messages_runs_in_its_own_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    program = tracegen.compile(file, communication=False)
    assert replay(program, HALF, p2p="blocking").makespan_ns == 7000
    swapped = tmp_path / "swapped.csv"
    swapped.write_text("0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n")
    program = tracegen.compile(swapped, communication=False)
    with pytest.raises(DeadlockError) as caught:
        replay(program, HALF, p2p="blocking")
    assert caught.value.problems == [
        "deadlock after 1 of 8 actions",
        "rank 0, action 1: 0RECV_B0 waits for rank 1, action 3: 1SEND_B0",
        "rank 1, action 0: 1RECV_F0 waits for rank 0, action 2: 0SEND_F0",
    ]
    # Placed anew, it finishes: the order of its compute is sound.
    assert replay(program, HALF, p2p="blocking", p2p_order="torch").makespan_ns == 7000


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            ("0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"),
            "rank 0, action 0: 0F0 has no 0SEND_F0, which is missing",
        ),
        (
            ("0SEND_F0 0F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"),
            "rank 0, action 1: 0F0 comes after its 0SEND_F0, which is action 0",
        ),
        (
            ("0F0 0SEND_F0 0B0 0RECV_B0", "1RECV_F0 1F0 1B0 1SEND_B0"),
            "rank 0, action 2: 0B0 comes before its 0RECV_B0, which is action 3",
        ),
        (
            ("0F0 0SEND_F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"),
            "rank 0, action 2: 0SEND_F0 is there already, as action 1",
        ),
        (
            ("0F0 0SEND_F0 0RECV_B0 0B0 1SEND_F0", "1RECV_F0 1F0 1B0 1SEND_B0"),
            "rank 0, action 4: 1SEND_F0 is of a stage that another rank holds",
        ),
        (
            ("0F0 0SEND_F0 0RECV_B0 0B0 0SEND_B0", "1RECV_F0 1F0 1B0 1SEND_B0"),
            "rank 0, action 4: 0SEND_B0 moves nothing between two ranks",
        ),
    ],
)
def test_messages_that_are_not_those_it_needs(rows: tuple[str, str], problem: str) -> None:
    with pytest.raises(ProgramError) as caught:
        replay(built(1, *rows), HALF, p2p="blocking")
    assert problem in caught.value.problems


@pytest.mark.parametrize("order", ORDERS)
@given(program=programs())
@SETTINGS
def test_every_order_has_the_messages_that_it_needs(order: str, program: Program) -> None:
    check_messages(ORDERS[order](program))


def machine(program: Program, costs: dict[str, int], placed: Program | None = None) -> Machine:
    """The second computation of a program, its messages as `placed` has them."""
    rows = [[str(step) for step in stream] for stream in (placed or program).ranks]
    place = program.placement

    def lasts(step: int, text: str) -> int:
        return sum({"F": f, "I": i, "W": w, "B": i + w}[kind] for _, kind, _ in parts(text))

    f, i, w = costs["f"], costs["i"], costs["w"]
    return Machine(
        Case(rows, place.ranks, place.chains, program.num_microbatches),
        lasts,
        lambda a, b: costs["alpha"] * (1 + (a + 2 * b) % 3),
        lambda a, b, stage: costs["bytes"] * (stage + 1),
        blocking=placed is not None,
    )


def as_costs(program: Program, costs: dict[str, int]) -> Costs:
    """The same for the package: latencies differ from link to link, bytes from stage to stage."""
    p = program.num_ranks
    return Costs(
        f_us=costs["f"] / 1000,
        i_us=costs["i"] / 1000,
        w_us=costs["w"] / 1000,
        link={
            f"{a}-{b}": {"alpha_us": costs["alpha"] * (1 + (a + 2 * b) % 3) / 1000}
            for a in range(p)
            for b in range(p)
            if a != b
        },
        bandwidth_GBps=1,
        boundary_bytes=[costs["bytes"] * (stage + 1) for stage in range(program.num_stages)],
    )


numbers = st.fixed_dictionaries(
    {name: st.integers(1, 9) for name in "fiw"}
    | {"alpha": st.integers(0, 5), "bytes": st.integers(0, 5)}
)


@pytest.mark.parametrize("order", ORDERS)
@given(program=programs(max_microbatches=4), costs=numbers)
@SETTINGS
def test_a_second_computation_agrees(order: str, program: Program, costs: dict[str, int]) -> None:
    other = machine(program, costs, ORDERS[order](program))
    finishes = other.run()
    try:
        line = replay(program, as_costs(program, costs), p2p="blocking", p2p_order=order)
    except DeadlockError as error:
        assert not finishes
        line = error.line
        assert line.hangs
    else:
        assert finishes
    for rank in range(program.num_ranks):
        mine = [
            (text, round(a * 1000), round(b * 1000)) for text, a, b in rows_of(line, rank) if b >= a
        ]
        assert sorted(mine) == sorted(other.spans[rank])
    if finishes:
        assert_sums(line)


def assert_sums(line: Timeline) -> None:
    """The parts of each rank's idle time add up to it, in order and apart; the path is a path."""
    for rank in range(line.program.num_ranks):
        found = attribution.idle(line, rank)
        assert sum(part.ns for part in found) == line.idle_ns[rank]
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(found))
    path = metrics.critical_path(line)
    assert list(path) == sorted(path, key=line.start_ns.__getitem__)


def test_modes_that_are_none() -> None:
    program = compiled("1f1b", 2, 2)
    for wrong, message in (
        ({"p2p": "sync"}, "p2p = 'sync'; use async or blocking"),
        ({"p2p_order": "x"}, "p2p_order = 'x'; use torch, naive or fused"),
        ({"p2p_order": "naive"}, "p2p_order = naive is for p2p = blocking; add that"),
        ({"dispatch": "any"}, "dispatch = 'any'; use static or dynamic"),
        ({"steps": 0}, "steps = 0; use a whole number, 1 or more"),
        (
            {"p2p": "blocking", "dispatch": "dynamic"},
            "p2p = blocking with dispatch = dynamic: a rank that waits in a SEND cannot take "
            "what is ready; give one of them",
        ),
    ):
        with pytest.raises(CostError) as caught:
            replay(program, **wrong)  # type: ignore[arg-type]
        assert str(caught.value) == message


def test_an_exchange_is_refused_in_torchs_csv() -> None:
    fused = add_fused(compiled("1f1b", 2, 2))
    assert any(isinstance(step, Exchange) for step in fused.ranks[0])
    with pytest.raises(ScheduleError) as caught:
        to_csv(fused)
    assert str(caught.value) == (
        "1f1b: rank 0, action 3: (0SEND_F1;0RECV_B0)SEND_RECV is a send and a receive as one "
        "action, which torch has not; export it with the order torch or naive"
    )
    text = "(0SEND_F1;0RECV_B0)SEND_RECV"
    assert str(parse(text)) == text


def run(*args: str) -> Any:
    return command("run", *args)


def command(*args: str) -> Any:
    return CliRunner().invoke(main, args)


def test_a_deadlock_leaves_a_trace_that_ends_where_it_hangs(tmp_path: Path) -> None:
    target = tmp_path / "hangs.json"
    naive = "-s 1f1b -p 2 -m 2 --f 1 --b 2 --alpha 0.5 --p2p blocking --p2p-order naive"
    done = run(*naive.split(), "-o", str(target))
    assert done.exit_code == 2
    assert "rank 0, action 3: 0SEND_F1 waits for rank 1, action 4: 1RECV_F1" in done.stderr
    events = json.loads(target.read_text())["traceEvents"]
    stuck = [e for e in events if e.get("name") == "stuck"]
    assert [(e["tid"], e["ts"], e["args"]["action"], e["args"]["waits_for"]) for e in stuck] == [
        (1, 2.5, "0SEND_F1", "rank 1, action 4: 1RECV_F1"),
        (2, 4.5, "1SEND_B0", "rank 0, action 4: 0RECV_B0"),
    ]
    assert len({e["ts"] + e["dur"] for e in stuck}) == 1
    assert not (tmp_path / "1f1b.json").exists()


def test_a_cycle_of_compute_leaves_one_too(tmp_path: Path) -> None:
    file, target = tmp_path / "mine.csv", tmp_path / "hangs.json"
    file.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    done = run("-s", str(file), "-o", str(target))
    assert done.exit_code == 2
    assert "deadlock after 1 of 8 actions" in done.stderr
    names = [e["name"] for e in json.loads(target.read_text())["traceEvents"] if e["ph"] == "X"]
    assert names == ["F0", "stuck", "stuck"]


def test_a_trace_that_hangs_can_be_made_again(tmp_path: Path) -> None:
    file, first, again = tmp_path / "mine.csv", tmp_path / "a.json", tmp_path / "b.json"
    file.write_text("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n")
    naive = "-s 1f1b -p 2 -m 2 --p2p blocking --p2p-order naive --bubble-row"
    for args in (naive.split(), ["-s", str(file), "--p2p", "blocking"]):
        assert run(*args, "-o", str(first)).exit_code == 2
        assert run("--like", str(first), "-o", str(again)).exit_code == 2
        assert first.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipe", "interleaved-1f1b"])
def test_who_held_a_step_is_named(name: str) -> None:
    """Through messages: the path from one to the next is the critical one, and ends at 0."""
    line = replay(compiled(name, 4, 8), HALF, p2p="blocking")
    texts = {str(half) for stream in line.program.ranks for step in stream for half in halves(step)}
    for rank in range(4):
        for step in range(line.program.offsets[rank], line.program.offsets[rank + 1]):
            for text in metrics.waited_for(line, rank, step).strip("()").split(";"):
                assert text.removesuffix(")OVERLAP_F_B") in texts | {""}
    assert line.start_ns[metrics.critical_path(line)[0]] == 0


def halves(step: Any) -> list[Any]:
    return [getattr(step, "forward", step), getattr(step, "backward", step)]


# p = 4, m = 8, F = 1, B = 2, 0.5 between ranks, in us: async, torch, fused, naive; None hangs.
EVERY: dict[str, tuple[float | None, ...]] = {
    "gpipe": (36, 50, 50, 50),
    "1f1b": (41, 61.5, 42.5, None),
    "eager-1f1b": (36, 54, 89, None),
    "interleaved-1f1b": (64, 131, None, None),
    "looped-bfs": (60, 125, None, None),
    "zb-h1": (33, 50.5, 47, None),
    "zb-h2": (28.5, 48.5, None, None),
    "interleaved-zb": (59, 114.5, None, None),
    "zbv": (57.5, 101, None, None),
    "v-half": (62, 112, None, None),
    "v-min": (79, 127, None, None),
    "chimera": (35.5, 55, 37, None),
    "hanayo": (79, 113.5, 80.5, None),
    "dualpipe": (30.5, 54.5, None, None),
    "dualpipev": (64, 109.5, None, None),
}


@pytest.mark.parametrize("name", EVERY)
def test_which_schedules_finish_on_which_transport(name: str) -> None:
    program = compiled(name, 4, 8)
    found: list[float | None] = [replay(program, HALF).makespan_ns / 1000]
    for order in ORDERS:
        try:
            found.append(replay(program, HALF, p2p="blocking", p2p_order=order).makespan_ns / 1000)
        except DeadlockError:
            found.append(None)
    asynchronous, torch, naive, fused = found
    assert (asynchronous, torch, fused, naive) == EVERY[name]


def test_check_says_whether_it_finishes_on_such_a_transport() -> None:
    check = ["check", "1f1b", "-p", "4", "-m", "8", "--p2p", "blocking"]
    assert CliRunner().invoke(main, check).exit_code == 0
    done = CliRunner().invoke(main, [*check, "--p2p-order", "naive"])
    assert done.exit_code == 1
    assert "3SEND_B0 waits for rank 2, action 6: 2RECV_B0" in done.stdout


@pytest.mark.parametrize("more", ["", "--p2p-order fused", "--steps 2 --bubble-row --links"])
def test_a_blocking_trace_can_be_made_again(tmp_path: Path, more: str) -> None:
    first, again = tmp_path / "a.json", tmp_path / "b.json"
    size = "-s zb-h1 -p 3 -m 4 --alpha 10 --p2p blocking"
    assert run(*size.split(), *more.split(), "-o", str(first)).exit_code == 0
    assert run("--like", str(first), "-o", str(again)).exit_code == 0
    assert first.read_bytes() == again.read_bytes()
    read = tracegen.read(first)
    assert read.makespan_ns == replay_of(more).makespan_ns
    assert read.busy_ns == replay_of(more).busy_ns


def replay_of(more: str) -> Timeline:
    program = compiled("zb-h1", 3, 4)
    return replay(
        program,
        Costs(alpha_us=10),
        p2p="blocking",
        p2p_order="fused" if "fused" in more else None,
        steps=2 if "steps" in more else 1,
    )


@pytest.mark.parametrize("suffix", ["json", "pftrace"])
def test_a_trace_that_ends_in_a_deadlock_is_known_as_one(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ("-p", "2", "-m", "2", "--p2p", "blocking", "--p2p-order", "naive")
    assert run("-s", "1f1b", *sizes, "-o", f"hang.{suffix}").exit_code == 2
    # Both ranks come to a send that the other, in a send itself, does not receive.
    ends = [
        "rank 0 hangs at 0SEND_F1, which waits for rank 1, action 4: 1RECV_F1",
        "rank 1 hangs at 1SEND_B0, which waits for rank 0, action 4: 0RECV_B0",
    ]
    checked = command("check", f"hang.{suffix}")
    assert checked.exit_code == 1
    assert [line.strip() for line in checked.stdout.splitlines()] == ["1f1b:", "deadlock", *ends]
    for name in ("show", "explain"):
        said = command(name, f"hang.{suffix}").stderr.splitlines()
        assert said == [f"hang.{suffix} ends in a deadlock: {end}" for end in ends]
    assert "ends in a deadlock" in command("explain", f"hang.{suffix}").stdout.partition("\n")[0]
