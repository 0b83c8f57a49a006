"""Several steps of a run that marks no action: where one ends is seen, said by marks, or agreed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tracegen
from tests import profiles_made as made
from tests.profiles_made import Event, info, write
from tests.test_profiles_kineto import run, unmarked
from tracegen.ir import KIND_MASK, MICROBATCH_SHIFT
from tracegen.profiles import kineto
from tracegen.profiles.nearest import known
from tracegen.profiles.reading import read
from tracegen.readers.warn import Warnings

STEP_US = 1_000_000


def steps(line: tracegen.Timeline, rank: int, count: int, mark: str = "") -> list[Event]:
    """That many of the same step, one after the other, with what is marked between them."""
    events: list[Event] = []
    for number in range(count):
        for event in json.loads(json.dumps(unmarked(line, rank))):
            event["ts"] += number * STEP_US
            if "id" in event:
                event["id"] += 1000 * number
            if "correlation" in event.get("args", {}):
                event["args"]["correlation"] += 1000 * number
            events.append(event)
        if mark:
            at = (number + 1) * STEP_US - 100
            events.append(made._x("user_annotation", mark, made.MAIN, at, at + 50))
    return events


def order(path: Path) -> list[tuple[int, int]]:
    (found,) = kineto.read(path, Warnings())
    return [(one.code & KIND_MASK, one.code >> MICROBATCH_SHIFT) for one in found.windows]


@pytest.mark.parametrize("mark", ["", "Optimizer.step#AdamW.step", "ProfilerStep#3"])
@pytest.mark.parametrize(("p", "m", "count"), [(2, 3, 2), (4, 6, 3), (3, 1, 2)])
def test_steps_are_told_apart(p: int, m: int, count: int, mark: str, tmp_path: Path) -> None:
    line = run("1f1b", p, m)
    for rank in range(p):
        about = info(rank, p, {"mesh_pp": list(range(p))})
        events = steps(line, rank, count, mark)
        write(tmp_path / f"{rank}.json", events, host_name="n", **about)
    found = read([tmp_path])
    assert found.program.ranks == line.program.ranks
    assert "1f1b" in known(found).names
    assert found.config["executed"]["steps_measured"] == count
    assert max(abs(a - b) for a, b in zip(found.start_ns, line.start_ns, strict=True)) <= 1000


def test_the_last_rank_alone_has_the_steps_that_are_marked(tmp_path: Path) -> None:
    """It goes backward after every forward; without marks nothing says where a step ends."""
    line = run("1f1b", 2, 3)
    marked = order(write(tmp_path / "a.json", steps(line, 1, 2, "Optimizer.step#SGD.step")))
    one = [(kind, mb) for mb in range(3) for kind in (0, 1)]
    assert marked == one * 2
    assert order(write(tmp_path / "b.json", steps(line, 1, 2))) == [
        (kind, mb) for mb in range(6) for kind in (0, 1)
    ]
    assert (
        order(write(tmp_path / "c.json", steps(line, 0, 2)))
        == order(write(tmp_path / "d.json", steps(line, 0, 1))) * 2
    )
