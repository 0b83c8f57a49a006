"""Training runs on torch's own schedules under torch.profiler, read back from its files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

pytest.importorskip("torch")

from tests import profiles_worker
from tests.execute_team import Team
from tracegen import attribution
from tracegen.ir import NO_MATE
from tracegen.profiles.nearest import known
from tracegen.profiles.reading import read
from tracegen.timeline import Timeline

CASES = [
    ("Interleaved1F1B", 8),
    ("InterleavedZeroBubble", 8),
    ("DualPipeV", 10),
    ("ZBVZeroBubble", 8),
    ("LoopedBFS", 4),
    ("GPipe", 4),
    ("1F1B", 6),
]
# How far the clocks of two processes of one machine may be apart; ns.
CALIBRATION = 200_000


class Teams(dict[int, Team]):
    """Each made when it is first asked for."""

    def __missing__(self, size: int) -> Team:
        self[size] = Team(size)
        return self[size]


@pytest.fixture(scope="module")
def teams() -> Iterator[Teams]:
    made = Teams()
    yield made
    for team in made.values():
        team.end()


@pytest.mark.parametrize("p", [2, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("name", "microbatches"), CASES)
def test_the_order_and_the_times_are_those_of_record(
    teams: Teams, tmp_path: Path, p: int, name: str, microbatches: int
) -> None:
    found = teams[p].run(profiles_worker.train, name, microbatches, str(tmp_path))
    recorded = found[0][1]
    line = read([tmp_path])
    assert line.program.ranks == recorded.program.ranks
    for rank, (order, _) in enumerate(found):
        if order is not None:
            assert [str(step) for step in line.program.ranks[rank]] == order
    assert known(line).names == known(recorded).names
    assert line.program.name == recorded.program.name != ""
    _same_times(line, recorded)
    _no_receive_before_its_send(line)


def _same_times(line: Timeline, recorded: Timeline) -> None:
    """Tiles of operations lie in the calls that `record` measured, and are most of them.

    One shift of the axis must put every tile into its call; processes tell the time from their
    own calibration of the processor's counter, so it may be a little off. A process may lose the
    processor between a call and the small operators after it, which are of the same range: so
    the call ends where the tile does in the middle, and the next call is never reached.
    """
    starts = [a - b for a, b in zip(line.start_ns, recorded.start_ns, strict=True)]
    ends = [a - b for a, b in zip(line.end_ns, recorded.end_ns, strict=True)]
    first = min(starts)
    assert median(ends) <= first + CALIBRATION
    offsets = line.program.offsets
    for begin, until in pairwise(offsets):
        for step in range(begin, until - 1):
            assert line.end_ns[step] <= recorded.start_ns[step + 1] + first + CALIBRATION
    of_call = [
        (b - a) / max(1, d - c)
        for a, b, c, d in zip(
            line.start_ns, line.end_ns, recorded.start_ns, recorded.end_ns, strict=True
        )
    ]
    assert 0.6 < median(of_call) <= 1.01


def _no_receive_before_its_send(line: Timeline) -> None:
    for one in line.transfers():
        inside = not one.forward and _is_pair(line, one.target)
        ends = line.end_ns if inside else line.start_ns
        assert ends[one.target] >= line.end_ns[one.source]


def _is_pair(line: Timeline, step: int) -> bool:
    rank = line.program.rank_of_step(step)
    return line.program.ranks[rank].mates[step - line.program.offsets[rank]] != NO_MATE


def test_a_rank_that_sleeps_is_a_bubble_on_the_others(teams: Teams, tmp_path: Path) -> None:
    nap_ns = 1_000_000_000
    teams[2].run(profiles_worker.train, "GPipe", 3, str(tmp_path), nap_ns / 1e9)
    line = read([tmp_path])
    assert line.busy_ns[0] > nap_ns  # it is inside the forward of the rank that sleeps
    assert line.busy_ns[1] < nap_ns / 2
    assert line.idle_ns[1] > 0.9 * nap_ns
    waits = attribution.totals(line, 1)
    assert waits[attribution.Cause.WAIT] > 0.9 * nap_ns


@pytest.mark.parametrize(
    ("name", "called"), [("Interleaved1F1B", "interleaved-1f1b"), ("1F1B", "1f1b")]
)
def test_several_steps_are_told_apart(teams: Teams, tmp_path: Path, name: str, called: str) -> None:
    teams[2].run(profiles_worker.train, name, 4, str(tmp_path), 0.0, 3)
    line = read([tmp_path])
    assert line.config["executed"]["steps_measured"] == 3
    assert known(line).names[0] == called
