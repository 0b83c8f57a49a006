"""Costs of kernels: given, derived from a model, left out, and wrong."""

from __future__ import annotations

import pytest
from test_moe import FULL

import tracegen
from tracegen import moe as moe_module
from tracegen.blocks import block, with_ratio
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.errors import CostError
from tracegen.moe import MoE
from tracegen.moe_model import Model


def test_costs_that_are_not_given_follow_from_the_others():
    assert MoE().in_force() == {
        "layers": 1,
        "block": "pair",
        "mlp_w": "before",
        "comm_sm_share": 0.0,
        "attn_f": 400,
        "disp_f": 800,
        "mlp_f": 400,
        "comb_f": 400,
        "comb_b": 800,
        "mlp_b": 400,
        "disp_b": 400,
        "attn_b": 600,
        "mlp_wgrad": 400,
        "attn_wgrad": 200,
    }
    us = MoE(layers=2, attn_f_us=[10, 20], disp_f_us=30, mlp_f_us=40, comb_f_us=50).in_force()
    assert us["attn_b"] == [15, 30]
    assert us["attn_wgrad"] == [5, 10]
    assert (us["comb_b"], us["disp_b"]) == (30, 50)
    assert us["mlp_b"] == us["mlp_wgrad"] == 40


def test_pairs_of_texts():
    moe = MoE.from_pairs(["block=dualpipe", "attn_f=400", "mlp_f=100,200", "comm_sm_share=0.1"])
    assert moe == MoE(
        layers=2, block="dualpipe", comm_sm_share=0.1, attn_f_us=400.0, mlp_f_us=[100.0, 200.0]
    )
    assert MoE.from_pairs(["layers=3"]).layers == 3
    assert MoE.from_pairs([]) == MoE()


def test_costs_as_plain_data_come_back(tmp_path):
    given = Costs(
        alpha_us=3,
        moe=MoE(layers=2, block="dualpipe", mlp_w="after", attn_f_us=[1, 2.5], comb_b_us=3),
        stage={"1": {"moe": {"attn_f": [3, 4]}}},
    )
    assert Costs.from_dict(given.given()) == given
    assert given.given()["moe"] == {
        "layers": 2,
        "block": "dualpipe",
        "mlp_w": "after",
        "attn_f": [1, 2.5],
        "comb_b": 3,
    }
    in_force = Costs.from_dict(given.in_force())
    assert in_force.moe.in_force() == given.moe.in_force()
    assert Costs.from_dict(Costs(moe=MoE()).given()) == Costs(moe=MoE())
    path = tmp_path / "costs.toml"
    path.write_text(
        'alpha_us = 3\n[moe]\nblock = "dualpipe"\nmlp_w = "after"\nattn_f = [1, 2.5]\n'
        "comb_b = 3\n[stage.1.moe]\nattn_f = [3, 4]\n"
    )
    assert Costs.from_toml(path) == given


def test_a_stage_may_have_kernels_of_its_own():
    two = tracegen.compile("1f1b", 2, 1, communication=False)
    line = replay(two, Costs(moe=MoE(), stage={1: {"moe": {"mlp_f": 500}}}))
    # mlp_b and mlp_wgrad of stage 1 follow from its mlp_f.
    assert line.busy_ns == [2_400_000, 2_700_000]


REFUSED = [
    (lambda: MoE(layers=0), "layers = 0; use a whole number, 1 or more"),
    (lambda: MoE(layers=1.5), "layers = 1.5; use a whole number, 1 or more"),
    (lambda: MoE(block="zip"), "block = 'zip'; use none, lockstep, pair or dualpipe"),
    (lambda: MoE(mlp_w="never"), "mlp_w = 'never'; use before or after"),
    (lambda: MoE(comm_sm_share=1), "comm_sm_share = 1; use 0 or more, less than 1"),
    (lambda: MoE(comm_sm_share=-0.1), "comm_sm_share = -0.1; use 0 or more, less than 1"),
    (
        lambda: MoE(comm_sm_share=float("nan")),
        "comm_sm_share = nan; use 0 or more, less than 1",
    ),
    (
        lambda: MoE(attn_f_us=float("nan")),
        "attn_f = nan is no cost; use a finite number, 0 or more",
    ),
    (
        lambda: MoE(layers=2, mlp_wgrad_us=[1, -1]),
        "mlp_wgrad = -1 is no cost; use a finite number, 0 or more",
    ),
    (lambda: MoE(mlp_b_us=10**400), "mlp_b is more than any cost; 1e+300 is the most"),
    (lambda: MoE(layers=10**9), "layers = 1000000000 of a stage; use 10000 or fewer"),
    (lambda: MoE(layers=2, disp_f_us=[1]), "disp_f has 1 number; there are 2 layers"),
    (lambda: MoE(disp_f_us=[1, 2]), "disp_f has 2 numbers; there is 1 layer"),
    (
        lambda: MoE.from_dict({"attn": 1}),
        "moe: no cost 'attn'; there are layers, block, mlp_w, comm_sm_share, attn_f, disp_f, "
        "mlp_f, comb_f, comb_b, mlp_b, disp_b, attn_b, mlp_wgrad, attn_wgrad",
    ),
    (
        lambda: MoE.from_dict({"attn_f": [1, 2], "mlp_f": [1, 2, 3]}),
        "moe: mlp_f has 3 numbers; there are 2 layers",
    ),
    (lambda: MoE.from_dict(3), "moe is no table; write it as [moe]"),
    (
        lambda: MoE.from_pairs(["attn_f"]),
        "moe: 'attn_f' is no cost; write KEY=VALUE, such as attn_f=400",
    ),
    (lambda: MoE.from_pairs(["attn_f=much"]), "moe: attn_f = 'much' is no number"),
    (
        lambda: MoE.from_pairs(["attn_f=1", "attn_f=2"]),
        "moe: attn_f=1 and attn_f=2: attn_f is given twice; give it once",
    ),
    (
        lambda: MoE.from_pairs(["hidden=7168", "experts=256"]),
        "moe: the model lacks top_k, tokens, bandwidth_GBps, tflops",
    ),
    (
        lambda: Costs(moe=MoE(), f_us=1, fb_us=2),
        "f_us, fb_us beside kernel costs (moe): an action lasts what its kernels last; "
        "give one or the other",
    ),
    (
        lambda: Costs(moe=MoE(), stage={1: {"microbatch": {2: {"b_us": 1}}}}),
        "stage 1: microbatch 2: b_us beside kernel costs (moe): an action lasts what its "
        "kernels last; give one or the other",
    ),
    (
        lambda: Costs(stage={1: {"moe": {"attn_f": 1}}}),
        "stage 1: moe has kernel costs; give those of all stages too, [moe]",
    ),
    (
        lambda: Costs(moe=MoE(), stage={1: {"moe": {"layers": 2}}}),
        "stage 1: moe: no cost 'layers'; there are attn_f, disp_f, mlp_f, comb_f, comb_b, "
        "mlp_b, disp_b, attn_b, mlp_wgrad, attn_wgrad",
    ),
    (lambda: Costs(moe="pair"), "moe = 'pair' is no MoE; use MoE(...)"),
    (
        lambda: Costs.from_dict({"moe": {"block": "zip"}}),
        "costs: moe: block = 'zip'; use none, lockstep, pair or dualpipe",
    ),
    (
        lambda: moe_module.check_modes("blocking", "static"),
        "MoE costs with --p2p blocking: kernels run on two streams; use async",
    ),
    (
        lambda: moe_module.check_modes("async", "dynamic"),
        "MoE costs with --dispatch dynamic: an action is no longer one piece; use static",
    ),
    (
        lambda: replay(FULL, Costs(moe=MoE(attn_f_us=1e300))),
        "the times exceed 2**63 ns, 292 years; use smaller costs",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_costs_that_are_refused(make, message):
    with pytest.raises(CostError) as refusal:
        make()
    assert str(refusal.value) == message


def test_costs_of_a_model():
    """Hidden 1000, 8 experts of 2000, 2 a token, 500 tokens, 4 ranks, 10 GB/s, 100 TFLOP/s.

    projections 8 * 500 * 1e6 + 2 * 500 * 1000 * 8 = 4.008e9
    scores      2 * 500 * 500 * 1000               = 0.5e9
    experts     6 * 500 * 2 * 1000 * 2000          = 12e9
    sent        500 * 2 * 1000 * 3/4               = 0.75e6 elements
    """
    size = {
        "hidden": 1000, "experts": 8, "top_k": 2, "tokens": 500, "bandwidth_GBps": 10,
        "tflops": 100, "expert_hidden": 2000, "expert_ranks": 4, "dispatch_bytes": 1,
    }  # fmt: skip
    us = MoE.from_model(layers=2, block="dualpipe", **size).in_force()
    assert us == {
        "layers": 2,
        "block": "dualpipe",
        "mlp_w": "before",
        "comm_sm_share": 0.0,
        "attn_f": pytest.approx(45.08),
        "attn_b": pytest.approx(50.08),
        "attn_wgrad": pytest.approx(40.08),
        "mlp_f": pytest.approx(120),
        "mlp_b": pytest.approx(120),
        "mlp_wgrad": pytest.approx(120),
        "disp_f": pytest.approx(75),
        "comb_b": pytest.approx(75),
        "comb_f": pytest.approx(150),
        "disp_b": pytest.approx(150),
    }
    pairs = [f"{key}={value}" for key, value in size.items()]
    own = MoE.from_pairs([*pairs, "layers=2", "block=dualpipe", "disp_f=80"])
    assert own.in_force() == us | {"disp_f": 80}
    assert Model(**size).table()[0] == (
        "attn_f",
        "4.508e+09 FLOP / 100 TFLOP/s",
        pytest.approx(45.08),
    )


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({"top_k": 9}, "moe: top_k = 9 is more than experts = 8"),
        ({"hidden": 0}, "moe: hidden = 0 is no size; use a finite number above 0"),
        ({"expert_ranks": 0.5}, "moe: expert_ranks = 0.5; use 1 or more"),
    ],
)
def test_impossible_models_are_refused(size, message):
    whole = {
        "hidden": 1000, "experts": 8, "top_k": 2, "tokens": 500, "bandwidth_GBps": 10, "tflops": 1,
    }  # fmt: skip
    with pytest.raises(CostError) as refusal:
        MoE.from_model(**whole | size)
    assert str(refusal.value) == message


def test_a_ratio_scales_all_to_all_against_a_blocks_computation():
    moe = with_ratio(MoE(layers=2, mlp_f_us=[400, 800]), 0.5)
    found = block(moe)
    assert found.compute_ns == 2 * 1_200_000 + 3 * 800_000 + 3 * 400_000
    assert found.communication_ns == found.compute_ns // 2
