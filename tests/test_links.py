"""Transfers that take turns on a link: cases worked out by hand, and a second computation.

All times are ns: costs are given in thousandths of a us, a link of 1 GB/s moves a byte a ns.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Case, Part, parts, waits_of
from strategies import programs

import tracegen
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.ir import Placement, Program, Stream, parse
from tracegen.order import loop, v_shape
from tracegen.timeline import Timeline

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)


def built(place: Placement, m: int, *rows: str) -> Program:
    return Program("mine", m, place, tuple(Stream.of(map(parse, row.split())) for row in rows))


def starts(line: Timeline) -> dict[str, int]:
    """When each step starts, by its text."""
    steps = (str(step) for stream in line.program.ranks for step in stream)
    return dict(zip(steps, line.start_ns, strict=True))


def moved(line: Timeline) -> list[tuple[str, int, int]]:
    """What each transfer waits to reach, when it leaves and when it is there."""
    names = [str(step) for stream in line.program.ranks for step in stream]
    return sorted((names[t.target], t.start_ns, t.end_ns) for t in line.transfers())


# F lasts 10, B 20, a transfer holds its link for 7 and arrives 1 later.
SEVEN = Costs(
    f_us=0.010, i_us=0.010, w_us=0.010, alpha_us=0.001, bandwidth_GBps=1, boundary_bytes=7
)
PAIR = "0F0 3F0 (0F1;3B0)OVERLAP_F_B 3F1 3B1 0B0 0B1"


def test_of_two_ready_at_once_the_forward_goes_first() -> None:
    """The pair ends at 86: 0F1's result takes 86 to 93, 3B0's 93 to 100."""
    line = replay(built(v_shape(2, 2), 2, PAIR, "1F0 2F0 2B0 1F1 1B0 2F1 2B1 1B1"), SEVEN)
    when = starts(line)
    assert when["(0F1;3B0)OVERLAP_F_B"] == 56
    assert when["2B0"] == 101
    assert ("1F1", 86, 94) in moved(line)
    assert ("2B0", 93, 101) in moved(line)


def test_the_forward_that_goes_first_is_there_first() -> None:
    line = replay(built(v_shape(2, 2), 2, PAIR, "1F0 2F0 1F1 2B0 1B0 2F1 2B1 1B1"), SEVEN)
    assert starts(line)["1F1"] == 94
    assert starts(line)["2B0"] == 104  # there at 101, but the rank is busy


def test_of_two_forwards_ready_at_once_the_lower_stage_goes_first() -> None:
    """2F0 and then 0F1 take no time and end at 36 both."""
    costs = Costs(
        **{**SEVEN.given(), "stage": {2: {"f_us": 0}, 0: {"microbatch": {1: {"f_us": 0}}}}}
    )
    program = built(
        loop(2, 2),
        2,
        "0F0 2F0 0F1 2F1 2B0 0B0 2B1 0B1",
        "1F0 3F0 1F1 3F1 3B0 1B0 3B1 1B1",
    )
    line = replay(program, costs)
    assert ("1F1", 36, 44) in moved(line)
    assert ("3F0", 43, 51) in moved(line)
    assert starts(line)["3F0"] == 51


def test_a_link_that_is_the_bottleneck() -> None:
    """Four forwards leave 10 apart and arrive 50 apart; so do the gradients."""
    costs = Costs(**{**SEVEN.given(), "boundary_bytes": 50, "alpha_us": 0})
    line = tracegen.replay(tracegen.compile("gpipe", 2, 4), costs)
    when = starts(line)
    assert [when[f"1F{n}"] for n in range(4)] == [60, 110, 160, 210]
    assert [when[f"1B{n}"] for n in range(4)] == [220, 240, 260, 280]
    assert [when[f"0B{n}"] for n in range(4)] == [290, 340, 390, 440]
    assert line.makespan_ns == 460


def test_one_slow_link() -> None:
    """Only 1 -> 2 is limited: its forwards are 30 apart, everything else is at once."""
    costs = Costs(
        f_us=0.010,
        i_us=0.010,
        w_us=0.010,
        boundary_bytes=30,
        link={"1-2": {"bandwidth_GBps": 1}},
    )
    when = starts(tracegen.replay(tracegen.compile("gpipe", 3, 3), costs))
    assert [when[f"1F{n}"] for n in range(3)] == [10, 20, 30]
    assert [when[f"2F{n}"] for n in range(3)] == [50, 80, 110]
    assert [when[f"1B{n}"] for n in range(3)] == [140, 160, 180]


def test_the_two_directions_of_a_link_are_two_links() -> None:
    there = Costs(
        **{**SEVEN.given(), "bandwidth_GBps": None, "link": {"0-1": {"bandwidth_GBps": 1}}}
    )
    back = Costs(
        **{**SEVEN.given(), "bandwidth_GBps": None, "link": {"1-0": {"bandwidth_GBps": 1}}}
    )
    program = tracegen.compile("gpipe", 2, 1)
    assert starts(replay(program, there)) == {"0F0": 0, "1F0": 18, "1B0": 28, "0B0": 49}
    assert starts(replay(program, back)) == {"0F0": 0, "1F0": 11, "1B0": 21, "0B0": 49}


def test_bytes_of_each_boundary_both_ways_rounded_once() -> None:
    """100 bytes at 3 GB/s take 33.3 ns, 200 take 66.7."""
    costs = Costs(f_us=0.010, i_us=0.010, w_us=0.010, bandwidth_GBps=3, boundary_bytes=[100, 200])
    assert starts(tracegen.replay(tracegen.compile("gpipe", 3, 1), costs)) == {
        "0F0": 0,
        "1F0": 43,
        "2F0": 120,
        "2B0": 130,
        "1B0": 217,
        "0B0": 270,
    }


def test_latency_does_not_hold_the_link() -> None:
    costs = Costs(**{**SEVEN.given(), "alpha_us": 1})
    when = starts(tracegen.replay(tracegen.compile("gpipe", 2, 3), costs))
    assert [when[f"1F{n}"] for n in range(3)] == [1017, 1027, 1037]


# A second computation: the state of every rank and link, a ns at a time


class Ticking:
    """Ranks and links stepped through time; every cost is 1 ns or more."""

    def __init__(self, case: Case, lasts: dict[str, int], holds: int, latency: int) -> None:
        self.case, self.lasts, self.holds, self.latency = case, lasts, holds, latency
        self.sources = waits_of(case)
        self.rank_of = {
            part: rank for rank, row in enumerate(case.rows) for s in row for part in parts(s)
        }
        self.there: dict[tuple[Part, int], int] = {}  # (result, rank) -> when it is there
        self.wanted: dict[Part, set[int]] = {}
        for part, rank in self.rank_of.items():
            for need in self.sources(part):
                made = next(n for n in need if n in self.rank_of)
                if self.rank_of[made] != rank:
                    self.wanted.setdefault(made, set()).add(rank)
        self.waiting: dict[tuple[int, int], list[tuple[int, bool, int, Part]]] = {}
        self.link_free: dict[tuple[int, int], int] = {}

    def run(self) -> list[list[int]]:
        began: list[list[int]] = [[] for _ in self.case.rows]
        until = [0] * len(self.case.rows)
        running: list[str | None] = [None] * len(self.case.rows)
        now = 0
        while any(map(self.left, began, self.case.rows)) or any(running):
            for rank, step in enumerate(running):
                if step is not None and until[rank] == now:
                    self.ended(step, rank, now)
                    running[rank] = None
            self.serve(now)
            for rank, row in enumerate(self.case.rows):
                if running[rank] is None and self.left(began[rank], row):
                    step = row[len(began[rank])]
                    if self.ready(step, rank, now):
                        running[rank], until[rank] = step, now + self.lasts[step]
                        began[rank].append(now)
            now += 1
        return began

    @staticmethod
    def left(began: list[int], row: list[str]) -> bool:
        return len(began) < len(row)

    def ended(self, step: str, rank: int, now: int) -> None:
        for part in parts(step):
            self.there[part, rank] = now
            stage, kind, _ = part
            for other in self.wanted.get(part, ()):
                self.waiting.setdefault((rank, other), []).append((now, kind != "F", stage, part))

    def serve(self, now: int) -> None:
        for link, queue in self.waiting.items():
            queue.sort()
            if queue and self.link_free.get(link, 0) <= now:
                part = queue.pop(0)[-1]
                self.link_free[link] = now + self.holds
                self.there[part, link[1]] = now + self.holds + self.latency

    def ready(self, step: str, rank: int, now: int) -> bool:
        return all(
            any(self.there.get((made, rank), now + 1) <= now for made in need)
            for part in parts(step)
            for need in self.sources(part)
        )


@SETTINGS
@given(programs(4, 4), *[st.integers(1, 6)] * 3, st.integers(1, 15), st.integers(0, 5))
def test_a_second_computation_agrees_at_every_step(
    program: Program, f: int, i: int, w: int, holds: int, latency: int
) -> None:
    place = program.placement
    case = Case(
        [[str(step) for step in stream] for stream in program.ranks],
        place.ranks,
        place.chains,
        program.num_microbatches,
    )
    one = {"F": f, "B": i + w, "I": i, "W": w}
    lasts = {s: sum(one[k] for _, k, _ in parts(s)) for row in case.rows for s in row}
    line = replay(
        program,
        Costs(
            f_us=f / 1000,
            i_us=i / 1000,
            w_us=w / 1000,
            alpha_us=latency / 1000,
            bandwidth_GBps=1,
            boundary_bytes=holds,
        ),
    )
    began = [at for row in Ticking(case, lasts, holds, latency).run() for at in row]
    assert [*line.start_ns] == began


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipe", "dualpipev", "chimera"])
def test_more_bandwidth_is_never_slower_here_and_none_is_the_limit(name: str) -> None:
    spans = [
        tracegen.replay(
            tracegen.compile(name), Costs(bandwidth_GBps=speed, boundary_bytes=10**6)
        ).makespan_ns
        for speed in (0.5, 1, 4, 1e9, None)
    ]
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] == spans[-2]
