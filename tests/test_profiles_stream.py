"""Reading a trace a block at a time gives what reading it whole does."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tracegen.errors import FileError
from tracegen.profiles import stream
from tracegen.profiles.stream import Stream
from tracegen.readers.warn import Warnings


def value(dice: random.Random, depth: int) -> Any:
    kind = dice.randrange(7 if depth else 5)
    if kind == 5:
        return [value(dice, depth - 1) for _ in range(dice.randrange(3))]
    if kind == 6:
        return {word(dice): value(dice, depth - 1) for _ in range(dice.randrange(3))}
    return (dice.randrange(10**6), dice.random() * 1e15, None, True, word(dice))[kind]


def word(dice: random.Random) -> str:
    parts = ('"', "\\", "}, {", "[{", "]", "traceEvents", "\u00e9", "\n", "a", "{}")
    return "".join(dice.choice(parts) for _ in range(dice.randrange(5)))


@pytest.mark.parametrize("seed", range(40))
def test_any_block_size_gives_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(stream, "BLOCK", dice.choice([8, 50, 300, 1 << 20]))
    monkeypatch.setattr(stream, "SINGLY", dice.choice([0, 3, 2000]))
    events = [
        {"ph": "X", "n": at, "args": value(dice, 3), "name": word(dice)}
        for at in range(dice.randrange(60))
    ]
    about = {f"k{at}": value(dice, 3) for at in range(4)}
    rows = list(about.items())
    before, after = dict(rows[:2]), dict(rows[2:])
    document = {**before, "traceEvents": events, **after}
    text = json.dumps(document, indent=dice.choice([None, 1]), ensure_ascii=dice.random() < 0.5)
    path = tmp_path / "a.json"
    path.write_bytes(gzip.compress(text.encode()) if seed % 2 else text.encode())
    warnings = Warnings()
    read = Stream(path, warnings)
    assert [event for events in read.events() for event in events] == events
    assert read.about == about
    assert warnings.texts() == []
    path.write_text(json.dumps(events))
    assert [event for part in Stream(path, warnings).events() for event in part] == events


@pytest.mark.parametrize("block", [16, 1 << 20])
def test_a_text_cut_off_anywhere_gives_the_events_before(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BLOCK", block)
    events = [{"ts": at, "args": {"a": [1, {"b": "}"}]}} for at in range(5)]
    text = json.dumps({"k": 1, "traceEvents": events, "z": 2})
    path = tmp_path / "a.json"
    for cut in range(1, len(text)):
        path.write_text(text[:cut])
        warnings = Warnings()
        found = [event for part in Stream(path, warnings).events() for event in part]
        assert found == events[: len(found)]
        assert len(found) >= text[:cut].count("}]}}")
        assert "is cut off" in warnings.texts()[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", 'it begins with nothing; expected a profile, {"traceEvents":[...]} or an array'),
        ("hello", "it begins with 'hello'; expected a profile"),
        ('{"a": nothing}', "it is no JSON: Expecting value"),
        ('{"traceEvents": [{"a" 1}]}', "it is no JSON: Expecting ':' delimiter"),
        ("[" * 100_000, "a value is nested too deeply"),
    ],
)
def test_what_is_no_trace_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(FileError) as refused:
        list(Stream(path, Warnings()).events())
    assert said in str(refused.value)
