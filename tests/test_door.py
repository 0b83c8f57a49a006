"""The public door: a thing of the wrong kind is told what would be right, in an error of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracegen

PROGRAM = tracegen.compile("1f1b", 2, 2)
LINE = tracegen.replay(PROGRAM)
NO_TIMELINE = "is no Timeline; tracegen.replay or tracegen.read makes one"
NO_PATH = "is no path; give a str or a Path"
NO_SIDE = "is neither a Timeline nor a path; tracegen.replay or tracegen.read makes a Timeline"
CALLS = {
    "write line": lambda given: tracegen.write(given, "x.json"),
    "write target": lambda given: tracegen.write(LINE, given),
    "read path": tracegen.read,
    "diff golden": lambda given: tracegen.diff(given, LINE),
    "diff new": lambda given: tracegen.diff(LINE, given),
    "diff times": lambda given: tracegen.diff(LINE, LINE, given),
    "from_toml": tracegen.Costs.from_toml,
    "from_dict": tracegen.Costs.from_dict,
}


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        ("write line", "1f1b", f"line: str {NO_TIMELINE}"),
        ("write line", PROGRAM, f"line: Program {NO_TIMELINE}"),
        ("write target", LINE, f"target: Timeline {NO_PATH}"),
        ("read path", PROGRAM, f"path: Program {NO_PATH}"),
        ("read path", b"trace.json", f"path: bytes {NO_PATH}"),
        ("diff golden", PROGRAM, f"golden: Program {NO_SIDE}"),
        ("diff new", None, f"new: NoneType {NO_SIDE}"),
        ("diff times", 3, "times 3: expected exact, order-only or a percentage such as 5%"),
        ("from_toml", {}, f"path: dict {NO_PATH}"),
        ("from_dict", None, "costs: NoneType is no table; give a dict, such as {'f_us': 1000}"),
    ],
)
def test_what_is_of_the_wrong_kind_is_told_what_is_right(call: str, given: Any, said: str) -> None:
    with pytest.raises(tracegen.TracegenError) as error:
        CALLS[call](given)
    assert str(error.value) == said


@pytest.mark.parametrize("pattern", [3, rb"(?P<op>F)(?P<mb>\d)"])
def test_a_pattern_of_names_is_text(tmp_path: Path, pattern: Any) -> None:
    tracegen.write(LINE, tmp_path / "x.json")
    with pytest.raises(tracegen.TracegenError) as error:
        tracegen.read(tmp_path / "x.json", pattern)
    kind = type(pattern).__name__
    assert str(error.value) == f"--name-pattern: {kind} is no text; give a regular expression"


def test_costs_are_read_of_a_path_as_text(tmp_path: Path) -> None:
    (tmp_path / "costs.toml").write_text("\ufefff_us = 7", encoding="utf-8")  # as Notepad saves it
    assert tracegen.Costs.from_toml(str(tmp_path / "costs.toml")).f_us == 7


@pytest.mark.parametrize("given", ["1f1b", PROGRAM])
def test_only_a_schedule_of_torch_is_recorded(given: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(tracegen.TracegenError) as error:
        tracegen.record(given)
    assert str(error.value) == (
        f"schedule: {type(given).__name__} is no schedule of torch.distributed.pipelining; "
        "give the object whose step() trains"
    )
