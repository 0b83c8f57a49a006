"""Costs from a transformer's sizes: the papers' arithmetic, splits, recomputation, refusals."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import refusal, run
from hypothesis import given
from hypothesis import strategies as st

from tracegen.analysis import cost_file
from tracegen.analysis.measure import Figures, Impossible, Size, measured
from tracegen.analysis.model import Model
from tracegen.analysis.normalise import PerStage, parts_of_ranks
from tracegen.analysis.split import best, even, split
from tracegen.costs import Costs
from tracegen.errors import CostError
from tracegen.moe import MoE
from tracegen.order import both_ways, loop, v_shape

# GPT-3's sizes, of 96 layers.
GPT3: dict[str, Any] = {"layers": 96, "hidden": 12288, "seq": 2048, "vocab": 51200, "heads": 96}


def model(**changes: Any) -> Model:
    sizes: dict[str, Any] = {"layers": 8, "hidden": 256, "seq": 128, "tflops": 1.0}
    return Model(**sizes | changes)


def test_flops_of_a_step_are_megatrons() -> None:
    """96 B s l h^2 (1 + s/6h + V/16lh), with full recomputation: arXiv:2104.04473, section 5.1."""
    batch, found = 4, model(**GPT3, microbatch_size=4, recompute="full")
    layers, head = sum(found.layer_flops()), 3 * found.head_flops()
    h, s, v, n = found.hidden, found.seq, found.vocab, found.layers
    whole = 96 * batch * s * n * h * h * (1 + s / (6 * h) + v / (16 * n * h))
    assert n * layers + head == pytest.approx(whole, rel=1e-12)


def test_flops_split_into_f_i_and_w_are_the_zero_bubble_papers() -> None:
    """sbh(24h+4s), sbh(24h+8s), sbh(24h): arXiv:2401.10241, table 1."""
    found = model(microbatch_size=3)
    b, s, h = 3, found.seq, found.hidden
    assert found.layer_flops() == (
        s * b * h * (24 * h + 4 * s),
        s * b * h * (24 * h + 8 * s),
        s * b * h * 24 * h,
        0,
    )


def test_recomputation_is_of_attentions_core_or_of_the_forward() -> None:
    f, i, w, _ = model().layer_flops()
    scores = 4 * 128 * 128 * 256
    assert model(recompute="selective").layer_flops() == (f, i, w, scores)
    assert model(recompute="full").layer_flops() == (f, i, w, f)


def test_recomputation_is_a_cost_of_its_own_without_the_head() -> None:
    """Of every layer but of no head: the head keeps what it needs."""
    kept = model(vocab=1000).costs(loop(2, 1))
    full = model(vocab=1000, recompute="full").costs(loop(2, 1))
    assert (kept.r_us, full.f_us, full.i_us, full.w_us) == (None, kept.f_us, kept.i_us, kept.w_us)
    layer = model().layer_flops()[0] / 1e6
    assert full.r_us == pytest.approx([4 * layer, 4 * layer])
    spread = model(recompute="full", tensor=4, tensor_GBps=100).costs(loop(2, 1))
    assert spread.r_us == pytest.approx(spread.f_us)  # its all-gathers and reduce-scatters too


def test_activations_are_korthikantis() -> None:
    """sbh(34 + 5as/h), 34 sbh, 2 sbh a layer: arXiv:2205.05198, equation 1 and table 2."""
    found = model(**GPT3)
    sbh, a, s, h = found.seq * found.hidden, 96, found.seq, found.hidden
    assert found.layer_activations() == sbh * 34 + 5 * a * s * s == sbh * (34 + 5 * a * s // h)
    assert model(**GPT3, recompute="selective").layer_activations() == 34 * sbh
    assert model(**GPT3, recompute="full").layer_activations() == 2 * sbh
    # The scores are 80 of 114 parts of GPT-3's: the paper's 70 %.
    assert 5 * a * s / h == 80
    assert found.kept_for_weights() == 32 * sbh


def test_parameters_are_megatrons() -> None:
    """12 l h^2 (1 + 13/12h + (V+s)/12lh): arXiv:2104.04473, section 5.1; the head is a copy."""
    found = model(**GPT3)
    layer, embedding, head = found.parameters()
    h, n = found.hidden, found.layers
    whole = 12 * n * h * h * (1 + 13 / (12 * h) + (51200 + 2048) / (12 * n * h))
    assert n * layer + embedding == pytest.approx(whole, rel=1e-12)
    assert whole == pytest.approx(174.6e9, rel=1e-3)
    assert head == 51200 * h


def test_costs_by_stage_with_embedding_and_head_at_the_ends() -> None:
    found = model(vocab=1000, split="2,3,2,1", microbatch_size=2, bandwidth_GBps=10, alpha_us=5)
    costs = found.costs(loop(4, 1))
    f, i, w, _ = (flops / 1e6 for flops in found.layer_flops())
    head = found.head_flops() / 1e6
    assert costs.f_us == pytest.approx([2 * f, 3 * f, 2 * f, f + head])
    assert costs.i_us == pytest.approx([2 * i, 3 * i, 2 * i, i + head])
    assert costs.w_us == pytest.approx([2 * w, 3 * w, 2 * w, w + head])
    tokens = 2 * 128
    kept = found.layer_activations()
    assert costs.activation_bytes == [
        2 * kept + tokens * 256,
        3 * kept,
        2 * kept,
        kept + 4 * tokens * 256 + 4 * tokens * 1000,
    ]
    assert costs.boundary_bytes == 2 * tokens * 256
    layer, embedding, last = found.parameters()
    counts = [2 * layer + embedding, 3 * layer, 2 * layer, layer + last]
    assert costs.memory == {
        "weight_bytes": [2 * count for count in counts],
        "gradient_bytes": [2 * count for count in counts],
        "optimizer_bytes": [12 * count for count in counts],
    }
    assert (costs.bandwidth_GBps, costs.alpha_us) == (10, 5)


def test_both_chains_have_the_whole_model() -> None:
    costs = model(split="2,3,2,1").costs(both_ways(4, 2))
    assert isinstance(costs.f_us, list)
    assert costs.f_us[:4] == costs.f_us[4:]


def test_what_full_recomputation_keeps_for_weights_is_a_stash() -> None:
    found = model(recompute="full")
    costs = found.costs(loop(2, 1))
    assert costs.w_share == 1
    more = found.kept_for_weights() - found.layer_activations()
    assert costs.memory["w_stash_bytes"] == [4 * more] * 2
    some = model().costs(loop(2, 1))
    assert some.w_share == model().kept_for_weights() / model().layer_activations()
    assert "w_stash_bytes" not in some.memory


def test_a_dtype_is_its_bytes() -> None:
    assert model(dtype="fp32").layer_activations() == 66 * 128 * 256 + 9 * 2 * 128 * 128
    assert model(dtype="fp8").costs(loop(2, 1)).boundary_bytes == 128 * 256


def v_ranks(stages: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(sorted({at, stages - 1 - at})) for at in range((stages + 1) // 2))


def loop_ranks(stages: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(at, stages, 2)) for at in range(min(2, stages)))


def no_ranks(stages: int) -> tuple[tuple[int, ...], ...]:
    return ()


@given(
    st.integers(1, 9),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.5, 1.0, 2.6]),
    st.sampled_from([0.0, 0.7, 3.0, 20.0]),
    st.sampled_from([v_ranks, loop_ranks, no_ranks]),
)
def test_the_best_split_is_the_best_of_all(
    layers: int,
    stages: int,
    first: float,
    last: float,
    ranks: Callable[[int], tuple[tuple[int, ...], ...]],
) -> None:
    if stages > layers:
        return
    parts = ranks(stages) or tuple((at,) for at in range(stages))

    def times(counts: tuple[int, ...]) -> list[float]:
        found = [float(count) for count in counts]
        found[0] += first
        found[-1] += last
        return [sum(found[at] for at in part) for part in parts]

    every = [
        counts
        for counts in itertools.product(range(layers + 1), repeat=stages)
        if sum(counts) == layers and all(counts[1:-1])
    ]
    slowest = min(max(times(counts)) for counts in every)
    found = best(layers, stages, 1.0, first, last, ranks(stages))
    assert found in every
    assert max(times(found)) == pytest.approx(slowest)
    squares = [sum(t * t for t in times(c)) for c in every if max(times(c)) <= slowest + 1e-9]
    assert sum(t * t for t in times(found)) == pytest.approx(min(squares))


def test_within_a_rank_the_slowest_stage_is_fastest() -> None:
    assert best(12, 4, 1.0, 0.0, 4.0, ((0, 3), (1, 2))) == (4, 4, 4, 0)
    assert best(12, 4, 1.0, 0.0, 4.0, ((0, 2), (1, 3))) == (4, 4, 4, 0)


def test_which_stages_of_a_chain_ranks_have() -> None:
    assert parts_of_ranks(loop(2, 2)) == ((0, 2), (1, 3))
    assert parts_of_ranks(v_shape(3, 2)) == ((0, 5), (1, 4), (2, 3))
    assert parts_of_ranks(both_ways(4, 2)) == ((0, 3), (1, 2))
    assert parts_of_ranks(both_ways(8, 4)) == ((0, 3, 4, 7), (1, 2, 5, 6))
    assert parts_of_ranks(both_ways(6, 4)) == ()  # rank 1 has stage 1 twice, rank 0 none twice


@pytest.mark.parametrize(("name", "p", "m"), [("zbv", 8, 32), ("interleaved-1f1b", 4, 16)])
def test_with_several_stages_a_rank_no_rank_is_long(name: str, p: int, m: int) -> None:
    """A heavy head: what makes every stage short makes the rank of the last one long."""
    found = Model(40, 4096, 4096, 400, vocab=256000, split="best")
    stages = 2 * p
    alone = best(40, stages, sum(found.layer_us()), 0.0, 3 * found._us(found.head_flops()))
    told = replace(found, split=",".join(map(str, alone)))

    def makespan(one: Model) -> float:
        row = measured(Size(name, p, m, 2), one)
        assert isinstance(row, Figures)
        return row.makespan_us

    assert makespan(found) < 0.98 * makespan(told)


def test_even_splits() -> None:
    assert even(8, 4) == (2, 2, 2, 2)
    assert even(9, 4) == (2, 3, 2, 2)
    assert even(11, 4) == (3, 3, 3, 2)
    assert even(3, 2) == (2, 1)
    assert even(5, 1) == (5,)


def test_llamas_best_split_gives_the_last_stage_less() -> None:
    found = Model(32, 4096, 4096, 400, vocab=128256, split="best")
    assert found.stages(loop(4, 1)) == (8, 9, 9, 6)
    plain = Model(32, 4096, 4096, 400, vocab=128256)

    def makespan(one: Model) -> float:
        row = measured(Size("1f1b", 4, 16), one)
        assert isinstance(row, Figures)
        return row.makespan_us

    assert makespan(found) < makespan(plain)


def test_the_least_microbatch() -> None:
    """A product of n tokens with h x h: 2nh^2 FLOPs over D(2nh + h^2) bytes."""
    found = Model(8, 4096, 128, 400, memory_GBps=2000)
    least = found.least_microbatch()
    assert least is not None

    def intensity(sequences: int) -> float:
        n = sequences * 128
        return 2 * n * 4096**2 / (2 * (2 * n * 4096 + 4096**2))

    assert intensity(least) >= 200 > intensity(least - 1)
    assert Model(8, 64, 128, 400, memory_GBps=2000).least_microbatch() is None


REFUSED = [
    ({"layers": 0}, "model: layers = 0; use 1 or more"),
    ({"tflops": 0.0}, "model: tflops = 0.0; use more than 0"),
    (
        {"tflops": 300e12},
        "model: tflops = 3e+14 is more than any device has: it is in 10**12 FLOP/s; "
        "for 3e+14 FLOP/s use 300",
    ),
    (
        {"data": 2, "data_GBps": 50e9},
        "model: data_GBps = 5e+10 is more than any device has: it is in 10**9 bytes/s; "
        "for 5e+10 bytes/s use 50",
    ),
    ({"dtype": "int3"}, "model: dtype = 'int3'; use fp32, bf16, fp16, fp8"),
    ({"recompute": "some"}, "model: recompute = 'some'; use none, selective, full"),
    ({"vocab": -1}, "model: vocab is 0 or more, heads 1 or more"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_sizes_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError, match="^" + re.escape(message) + "$"):
        model(**changes)


SPLITS = [
    ("some", "split 'some': use even, best, or layers by stage, as 8,9,9,6"),
    ("4,5", "split 4,5 is of 9 layers; the model has 8"),
    ("9,-1", "split 9,-1: a stage has 0 layers or more"),
    ("2,2,2,2", "split 2,2,2,2 is for 4 stages; here are 2"),
]


@pytest.mark.parametrize(("how", "message"), SPLITS)
def test_splits_that_are_none(how: str, message: str) -> None:
    with pytest.raises(CostError, match="^" + re.escape(message) + "$"):
        split(how, 8, 2)


def test_too_few_layers_and_a_split_for_other_stages_are_reasons() -> None:
    assert measured(Size("zbv", 8, 16), model()) == Impossible(
        Size("zbv", 8, 16), "8 layers are too few for 16 stages; use 8 stages or fewer"
    )
    assert measured(Size("zbv", 4, 8), model(split="2,2,2,2")) == Impossible(
        Size("zbv", 4, 8), "split 2,2,2,2 is for 4 stages; here are 8"
    )


SIZES = ("--model-layers", 8, "--hidden", 64, "--seq", 8, "--flops", 1)


def test_refusals_of_the_command() -> None:
    assert (
        refusal("compare", "-s", "gpipe", "--hidden", 64).splitlines()[-1]
        == "Error: a model needs --model-layers, --seq, --flops too"
    )
    assert (
        refusal("compare", "-s", "gpipe", *SIZES, "--f", 3).splitlines()[-1]
        == "Error: costs follow from the model; leave out --f, or the model"
    )
    assert (
        refusal("compare", "-s", "gpipe", *SIZES, "--sweep", "f=3")
        == "sweep: f follows from the model; sweep microbatch-size, seq, data, zero"
    )


def test_compare_and_advise_from_a_model() -> None:
    shown = run("compare", "-s", "gpipe,1f1b", *SIZES, "--vocab", 100, width=110).stdout
    assert "in GiB; weights with gradients and optimizer state; all held, freed at weight" in shown
    told = run(
        "advise", "--memory-limit", "1GiB", "-s", "1f1b,zbv", *SIZES, "-m", 8, width=110
    ).stdout
    assert told.startswith("p=4 m=8, at most 1.00 GiB a rank: ")
    assert "a microbatch needs 1 or more sequences to keep the device computing" in told


def test_tensor_parallelism_divides_and_communicates() -> None:
    one, four = model(), model(tensor=4, tensor_GBps=100)
    plain, spread = one.costs(loop(2, 1)), four.costs(loop(2, 1))
    assert isinstance(plain.f_us, list)
    assert isinstance(spread.f_us, list)
    # Four collectives a layer in F, four in I, each of 3/4 of D s b h: of 4 layers a stage.
    moved_us = 4 * 4 * (3 / 4) * 2 * 128 * 256 / (100 * 1e3)
    assert spread.f_us[0] == pytest.approx(plain.f_us[0] / 4 + moved_us)
    assert spread.w_us == pytest.approx([us / 4 for us in plain.w_us])  # type: ignore[union-attr]
    assert spread.activation_bytes == [size / 4 for size in plain.activation_bytes]  # type: ignore[union-attr]
    assert spread.boundary_bytes == plain.boundary_bytes / 4  # type: ignore[operator]
    assert spread.memory["weight_bytes"] == [
        size / 4
        for size in plain.memory["weight_bytes"]  # type: ignore[union-attr]
    ]


def test_data_parallelism_sums_gradients_by_a_ring() -> None:
    costs = model(data=4, data_GBps=50).costs(loop(2, 1))
    weights = 4 * model().parameters()[0]
    assert costs.grad_sync_us == pytest.approx([2 * (3 / 4) * 2 * weights / (50 * 1e3)] * 2)


@pytest.mark.parametrize("pipes", [2, 4])
def test_crossing_chains_sum_their_gradients_by_a_ring(pipes: int) -> None:
    """A rank of Chimera's f pipes sends 2 (f - 1)/f of each of its stages' gradients."""
    found = model(bandwidth_GBps=25)
    weights = model().parameters()[0] * 8 / 4  # of two of eight layers
    us = 2 * (pipes - 1) / pipes * 2 * weights / (25 * 1e3)
    assert found.costs(both_ways(4, pipes)).replica_sync_us == pytest.approx([us] * 4 * pipes)
    assert found.costs(loop(4, 1)).replica_sync_us == 0
    assert model().costs(both_ways(4, pipes)).replica_sync_us == 0  # no link, no time
    with_sum, without = (
        measured(Size("chimera", 4, 8, pipes=pipes), one) for one in (found, model(alpha_us=0))
    )
    assert isinstance(with_sum, Figures)
    assert isinstance(without, Figures)
    assert with_sum.makespan_us - without.makespan_us >= us * pipes


def test_tensor_before_data_before_pipeline() -> None:
    found = model(**GPT3, tensor=8, data=4, recompute="selective")
    moved = found.traffic(loop(8, 1), 32)
    assert moved["tensor"] > moved["data"] > moved["pipeline"] > 0
    full = model(**GPT3, tensor=8, data=4, recompute="full").traffic(loop(8, 1), 32)
    assert full["tensor"] == 1.5 * moved["tensor"]  # the forward's collectives again
    assert moved["pipeline"] == 2 * 32 * 2 * 2048 * 12288 / 8  # a middle rank, both ways


def test_a_models_costs_are_saved_for_a_run(tmp_path: Path) -> None:
    """What is compared is what is drawn: the same makespan, with tiles for what is recomputed."""
    target = tmp_path / "costs.toml"
    sizes = (*SIZES, "--recompute", "full", "--data", 4, "--data-bandwidth", 1, "--zero", 3)
    about = ("-s", "zbv", "-p", 2, "-m", 4)
    told = run("compare", *about, *sizes, "--save-costs", target, "--json")
    assert told.stderr == f"wrote {target}\n"
    saved = Costs.from_toml(target)
    model = Model(8, 64, 8, 1.0, recompute="full", data=4, data_GBps=1, zero=3)
    assert saved == model.costs(v_shape(2, 2))
    drawn = run("run", *about, "--costs", target, "-o", tmp_path / "x.json", "--json")
    row = json.loads(told.stdout)["rows"][0]
    assert json.loads(drawn.stdout)["makespan_us"] == row["makespan_us"]
    text = (tmp_path / "x.json").read_text()
    assert text.count('"name":"Re') == 4 * 4
    assert text.count('"name":"Uns') == text.count('"name":"RDG') == 4


def test_every_kind_of_cost_is_saved(tmp_path: Path) -> None:
    target = tmp_path / "costs.toml"
    given = Costs(
        f_us=900,
        r_us=[1, 2],
        stage={"1": {"f_us": 800, "microbatch": {"0": {"scale": 2}}}},
        microbatch={"1": {"f_us": 3}},
        link={"0-1": {"alpha_us": 3}},
        rank={"0": {"slowdown": 2}},
        memory={"weight_bytes": [1, 2]},
        activation_bytes=3,
    )
    cost_file.write(Size("1f1b", 2, 2), PerStage(given), target)
    assert Costs.from_toml(target) == given
    kernels = Costs(moe=MoE(layers=2, attn_f_us=[1, 2]))
    cost_file.write(Size("moe-1f1b", 2, 2), PerStage(kernels), target)
    assert Costs.from_toml(target).moe == replace(MoE(2, attn_f_us=[1, 2]), block="none")


def test_costs_of_several_are_not_saved() -> None:
    several = refusal("compare", "-s", "1f1b,zbv", "--save-costs", "x").splitlines()[-1]
    assert several == "Error: --save-costs is of one schedule, not 2; give one by -s"
    swept = refusal("compare", "-s", "1f1b", "--sweep", "m=4", "--save-costs", "x")
    assert swept.splitlines()[-1] == "Error: --save-costs is of one size; leave --sweep out"


def test_the_layers_of_each_stage_are_told() -> None:
    sizes = ("-p", 4, "--model-layers", 30, "--hidden", 1024, "--seq", 512, "--flops", 400)
    told = run("compare", "-s", "1f1b,dualpipe,zbv", *sizes)
    assert [text for text in told.stdout.splitlines() if text.startswith("layers")] == [
        "layers of the stages of dualpipe (v=2), 1f1b (v=1): 7,8,8,7",
        "layers of the stages of zbv (v=2): 3,4,4,4,4,4,4,3",
    ]
    whole = json.loads(run("compare", "-s", "1f1b", *sizes, "--json").stdout)
    assert whole["layers"] == {"1f1b": {"1": [7, 8, 8, 7]}}
    advice = ("advise", "--memory-limit", "80GiB", "-s", "1f1b", *sizes)
    assert "\nlayers of the stages of 1f1b (v=1): 7,8,8,7\n" in run(*advice).stdout
    assert json.loads(run(*advice, "--json").stdout)["layers"] == {"1f1b": {"1": [7, 8, 8, 7]}}
    assert "layers" not in json.loads(run("compare", "-s", "1f1b", "--json").stdout)
