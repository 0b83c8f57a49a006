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


def cpu(*command: object) -> float:
    """The least CPU time of a command over a few runs, in s."""
    least = float("inf")
    for _ in range(4):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        least = min(least, used)
    return least


def test_help_costs_little_more_than_click() -> None:
    """A quarter second is four times what click takes on a slow machine; this is under two."""
    assert cpu(SCRIPT, "--help") < 2.5 * cpu(sys.executable, "-c", "import click")


def test_the_default_run_costs_little_more_than_rich() -> None:
    imports = "import click, rich.console, rich.table, json, tempfile"
    bare = cpu(sys.executable, "-c", imports)
    assert cpu(SCRIPT, "run", "-s", "dualpipev", "-q") < 3 * bare
