"""How fast a command starts, and what it does not import."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from command import SCRIPT


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


HEAVY = ("torch", "perfetto", "wasmtime", "numpy", "google.protobuf", "viztracer")


@pytest.mark.parametrize(
    "args", [["--help"], ["run", "--schedule", "dualpipev"], ["list"], ["export", "1f1b"]]
)
def test_nothing_heavy_is_imported(args: list[str], tmp_path: Path) -> None:
    code = (
        "import sys; from tracegen.cli import main; "
        f"main({args!r}, standalone_mode=False); "
        f"print([n for n in {HEAVY!r} if n in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith("[]\n")


def cpu(command: list[object]) -> float:
    """The CPU time of a command, in s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def times_python(code: str, *command: object) -> float:
    """The CPU time of a command in that of a piece of Python: of each the least, taken in turns."""
    bare: list[object] = [sys.executable, "-c", code]
    both = [(cpu([SCRIPT, *command]), cpu(bare)) for _ in range(5)]
    ours, least = map(min, zip(*both, strict=True))
    return ours / least


def test_help_costs_little_more_than_click() -> None:
    """As much as click alone where all is compiled."""
    assert times_python("import click", "--help") < 2.5


def test_the_default_run_costs_little_more_than_rich() -> None:
    imports = "import click, rich.console, rich.table, json, tempfile"
    assert times_python(imports, "run", "-s", "dualpipev", "-q") < 3
