"""Training runs on torch's own schedules, recorded: the order seen is the order torch runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tracegen
from tests import record_worker
from tests.execute_team import Team
from tracegen.passes.validate import validate


@pytest.fixture(scope="module")
def teams() -> Iterator[dict[int, Team]]:
    made = {p: Team(p) for p in (2, 4)}
    yield made
    for team in made.values():
        team.end()


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize(
    ("name", "known", "microbatches"),
    [
        ("Interleaved1F1B", "interleaved-1f1b", 8),
        ("DualPipeV", "dualpipev", 10),
        ("ZBVZeroBubble", "zbv", 8),
        ("LoopedBFS", "looped-bfs", 4),
        ("GPipe", "gpipe", 4),
        ("1F1B", "1f1b", 6),
    ],
)
def test_the_order_recorded_is_torchs(
    teams: dict[int, Team], tmp_path: Path, p: int, name: str, known: str, microbatches: int
) -> None:
    found = teams[p].run(record_worker.train, name, microbatches, str(tmp_path))
    line = found[0][1]
    assert all(other is None for _, other in found[1:])
    ours = tracegen.compile(known, p, microbatches, communication=False)
    assert line.program.ranks == ours.ranks
    for rank, (order, _) in enumerate(found):
        if order is not None:
            assert [str(step) for step in line.program.ranks[rank]] == order
    validate(line.program)
    assert line.config["executed"]["recorded"] == name
    assert line.config["executed"]["steps_measured"] == 2
    assert line.config["executed"]["broken_waits"] == []
    assert line.makespan_ns > 0


@pytest.mark.parametrize("name", ["GPipe", "Interleaved1F1B"])  # in V shapes torch 2.13 has none
def test_an_evaluation_has_no_backward(teams: dict[int, Team], tmp_path: Path, name: str) -> None:
    """In its eval() torch calls the backwards too, and they return at once."""
    found = teams[2].run(record_worker.train, name, 4, str(tmp_path), "eval")
    line = found[0][1]
    steps = [str(step) for rank in line.program.ranks for step in rank]
    stages = 2 if name == "GPipe" else 4
    assert sorted(steps) == sorted(f"{s}F{mb}" for s in range(stages) for mb in range(4))
    assert line.config["executed"]["broken_waits"] == []


def test_the_first_rank_writes_the_trace(teams: dict[int, Team], tmp_path: Path) -> None:
    (_, line), _ = teams[2].run(record_worker.train, "DualPipeV", 4, str(tmp_path))
    (path,) = tmp_path.iterdir()
    trace = json.loads(path.read_text())
    tiles = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    assert len(tiles) == sum(a < b for a, b in zip(line.start_ns, line.end_ns, strict=True))
    assert trace["metadata"]["schedule"] == "dualpipev"
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert {"pipeline", "predicted"} <= names


def test_a_block_without_a_step_is_an_error(teams: dict[int, Team]) -> None:
    said = teams[2].run(record_worker.no_step)
    assert said[0] == (
        "GPipe: the ranks recorded 0, 0 steps; call schedule.step inside the block, the same "
        "number of times on every rank"
    )
    assert said[1] is None
