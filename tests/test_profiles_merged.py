"""Files of several ranks in one, as the public scripts that merge them leave them.

Each function does to a file's events what one script does: sglang's `profile_merger.py`, AMD's
TraceFuse, `pytorch-profiler-chrome-trace-merger`, `multi-gpu-torch-profile-view`, and those that
give each file its rank for a pid. What must come out is what the files give one by one.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracegen
from tests.profiles_made import Event, info, kineto, write
from tracegen.errors import FileError
from tracegen.profiles.nearest import known
from tracegen.profiles.reading import read
from tracegen.timeline import Timeline

SAMPLES = Path(__file__).parent.parent / "examples" / "profiles"
END = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 0}
GPIPE = {"F": "Forward", "B": "Backward"}

Events = list[Event]


def sglang(rank: int, events: Events) -> Events:
    return [{**event, "pid": f"[TP00-PP{rank:02d}] {event['pid']}"} for event in events]


def by_name(rank: int, events: Events) -> Events:
    return [{**event, "pid": f"trace-{rank + 1}"} for event in events]


def as_they_are(rank: int, events: Events) -> Events:
    return events


def fused(rank: int, events: Events) -> Events:
    found = []
    for event in events:
        event = {**event, "args": {**event.get("args", {}), "rank": rank}}
        for of, key, offset in (
            (event, "id", 10**6),
            (event, "pid", 10**5),
            (event["args"], "correlation", 10**6),
        ):
            if isinstance(of.get(key), int):
                of[key] += rank * offset
        found.append(event)
    return found


def by_rank(rank: int, events: Events) -> Events:
    return [{**event, "pid": rank} for event in events]


SCRIPTS = {
    "the place in their names": sglang,
    "the number in their names": by_name,
    "the rank in their events' args": fused,
    "their pids": by_rank,
}


def run(name: str, p: int, m: int) -> Timeline:
    costs = tracegen.Costs(f_us=1000, i_us=1000, w_us=800, alpha_us=60)
    return tracegen.replay(tracegen.compile(name, p, m, communication=False), costs)


def on_a_gpu(line: Timeline, rank: int) -> Events:
    """A rank's events with ids that other ranks' have too, and its file's end."""
    events = json.loads(json.dumps(kineto(line, rank)))
    for event in events:
        if event["name"].startswith("PP:") and line.program.name == "gpipe":
            _, kind, batch = event["name"][3], event["name"][4:5], event["name"][5:]
            event["name"] = f"{GPIPE[kind]} {batch}" if kind in GPIPE else event["name"]
        for of, key in ((event, "id"), (event.get("args", {}), "correlation")):
            if key in of:
                of[key] -= 1000 * rank
    return [*events, END]


def merged(
    folder: Path, ranks: list[Events], script: Callable[[int, Events], Events], **about: Any
) -> Path:
    events = [event for rank, of in enumerate(ranks) for event in script(rank, of)]
    return write(folder / "merged.json.gz", events, **about)


@pytest.mark.parametrize("how", SCRIPTS)
@pytest.mark.parametrize(("name", "p", "m"), [("interleaved-1f1b", 2, 4), ("gpipe", 3, 4)])
def test_merged_files_of_gpus_give_what_each_does(
    how: str, name: str, p: int, m: int, tmp_path: Path
) -> None:
    line = run(name, p, m)
    path = merged(tmp_path, [on_a_gpu(line, rank) for rank in range(p)], SCRIPTS[how])
    found = read([path])
    assert found.program.ranks == line.program.ranks
    for got, expected in ((found.start_ns, line.start_ns), (found.end_ns, line.end_ns)):
        assert max(abs(a - b) for a, b in zip(got, expected, strict=True)) <= 1000
    assert found.config["executed"]["tiles_of"] == "kernels launched during each range"
    assert (
        f"{path}: {p} of its processes run actions and are read as ranks, told apart by {how}"
        in found.found.warnings
    )


@pytest.mark.parametrize("how", SCRIPTS)
@pytest.mark.parametrize("name", ["1f1b", "gpipe", "dualpipev"])
def test_merged_files_of_real_runs_give_what_each_does(how: str, name: str, tmp_path: Path) -> None:
    ranks = []
    for path in sorted((SAMPLES / name).glob("rank*.json.gz")):
        said = json.loads(gzip.decompress(path.read_bytes()))
        ranks.append([*said["traceEvents"], END])
    base = said["baseTimeNanoseconds"]
    path = merged(tmp_path, ranks, SCRIPTS[how], baseTimeNanoseconds=base)
    found, apart = read([path]), read([SAMPLES / name])
    assert found.program.ranks == apart.program.ranks
    assert known(found).names == known(apart).names
    took = [b - a for a, b in zip(found.start_ns, found.end_ns, strict=True)]
    assert took == [b - a for a, b in zip(apart.start_ns, apart.end_ns, strict=True)]
    assert found.busy_ns == apart.busy_ns


def test_files_one_after_the_other_are_told_apart_by_their_ends(tmp_path: Path) -> None:
    """Also with one pid, one device and the same ids in all, as in containers."""
    line = run("interleaved-1f1b", 3, 6)
    path = merged(tmp_path, [on_a_gpu(line, rank) for rank in range(3)], as_they_are)
    found = read([path])
    assert found.program.ranks == line.program.ranks
    assert max(abs(a - b) for a, b in zip(found.start_ns, line.start_ns, strict=True)) <= 1000


def test_a_pipeline_of_several_in_a_merged_file_is_chosen(tmp_path: Path) -> None:
    line = run("gpipe", 2, 3)

    def place(at: int, events: Events) -> Events:
        label = f"[TP{at % 2:02d}-PP{at // 2:02d}]"
        return [{**event, "pid": f"{label} {event['pid']}"} for event in events]

    ranks = [on_a_gpu(line, rank) for rank in (0, 0, 1, 1)]
    found = read([merged(tmp_path, ranks, place)])
    assert found.program.ranks == line.program.ranks
    assert any("2 of 4 files are of other ranks" in text for text in found.found.warnings)


def test_what_does_not_say_its_rank_is_refused(tmp_path: Path) -> None:
    line = run("gpipe", 2, 3)
    path = merged(tmp_path, [on_a_gpu(line, rank) for rank in range(2)], as_they_are)
    with pytest.raises(FileError) as refused:
        read([path])
    assert str(refused.value) == (
        f"{path}: 2 of its processes run actions (4242, 4242), and neither the actions nor the "
        "names of the processes say which is which rank; give the files of the ranks as they were "
        "before they were merged, or name the processes rank 0, rank 1, ..."
    )


def test_kernels_that_could_be_of_two_ranks_are_refused(tmp_path: Path) -> None:
    """Sorted by time: the files' ends, which would tell the ranks apart, are at the end."""
    line = run("interleaved-1f1b", 2, 4)
    events = [
        {**event, "pid": event["pid"] + rank if event["pid"] else rank}
        for rank in range(2)
        for event in on_a_gpu(line, rank)
        if event["pid"] != ""
    ]
    events.sort(key=lambda event: event["ts"])
    path = write(tmp_path / "merged.json", events)
    with pytest.raises(FileError) as refused:
        read([path])
    assert str(refused.value) == (
        f"{path}: the kernels of process 0 could be of 2 processes (4242, 4243) by their "
        "correlation ids; give the files of the ranks as they were before they were merged"
    )


def test_ranks_under_one_pid_are_refused(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 2, 4)
    events = [
        event
        for rank in range(2)
        for event in kineto(line, rank, skew_us=15 * rank)
        if event["cat"] == "user_annotation"
    ]
    path = write(tmp_path / "merged.json", events, **info(0, 2, {}))
    with pytest.raises(FileError) as refused:
        read([path])
    assert str(refused.value) == (
        f"{path}: actions of one thread run at the same time: files of several ranks were merged "
        "under one pid; give the files of the ranks as they were before they were merged"
    )
