"""The scripts of examples/ and benchmarks/ say how they are used, and refuse what they do not know.

That is held for every file that is run as a script, by running it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted(
    str(path.relative_to(ROOT))
    for folder in ("examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if '__name__ == "__main__"' in path.read_text("utf-8")
)
every_script = pytest.mark.parametrize("script", SCRIPTS)


def ran(script: str, argument: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / script, argument],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_there_are_scripts() -> None:
    assert {"examples/gallery/make.py", "examples/moe/model.py", "benchmarks/sweep.py"} < set(
        SCRIPTS
    )


@every_script
def test_help_says_what_the_file_says_of_itself(script: str) -> None:
    found = ran(script, "--help")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.lower().startswith("usage: ")
    said = ast.get_docstring(ast.parse((ROOT / script).read_text("utf-8")))
    assert said is not None
    assert "".join(said.split()) in "".join(found.stdout.split())


@every_script
@pytest.mark.parametrize("argument", ["--nonsense", "nonsense"])
def test_an_unknown_argument_is_refused(script: str, argument: str) -> None:
    found = ran(script, argument)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.lower().startswith("usage: ")
    assert argument in found.stderr
    assert "Traceback" not in found.stderr
