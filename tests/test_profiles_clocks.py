"""Clocks that run apart: what the messages of a run say of them, and how sure that is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

import tracegen
from tracegen.deps import waits
from tracegen.errors import FileError
from tracegen.ir import NO_MATE
from tracegen.profiles.clocks import align
from tracegen.profiles.lines import between
from tracegen.profiles.merge import merge
from tracegen.profiles.model import RankProfile, Tile
from tracegen.profiles.spans import _by_tiles
from tracegen.readers.warn import Warnings
from tracegen.timeline import Timeline

EPOCH = 1_790_000_000_000_000_000
Skew = Callable[[int], int]


def run(
    name: str = "1f1b",
    p: int = 4,
    m: int = 8,
    alpha_us: float = 50,
    links: dict[str, float] | None = None,
    jitter: float = 0.0,
) -> Timeline:
    """A run whose messages take `alpha_us`, or what its link takes, in us."""
    costs = tracegen.Costs(
        alpha_us=alpha_us,
        jitter=jitter,
        link={link: {"alpha_us": us} for link, us in (links or {}).items()},
    )
    return tracegen.replay(tracegen.compile(name, p, m, communication=False), costs)


def profiles(
    line: Timeline, skews: list[Skew], steps: int = 1, gap_ns: int = 0, host: str = ""
) -> list[RankProfile]:
    """What each rank would note of the run, repeated so often, on a clock of its own."""
    found = []
    for rank, skew in enumerate(skews):
        one = RankProfile(f"rank{rank}.json", host or f"host{rank}", [])
        first, last = line.program.offsets[rank : rank + 2]
        stream = line.program.ranks[rank]
        for number in range(steps):
            base = EPOCH + number * (line.makespan_ns + gap_ns)
            tiles = [
                Tile(
                    stream.codes[step - first],
                    stream.mates[step - first],
                    -1,
                    skew(base + line.start_ns[step]),
                    skew(base + line.end_ns[step]),
                )
                for step in range(first, last)
            ]
            one.steps.append(tiles)
            _by_tiles(tiles, number, one)
        found.append(one)
    return found


def constant(ns: int) -> Skew:
    return lambda t: t + ns


def drifting(ns: int, rate: float) -> Skew:
    return lambda t: t + ns + round((t - EPOCH) * rate)


def errors(ranks: list[RankProfile], skews: list[Skew]) -> list[tuple[float, int]]:
    """By rank, (how far the recovered clock is off at worst, what is said of it), in ns."""
    found = []
    clocks = align(ranks).of_rank
    times = [tile.start_ns for step in ranks[0].steps for tile in step]
    zero = skews[0](EPOCH) - EPOCH
    for clock, skew in zip(clocks, skews, strict=True):
        off = [clock.at(skew(t - zero)) - t for t in (min(times), max(times))]
        assert clock.uncertainty_ns is not None
        found.append((max(map(abs, off)), clock.uncertainty_ns))
    return found


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zbv", "interleaved-1f1b", "dualpipev"])
@pytest.mark.parametrize("skew_ns", [5_000_000, -5_000_000, 3_600_000_000_000])
def test_a_skew_is_found_within_what_is_said(name: str, skew_ns: int) -> None:
    skews = [constant(rank * skew_ns) for rank in range(4)]
    for rank, (error, said) in enumerate(errors(profiles(run(name, m=10), skews), skews)):
        assert error <= said
        # Messages take 50 us each way: that is what cannot be told from a skew, at each hop;
        # the rest is for clocks that may drift by up to 1000 ppm within a run of 40 ms.
        assert said <= 4 * 50_000 + 100_000 if rank else said == 0


def test_symmetric_latency_leaves_the_middle_right() -> None:
    skews = [constant(0), constant(5_000_000)]
    ((_, _), (error, said)) = errors(profiles(run(p=2), skews), skews)
    assert error <= 1
    assert 50_000 <= said <= 75_000


@pytest.mark.parametrize(("there", "back"), [(10, 400), (400, 10), (0, 300)])
def test_asymmetric_latency_is_within_what_is_said(there: float, back: float) -> None:
    skews = [constant(0), constant(-5_000_000)]
    line = run(p=2, links={"0-1": there, "1-0": back})
    ((_, _), (error, said)) = errors(profiles(line, skews), skews)
    assert error <= said
    assert error == pytest.approx(abs(there - back) * 500, abs=2)


@pytest.mark.parametrize("rate", [2e-5, -1e-4, 5e-4])
def test_drift_is_fitted_where_it_shows(rate: float) -> None:
    skews = [constant(0), drifting(5_000_000, rate), drifting(-5_000_000, -rate)]
    ranks = profiles(run(p=3, jitter=0.1), skews, steps=30, gap_ns=100_000_000)
    clocks = align(ranks)
    assert clocks.of_rank[1].rate == pytest.approx(-rate, abs=abs(rate) / 10 + 1e-6)
    assert "rates against rank 0's in ppm" in clocks.notes[0]
    for error, said in errors(ranks, skews):
        assert error <= said
    assert max(said for _, said in errors(ranks, skews)) < 500_000


def test_random_runs_are_within_what_is_said() -> None:
    dice = random.Random(7)
    for _ in range(40):
        links = {
            f"{a}-{b}": dice.choice([0, 5, 50, 500]) for a, b in ((0, 1), (1, 0), (1, 2), (2, 1))
        }
        rate = dice.choice([0, 0, 1e-5, -3e-4])
        skews = [constant(0), drifting(dice.randint(-(10**9), 10**9), rate), constant(12345)]
        steps = dice.choice([1, 5])
        ranks = profiles(run("zb-h1", 3, 6, links=links, jitter=0.2), skews, steps, 10_000_000)
        for error, said in errors(ranks, skews):
            assert error <= said


def test_the_picture_has_no_receive_before_its_send() -> None:
    for name in ("1f1b", "dualpipev"):
        line = run(name, m=10)
        skews = [constant(rank * 7_000_000) for rank in range(4)]
        made = merge(profiles(line, skews), "x", {"profile": "test"}, Warnings())
        needs = waits(made.program)
        for step in range(len(made.start_ns)):
            rank = made.program.rank_of_step(step)
            mate = made.program.ranks[rank].mates[step - made.program.offsets[rank]]
            for source in needs.of(step):
                inside = mate != NO_MATE and source == needs.backward[step]
                at = made.end_ns if inside else made.start_ns
                assert at[step] >= made.end_ns[source]
        assert made.program.name == name


def test_files_of_two_runs_are_refused() -> None:
    """The order of the ranks is turned round, so that every message would go back in time."""
    line = run(p=3)
    ranks = profiles(line, [constant(0)] * 3)
    other = profiles(replace(line, start_ns=line.end_ns, end_ns=line.start_ns), [constant(0)] * 3)
    ranks[1] = other[1]
    for tile in ranks[1].steps[0]:
        tile.start_ns, tile.end_ns = sorted((tile.start_ns, tile.end_ns))
    ranks[1].sent = {key: ns + 10**9 * (key[3] % 2) for key, ns in ranks[1].sent.items()}
    with pytest.raises(FileError, match=r"^rank1.json: its clock cannot be related to that of"):
        align(ranks)


def test_without_messages_both_ways_other_hosts_are_refused() -> None:
    line = tracegen.replay(tracegen.compile("gpipe", 2, 3, forward_only=True, communication=False))
    with pytest.raises(FileError, match="no messages both ways relate the clock to that of"):
        align(profiles(line, [constant(0), constant(0)]))
    found = align(profiles(line, [constant(0), constant(0)], host="one"))
    assert found.of_rank[1].offset_ns == 0
    assert found.of_rank[1].uncertainty_ns is None
    assert "both are of one host and its clock is taken as it is" in found.warnings[0]


def test_one_host_is_one_clock_unless_messages_say_otherwise() -> None:
    line = run(p=2)
    same = align(profiles(line, [constant(0), constant(20_000)], host="one"))
    assert same.of_rank[1].offset_ns == 0
    assert same.of_rank[1].uncertainty_ns is not None
    assert same.of_rank[1].uncertainty_ns >= 20_000
    assert same.warnings == []
    apart = align(profiles(line, [constant(0), constant(5_000_000)], host="one"))
    assert apart.of_rank[1].offset_ns == pytest.approx(-5_000_000, abs=1)
    assert apart.warnings == [
        "the files are of one host, but their clocks differ: receives would come before their "
        "sends; the clocks are aligned by the messages"
    ]


def test_lines_between_points() -> None:
    level = between([(0, -10.0), (10, -10.0)], [(0, 10.0), (10, 10.0)])
    assert (level.offset, level.rate, level.slack_ns) == (0, 0, 10)
    none = between([(0, 5.0), (10, -5.0)], [(0, -5.0), (10, 5.0)])
    assert none.slack_ns < 0
    far = 1e6
    tilted = between([(0, -1.0), (far, 99.0)], [(0, 1.0), (far, 101.0)])
    assert tilted.rate == pytest.approx(1e-4, rel=1e-3)
    assert tilted.slack_ns == pytest.approx(1, rel=1e-3)
