"""The timelines of ByteDance's StragglerAnalysis, made in the form of its to_timeline.py."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import tracegen
from tests.profiles_made import Event, stragglers
from tracegen.errors import FileError
from tracegen.profiles.nearest import known
from tracegen.profiles.reading import read
from tracegen.timeline import Timeline


def run(name: str, p: int, m: int) -> Timeline:
    costs = tracegen.Costs(f_us=1000, i_us=1000, w_us=800, alpha_us=60)
    return tracegen.replay(tracegen.compile(name, p, m, communication=False), costs)


def write(path: Path, events: list[Event]) -> Path:
    text = json.dumps(events).encode()
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


def assert_times(found: Timeline, line: Timeline) -> None:
    assert found.program.ranks == line.program.ranks
    for got, expected in ((found.start_ns, line.start_ns), (found.end_ns, line.end_ns)):
        assert max(abs(a - b) for a, b in zip(got, expected, strict=True)) <= 1  # ns


@pytest.mark.parametrize("name", ["timeline.json", "timeline.json.gz"])
@pytest.mark.parametrize(
    ("schedule", "p", "m"), [("1f1b", 4, 6), ("interleaved-1f1b", 2, 4), ("zb-h1", 3, 5)]
)
def test_a_run_is_read(tmp_path: Path, name: str, schedule: str, p: int, m: int) -> None:
    """Chunks are stages; weight gradients that are apart leave the input's."""
    line = run(schedule, p, m)
    path = write(tmp_path / name, stragglers(line))
    found = read([path])
    assert_times(found, line)
    assert found.busy_ns == line.busy_ns
    assert known(found).names == known(line).names
    assert found.config["executed"]["profile"] == "StragglerAnalysis timeline"
    assert found.config["executed"]["tiles_of"] == "the ranges as they are"
    assert tracegen.read(path).program.ranks == line.program.ranks


@pytest.mark.parametrize("apart", [True, False])
def test_steps_and_pipelines_are_told_apart(tmp_path: Path, apart: bool) -> None:
    """Of three steps the second is the median: its first action takes 100 us more."""
    line = run("1f1b", 2, 3)
    events = stragglers(line, dp=2, tp=2, steps=3, apart=apart)
    found = read([write(tmp_path / "t.json", events)])
    assert found.program.ranks == line.program.ranks
    assert found.config["executed"]["makespans_us"] == [
        line.makespan_ns / 1000 + more for more in (0, 100, 200)
    ]
    assert found.makespan_ns == line.makespan_ns + 100_000
    assert found.found is not None
    assert any("6 of 8 files are of other ranks" in text for text in found.found.warnings)


def test_ranks_of_one_place_are_of_pipelines_in_order(tmp_path: Path) -> None:
    """As of a run with sequence parallelism, which the names of threads do not say."""
    line = run("1f1b", 2, 3)
    events = stragglers(line, tp=2)
    for event in events:
        if event["ph"] == "M":
            event["args"]["name"] = event["args"]["name"].replace("TP rank 1", "TP rank 0")
    assert_times(read([write(tmp_path / "t.json", events)]), line)


def test_slices_that_do_not_say_what_they_are_are_left_out(tmp_path: Path) -> None:
    line = run("1f1b", 2, 3)
    events: list[Any] = stragglers(line)
    whole = events[0]
    for of, key, value in (
        ("args", "mb_id", None),
        ("args", "mb_id", -1),
        ("args", "step", 1.5),
        ("args", "model_chunk", 1 << 20),
        ("", "ts", "soon"),
        ("", "ts", float("nan")),
        ("", "dur", -1),
        ("", "tid", []),
    ):
        odd = json.loads(json.dumps(whole))
        (odd[of] if of else odd)[key] = value
        events.append(odd)
    path = write(tmp_path / "t.json", [*events, 7, {**whole, "args": 3}])
    found = read([path])
    assert_times(found, line)
    assert found.found is not None
    assert found.found.warnings[0] == (
        f"{path}: 'forward-compute': its times, or its args step, model_chunk and mb_id, are no "
        "numbers; left out"
    )
    assert found.found.warnings[3] == "and 5 more slices that do not say what they are"


def test_what_says_no_place_or_holds_no_action_is_refused(tmp_path: Path) -> None:
    events = stragglers(run("1f1b", 2, 3))
    path = write(tmp_path / "t.json", [event for event in events if event["ph"] == "X"])
    with pytest.raises(FileError) as refused:
        read([path])
    assert str(refused.value) == (
        f"{path}: nothing says the place of process 0, thread 0; expected a thread_name such as "
        "'PP rank 2, TP rank 0, compute'"
    )
    path = write(tmp_path / "t.json", [{**event, "ph": "I"} for event in events])
    with pytest.raises(FileError) as refused:
        read([path])
    assert str(refused.value) == (
        f"{path}: none of its slices is a forward-compute or a backward-compute"
    )


def test_a_missing_rank_is_said(tmp_path: Path) -> None:
    line = run("1f1b", 3, 4)
    events = [event for event in stragglers(line) if event["tid"] // 5 != 1]
    found = read([write(tmp_path / "t.json", events)])
    assert found.program.num_ranks == 2
    assert found.found is not None
    assert found.found.warnings[0] == (
        "no file is of rank 1 of the pipeline 0, 1, 2: what they did is not shown"
    )
