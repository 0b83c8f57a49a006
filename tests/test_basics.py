"""The figures of papers and textbooks, through the public door, in us."""

from __future__ import annotations

import itertools

import pytest
from golden import SHIPPED
from oracle import parts
from test_schedules import PAPER

import tracegen
from tracegen import metrics
from tracegen.costs import Costs
from tracegen.timeline import Timeline

every_schedule = pytest.mark.parametrize("name", SHIPPED)


# Exact small cases, in us


def spans(
    name: str, p: int, m: int, v: int | None = None, **us: float
) -> tuple[float, list[float]]:
    costs = Costs(**{"f_us": 1, "i_us": 1, "w_us": 1, **us})
    line = tracegen.replay(tracegen.compile(name, p, m, v), costs)
    return line.makespan_ns / 1000, [idle / 1000 for idle in line.idle_ns]


@pytest.mark.parametrize(
    ("name", "p", "m", "v", "makespan", "idle"),
    [
        ("gpipe", 4, 8, None, 33, 9),
        ("1f1b", 4, 8, None, 33, 9),
        ("1f1b", 4, 2, None, 15, 9),
        ("1f1b", 4, 3, None, 18, 9),
        ("1f1b", 4, 4, None, 21, 9),
        ("1f1b", 4, 16, None, 57, 9),
        ("1f1b", 8, 8, None, 45, 21),
        ("1f1b", 8, 32, None, 117, 21),
        ("zb-h1", 4, 8, None, 27, 3),
        ("interleaved-1f1b", 4, 8, 2, 57, 9),
        ("interleaved-1f1b", 4, 3, 2, 30, None),
        ("interleaved-1f1b", 4, 6, 2, 45, None),
        ("interleaved-1f1b", 4, 10, 2, 69, None),
    ],
)
def test_exact_small_cases(
    name: str, p: int, m: int, v: int | None, makespan: float, idle: float | None
) -> None:
    whole, idles = spans(name, p, m, v)
    assert whole == makespan
    if idle is not None:
        assert idles == [idle] * p


V, DOWN_UP = [3.5, 4, 4.5, 4.5], [3.5, 4, 4.5, 4.5, 4.5, 4.5, 4, 3.5]


@pytest.mark.parametrize(
    ("name", "p", "m", "fb", "makespan", "idle"),
    [
        ("dualpipe", 8, 20, 3, 66, [6] * 8),
        ("dualpipe", 8, 20, 2.5, 59, DOWN_UP),
        ("dualpipe", 8, 20, 4, 80, [11, 10, 9, 9, 9, 9, 10, 11]),
        ("dualpipev", 4, 10, 3, 66, [6] * 4),
        ("dualpipev", 4, 10, 2.5, 59, V),
        ("dualpipev", 4, 10, 4, 80, [11, 10, 9, 9]),
    ],
)
def test_dualpipe_idles_by_rank(
    name: str, p: int, m: int, fb: float, makespan: float, idle: list[float]
) -> None:
    assert spans(name, p, m, fb_us=fb) == (makespan, idle)


@pytest.mark.parametrize(("f", "i", "w"), [(1, 1, 1), (3, 2, 1), (4, 4, 3), (9, 8, 7)])
@pytest.mark.parametrize("share", [0.75, 1.0, 1.25])
def test_dualpipe_idles_as_the_replayed_formula_says(f: int, i: int, w: int, share: float) -> None:
    """(PP/2 - 1)(FB + F - 2W) on the ranks with most pairs, for F >= I >= W; the printed
    (PP/2 - 1)(FB + B - 3W) equals it where F = I.
    """
    fb = share * (f + i + w)
    for p, m in ((4, 8), (4, 12), (6, 14), (8, 20)):
        half = p // 2 - 1
        _, idle = spans("dualpipe", p, m, f_us=f, i_us=i, w_us=w, fb_us=fb)
        _, folded = spans("dualpipev", p // 2, m // 2, f_us=f, i_us=i, w_us=w, fb_us=fb)
        assert idle[p // 2] == folded[-1] == half * (fb + f - 2 * w)
        assert idle[: p // 2] == folded
        if f == i:
            assert idle[p // 2] == half * (fb + i + w - 3 * w)


@pytest.mark.parametrize("row", PAPER)
def test_bubble_rates_of_the_zero_bubble_paper(row: tuple[object, ...]) -> None:
    p, m, f, i, w, latency, *printed = row
    costs = Costs(f_us=f, i_us=i, w_us=w, alpha_us=latency)  # type: ignore[arg-type]
    for name, rate in zip(("1f1b", "zb-h1", "zb-h2"), printed, strict=True):
        line = tracegen.replay(tracegen.compile(name, p, m), costs)  # type: ignore[arg-type]
        assert f"{metrics.span_rate(line):.4f}".lstrip("0") == rate, name


# The basics of the subject, at latency 0


def measured(name: str, p: int, m: int, v: int | None = None, **costs: object) -> Timeline:
    return tracegen.replay(tracegen.compile(name, p, m, v), Costs(**costs))  # type: ignore[arg-type]


SIZES = [*itertools.product((2, 3, 4, 8), (1, 2, 5, 8, 32))]


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_gpipe_and_1f1b_have_one_bubble_and_different_memory(p: int, m: int) -> None:
    one, gpipe = measured("1f1b", p, m), measured("gpipe", p, m)
    for line in (one, gpipe):
        assert metrics.bubble_overhead(line) == pytest.approx((p - 1) / m, rel=1e-12)
        assert metrics.bubble_ratio(line) == pytest.approx((p - 1) / (m + p - 1), rel=1e-12)
    assert gpipe.peak_activations["freed_at_input"] == [m] * p
    assert max(one.peak_activations["freed_at_input"]) == min(p, m)


@pytest.mark.parametrize(("p", "v"), [*itertools.product((2, 4), (2, 3, 4))])
def test_interleaving_divides_the_bubble_and_multiplies_the_transfers(p: int, v: int) -> None:
    m = 2 * p
    one = measured("1f1b", p, m, f_us=v, i_us=v, w_us=v)
    many = measured("interleaved-1f1b", p, m, v, f_us=1, i_us=1, w_us=1)
    assert many.busy_ns == one.busy_ns
    assert many.idle_ns == [idle // v for idle in one.idle_ns]
    hops = 2 * m  # there and back
    assert len([*one.transfers()]) == hops * (p - 1)
    assert len([*many.transfers()]) == hops * (p * v - 1)


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_four_microbatches_a_rank_hold_the_bubble_under_a_quarter(p: int) -> None:
    assert metrics.bubble_overhead(measured("1f1b", p, 4 * p)) < 0.25
    assert metrics.bubble_overhead(measured("1f1b", p, 2 * p)) > 0.2


@pytest.mark.parametrize("p", [4, 6, 8])
def test_chimera_is_below_1f1b_until_they_cross(p: int) -> None:
    """Each further unit of p microbatches costs Chimera |B - F| a rank in both halves of the
    pipe, 1F1B nothing: at B = 2F they meet after (2p - 1)/(p - 2) units.
    """

    def shorter(units: int) -> bool:
        chimera, one = (measured(name, p, units * p) for name in ("chimera", "1f1b"))
        return metrics.bubble_ratio(chimera) < metrics.bubble_ratio(one)

    assert shorter(1)
    verdicts = [shorter(units) for units in range(1, 8)]
    last = {4: 3, 6: 2, 8: 2}[p]
    assert verdicts == [units <= last for units in range(1, 8)]


@pytest.mark.parametrize("p", [2, 4, 8])
def test_splitting_off_w_leaves_a_third_of_the_bubble(p: int) -> None:
    m = 2 * p
    split, whole = measured("zb-h1", p, m), measured("1f1b", p, m)
    assert [3 * idle for idle in split.idle_ns] == whole.idle_ns
    assert split.peak_activations["freed_at_weight"][0] == p


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-h1", "zbv", "dualpipev"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_a_slow_first_or_last_stage_grows_the_bubble(name: str, end: str) -> None:
    even = measured(name, 4, 16)
    stage = 0 if end == "first" else even.program.num_stages - 1
    uneven = measured(name, 4, 16, stage={stage: {"f_us": 1500, "i_us": 1500, "w_us": 1500}})
    assert metrics.bubble_ratio(uneven) > metrics.bubble_ratio(even)
    assert uneven.makespan_ns > even.makespan_ns


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zbv"])
@pytest.mark.parametrize("link", ["1-2", "2-1"])
def test_a_slow_link_grows_the_bubble(name: str, link: str) -> None:
    even = measured(name, 4, 16)
    slow = measured(name, 4, 16, link={link: {"alpha_us": 700}})
    assert slow.busy_ns == even.busy_ns
    assert metrics.bubble_ratio(slow) > metrics.bubble_ratio(even)


@every_schedule
def test_forward_only(name: str) -> None:
    program = tracegen.compile(name, forward_only=True)
    line = tracegen.replay(program, Costs(f_us=3))
    compute = program.compute_only()
    kinds = {kind for row in compute.ranks for step in row for _, kind, _ in parts(str(step))}
    assert kinds == {"F"}
    v, m = program.stages_per_rank, program.num_microbatches
    share = m // len(program.placement.chains)
    assert line.busy_ns == [3000 * v * share] * program.num_ranks
    assert set(line.peak_activations["freed_at_input"]) == {1}
