"""MoE replays in numbers: a real profile, what hides what, how good the plain model is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracle_deepseek import PROFILE
from test_moe import CONTRACT, FULL, costs

import tracegen
from tracegen.blocks import block, hides_up_to, sweep
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.moe import BlockOrder, Kernel, MoE


def deepseek(order: str, mlp_w: str = "before") -> MoE:
    """The profile's four layers. The backward's run from the last layer to the first."""
    us = {
        name: [1000 * ms for ms in (in_order if name.endswith("_f") else in_order[::-1])]
        for name, in_order in PROFILE.items()
    }
    return MoE.from_dict({"block": order, "mlp_w": mlp_w, **us})


@pytest.mark.parametrize(
    ("order", "mlp_w", "ms", "exposed"),
    [
        ("dualpipe", "before", 128.13, 1.69),
        ("dualpipe", "after", 132.22, 5.78),
        ("none", "before", 241.56, 115.12),
    ],
)
def test_deepseeks_block(order, mlp_w, ms, exposed):
    one = block(deepseek(order, mlp_w))
    assert one.alone_ns == round(ms * 1e6)
    assert one.alone_exposed_ns == round(exposed * 1e6)


def test_the_block_that_deepseek_ran_is_replayed_within_a_percent():
    real = 129.0e6
    assert abs(block(deepseek("dualpipe")).alone_ns / real - 1) < 0.01
    assert abs(block(deepseek("dualpipe", "after")).alone_ns / real - 1) > 0.02


EQUAL = MoE(disp_f_us=400, comb_f_us=400)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_where_each_block_order_stops_hiding_communication(layers):
    """All-to-all of equal lengths; a layer's compute is 2400, so each lasts ratio * 600.

    A closed block hides combB behind attnF only, 400: up to 2/3. An open one hides it
    behind what comes before, too: until there is as much all-to-all as computation.
    With mlpW after mlpF an open block's dispF has only mlpB, 400, to hide behind.
    """
    base = replace(EQUAL, layers=layers)
    assert hides_up_to(replace(base, block="none")) == 0
    assert hides_up_to(replace(base, block="lockstep")) == 0.666
    assert hides_up_to(replace(base, block="pair")) == 0.666
    assert hides_up_to(replace(base, block="dualpipe")) == 1
    assert hides_up_to(replace(base, block="dualpipe", mlp_w="after")) == 0.666


def test_the_plain_model_with_the_blocks_time_predicts_the_kernels():
    program = tracegen.compile("dualpipev", 4, 12, communication=False)
    points = list(sweep(program, EQUAL, ratios=(0.1, 0.5, 1.0, 2.0, 4.0)))
    assert {p.alone_error for p in points if p.order == "none"} == {0}
    worst = {order: max(p.alone_error for p in points if p.order == order) for order in BlockOrder}
    assert all(p.alone_error >= 0 for p in points)
    assert worst["lockstep"] < 0.025
    assert worst["pair"] < 0.045
    assert 0.07 < worst["dualpipe"] < 0.08
    assert max(p.row_error for p in points) < 0.05


def test_an_open_block_can_expose_more_and_idle_less():
    program = tracegen.compile("moe-1f1b-bad-overlap", 4, 8, communication=False)
    us = costs(
        attn_f=700, disp_f=600, mlp_f=700, comb_f=400, comb_b=600,
        mlp_b=100, disp_b=500, attn_b=300, mlp_wgrad=600, attn_wgrad=200,
    )  # fmt: skip
    closed, opened = (
        replay(program, Costs(moe=MoE(block=order, **us))) for order in ("pair", "dualpipe")
    )
    assert (closed.makespan_ns, sum(closed.exposed_ns)) == (34_400_000, 19_600_000)
    assert (opened.makespan_ns, sum(opened.exposed_ns)) == (34_200_000, 20_900_000)


def test_the_bad_overlap_and_the_good_one():
    """The default costs: their all-to-all takes as long as the computation, in other pieces."""
    program = tracegen.compile("moe-1f1b-bad-overlap", 4, 8, communication=False)
    ms = {
        order: replay(program, Costs(moe=MoE(block=order))).makespan_ns / 1e6
        for order in BlockOrder
    }
    assert ms == {"none": 52.8, "lockstep": 39.4, "pair": 36.6, "dualpipe": 33.8}


def test_transfers_leave_when_the_result_is_there():
    """Open: the gradient at attnB(0), before attnW; closed: both at the block's end."""
    program = tracegen.compile("moe-1f1b-bad-overlap", 2, 4, communication=False)
    for order in BlockOrder:
        line = replay(program, Costs(moe=MoE(block=order), alpha_us=7))
        for transfer in line.transfers():
            inside = [k for k in line.kernels if k.step == transfer.source]
            pair = len({k.microbatch for k in inside}) == 2
            if order == "none" or (pair and order != "dualpipe"):
                made = max(k.end_ns for k in inside)
            else:
                last = Kernel.COMB_F if transfer.forward else Kernel.ATTN_B
                made = next(k.end_ns for k in inside if k.kernel == last)
            assert (transfer.start_ns, transfer.end_ns) == (made, made + 7000)


def test_a_single_microbatch_may_be_longer_in_all_its_kernels():
    line = replay(FULL, Costs(moe=MoE(block="none", **CONTRACT), microbatch={1: {"scale": 2}}))
    assert line.makespan_ns == 29_000 + 2 * 29_000


def test_timelines_without_kernels_have_no_communication_streams():
    line = replay(FULL, Costs())
    assert line.kernels is None
    assert (line.exposed_ns, line.comm_busy_ns, line.overlap_ratio) == ([0], [0], None)
