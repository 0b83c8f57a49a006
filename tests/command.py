"""Running the command line in the tests: in this process, and for real."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from tracegen.cli import main

SCRIPT = Path(sys.executable).with_name("tracegen")


def run(*args: object, width: int = 80, **env: str) -> Result:
    """A command in this process, on a terminal so wide and without colour."""
    found = CliRunner().invoke(main, list(map(str, args)), env={"COLUMNS": str(width), **env})
    unexpected = found.exception
    if unexpected is not None and not isinstance(unexpected, SystemExit):
        raise unexpected
    return found


def refusal(*args: object) -> str:
    """What is said of a request that cannot be carried out."""
    found = run(*args)
    assert found.exit_code == 2, found.output
    assert found.stdout == ""
    return found.stderr.removeprefix("Error: ").rstrip("\n")


def process(*args: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[bytes]:
    """A command as users run it, in a process of its own."""
    return subprocess.run(
        [SCRIPT, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **env},
        capture_output=True,
        timeout=200,
        check=False,
    )


def children_of(pid: int) -> list[int]:
    """The living processes whose parent is pid."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if entry.name.isdecimal() and int(after_name[1]) == pid and after_name[0] != "Z":
            found.append(int(entry.name))
    return found
