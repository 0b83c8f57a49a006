"""Schedules of one model side by side: golden figures, published rates, grids, advice."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from command import SCRIPT, children_of, refusal, run
from golden import SHIPPED, golden
from hypothesis import given
from hypothesis import strategies as st

from tracegen import Costs, compile, replay
from tracegen.analysis.advise import Wanted, advise, needs
from tracegen.analysis.compare import KEYS, compare, schedules
from tracegen.analysis.curves import bubble, frontier, unbeaten
from tracegen.analysis.grid import Axis, Base, axes, points
from tracegen.analysis.measure import Figures, Impossible, Size, measured
from tracegen.analysis.normalise import OneModel, PerStage, regroup
from tracegen.analysis.sweep import sweep, table
from tracegen.errors import CostError
from tracegen.moe import MoE
from tracegen.order import both_ways, loop
from tracegen.ui import plot

SAME_ORDER = {
    "torch_gpipe": "gpipe",
    "torch-runtime_1f1b": "1f1b",
    "torch_interleaved1f1b": "interleaved-1f1b",
    "torch_loopedbfs": "looped-bfs",
    "torch_interleavedzerobubble": "interleaved-zb",
    "torch_zbvzerobubble": "zbv",
    "deepseek_dualpipe": "dualpipe",
    "deepseek_dualpipev": "dualpipev",
    "zbpp-light_zb-h1": "zb-h1",
    "chimera_chimera": "chimera",
    "minpp_eager1f1b": "eager-1f1b",
    "victarry_1f1b_overlap": "moe-1f1b-bad-overlap",
    "victarry_1f1b_interleave_overlap": "moe-1f1b-overlap",
}


def figures(name: str, p: int, m: int, costs: Costs | None = None, v: int | None = None) -> Figures:
    found = measured(Size(name, p, m, v), OneModel(costs or Costs(), p))
    assert isinstance(found, Figures), found
    return found


# Golden and published figures


@pytest.mark.parametrize("stem", SAME_ORDER)
def test_figures_are_the_golden_ones_given_for_1f1b_stages(stem: str) -> None:
    """The golden costs are of one stage; of a 1F1B stage they are n/p of that."""
    rows = 0
    for recorded in golden(stem):
        p, m, n = recorded["p"], recorded["m"], len(recorded["chains"][0])
        v = recorded["stages"] // p
        for row in recorded["replay"]:
            more = 1000 * n / p
            costs = Costs(
                f_us=row["f"] * more,
                i_us=row["i"] * more,
                w_us=row["w"] * more,
                fb_us=None if row["fb"] is None else row["fb"] * more,
                alpha_us=row["c"] * 1000,
            )
            size = Size(SAME_ORDER[stem], p, m, v)
            found = measured(size, OneModel(costs, p))
            assert isinstance(found, Figures), (recorded["id"], found)
            if row["fb"] is None or "max_idle" in row:
                assert found.makespan_us == 1000 * row["makespan"], recorded["id"]
            idle = p * row["makespan"] - row["busy_total"]
            assert found.bubble_overhead == pytest.approx(idle / row["busy_total"])
            assert found.peak_at_input == pytest.approx(row["peak_inflight_I_pair"] * p / n)
            assert found.peak_at_weight == pytest.approx(row["peak_inflight_W_pair"] * p / n)
            rows += 1
    assert rows >= 3


# The Zero Bubble paper (arXiv:2401.10241), tables 9 (costs in ms) and 5 (rates): one-way latency,
# sends that do not block, the rate of the longest span.
ZERO_BUBBLE = [
    # m, F, I, W, latency, 1F1B, ZB-H1, ZB-H2
    (24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083),
    (32, 18.513, 18.086, 9.331, 0.626, 0.1985, 0.1242, 0.0837),
    (64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444),
    (24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698),
    (32, 29.802, 29.428, 19.530, 0.577, 0.1898, 0.1045, 0.0559),
    (64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0294),
]


@pytest.mark.parametrize("row", ZERO_BUBBLE, ids=lambda row: f"m{row[0]}F{row[1]}")
def test_the_zero_bubble_papers_rates(row: tuple[float, ...]) -> None:
    m, f, i, w, latency, *rates = row
    costs = Costs(f_us=1000 * f, i_us=1000 * i, w_us=1000 * w, alpha_us=1000 * latency)
    for name, rate in zip(("1f1b", "zb-h1", "zb-h2"), rates, strict=True):
        assert round(figures(name, 8, int(m), costs).span_rate, 4) == rate, name


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize(("f", "i", "w"), [(1, 1, 1), (3, 2, 1), (10, 9, 8)])
def test_dualpipes_table_where_it_holds(p: int, f: int, i: int, w: int) -> None:
    """DualPipe's README by the same number of stages PP, FB = F + B, in each one's own stages."""
    m, costs = 2 * p, Costs(f_us=1000 * f, i_us=1000 * i, w_us=1000 * w)
    b = i + w
    one, zb, dual = (figures(name, p, m, costs) for name in ("1f1b", "zb-h1", "dualpipe"))
    work = 1000 * m * (f + b)
    assert one.makespan_us - work == 1000 * (p - 1) * (f + b)
    assert zb.makespan_us - work == 1000 * (p - 1) * (f + b - 2 * w)
    # Published with B for F in the last term: the same where F = I.
    assert dual.makespan_us - work == 1000 * (p // 2 - 1) * (f + b + f - 2 * w)
    if f == i:
        assert dual.makespan_us - work == 1000 * (p // 2 - 1) * (f + b + b - 3 * w)
    assert (one.weights, zb.weights, dual.weights) == (1, 1, 2)
    assert (one.peak_at_input, zb.peak_at_weight, dual.peak_at_weight) == (p, p, p + 1)


def test_gpipe_and_1f1b_have_the_same_bubble_and_m_of_4p_keeps_it_under_a_quarter() -> None:
    for p in (2, 4, 8):
        for m in (p, 2 * p, 4 * p):
            gpipe, one = figures("gpipe", p, m), figures("1f1b", p, m)
            assert gpipe.bubble_overhead == one.bubble_overhead == pytest.approx((p - 1) / m)
            assert (gpipe.peak_at_input, one.peak_at_input) == (m, p)
        assert one.bubble_overhead < 0.25


def test_interleaving_divides_the_bubble_by_v_and_multiplies_the_transfers() -> None:
    p, m = 4, 8
    for v in (1, 2, 3, 4):
        found = figures("interleaved-1f1b", p, m, Costs(f_us=1200, b_us=2400), v)
        assert found.bubble_overhead == pytest.approx((p - 1) / (m * v))
        assert found.transfers == 2 * m * (p * v - 1)
        assert found.peak_at_input == pytest.approx(p + (p - 1) / v)


# One model


def test_every_schedule_does_the_same_work() -> None:
    costs = Costs(f_us=1200, i_us=600, w_us=1800)
    for name in SHIPPED:
        found = figures(name, 4, 8, costs)
        busy = 4 * found.makespan_us * (1 - found.bubble_ratio)
        assert busy == pytest.approx(4 * 8 * 3600), name


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(1, 24),
)
def test_regrouping_keeps_the_sum(values: list[int], n: int) -> None:
    if len(values) % n == 0 or n % len(values) == 0:
        found = regroup([float(value) for value in values], n)
        assert len(found) == n
        assert sum(found) == pytest.approx(sum(values))


def test_per_stage_costs_are_summed_split_and_laid_along_both_chains() -> None:
    given = Costs(f_us=[1, 2, 3, 4], i_us=4, w_us=8, activation_bytes=[10, 20, 30, 40])
    model = OneModel(given, 4)
    halves = model.costs(loop(4, 2))
    assert halves.f_us == [0.5, 0.5, 1, 1, 1.5, 1.5, 2, 2]
    assert (halves.i_us, halves.w_us) == (2, 4)
    assert halves.activation_bytes == [5, 5, 10, 10, 15, 15, 20, 20]
    doubles = model.costs(loop(2, 1))
    assert (doubles.f_us, doubles.i_us, doubles.w_us) == ([3, 7], 8, 16)
    both = model.costs(both_ways(4, 2))
    assert both.f_us == [1, 2, 3, 4, 1, 2, 3, 4]
    finer = OneModel(Costs(f_us=[1, 1, 2, 2, 3, 3, 4, 4], b_us=12), 4).costs(loop(4, 1))
    assert (finer.f_us, finer.i_us, finer.w_us) == ([2, 4, 6, 8], 6, 6)


def test_what_is_scaled_and_what_is_not() -> None:
    given = Costs(
        f_us=900,
        alpha_us=10,
        bandwidth_GBps=5,
        boundary_bytes=1000,
        optimizer_us=40,
        memory={"weight_bytes": 80, "w_stash_bytes": 8},
        microbatch={2: {"f_us": 1800}, 3: {"scale": 1.5}},
        rank={1: {"slowdown": 1.5}},
        link={"0-1": {"alpha_us": 3}},
    )
    found = OneModel(given, 4).costs(loop(4, 2))
    assert (found.f_us, found.i_us, found.w_us, found.optimizer_us) == (450, 500, 500, 20)
    assert (found.alpha_us, found.bandwidth_GBps, found.boundary_bytes) == (10, 5, 1000)
    assert found.memory == {"weight_bytes": 40, "w_stash_bytes": 4}
    assert found.microbatch == {2: {"f_us": 900}, 3: {"scale": 1.5}}
    assert (found.rank, found.link) == (given.rank, given.link)
    assert OneModel(given, 4).costs(loop(4, 1)) == given


def test_a_stage_of_its_own_costs_is_cut_too() -> None:
    given = Costs(f_us=1000, b_us=2000, stage={3: {"f_us": 1400, "b_us": 2600}})
    found = OneModel(given, 4).costs(loop(4, 2))
    assert found.f_us == [500] * 6 + [700] * 2
    assert found.i_us == [500] * 6 + [650] * 2
    both = OneModel(given, 4).costs(both_ways(4, 2))
    assert both.stage == {"3": given.stage[3], "7": given.stage[3]}


def test_moe_layers_are_dealt_out() -> None:
    found = OneModel(Costs(moe=MoE(layers=4, attn_f_us=300)), 4).costs(loop(4, 2))
    assert found.moe is not None
    assert (found.moe.layers, found.moe.attn_f_us) == (2, 300)


REFUSED = [
    (
        Costs(f_us=[1, 2, 3, 4]),
        loop(3, 1),
        "costs of 4 stages cannot be those of 3; give them for a multiple of 3, or "
        "--per-stage-costs",
    ),
    (
        Costs(f_us=[1, 2, 3, 4], activation_bytes=[1, 2]),
        loop(4, 1),
        "costs for [2, 4] stages; give one a stage of each",
    ),
    (
        Costs(stage={4: {"f_us": 3}}),
        loop(4, 1),
        "stage 4 has costs; the last stage is 3",
    ),
    (
        Costs(stage={1: {"microbatch": {2: {"f_us": 3}}}}),
        loop(4, 2),
        "stage 1 has costs of its own (microbatch), which cannot be cut into 8 stages from 4; use "
        "a schedule of 4 stages",
    ),
    (
        Costs(boundary_bytes=[1, 2, 3]),
        loop(4, 2),
        "boundary_bytes differ between 4 stages; what crosses the boundaries of 8 is not known; "
        "give one number",
    ),
    (
        Costs(boundary_bytes=[1, 2]),
        loop(4, 2),
        "boundary_bytes has 2 numbers; 4 stages have 3 boundaries",
    ),
    (
        Costs(moe=MoE()),
        loop(4, 2),
        "moe: 1 layers in each of 4 stages are not to be cut into 8 equal stages; give layers a "
        "multiple of 2",
    ),
    (
        Costs(moe=MoE(layers=2, attn_f_us=[1, 2])),
        loop(4, 2),
        "moe: the layers of a stage differ, so 4 equal stages are not 8 equal ones; give each "
        "kernel one number",
    ),
]


@pytest.mark.parametrize(("costs", "placement", "message"), REFUSED, ids=lambda x: str(x)[:30])
def test_what_cannot_be_cut_is_refused(costs: Costs, placement: object, message: str) -> None:
    with pytest.raises(CostError) as error:
        OneModel(costs, 4).costs(placement)  # type: ignore[arg-type]
    assert str(error.value) == message


def test_boundary_bytes_of_longer_stages_are_those_between_them() -> None:
    costs = Costs(boundary_bytes=[1, 2, 3, 4, 5, 6, 7], f_us=[1] * 8)
    assert OneModel(costs, 4).costs(loop(4, 1)).boundary_bytes == [2, 4, 6, 0]


def test_per_stage_costs_opt_out() -> None:
    found = measured(Size("zbv", 4, 8), PerStage(Costs()))
    assert isinstance(found, Figures)
    assert (found.makespan_us, found.peak_at_weight, found.weights) == (51000, 8, 2)
    assert figures("zbv", 4, 8).makespan_us == 25500


def test_exposed_communication_is_what_a_rank_waits_for_while_it_is_on_its_way() -> None:
    costs = Costs(f_us=1000, b_us=2000, alpha_us=50)
    assert figures("1f1b", 4, 1, costs).exposed_us == 2 * 50  # one from each side
    assert figures("1f1b", 4, 1).exposed_us == 0
    kernels = Costs(moe=MoE(layers=2))
    line = replay(compile("1f1b", 4, 8, communication=False), kernels)
    assert figures("1f1b", 4, 8, kernels).exposed_us == max(line.exposed_ns) / 1000


# The command


def rows_of(*args: object) -> dict[str, object]:
    found = run("compare", "--json", *args)
    assert found.exit_code == 0, found.output
    data: dict[str, object] = json.loads(found.stdout)
    return data


def test_compare_sorts_marks_and_lists_what_is_impossible() -> None:
    shown = run("compare", "-s", "gpipe,1f1b,zb-h1,dualpipev", "-m", 6, width=100).stdout
    assert shown.splitlines() == [
        "p=4 m=6, sorted by makespan; * the best",
        "           makespan  bubble   over-    span peak,  peak, weights trans- exposed",
        "schedule v       ms   ratio    head    rate input weight           fers      ms",
        "zb-h1    1  *21.000 *14.29% *16.67% *14.29%    *4     *4       1     36   0.000",
        "1f1b     1   27.000  33.33%  50.00%  33.33%    *4     *4       1     36   0.000",
        "gpipe    1   27.000  33.33%  50.00%  33.33%     6      6       1     36   0.000",
        "peaks (activations of a microbatch) and weights are in 1F1B stages",
        "not possible:",
        "dualpipev m >= 2p; nearest that would do: m=8",
    ]


def test_figures_without_room_are_named() -> None:
    shown = run("compare", "-s", "gpipe", "-p", 2, "-m", 3, width=60).stdout.splitlines()
    assert shown[4].rstrip() == "no room for: span rate, peak input, transfers"


@pytest.mark.parametrize("more", [(), ("--sweep", "m=3,4")])
@pytest.mark.parametrize(
    ("by", "title"), [("span-rate", "span"), ("transfers", "trans-"), ("weights", "weights")]
)
def test_what_is_sorted_by_is_never_left_out(by: str, title: str, more: tuple[str, ...]) -> None:
    shown = run("compare", "-s", "gpipe", "-p", 2, *more, "--sort", by, width=40).stdout
    heads, found, _ = shown.partition("no room for: ")
    assert found
    assert title in heads.split()


def test_the_bubble_is_shown_in_80_columns() -> None:
    wide = ("--model-layers", 32, "--hidden", 4096, "--seq", 4096, "--flops", 400)
    for command in (("compare",), ("advise", "--memory-limit", "300GiB")):
        shown = run(*command, *wide, width=80).stdout
        assert " makespan  bubble " in shown or " makespan bubble " in shown
        assert "no room for: span rate, peak input" in shown


@pytest.mark.parametrize("name", ["p", "m", "v"])
def test_a_size_is_given_or_swept(name: str) -> None:
    said = refusal("compare", "-s", "interleaved-1f1b", f"-{name}", 2, "--sweep", f"{name}=2,4")
    assert said.endswith(f"Error: -{name} and --sweep {name}=: leave one of them out")


@pytest.mark.parametrize(("option", "name"), [("-p", "p"), ("--microbatches", "m"), ("-v", "v")])
@pytest.mark.parametrize("values", ["4,8", "4..64"])
def test_several_sizes_are_swept(option: str, name: str, values: str) -> None:
    assert refusal("compare", option, values).endswith(
        f": '{values}' is not one number; several are swept: --sweep {name}={values}"
    )
    assert refusal("compare", option, "x,4").endswith(": 'x,4' is not a valid integer.")
    for command in (("run", "-s", "1f1b"), ("advise", "--memory-limit", 6), ("solve",)):
        assert refusal(*command, option, values).endswith(
            f"several are swept: tracegen compare --sweep {name}={values}"
        )


@pytest.mark.parametrize("more", [(), ("--json",), ("--sweep", "m=8,16")])
def test_nothing_that_is_possible_is_no_answer(more: tuple[str, ...]) -> None:
    found = run("compare", "-s", "dualpipe", "-p", 3, *more)
    assert (found.exit_code, "p is even" in found.stdout) == (2, True)


def test_pipes_are_of_schedules_whose_pipes_cross() -> None:
    for schedule, pipes in (("interleaved-1f1b", 2), ("interleaved-1f1b", 1), ("gpipe", 1)):
        no = f"Error: --pipes: {schedule} has no pipes that cross, as chimera has"
        assert refusal("run", "-s", schedule, "--pipes", pipes).endswith(no)
    assert rows_of("-s", "interleaved-1f1b", "-p", 4, "-m", 8, "--pipes", 1)["rows"][0]["v"] == 2  # type: ignore[index]


def test_json_has_every_schedule_either_way() -> None:
    data = rows_of("-p", 4, "-m", 6)
    names = [row["schedule"] for row in data["rows"]]  # type: ignore[attr-defined]
    names += [row["schedule"] for row in data["impossible"]]  # type: ignore[attr-defined]
    assert sorted(names) == sorted(SHIPPED) == schedules(None)
    assert list(data["rows"][0]) == list(Figures.__annotations__)  # type: ignore[index]


@pytest.mark.parametrize("by", KEYS)
def test_sorting(by: str) -> None:
    found = compare([Size(name, 4, 8) for name in SHIPPED], lambda _: OneModel(Costs(), 4), by)
    values = [round(getattr(row, KEYS[by]), 9) for row in found.rows]
    assert values == sorted(values)
    best = found.best(KEYS[by])
    assert best is None or round(best, 9) == values[0]


def test_what_a_model_sends_for_nothing_is_said() -> None:
    links = "no --bandwidth is given: what ranks send takes no time, nor does replicas' sum\n"
    assert links in run("compare", "-s", "1f1b", *MODEL).stdout
    about = ("compare", "-s", "1f1b", *MODEL, "--bandwidth", 25)
    free = "no --{0}-bandwidth is given: what --{0} devices send takes no time\n"
    assert "no --" not in run(*about).stdout
    assert free.format("tensor") in run(*about, "--tensor", 2).stdout
    assert free.format("data") in run(*about, "--data", 2).stdout
    assert "no --" not in run(*about, "--data", 2, "--data-bandwidth", 50).stdout


def test_schedules_may_be_named_one_by_one() -> None:
    rows = rows_of("-s", "zbv", "-s", "1f1b,gpipe")["rows"]
    assert {row["schedule"] for row in rows} == {"zbv", "1f1b", "gpipe"}  # type: ignore[attr-defined]


def test_chimera_takes_pipes_and_the_others_v() -> None:
    data = rows_of("-s", "chimera,interleaved-1f1b,1f1b", "-m", 8, "-v", 4, "--pipes", 2)
    assert {row["schedule"]: row["v"] for row in data["rows"]} == {  # type: ignore[attr-defined]
        "chimera": 2,
        "interleaved-1f1b": 4,
        "1f1b": 1,
    }


def test_refusals() -> None:
    assert refusal("compare", "-s", "gpip") == "no schedule 'gpip'; did you mean 'gpipe'?"
    assert refusal("compare", "-s", ",") == "no schedule is named; give some, as gpipe,1f1b,zbv"
    assert refusal("compare", "1f1b", "zbv").endswith("schedules follow -s, as in -s 1f1b,zb-h1")
    assert refusal("compare", "m=4").endswith("follows --sweep, as in --sweep m=8,16 p=4,8")
    assert (
        refusal("compare", "-s", "gpipe", "--sweep", "q=3")
        == "sweep 'q=3': nothing is called 'q'; there are p, m, v, f, b, i, w, fb, r, alpha, "
        "bandwidth, bytes, w-share, microbatch-size, seq, data, zero, and ratios such as f/b"
    )
    for text, message in (
        ("m=8..4", "sweep 'm=8..4': 8..4 is empty; write the smaller number first"),
        ("m=1..8*1", "sweep 'm=1..8*1': 1..8*1 never ends; multiply by 2 or more"),
        ("m=2..8+0", "sweep 'm=2..8+0': 2..8+0 has no end; step by 1 or more"),
        ("m=0..8*2", "sweep 'm=0..8*2': 0..8*2 never ends; start at 1 or more"),
        (
            "m=1..100000000",
            "sweep 'm=1..100000000': 100000000 values, and a sweep has 1000000 points at most; "
            "take larger steps, such as 1..100000000*2",
        ),
        ("f/b=0.5 f=3", "sweep 'f/b=0.5' and 'f=3': both set f; give one of them"),
        ("m=inf", "sweep 'm=inf': m is a whole number, 1 or more"),
        ("m=nan", "sweep 'm=nan': m is a whole number, 1 or more"),
        ("m=4,x", "sweep 'm=4,x': 'x' is no number; write 4,8 or 4..64 or 4..64*2 or 4..64+4"),
        ("m=2.5", "sweep 'm=2.5': m is a whole number, 1 or more"),
        ("m", "sweep 'm': write NAME=VALUES, such as m=4..64 or p=4,8"),
    ):
        with pytest.raises(CostError, match="^" + re.escape(message) + "$"):
            list(axes([text]))
    assert (
        refusal("compare", "-s", "gpipe", "--sweep", "m=4", "m=8")
        == "sweep 'm=4' and 'm=8': both set m; give one of them"
    )
    assert (
        refusal("compare", "-s", "gpipe", "--sweep", "m=4", "seq=8", "-o", "x.txt")
        == "x.txt: a sweep's file ends in .csv, .json, .parquet"
    )


def test_parquet_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert (
        refusal("compare", "-s", "gpipe", "--sweep", "m=4", "-o", "x.parquet")
        == "x.parquet: Parquet needs pyarrow; pip install pyarrow, or write .csv or .json"
    )


# Sweeps


def test_values_and_points_in_the_order_written() -> None:
    (m, p) = axes(["m=2..8*2 p=4,2"])
    assert (m.values, p.values) == ((2, 4, 8), (4, 2))
    found = points(["gpipe", "zbv"], [m, p, Axis("v", (1.0, 2.0))], Size("", 4, 8))
    assert [(point.size.schedule, point.size.m, point.size.p) for point in found] == [
        (name, m, p) for name in ("gpipe", "zbv") for m in (2, 4, 8) for p in (4, 2)
    ]
    found = points(["interleaved-1f1b"], [Axis("v", (1.0, 2.0))], Size("", 4, 8))
    assert [point.size.v for point in found] == [1, 2]


def test_the_order_is_the_same_on_any_number_of_cores() -> None:
    swept = list(axes(["m=4..8 p=2,4 f/b=0.5,1 alpha=0,100"]))
    grid = points(["gpipe", "1f1b", "dualpipev"], swept, Size("", 4, 8))
    assert len(grid) == 120
    alone = sweep(grid, Base(Costs()), jobs=1)
    assert alone == sweep(grid, Base(Costs()), jobs=3)
    rows = table(grid, swept, alone)
    assert len(rows) == sum(isinstance(row, Figures) for row in alone) < len(grid)
    assert list(rows[0])[:6] == ["schedule", "p", "m", "v", "f/b", "alpha"]


def test_ratios_and_costs_are_those_named() -> None:
    base = Base(Costs(f_us=1000, b_us=3000))
    (source,) = [base.source(4, (("f/b", 0.5),))]
    assert source.costs(loop(4, 1)).f_us == 1500
    changed = base.source(4, (("i/w", 2.0), ("alpha", 7.0))).costs(loop(4, 1))
    assert (changed.i_us, changed.b_us, changed.alpha_us) == (2000, 3000, 7)  # so w = 1000
    # A ratio is to what is swept beside it, in whatever order they are written.
    for changes in ((("f/b", 0.5), ("b", 400.0)), (("b", 400.0), ("f/b", 0.5))):
        assert base.source(4, changes).costs(loop(4, 1)).f_us == 200
    with pytest.raises(CostError):
        Base(Costs(f_us=[1, 2])).source(2, (("b/f", 2.0),))


# f, i and w by hand, from what the request says of 1000 us each
@pytest.mark.parametrize(
    ("asked", "f", "i", "w"),
    [
        ("f/b=0.5 i/w=3", 2000, 3000, 1000),
        ("i/w=3 f/b=0.5", 2000, 3000, 1000),
        ("i=500 b=1500", 1000, 500, 1000),
        ("b=1500 i=500", 1000, 500, 1000),
        ("b/f=2 i=100", 1000, 100, 1900),
        ("b/f=2 i/w=3", 1000, 1500, 500),
        ("w/i=3 b=400", 1000, 100, 300),
        ("f/i=2 i/w=2 w=100", 400, 200, 100),
    ],
)
def test_each_row_of_a_sweep_has_what_it_says(asked: str, f: int, i: int, w: int) -> None:
    """A rank alone takes f + i + w for a microbatch."""
    both = ("compare", "--sweep", *asked.split(), "--json", "-m")
    (one,) = json.loads(run(*both, 4, "-p", 1, "-s", "zb-h1").stdout)["rows"]
    assert one["makespan_us"] == pytest.approx(4 * (f + i + w))
    (two,) = json.loads(run(*both, 1, "-p", 2, "-s", "zb-h1").stdout)["rows"]
    # F on both, I on both, and W; the other W runs beside.
    assert two["makespan_us"] == pytest.approx(2 * f + 2 * i + w)


def test_ratios_that_cannot_both_hold() -> None:
    assert (
        refusal("compare", "-s", "1f1b", "--sweep", "f/b=1", "b/f=2")
        == "sweep: f/b=1, b/f=2 contradict each other; leave out f/b, or another"
    )
    assert refusal("compare", "-s", "1f1b", "--sweep", "i=1", "w=2", "b=5").startswith(
        "b_us = 5.0 is not i_us + w_us = 3.0"
    )


PATIENCE_S = 60
MODEL = ("--model-layers", 4, "--hidden", 64, "--seq", 32, "--flops", 1)


def test_values_that_do_not_go_together_are_listed_whichever_comes_first() -> None:
    for data in ("1,2", "2,1"):
        found = run("compare", "-s", "1f1b", *MODEL, "--sweep", "zero=0,3", f"data={data}")
        assert found.exit_code == 0, found.stderr
        assert found.stderr == "4 points, 2 of them not possible\n"
    assert "give data" in refusal("compare", "-s", "1f1b", *MODEL, "--sweep", "zero=0,3")


def test_no_ranks_no_microbatches_and_no_pipes_are_not_the_defaults() -> None:
    for option in ("-p", "-m", "-v", "--pipes"):
        assert "0 is not in the range x>=1" in refusal("compare", option, 0)
    for option in ("-p", "-m", "-v"):
        assert "0 is not in the range x>=1" in refusal("advise", "--memory-limit", 4, option, 0)


def test_one_thing_goes_to_stdout() -> None:
    one = ("compare", "-s", "1f1b")
    assert "--output - both want" in refusal(*one, "--sweep", "m=4", "-o", "-", "--json")
    assert "--bubble-svg - both want" in refusal(
        *one, "--sweep", "m=4", "-o", "-", "--bubble-svg", "-"
    )
    assert "--save-costs - both want" in refusal(*one, "--save-costs", "-")


def test_a_sweep_without_a_row_writes_nothing_and_says_why(tmp_path: Path) -> None:
    kept = tmp_path / "rows.csv"
    kept.write_text("before")
    found = run("compare", "-s", "dualpipe", "--sweep", "m=3", "-o", kept)
    assert (found.exit_code, found.stdout, kept.read_text()) == (2, "", "before")
    assert "not possible: dualpipe at p=4 m=3: m is a multiple of 2" in found.stderr


def test_as_much_memory_buys_one_thing_however_it_is_rounded() -> None:
    fits = replace(figures("1f1b", 2, 2), peak_at_weight=2, makespan_us=30.0)
    slower = replace(fits, peak_at_weight=8589934591.999996, makespan_us=25.0)
    faster = replace(fits, peak_at_weight=8589934592.0, makespan_us=20.0)
    found = advise([fits, slower, faster], Wanted(2))
    assert found is not None
    assert [(step.limit, step.saves_us) for step in found.steps] == [(8589934592.0, 10.0)]


@pytest.mark.parametrize("width", [40, 50, 60])
def test_no_figure_of_a_table_is_cut(width: int) -> None:
    big = ("--model-layers", 32, "--hidden", 4096, "--seq", 4096, "--flops", 400, "--vocab", 128000)
    for more, limit in (((), 6), (big, "300GiB")):
        for command in (("compare",), ("advise", "--memory-limit", limit)):
            shown = run(*command, *more, "-m", 8, width=width)
            assert shown.exit_code == 0
            assert "\N{HORIZONTAL ELLIPSIS}" not in shown.stdout
            assert "no room for: " in shown.stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in run("explain", "zbv", "--top", 30, width=40).stdout


def test_bytes_that_are_no_gib_are_said_as_bytes() -> None:
    said = run("advise", "--memory-limit", 80, *MODEL).stdout
    assert "nothing fits 80 bytes; the least that does is " in said
    assert (
        "nothing fits 0.50 GiB"
        in run("advise", "--memory-limit", "0.5GiB", "--activation-bytes", 2**32).stdout
    )


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("seconds", [0, 0.4, 0.8])
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_no_process_of_a_sweep_outlives_it(tmp_path: Path, name: str, seconds: float) -> None:
    """Ctrl-C goes to all of them, SIGKILL to the first alone; stderr is open until all are gone."""
    many = ("p=8,16", "m=64..512+8", "v=1..4", "-j", "2", "-o", "rows.csv")
    with subprocess.Popen(
        [SCRIPT, "compare", "--sweep", *many],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        until = time.monotonic() + PATIENCE_S
        while not children_of(process.pid):
            assert process.poll() is None
            assert time.monotonic() < until
        time.sleep(seconds)  # some of the others may be there, or all
        if name == "SIGINT":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.kill()
        try:
            said = process.communicate(timeout=PATIENCE_S)[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == (130 if name == "SIGINT" else -9)
    if name == "SIGINT":  # one that starts while the first is killed says so in Python's words
        assert b"Traceback" not in said
    assert list(tmp_path.iterdir()) == []


def test_one_model_at_every_p() -> None:
    grid = points(["1f1b"], list(axes(["p=2,4,8"])), Size("", 4, 8))
    small, same, large = sweep(grid, Base(Costs(), 4))
    assert isinstance(small, Figures)
    assert isinstance(same, Figures)
    assert isinstance(large, Figures)
    assert [row.makespan_us / (8 + row.p - 1) for row in (small, same, large)] == [6000, 3000, 1500]
    assert [row.weights for row in (small, same, large)] == [2, 1, 0.5]


def test_sweep_writes_csv_json_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("compare", "-s", "gpipe,1f1b,zbv", "--sweep", "m=4..16*2", "p=4")
    done = run(*asked, "-o", "a.csv", "--bubble-svg", "b.svg", "--frontier-svg", "f.svg")
    assert done.stdout == ""
    assert done.stderr == (
        "9 points, 0 of them not possible\nwrote a.csv\nwrote b.svg\nwrote f.svg\n"
    )
    run(*asked, "-o", "a.json")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    data = json.loads((tmp_path / "a.json").read_text())["rows"]
    assert [float(row["makespan_us"]) for row in rows] == [row["makespan_us"] for row in data]
    assert [row["schedule"] for row in rows] == ["gpipe"] * 3 + ["1f1b"] * 3 + ["zbv"] * 3
    picture = (tmp_path / "b.svg").read_text()
    assert "gpipe = 1f1b" in picture
    assert picture.count("<circle") == 2 * 4  # two curves of three points, and the legend's
    again = run(*asked, "--bubble-svg", "c.svg")
    assert (tmp_path / "c.svg").read_bytes() == (tmp_path / "b.svg").read_bytes(), again


def test_the_frontier_is_what_nothing_beats() -> None:
    assert unbeaten([(3, 1.0), (1, 5.0), (2, 5.0), (2, 4.0), (4, 1.0)]) == [
        (1, 5.0),
        (2, 4.0),
        (3, 1.0),
    ]
    swept = list(axes(["m=8,16"]))
    grid = points(["gpipe", "v-min", "zbv"], swept, Size("", 4, 8))
    rows = table(grid, swept, sweep(grid, Base(Costs()), jobs=1))
    drawn = frontier(rows, ["m"], in_bytes=False)
    assert [series.name for series in drawn.series] == ["gpipe", "v-min", "zbv"]
    assert [x for x, _ in drawn.steps] == [2, 4]
    curves = bubble(rows, ["m"])
    assert curves.series[0].points == ((8.0, 0.375), (16.0, 0.1875))


def test_too_many_curves_are_refused(tmp_path: Path) -> None:
    many = [plot.Series(str(at), [(1, at)]) for at in range(25)]
    with pytest.raises(CostError, match="25 curves cannot be told apart"):
        plot.write(plot.Plot("", "", "", many), tmp_path / "x.svg")


@given(st.floats(1e-6, 1e12), st.integers(5, 12))
def test_ticks_are_round_and_few(most: float, count: int) -> None:
    found = plot.ticks(most, count)
    assert found[0] == 0
    assert 2 <= len(found) <= count + 1
    assert found[-1] <= most * (1 + 1e-9)
    step = Fraction(found[1]).limit_denominator(10**12)
    assert str(float(f"{float(step):e}")).lstrip("0.")[0] in "125"


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e3), st.integers(5, 12))
def test_ticks_begin_just_below_the_least(least: float, share: float, count: int) -> None:
    most = least * (1 + share)
    found = plot.ticks(most, count, least)
    step = found[1] - found[0]
    assert found[0] - step / 1000 <= least <= found[0] + 1.001 * step
    assert found[-1] - step / 1000 <= most <= found[-1] + 1.001 * step
    assert len(found) <= count + 1


def labels(picture: str, anchor: str) -> list[str]:
    return re.findall(rf'text-anchor="{anchor}">([^<]+)</text>', picture)


@pytest.mark.parametrize(
    ("values", "up"),
    [
        # Between 98 and 104 an axis from 0 would squeeze all into a sixteenth of the height.
        ([98, 100, 104], ["97", "98", "99", "100", "101", "102", "103", "104"]),
        ([3, 3.2, 4.25], ["2.8", "3.0", "3.2", "3.4", "3.6", "3.8", "4.0", "4.2"]),
        # From 0 where that costs little, and where there is but one value.
        ([2, 10, 16], ["0", "2", "4", "6", "8", "10", "12", "14", "16"]),
        ([5, 5], ["0", "1", "2", "3", "4", "5"]),
    ],
)
def test_axes_begin_near_what_they_show(values: list[float], up: list[str], tmp_path: Path) -> None:
    series = [plot.Series("a", [(at, y) for at, y in enumerate(values)], line=False)]
    plot.write(plot.Plot("", "x", "y", series, from_zero=False), tmp_path / "x.svg")
    assert labels((tmp_path / "x.svg").read_text(), "end") == up


def test_shares_below_a_percent_have_digits_enough(tmp_path: Path) -> None:
    series = [plot.Series("a", [(1, 0.004), (2, 0.029)])]
    plot.write(plot.Plot("", "x", "y", series, percent=True), tmp_path / "x.svg")
    assert labels((tmp_path / "x.svg").read_text(), "end") == [
        "0.0%", "0.5%", "1.0%", "1.5%", "2.0%", "2.5%", "3.0%"
    ]  # fmt: skip


# Advice


def test_advice_is_the_fastest_that_fits_and_says_what_more_would_buy() -> None:
    names = [name for name in SHIPPED if not name.startswith("moe")]
    grid = points(names, [Axis("m", (16.0,)), Axis("v", (1.0, 2.0))], Size("", 8, 16))
    found = sweep(grid, Base(Costs()), jobs=1)
    rows = [row for row in found if isinstance(row, Figures) and row.weights == 1]
    for limit in (4, 5, 6, 8, 9, 12, 16):
        advice = advise(found, Wanted(limit))
        assert advice is not None
        fit = [row.makespan_us for row in rows if row.peak_at_weight <= limit]
        assert [row.makespan_us for row in advice.fits] == sorted(fit)
        more = min(row.makespan_us for row in rows if row.peak_at_weight <= limit + 1)
        gain = advice.one_more.saves_us if advice.one_more else 0
        assert advice.fits[0].makespan_us - gain == more
        held = [step.limit for step in advice.steps]
        assert held == sorted(held)
        assert all(needs(step.figures, "freed_at_weight") > limit for step in advice.steps)


def test_m_is_the_least_whose_bubble_is_no_worse_than_1f1bs_by_the_rule_of_thumb() -> None:
    data = json.loads(run("advise", "--memory-limit", 8, "-p", 8, "-s", "1f1b", "--json").stdout)
    assert (data["m"], data["rule_of_thumb_m"]) == (32, 32)
    data = json.loads(run("advise", "--memory-limit", 8, "-p", 8, "-s", "zbv", "--json").stdout)
    assert (data["m"], data["fits"][0]["schedule"]) == (16, "zbv")


def test_advice_leaves_out_replicas_unless_memory_counts_them() -> None:
    asked = ("advise", "--memory-limit", 5, "-m", 8, "-s", "1f1b,dualpipe", "--json")
    data = json.loads(run(*asked).stdout)
    assert [row["schedule"] for row in data["fits"]] == ["1f1b"]
    assert data["with_replicas"]["schedule"] == "dualpipe"
    data = json.loads(run(*asked, "--replicas").stdout)
    assert [row["schedule"] for row in data["fits"]] == ["dualpipe", "1f1b"]


def test_advice_when_nothing_fits() -> None:
    shown = run("advise", "--memory-limit", 1, "-p", 8, "-m", 16, width=120).stdout
    assert shown == (
        "p=8 m=16: nothing fits 1 1F1B stages; the least that does is 4 1F1B stages, "
        "v-min (v=2), 61.500 ms\n"
    )
    assert (
        refusal("advise", "--memory-limit", "6GiB")
        == "memory limit 6GiB: the costs say nothing of bytes; give --activation-bytes, or a "
        "limit in stage activations, such as 6"
    )


def test_advice_when_nothing_is_possible() -> None:
    assert (
        refusal("advise", "--memory-limit", 6, "-p", 3, "-s", "dualpipe", "-m", 8)
        == "not possible: dualpipe at p=3 m=8: p is even, since one pipe goes down the ranks and "
        "one up; nearest that would do: p=2 or p=4"
    )


def test_a_schedule_that_is_impossible_says_why_once() -> None:
    found = measured(Size("dualpipev", 4, 6), OneModel(Costs(), 4))
    assert found == Impossible(Size("dualpipev", 4, 6), "m >= 2p; nearest that would do: m=8")


def test_the_pictures_of_the_page_are_those_of_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(__file__).parent.parent / "examples" / "choosing"
    page = (folder / "README.md").read_text()
    lines = [text for text in page.splitlines() if "-svg examples/" in text]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples" / "choosing").mkdir(parents=True)
    for line in lines:
        run(*line.removeprefix("$ tracegen ").split())
    for name in ("bubble.svg", "frontier.svg"):
        made = tmp_path / "examples" / "choosing" / name
        assert made.read_bytes() == (folder / name).read_bytes()
