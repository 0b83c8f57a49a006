"""A protobuf trace reads the same however many tracks and keys are asked for at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracegen
from tracegen.readers import proto
from tracegen.ui import query


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "a.pftrace"
    program = tracegen.compile("dualpipev", num_ranks=4, num_microbatches=10)
    tracegen.write(tracegen.replay(program, tracegen.Costs(alpha_us=30)), path)
    return path


def events(path: Path) -> list[dict[str, Any]]:
    document = proto.Document(path)
    found = [event for _, several, _ in document.events() for event in several]
    for event in found:
        event["args"] = dict(sorted(event.get("args", {}).items()))
    return found


@pytest.mark.parametrize("at_once", [1, 100])
@pytest.mark.parametrize("most_keys", [0, 40])
def test_questions_of_any_size_give_the_same(
    trace: Path, at_once: int, most_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = events(trace)
    assert sum(event["ph"] == "X" for event in whole) > 90
    assert {"rank", "stage", "microbatch", "op"} <= set().union(*(e["args"] for e in whole))
    monkeypatch.setattr(proto, "AT_ONCE", at_once)
    monkeypatch.setattr(proto, "MOST_KEYS", most_keys)
    assert events(trace) == whole


def test_questions_do_not_grow_with_the_tracks(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each goes through all slices of the trace."""
    asked = []
    ask = query.ask
    monkeypatch.setattr(query, "ask", lambda one, sql: asked.append(sql) or ask(one, sql))
    read = events(trace)
    tracks = {(event["pid"], event["tid"]) for event in read if event["ph"] in "XC"}
    assert len(tracks) >= 8
    assert len(asked) <= 8
