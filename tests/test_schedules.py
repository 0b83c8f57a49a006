"""What holds for every schedule at every small size, and what each is said to be."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from fractions import Fraction

import pytest
from golden import SHIPPED, case, case_of, golden
from oracle import Case, Stuck, Times, faults, parts, peaks, replay

from tracegen import registry
from tracegen.errors import ScheduleError

every_schedule = pytest.mark.parametrize("name", SHIPPED)


def sizes(name: str) -> Iterator[tuple[int, int, int | None]]:
    if name == "hanayo":
        yield from itertools.product(range(1, 7), range(1, 15), (1, 2, 4, 6))
    elif name == "chimera":
        yield from itertools.product(range(1, 13), range(1, 17), (1, 2, 3, 4, 6, 8))
    elif SHIPPED[name].stages_per_rank is None:
        yield from itertools.product(range(1, 7), range(1, 15), (1, 2, 3, 4))
    else:
        yield from itertools.product(range(1, 9), range(1, 21), (None,))


def every_small_case(name: str) -> Iterator[tuple[tuple[int, int, int | None], Case]]:
    """The schedule at each size it accepts; what it refuses, it must say so for a rule."""
    accepted = 0
    for size in sizes(name):
        try:
            found = case(name, *size)
        except ScheduleError:
            if not SHIPPED[name].needs:
                raise
            continue
        accepted += 1
        yield size, found
    assert accepted >= 20, "too few sizes accepted to have tested anything"


@every_schedule
def test_every_order_is_complete_and_finishes(name: str) -> None:
    for size, found in every_small_case(name):
        assert faults(found) == [], size
        try:
            replay(found)
        except Stuck as stuck:
            pytest.fail(f"{size}: {stuck}")


def test_the_oracle_sees_an_order_that_cannot_finish() -> None:
    rows = [["0F0", "0B0"], ["1B0", "1F0"]]
    with pytest.raises(Stuck):
        replay(Case(rows, (0, 1), ((0, 1),), 1))
    pair_of_one = [["(0F0;0B0)OVERLAP_F_B"]]
    with pytest.raises(Stuck):
        replay(Case(pair_of_one, (0,), ((0,),), 1))


def test_the_oracle_sees_what_is_missing_or_misplaced() -> None:
    rows = [["0F0", "0F0", "0B0", "1F0"], ["1B0"]]
    assert faults(Case(rows, (0, 1), ((0, 1),), 1)) == [
        "1F0 on rank 0",
        "stage 0 microbatch 0: ['F', 'F', 'B']",
    ]
    assert faults(Case([["0F0", "0B0"]], (0,), ((0,),), 2)) == ["stage 0 microbatch 1: not there"]


# Names


@every_schedule
def test_a_schedule_says_what_it_is(name: str) -> None:
    schedule = SHIPPED[name]
    assert 10 < len(schedule.summary) <= 100
    assert re.fullmatch(r"arXiv:\d{4}\.\d{5}|github\.com/\S+", schedule.paper)
    assert registry.find(name) is SHIPPED[name] or registry.find(name).name == name


def test_no_two_schedules_answer_to_one_name() -> None:
    plain = [re.sub("[^a-z0-9]", "", n) for s in SHIPPED.values() for n in (s.name, *s.aliases)]
    assert len(plain) == len(set(plain))


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("DualPipeV", "dualpipev"),
        ("dualpipe_v", "dualpipev"),
        ("dualpipe-v", "dualpipev"),
        ("1F1B-interleaved", "interleaved-1f1b"),
        ("1f1b_interleaved", "interleaved-1f1b"),
        ("1f1b-vpp", "interleaved-1f1b"),
        ("zbh1", "zb-h1"),
        ("zero-bubble-v", "zbv"),
        ("zerobubble", "zb-h1"),
        ("ZB1P", "zb-h1"),
        ("zb2p", "zb-h2"),
        ("Eager1F1B", "eager-1f1b"),
        ("V-Half", "v-half"),
        ("vmin", "v-min"),
        ("ScheduleInterleaved1F1B", "interleaved-1f1b"),
        ("ScheduleZBVZeroBubble", "zbv"),
        ("combined 1f1b", "moe-1f1b-overlap"),
        ("PipeDream-flush", "1f1b"),
    ],
)
def test_names_are_forgiving(typed: str, name: str) -> None:
    assert registry.find(typed).name == name


# The figures in the docstrings

FIGURE = re.compile(
    r"^(\d+) ranks, (\d+) microbatches(?:, (\d+) stages a rank)?:\n\n((?: +rank \d.*\n)+)", re.M
)


FIGURES = {
    name: figure
    for name, schedule in SHIPPED.items()
    if (figure := FIGURE.search(sys.modules[schedule.order.__module__].__doc__ or ""))
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_in_the_docstring(name: str) -> None:
    figure = FIGURES[name]
    drawn = [line.split()[2:] for line in figure[4].splitlines()]
    assert drawn == case(name, int(figure[1]), int(figure[2]), int(figure[3] or 1)).rows


def test_files_of_one_schedule_have_a_figure_where_it_fits() -> None:
    assert {
        "gpipe",
        "1f1b",
        "eager-1f1b",
        "interleaved-1f1b",
        "looped-bfs",
        "chimera",
        "hanayo",
    } <= set(FIGURES)


# Refusals


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        (
            "dualpipev",
            (4, 3),
            "dualpipev is not defined for p=4 m=3 v=2: m >= 2p; nearest that would do: m=8",
        ),
        (
            "dualpipe",
            (3, 8),
            "dualpipe is not defined for p=3 m=8 v=2: p is even, since one pipe goes down the "
            "ranks and one up; nearest that would do: p=2 or p=4",
        ),
        (
            "dualpipe",
            (4, 9),
            "dualpipe is not defined for p=4 m=9 v=2: m is a multiple of 2, an equal share for "
            "each pipe; nearest that would do: m=8 or m=10",
        ),
        (
            "interleaved-1f1b",
            (4, 9, 2),
            "interleaved-1f1b is not defined for p=4 m=9 v=2: m is a multiple of the number of "
            "rounds, max(1, m div p); nearest that would do: m=8 or m=10",
        ),
        (
            "moe-1f1b-overlap",
            (2, 5, 2),
            "moe-1f1b-overlap is not defined for p=2 m=5 v=2: m is a multiple of the number of "
            "rounds, max(1, m div p); nearest that would do: m=4 or m=6",
        ),
        (
            "chimera",
            (4, 3),
            "chimera is not defined for p=4 m=3 v=2: m is a multiple of 2, an equal share for each "
            "pipe; nearest that would do: m=2 or m=4",
        ),
        (
            "chimera",
            (6, 8, 4),
            "chimera is not defined for p=6 m=8 v=4: p is a multiple of 4, so that every pipe has "
            "an equal share; nearest that would do: p=4 or p=8",
        ),
        (
            "chimera",
            (4, 8, 3),
            "chimera is not defined for p=4 m=8 v=3: pipes come in pairs, one down and one up; "
            "nearest that would do: v=2 or v=4",
        ),
        (
            "hanayo",
            (4, 8, 3),
            "hanayo is not defined for p=4 m=8 v=3: v is even, two stages a rank for each wave; "
            "nearest that would do: v=2 or v=4",
        ),
        (
            "chimera",
            (1, 8),
            "chimera is not defined for p=1 m=8 v=2: p is even, since one pipe goes down the ranks "
            "and one up; nearest that would do: p=2",
        ),
        ("zb-h2", (4, 8, 2), "zb-h2: v = 2 stages per rank; it is defined for v = 1"),
        ("v-half", (4, 8, 1), "v-half: v = 1 stages per rank; it is defined for v = 2"),
        ("eager-1f1b", (0, 8), "eager-1f1b: p = 0 ranks; use 1 or more"),
        ("moe-1f1b", (4, 0), "moe-1f1b: m = 0 microbatches; use 1 or more"),
    ],
)
def test_refuses_a_size_and_says_which_would_do(
    name: str, size: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ScheduleError) as error:
        case(name, *size)
    assert str(error.value) == message


# Other people's orders

SAME_ORDER = {
    "torch_gpipe": "gpipe",
    "torch-runtime_gpipe": "gpipe",
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
NO_WORSE = {"sail_v-half": "v-half", "sail_v-min": "v-min", "sail_zb-auto-2p": "zb-h2"}


@pytest.mark.parametrize("stem", SAME_ORDER)
def test_the_order_and_its_figures_are_those_of_others(stem: str) -> None:
    for recorded in golden(stem):
        found = case_of(SAME_ORDER[stem], recorded)
        assert [" ".join(row) for row in found.rows] == recorded["ranks"], recorded["id"]
        assert list(found.rank_of) == recorded["stage_to_rank"]
        assert [list(chain) for chain in found.chains] == recorded["chains"]
        for row in recorded["replay"]:
            times = replay(found, row["f"], row["i"], row["w"], row["fb"], row["c"])
            idle = [times.idle(rank) for rank in range(recorded["p"])]
            assert times.makespan == row["makespan"], (recorded["id"], row)
            assert (max(idle), min(idle)) == (row["max_idle"], row["min_idle"])
            assert max(peaks(found, "I")) == row["peak_inflight_I_pair"]
            assert max(peaks(found, "W")) == row["peak_inflight_W_pair"]


@pytest.mark.parametrize("stem", NO_WORSE)
def test_no_worse_than_others_heuristics(stem: str) -> None:
    for recorded in golden(stem):
        found = case_of(NO_WORSE[stem], recorded)
        for row in recorded["replay"]:
            if row["f"] == row["i"] == row["w"] and row["c"] == 0:
                times = replay(found, row["f"], row["i"], row["w"])
                assert times.makespan <= row["makespan"], recorded["id"]
                assert max(peaks(found, "I")) <= row["peak_inflight_I_pair"], recorded["id"]
                assert max(peaks(found, "W")) <= row["peak_inflight_W_pair"], recorded["id"]


# The basics


def idles(times: Times) -> set[object]:
    return {times.idle(rank) for rank in range(len(times.ends))}


COSTS = [(1, 1, 1), (10, 9, 8), (2, 1, 1), (3, 5, 7)]


@pytest.mark.parametrize(("f", "i", "w"), COSTS)
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager-1f1b", "moe-1f1b"])
def test_gpipe_and_1f1b_idle_p_minus_1_times(name: str, f: int, i: int, w: int) -> None:
    for p, m in itertools.product(range(1, 7), range(1, 13)):
        assert idles(replay(case(name, p, m), f, i, w)) == {(p - 1) * (f + i + w)}


def test_memory_of_gpipe_and_of_1f1b() -> None:
    for p, m in itertools.product(range(1, 7), range(1, 13)):
        ranks = range(p)
        assert peaks(case("gpipe", p, m), "I") == [m] * p
        assert peaks(case("1f1b", p, m), "I") == [min(p - r, m) for r in ranks]
        assert peaks(case("eager-1f1b", p, m), "I") == [min(2 * (p - 1 - r) + 1, m) for r in ranks]


def test_eager_1f1b_hides_the_latency_that_1f1b_waits_for() -> None:
    eager, usual = (replay(case(n, 4, 16), latency=1).makespan for n in ("eager-1f1b", "1f1b"))
    assert eager < usual


@pytest.mark.parametrize("name", ["interleaved-1f1b", "looped-bfs"])
@pytest.mark.parametrize(("f", "i", "w"), COSTS)
def test_interleaving_divides_the_bubble(name: str, f: int, i: int, w: int) -> None:
    for p, rounds, v in itertools.product(range(1, 6), range(1, 4), range(1, 4)):
        assert idles(replay(case(name, p, p * rounds, v), f, i, w)) == {(p - 1) * (f + i + w)}


def test_memory_of_interleaving() -> None:
    for p, rounds, v in itertools.product(range(2, 6), range(1, 4), range(2, 4)):
        m = p * rounds
        assert peaks(case("interleaved-1f1b", p, m, v), "I")[0] == min(p * v + p - 1, m * v)
        assert set(peaks(case("looped-bfs", p, m, v), "I")) == {m * v}


# Chimera


@pytest.mark.parametrize(("f", "i", "w"), [*COSTS, (4, 1, 1)])
def test_chimera_idles_as_the_paper_says_with_any_number_of_pipes(f: int, i: int, w: int) -> None:
    for p, units, pipes in itertools.product((2, 4, 6, 8, 12), range(1, 4), (2, 4, 6, 8)):
        if p % pipes == 0:
            b, near = i + w, 2 * p // pipes - 2
            want = near * (max(f, b) + (units - 1) * abs(b - f))
            assert idles(replay(case("chimera", p, units * p, pipes), f, i, w)) == {want}


@pytest.mark.parametrize(("f", "i", "w"), [*COSTS, (4, 1, 1)])
def test_hanayo_idles_as_chimera_folded(f: int, i: int, w: int) -> None:
    """Chimera over 2p ranks, in costs that are a v-th of a rank's."""
    for p, units, v in itertools.product(range(1, 7), range(1, 4), (2, 4, 6)):
        b = i + w
        want = (2 * p - 2) * (max(f, b) + (units - 1) * abs(b - f))
        found = case("hanayo", p, units * p, v)
        assert idles(replay(found, f, i, w)) == {want}
        assert max(peaks(found, "I")) <= p * v  # the batch of one unit, as 1F1B holds at most


def test_one_wave_of_hanayo_is_half_of_chimera() -> None:
    for p, m in itertools.product(range(1, 6), range(1, 13)):
        half, whole = case("hanayo", p, m, 2), case("chimera", 2 * p, 2 * m, 2)
        # stages 0 .. p-1 of the down pipe stay; those of the up pipe follow them in the fold
        fold = {s: s for s in range(p)} | {2 * p + s: s for s in range(p, 2 * p)}
        for rank in range(p):
            folded = [
                f"{fold[stage]}{kind}{mb if stage < 2 * p else mb - m}"
                for step in whole.rows[rank]
                for stage, kind, mb in parts(step)
            ]
            assert folded == half.rows[rank]


def test_memory_of_chimera_lies_between_a_half_and_all_of_1f1b() -> None:
    for p in (4, 6, 8):
        held = peaks(case("chimera", p, 2 * p), "I")
        assert held == held[::-1]
        assert (min(held), max(held)) == (p // 2 + 1, p)


def test_chimera_beats_1f1b_in_a_short_batch_and_loses_in_a_long_one() -> None:
    """At B = 2F the bubbles meet at N = (2p - 1) / (p - 2) units of p microbatches."""
    for p in (4, 6, 8):
        for units in range(1, 8):
            two = replay(case("chimera", p, units * p), 1, 1, 1).makespan
            one = replay(case("1f1b", p, units * p), 1, 1, 1).makespan
            crossing = Fraction(2 * p - 1, p - 2)
            assert (two < one) == (units < crossing), (p, units)


# Zero Bubble

# The paper's tables 9 (profiled ms: F, I, W, latency) and 5 (bubble rates of 1F1B, ZB-H1, ZB-H2).
PAPER = [
    (8, 24, 18.522, 18.086, 9.337, 0.601, ".2431", ".1585", ".1083"),
    (8, 32, 18.513, 18.086, 9.331, 0.626, ".1985", ".1242", ".0837"),
    (8, 64, 18.546, 18.097, 9.321, 0.762, ".1240", ".0674", ".0444"),
    (8, 24, 29.718, 29.444, 19.927, 0.527, ".2347", ".1323", ".0698"),
    (8, 32, 29.802, 29.428, 19.530, 0.577, ".1898", ".1045", ".0559"),
    (8, 64, 29.935, 29.621, 19.388, 0.535, ".1091", ".0554", ".0294"),
]


@pytest.mark.parametrize("row", PAPER)
def test_bubble_rates_of_the_zero_bubble_paper(row: tuple[object, ...]) -> None:
    p, m, *ms, one, h1, h2 = row
    f, i, w, latency = (round(1000 * x) for x in ms)  # type: ignore[operator]
    for name, printed in (("1f1b", one), ("zb-h1", h1), ("zb-h2", h2)):
        rate = replay(case(name, p, m), f, i, w, latency=latency).span_rate  # type: ignore[arg-type]
        assert f"{float(rate):.4f}".lstrip("0") == printed, name


@pytest.mark.parametrize(("f", "i", "w"), [*COSTS, (9, 8, 10), (2, 6, 4), (1, 9, 6), (4, 7, 5)])
def test_zb_h1_idles_as_the_closed_form_says(f: int, i: int, w: int) -> None:
    for p in range(1, 7):
        for m in range(p, 13):
            times = replay(case("zb-h1", p, m), f, i, w)
            assert times.idle(0) == (p - 1) * max(f, i, f + i - w)


def test_zb_h1_keeps_the_memory_of_1f1b() -> None:
    for p, m in itertools.product(range(1, 9), range(1, 17)):
        assert max(peaks(case("zb-h1", p, m), "W")) <= min(p, m)


ZB_COSTS = [(1, 1, 1), (10, 9, 8), (9, 8, 10), (14, 13, 11), (1, 1, 2), (2, 1, 1)]


@pytest.mark.parametrize("latency", [0, 1])
@pytest.mark.parametrize("costs", ZB_COSTS)
def test_zb_h2_is_never_longer_than_zb_h1(costs: tuple[int, int, int], latency: int) -> None:
    for p in range(1, 9):
        for m in range(p + 1, 25):  # up to p they are one
            h1, h2 = (
                replay(case(name, p, m), *costs, latency=latency) for name in ("zb-h1", "zb-h2")
            )
            assert h2.makespan <= h1.makespan, (p, m)


def test_zb_h2_is_zb_h1_where_there_is_nothing_to_warm_up_with() -> None:
    for p in range(1, 9):
        for m in range(1, p + 1):
            assert case("zb-h2", p, m) == case("zb-h1", p, m)


def test_zb_h2_has_no_bubble_at_equal_costs() -> None:
    for p in range(1, 9):
        for m in range(2 * p - 1, 21):
            times = replay(case("zb-h2", p, m))
            assert all(times.span(rank) == times.busy(rank) == 3 * m for rank in range(p))
            assert times.makespan == 3 * m + p - 1


def test_memory_of_zb_h2() -> None:
    for p in range(1, 9):
        for m in range(2 * p - 1, 21):
            held = peaks(case("zb-h2", p, m), "I")
            assert held == [2 * (p - 1 - r) + 1 for r in range(p)]
            assert max(peaks(case("zb-h2", p, m), "W")) <= 2 * p


def test_zbv_idles_outside_of_its_ranks_spans_only() -> None:
    for p in range(1, 7):
        for m in range(2 * p, 2 * p + 6):
            times = replay(case("zbv", p, m))
            assert times.makespan == 6 * m + p - 1
            assert all(times.span(rank) == 6 * m for rank in range(p))
            assert max(peaks(case("zbv", p, m), "W")) <= 2 * p


# Controllable memory


@pytest.mark.parametrize(
    ("name", "share"), [("v-half", lambda p: (p + 2) // 2), ("v-min", lambda p: (p + 4) // 3)]
)
def test_a_v_keeps_within_its_memory_until_the_weight_gradient(name, share) -> None:  # type: ignore[no-untyped-def]
    for p in range(1, 17):
        limit = 2 * share(p)
        assert all(max(peaks(case(name, p, m), "W")) <= limit for m in range(1, 41))
        assert max(peaks(case(name, p, 40), "W")) == limit


# Idle beyond 6 m of every rank at f = i = w, p = 1 .. 12 and m = 3p, as far as today's rule goes.
V_IDLE = {
    "v-half": [0, 1, 5, 5, 11, 11, 17, 17, 23, 23, 29, 29],
    "v-min": [0, 3, 5, 11, 15, 17, 23, 27, 29, 35, 39, 41],
}


@pytest.mark.parametrize("name", V_IDLE)
def test_idle_of_a_v(name: str) -> None:
    for p, want in enumerate(V_IDLE[name], start=1):
        for m in (3 * p, 4 * p):
            assert replay(case(name, p, m)).makespan == 6 * m + want, (p, m)


# Mixture of experts


def test_merged_pairs_cost_time_where_nothing_overlaps() -> None:
    """A pair waits for both its halves; without overlap inside, one saves nothing."""
    for p, m in itertools.product(range(1, 6), range(1, 12)):
        merged, plain = (replay(case(n, p, m)) for n in ("moe-1f1b-bad-overlap", "moe-1f1b"))
        assert merged.makespan >= plain.makespan


def test_time_of_merged_pairs_that_take_one_backward() -> None:
    for p, m in itertools.product(range(1, 6), range(2, 14)):
        f, b, fb = 1, 2, 2
        times = replay(case("moe-1f1b-bad-overlap", p, m), f, 1, 1, fb)
        if m >= 2 * p:
            assert times.makespan == (p - 1) * (f + b) + (f + b) + (m - 1) * fb


def test_overlap_of_one_stage_a_rank_is_bad_overlap_with_other_numbers() -> None:
    for p in range(1, 6):
        for m in range(p, 5 * p, p):
            one, two = case("moe-1f1b-overlap", p, m, 1), case("moe-1f1b-bad-overlap", p, m)
            assert one.rows == two.rows
