"""What holds for MoE replays of any program at any costs."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import moe_oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import programs

import tracegen
from tracegen import kernel_work
from tracegen.clock import PENDING
from tracegen.costs import Costs
from tracegen.deps import blocked
from tracegen.engine import replay, run
from tracegen.ir import Program
from tracegen.kernel_line import Kernels
from tracegen.kernels import COMMUNICATION
from tracegen.moe import BlockOrder, Kernel, MoE

ORDERS = [str(order) for order in BlockOrder]
MANY = settings(max_examples=150, deadline=None)
SOME = settings(max_examples=60, deadline=None)


@st.composite
def kernel_costs(draw: st.DrawFn, least: int = 0, most: int = 9, layers: int = 3) -> MoE:
    """Kernels of `least` to `most` ns, one to `layers` layers, at random block orders."""
    count = draw(st.integers(1, layers))
    ns = st.lists(st.integers(least, most), min_size=count, max_size=count)
    costs = {f"{kernel.cost}_us": [n / 1000 for n in draw(ns)] for kernel in Kernel}
    block, when = draw(st.sampled_from(ORDERS)), draw(st.sampled_from(["before", "after"]))
    return MoE(layers=count, block=block, mlp_w=when, **costs)


def case_of(program: Program, costs: Costs) -> moe_oracle.Case:
    """The same program and costs for the second computation."""
    assert costs.moe is not None
    stages = range(program.num_stages)
    of_stage = [costs.moe.at_stage("", costs.stage.get(s, {}).get("moe", {})).ns() for s in stages]
    moves = costs.boundary_bytes if costs.bandwidth_GBps else ()
    return moe_oracle.Case(
        [[str(step) for step in stream] for stream in program.ranks],
        program.placement.ranks,
        program.placement.chains,
        costs.moe.layers,
        str(costs.moe.block),
        costs.moe.mlp_w == "after",
        {
            (kernel.label, stage, layer): ns
            for stage in stages
            for kernel in Kernel
            for layer, ns in enumerate(of_stage[stage][kernel])
        },
        round(costs.alpha_us * 1000),
        Fraction(str(costs.moe.comm_sm_share)),
        [int(size) for size in moves],  # bytes at 1 GB/s are ns
    )


def times_of(kernels: Kernels) -> moe_oracle.Times:
    return {
        (k.kernel.label, k.layer, k.stage, k.microbatch): (k.start_ns, k.end_ns) for k in kernels
    }


@MANY
@given(programs(), kernel_costs(), st.integers(0, 5), st.data())
def test_longest_paths_found_another_way_agree_kernel_by_kernel(program, moe, latency, data):
    own = {
        Kernel(k).cost: data.draw(st.integers(0, 9)) / 1000
        for k in data.draw(st.sets(st.integers(0, 9), max_size=3))
    }
    costs = Costs(moe=moe, alpha_us=latency / 1000, stage={0: {"moe": own}})
    line = replay(program, costs)
    assert times_of(line.kernels) == moe_oracle.longest_paths(case_of(program, costs))


@SOME
@given(
    programs(max_ranks=2, max_microbatches=2),
    kernel_costs(most=5, layers=2),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]),
    st.integers(0, 3),
)
def test_tick_by_tick_agrees_where_communication_takes_a_share(program, moe, share, latency):
    costs = Costs(moe=replace(moe, comm_sm_share=share), alpha_us=latency / 1000)
    line = replay(program, costs)
    assert times_of(line.kernels) == moe_oracle.tick_by_tick(case_of(program, costs))


@SOME
@given(
    programs(max_ranks=3, max_microbatches=3),
    kernel_costs(least=1, most=4, layers=1),
    st.sampled_from([0.0, 0.5]),
    st.integers(0, 2),
    st.data(),
)
def test_tick_by_tick_agrees_where_transfers_queue_for_links(program, moe, share, latency, data):
    S = program.num_stages
    moves = data.draw(st.lists(st.integers(1, 12), min_size=S, max_size=S))
    costs = Costs(
        moe=replace(moe, comm_sm_share=share),
        alpha_us=latency / 1000,
        bandwidth_GBps=1,
        boundary_bytes=moves,
    )
    line = replay(program, costs)
    assert times_of(line.kernels) == moe_oracle.tick_by_tick(case_of(program, costs))


@MANY
@given(programs(), kernel_costs(), st.integers(0, 5), st.data())
def test_none_is_the_plain_replay_with_the_sums(program, moe, latency, data):
    S = program.num_stages
    bandwidth = {"bandwidth_GBps": 1, "boundary_bytes": data.draw(st.integers(1, 9))}
    common = {"alpha_us": latency / 1000, **(bandwidth if data.draw(st.booleans()) else {})}
    costs = Costs(
        moe=replace(moe, block="none"), stage={S - 1: {"moe": {"mlp_f": 0.004}}}, **common
    )
    times = costs.times(program)
    f, _, i, w = ([ns / 1000 for ns in column] for column in times.of_kind)
    line, plainly = replay(program, costs), replay(program, Costs(f_us=f, i_us=i, w_us=w, **common))
    assert line.start_ns == plainly.start_ns
    assert line.end_ns == plainly.end_ns
    assert line.blocker == plainly.blocker
    assert line.peak_activations == plainly.peak_activations
    assert list(line.transfers()) == list(plainly.transfers())
    assert line.exposed_ns == line.comm_busy_ns


def _makespans(program: Program, moe: MoE, **common: float) -> dict[str, int]:
    return {
        order: replay(program, Costs(moe=replace(moe, block=order), **common)).makespan_ns
        for order in ORDERS
    }


@MANY
@given(programs(), kernel_costs(), st.integers(0, 5))
def test_each_block_order_is_no_longer_than_the_one_before(program, moe, latency):
    of = _makespans(program, replace(moe, mlp_w="before"), alpha_us=latency / 1000)
    assert of["dualpipe"] <= of["pair"] <= of["lockstep"] <= of["none"]


@MANY
@given(programs(), kernel_costs())
def test_without_all_to_all_a_pair_is_plain_and_an_open_block_no_longer(program, moe):
    quiet = {f"{k.cost}_us": 0.0 for k in Kernel if k.is_communication}
    moe = replace(moe, **quiet)
    of = _makespans(program, moe)
    assert of["dualpipe"] <= of["none"]
    of = _makespans(program, replace(moe, attn_wgrad_us=0.0))
    assert of["pair"] == of["lockstep"] == of["none"]


@MANY
@given(programs(sound=False), kernel_costs(least=1))
def test_kernels_wait_for_each_other_exactly_when_actions_do(program, moe):
    lowered = kernel_work.lower(program, moe, Costs(moe=moe).times(program))
    stuck = PENDING in run(lowered.work).end
    assert stuck == (blocked(program) is not None)


@MANY
@given(programs(), kernel_costs(), st.sampled_from([0.0, 0.3]), st.integers(0, 5))
def test_nothing_is_faster_than_its_parts(program, moe, share, latency):
    line = replay(program, Costs(moe=replace(moe, comm_sm_share=share), alpha_us=latency / 1000))
    assert line.makespan_ns >= max(line.busy_ns)
    assert line.makespan_ns >= max(line.comm_busy_ns)
    for chain in program.placement.chains:
        ranks = [program.placement.ranks[stage] for stage in chain]
        there = sum(sum(map(sum, moe.ns()[:8])) for _ in chain)
        crossings = sum(a != b for a, b in pairwise(ranks))
        assert line.makespan_ns >= there + 2 * latency * crossings


@MANY
@given(programs(), kernel_costs(), st.sampled_from([0.0, 0.5]))
def test_streams_run_one_kernel_at_a_time_and_tiles_span_their_compute(program, moe, share):
    line = replay(program, Costs(moe=replace(moe, comm_sm_share=share)))
    kernels = line.kernels
    for rank in range(program.num_ranks):
        for stream in (0, 1):
            row = kernels.row(rank, stream)
            for a, b in pairwise(row):
                assert kernels.end_ns[a] <= kernels.start_ns[b]
        first, last = program.offsets[rank], program.offsets[rank + 1]
        for step in range(first, last):
            assert line.start_ns[step] <= line.end_ns[step]
            assert step + 1 == last or line.end_ns[step] <= line.start_ns[step + 1]
    for kernel in kernels:
        if kernel.stream != COMMUNICATION:
            assert line.start_ns[kernel.step] <= kernel.start_ns
            assert kernel.end_ns <= line.end_ns[kernel.step]


@MANY
@given(programs(), kernel_costs(), st.sampled_from([0.0, 0.5]), st.integers(0, 3))
def test_a_kernel_starts_when_what_it_waited_for_is_there(program, moe, share, latency):
    line = replay(program, Costs(moe=replace(moe, comm_sm_share=share), alpha_us=latency / 1000))
    kernels = line.kernels
    for kernel in kernels:
        row = kernels.row(kernel.rank, kernel.stream)
        if kernel.blocker == -1:
            before = kernels.end_ns[kernel.index - 1] if kernel.index > row.start else 0
            assert kernel.start_ns == before
        else:
            crossed = kernels[kernel.blocker].rank != kernel.rank
            assert kernel.start_ns == kernels.end_ns[kernel.blocker] + latency * crossed


@SOME
@given(programs(), kernel_costs(most=5), st.sampled_from([0.1, 0.5]))
def test_communication_that_takes_a_share_gives_the_same_times_twice(program, moe, share):
    costs = Costs(moe=replace(moe, comm_sm_share=share))
    first, second = replay(program, costs), replay(program, costs)
    assert first.kernels.end_ns == second.kernels.end_ns
    assert first.makespan_ns >= replay(program, Costs(moe=moe)).makespan_ns


@SOME
@given(programs(max_ranks=2), kernel_costs(layers=2), st.integers(2, 3))
def test_several_steps_are_one_long_program(program, moe, steps):
    costs, m = Costs(moe=moe), program.num_microbatches
    line = replay(program, costs, steps=steps)
    case = case_of(program, costs)
    rows = [
        [
            re.sub(r"([FBIW])(\d+)", lambda found, n=n: f"{found[1]}{int(found[2]) + n * m}", step)
            for n in range(steps)
            for step in row
        ]
        for row in case.rows
    ]
    number = {
        line.program.offsets[rank] + at: at // len(row)
        for rank, row in enumerate(case.rows)
        for at in range(len(row) * steps)
    }
    found = {
        (k.kernel.label, k.layer, k.stage, k.microbatch + number[k.step] * m): (
            k.start_ns,
            k.end_ns,
        )
        for k in line.kernels
    }
    assert found == moe_oracle.longest_paths(replace(case, rows=rows))


@SOME
@given(programs(max_ranks=2), kernel_costs(least=1))
def test_slow_ranks_and_jitter_are_of_computation_alone(program, moe):
    quiet = replay(program, Costs(moe=moe))
    loud = replay(program, Costs(moe=moe, jitter=0.5, rank={0: {"slowdown": 2}}))
    assert loud.comm_busy_ns == quiet.comm_busy_ns
    slow = replay(program, Costs(moe=moe, rank={0: {"slowdown": 2}}))
    assert slow.busy_ns[0] == 2 * quiet.busy_ns[0]
    assert slow.busy_ns[1:] == quiet.busy_ns[1:]


@pytest.mark.parametrize("order", ORDERS)
def test_shipped_schedules_agree_with_the_longest_paths(order):
    moe = MoE(block=order, layers=2, attn_f_us=[0.3, 0.7], disp_f_us=0.5, mlp_f_us=0.4)
    for name in ("dualpipe", "dualpipev", "zbv", "moe-1f1b-bad-overlap", "moe-1f1b-overlap"):
        program = tracegen.compile(name, 4, 8, communication=False)
        costs = Costs(moe=moe, alpha_us=0.05)
        line = replay(program, costs)
        assert times_of(line.kernels) == moe_oracle.longest_paths(case_of(program, costs)), name
