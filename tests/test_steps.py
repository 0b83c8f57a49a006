"""Several training steps, what stands between them, slow ranks, noise: by hand and a second time.

Costs are whole ns (thousandths of a us), so that both computations are exact.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from full_oracle import Machine
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Case, parts
from strategies import programs
from test_blocking import assert_sums, compiled, rows_of
from test_blocking import run as run_command

import tracegen
from tracegen import metrics
from tracegen.cli import main
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.errors import CostError
from tracegen.ir import Program, encode
from tracegen.jitter import Jitter
from tracegen.moe import MoE
from tracegen.passes.communication import add_communication
from tracegen.repeat import flat, folded, repeat, step_of
from tracegen.timeline import Timeline

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)

EVEN = Costs(f_us=1, i_us=1, w_us=1)


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 5])
@pytest.mark.parametrize(("name", "v", "least"), [("zb-h2", 1, -1), ("zbv", 2, 0)])
def test_zero_bubble_schedules_have_no_bubble_in_steady_state(
    name: str, v: int, least: int, p: int, more: int
) -> None:
    """Each step m (f + i + w) v, exactly: m = 2p - 1 and more for ZB-H2, 2p and more for ZBV."""
    m = 2 * p + least + more
    program = compiled(name, p, m)
    busy = m * 3 * v * 1000
    alone = replay(program, EVEN).makespan_ns
    assert replay(program, EVEN, steps=4).steady_step_ns == busy
    assert replay(program, EVEN, steps=4, sync=True).steady_step_ns == alone > busy
    costs = Costs(f_us=1, i_us=1, w_us=1, optimizer_us=2)
    assert replay(program, costs, steps=3, sync=True).steady_step_ns == alone + 2000 * v
    assert replay(program, costs, steps=3).steady_step_ns == busy + 2000 * v


def test_1f1b_gains_nothing_without_a_barrier() -> None:
    """Rank 0 ends last and starts first: 4 (1 + 2) for the fill and drain, 8 microbatches, 33."""
    program, costs = compiled("1f1b", 4, 8), Costs(f_us=1, b_us=2)
    assert replay(program, costs, steps=5).steady_step_ns == 33_000
    assert replay(program, costs, steps=5).makespan_ns == 5 * 33_000


def test_what_stands_between_two_steps() -> None:
    """Two ranks, F = 1, B = 2, sums of 3, the optimizer 4.

    Rank 1 ends B0 at 4, sums to 7, optimizes to 11; rank 0 ends at 6, 9, 13. Then rank 0's F of the
    second step is at 13-14, rank 1's at 14-15; it could have begun at 11.
    """
    costs = Costs(f_us=1, b_us=2, grad_sync_us=3, optimizer_us=4)
    line = replay(compiled("1f1b", 2, 1), costs, steps=2)
    assert rows_of(line, 0) == [
        ("0F0", 0, 1),
        ("0B0", 4, 6),
        ("0REDUCE_GRAD", 6, 9),
        ("0OPTIMIZER", 9, 13),
        ("0F0", 13, 14),
        ("0B0", 17, 19),
        ("0REDUCE_GRAD", 19, 22),
        ("0OPTIMIZER", 22, 26),
    ]
    assert rows_of(line, 1)[2:5] == [
        ("1REDUCE_GRAD", 4, 7),
        ("1OPTIMIZER", 7, 11),
        ("1F0", 14, 15),
    ]
    assert line.makespan_ns == 26_000
    assert line.busy_ns == [2 * (3 + 4) * 1000] * 2  # the optimizer computes, the sum does not
    assert line.steady_step_ns == 13_000
    synced = replay(compiled("1f1b", 2, 1), costs, steps=2, sync=True)
    # Rank 1's sum is over at 7; its optimizer waits for rank 0's sum, until 9.
    assert rows_of(synced, 1)[2:5] == [
        ("1REDUCE_GRAD", 4, 7),
        ("1OPTIMIZER", 9, 13),
        ("1F0", 14, 15),
    ]


def test_replicas_are_summed_when_all_have_come() -> None:
    """Two pipes of two ranks, a microbatch each; slice 0 of the model is on both, and so is 1.

    Down: 0F0 0-1, 1F0 1-2, 1B0 2-4, 0B0 4-6. Up, the other way round: 2F1 on rank 1, 3F1 on rank 0.
    """
    costs = Costs(f_us=1, b_us=2, replica_sync_us=5)
    program = tracegen.compile("chimera", 2, 2, communication=False)
    alone = replay(program, Costs(f_us=1, b_us=2)).makespan_ns
    line = replay(program, costs)
    sums = [[row for row in rows_of(line, rank) if "SUM" in row[0]] for rank in (0, 1)]
    first, second = alone / 1000 + 5, alone / 1000 + 10
    assert [row[2] for row in sums[0]] == [row[2] for row in sums[1]] == [first, second]
    assert sums[0][0][0] == "0SUM_REPLICAS"
    assert sums[1][0][0] == "2SUM_REPLICAS"  # the same slice, the other pipe's stage
    assert_sums(line)


def test_a_pipe_without_replicas_sums_none() -> None:
    line = replay(compiled("1f1b", 2, 2), Costs(f_us=1, b_us=2, replica_sync_us=5))
    assert line.makespan_ns == 9000


def test_forward_alone_updates_nothing() -> None:
    program = tracegen.compile("1f1b", 2, 2, forward_only=True, communication=False)
    assert replay(program, Costs(f_us=1, optimizer_us=5)).makespan_ns == 3000


def test_a_slow_rank() -> None:
    """Rank 1 of two, 1.5 times: F0 1-2.5, B0 2.5-5.5 there, 5.5-7.5 on rank 0."""
    costs = Costs(f_us=1, b_us=2, rank={1: {"slowdown": 1.5}})
    assert replay(compiled("1f1b", 2, 1), costs).makespan_ns == 7500
    # Rounded once: 1.0004 us x 2.5 is 2501 ns, and not 2.5 x 1000 ns.
    line = replay(compiled("1f1b", 1, 1), Costs(f_us=1.0004, b_us=0, rank={0: {"slowdown": 2.5}}))
    assert line.makespan_ns == 2501
    both = Costs(f_us=1, b_us=0, rank={0: {"slowdown": 2}}, microbatch={0: {"scale": 3}})
    assert replay(compiled("1f1b", 1, 1), both).makespan_ns == 6000
    text = "-s 1f1b -p 2 -m 1 --f 1 --b 2 --slow 1=1.5 --no-trace --json"
    given = run_command(*text.split())
    assert '"makespan_us": 7.5,' in given.stdout


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rank": {2: {"slowdown": 2}}}, "rank 2 has costs; the last rank is 1"),
        (
            {"rank": {0: {"slowdown": 0}}},
            "rank 0: slowdown = 0; 1 is the usual speed, 1.5 is slower",
        ),
        ({"rank": {0: {"speed": 2}}}, "rank 0: no cost 'speed'; there are slowdown"),
        ({"jitter": -1}, "jitter = -1 is no cost; use a finite number, 0 or more"),
        ({"jitter": 11}, "jitter = 11 is beyond any noise; it is a sigma, such as 0.05"),
        ({"seed": 1.5}, "seed = 1.5; use a whole number"),
        ({"optimizer_us": [1]}, "optimizer_us has 1 numbers; there are 2 stages"),
    ],
)
def test_costs_that_are_none(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError) as caught:
        replay(compiled("1f1b", 2, 2), Costs(**wrong))
    assert str(caught.value) == message


def test_slow_needs_a_rank_and_a_factor() -> None:
    done = run_command("-s", "1f1b", "--slow", "fast")
    assert done.exit_code == 2
    assert "--slow fast: expected RANK=FACTOR, such as 3=1.5" in done.stderr


def test_noise_is_lognormal_and_the_same_everywhere() -> None:
    """The median factor is 1, the logarithms have the sigma; and these are the exact factors."""
    noise = Jitter(0.1, 0, 20_000)
    logs = [math.log(noise.factor(encode(0, 0, mb))) / 0.1 for mb in range(20_000)]
    assert abs(statistics.median(logs)) < 0.03
    assert abs(statistics.mean(logs)) < 0.03
    assert abs(statistics.pstdev(logs) - 1) < 0.03
    # In ascending order 2.3 % are below -2 sigma.
    assert abs(sum(log < -2 for log in logs) / len(logs) - 0.0228) < 0.004
    first = [
        Jitter(0.25, 7, 4).factor(encode(stage, kind, 1)) for stage in (0, 3) for kind in (0, 1)
    ]
    assert [factor.hex() for factor in first] == FACTORS


FACTORS = [
    "0x1.66667abcee9b5p-1",
    "0x1.cb3330c6a096cp+0",
    "0x1.544884db798bcp-1",
    "0x1.f0b1ad21a6ce1p-1",
]


def test_every_action_step_and_seed_has_its_own_noise() -> None:
    program = compiled("1f1b", 2, 3)
    line = replay(program, Costs(f_us=1000, b_us=1000, jitter=0.2, seed=1), steps=3)
    lasts = [end - start for start, end in zip(line.start_ns, line.end_ns, strict=True)]
    assert len(set(lasts)) == len(lasts)
    again = replay(program, Costs(f_us=1000, b_us=1000, jitter=0.2, seed=1), steps=3)
    assert again.start_ns == line.start_ns
    other = replay(program, Costs(f_us=1000, b_us=1000, jitter=0.2, seed=2), steps=3)
    assert other.end_ns != line.end_ns
    # The first of three steps is that of one.
    alone = replay(program, Costs(f_us=1000, b_us=1000, jitter=0.2, seed=1))
    size = len(program.ranks[0])
    assert line.end_ns[:size] == alone.end_ns[:size]


@given(program=programs(), steps=st.integers(1, 4))
@SETTINGS
def test_steps_come_apart_again(program: Program, steps: int) -> None:
    whole = repeat(program, steps)
    assert folded(flat(whole), steps).ranks == whole.ranks
    assert all(step_of(whole, number).ranks == program.ranks for number in range(steps))


numbers = st.fixed_dictionaries(
    {name: st.integers(1, 9) for name in "fiw"}
    | {"alpha": st.integers(0, 5), "bytes": st.integers(0, 5)}
    | {name: st.integers(0, 3) for name in ("grad", "replica", "optimizer")}
    | {
        "slow": st.sampled_from([1.0, 1.5, 3.0]),
        "jitter": st.sampled_from([0.0, 0.3]),
        "steps": st.integers(1, 3),
        "sync": st.booleans(),
        "blocking": st.booleans(),
    }
)


def as_costs(program: Program, n: dict[str, Any]) -> Costs:
    ranks = range(program.num_ranks)
    return Costs(
        f_us=n["f"],
        i_us=n["i"],
        w_us=n["w"],
        grad_sync_us=n["grad"],
        replica_sync_us=n["replica"],
        optimizer_us=n["optimizer"],
        rank={0: {"slowdown": n["slow"]}},
        jitter=n["jitter"],
        seed=5,
        link={
            f"{a}-{b}": {"alpha_us": n["alpha"] * (1 + a)} for a in ranks for b in ranks if a != b
        },
        bandwidth_GBps=0.001,
        boundary_bytes=[n["bytes"] * (stage + 1) for stage in range(program.num_stages)],
    )


def second(program: Program, n: dict[str, Any]) -> Machine:
    place, m = program.placement, program.num_microbatches
    noise = Jitter(n["jitter"], 5, m) if n["jitter"] else None
    kinds = {"F": (0, "f"), "B": (1, "iw"), "I": (2, "i"), "W": (3, "w")}

    def one(step: int, stage: int, kind: str, mb: int) -> int:
        number, costs = kinds[kind]
        slow = n["slow"] if place.ranks[stage] == 0 else 1
        ns = sum(round(n[cost] * slow * 1000) for cost in costs)
        if noise is None:
            return ns
        return round(ns * noise.factor(encode(stage, number, step * m + mb)))

    placed = add_communication(program) if n["blocking"] else program
    rows = [[str(step) for step in stream] for stream in placed.ranks]
    chains = place.chains
    tails = []
    for rank in range(program.num_ranks):
        mine = [s for chain in chains for s in chain if place.ranks[s] == rank]
        along = sorted(mine, key=lambda s: next(c.index(s) for c in chains if s in c))
        slow = n["slow"] if rank == 0 else 1
        tail = [("REDUCE_GRAD", stage, n["grad"] * 1000) for stage in mine]
        if len(chains) > 1:
            tail += [("SUM_REPLICAS", stage, n["replica"] * 1000) for stage in along]
        tail += [("OPTIMIZER", stage, round(n["optimizer"] * slow * 1000)) for stage in mine]
        tails.append([one for one in tail if one[2]])
    return Machine(
        Case(rows, place.ranks, chains, m),
        lambda step, text: sum(one(step, s, k, mb) for s, k, mb in parts(text)),
        lambda a, b: n["alpha"] * (1 + a) * 1000,
        lambda a, b, stage: n["bytes"] * (stage + 1) * 1000,
        n["steps"],
        n["sync"],
        n["blocking"],
        tails,
    )


@given(program=programs(max_ranks=4, max_microbatches=4), n=numbers)
@settings(SETTINGS, max_examples=400)
def test_a_second_computation_agrees_with_all_features_on(
    program: Program, n: dict[str, Any]
) -> None:
    other = second(program, n)
    assert other.run()
    line = replay(
        program,
        as_costs(program, n),
        p2p="blocking" if n["blocking"] else "async",
        steps=n["steps"],
        sync=n["sync"],
    )
    assert_same(line, other)
    if line.held:
        assert_sums(line)


def assert_same(line: Timeline, other: Machine) -> None:
    for rank, spans in enumerate(other.spans):
        base = line.program.offsets[rank]
        mine = [
            (str(step), line.start_ns[base + at], line.end_ns[base + at])
            for at, step in enumerate(line.program.ranks[rank])
        ]
        if line.held:
            mine += [(_name(str(one)), one.start_ns, one.end_ns) for one in line.held[rank]]
        assert sorted(mine) == sorted(spans)


def _name(text: str) -> str:
    """A tail's action as the second computation calls it."""
    return text.lstrip("0123456789") if text.endswith(("GRAD", "REPLICAS", "OPTIMIZER")) else text


@given(program=programs(), n=numbers)
@SETTINGS
def test_a_barrier_makes_all_steps_alike(program: Program, n: dict[str, Any]) -> None:
    costs = as_costs(program, {**n, "jitter": 0.0})
    one, many = (replay(program, costs, steps=steps, sync=True) for steps in (1, 3))
    assert many.makespan_ns == 3 * one.makespan_ns
    assert many.steady_step_ns == one.makespan_ns


def test_moe_steps_and_what_is_refused() -> None:
    program = tracegen.compile("moe-1f1b-overlap", 2, 4, communication=False)
    line = replay(program, Costs(moe=MoE()), steps=2)
    assert line.steady_step_ns is not None
    assert line.makespan_ns < 2 * replay(program, Costs(moe=MoE())).makespan_ns + 1
    with pytest.raises(CostError) as caught:
        replay(program, Costs(moe=MoE(), optimizer_us=1))
    assert str(caught.value) == (
        "MoE costs with sync, grad_sync_us, replica_sync_us or optimizer_us: kernels run on two "
        "streams and nothing waits for both; leave those out"
    )


SAME = [
    "zb-h2 -p 3 -m 6 --steps 3 --optimizer 500",
    "dualpipe -p 4 -m 8 --steps 2 --sync --optimizer 500 --replica-sync 100 --grad-sync 50",
    "zbv -p 2 -m 4 --jitter 0.1 --seed 3 --steps 2 --slow 1=1.25",
    "1f1b -p 2 -m 4 --bandwidth 1 --bytes 1e5 --steps 2 --links --bubble-row",
    "moe-1f1b-overlap -p 2 -m 4 --steps 2 --bubble-row",
]


@pytest.mark.parametrize("request_", SAME)
def test_its_trace_can_be_made_again_and_read(tmp_path: Path, request_: str) -> None:
    first, again = tmp_path / "a.json", tmp_path / "b.json"
    assert run_command("-s", *request_.split(), "-o", str(first)).exit_code == 0
    assert run_command("--like", str(first), "-o", str(again)).exit_code == 0
    assert first.read_bytes() == again.read_bytes()
    line = tracegen.read(first)
    figures = metrics.summary(line)
    assert line.found is not None
    assert line.found.warnings == []
    assert figures == line.found.stated
    assert CliRunner().invoke(main, ["check", str(first)]).exit_code == 0
