"""Every console block of the README and of the examples' pages is run and compared.

A block's lines that begin with `$ ` are commands; what follows each is what it
prints, stdout and stderr together. A block continues in the folder of those
before it, so that one may read what another wrote.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "examples").glob("*/README.md"))]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
WIDTH = 96


def blocks(page: Path) -> list[list[tuple[str, str]]]:
    """The blocks of a page: for each, its commands with what they print."""
    found = []
    for text in BLOCK.findall(page.read_text()):
        commands = re.split(r"^\$ ", text, flags=re.M)[1:]
        found.append([tuple(part.split("\n", 1)) for part in commands])
    return found


def run(command: str, cwd: Path) -> str:
    """What a command prints, with this interpreter's tracegen first on the path."""
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": str(WIDTH),
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    for name in ("schedules", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    told, really = [], []
    for block in blocks(page):
        for command, output in block:
            told.append(f"$ {command}\n{output}")
            really.append(f"$ {command}\n{run(command, tmp_path)}")
    assert "".join(really) == "".join(told)


def test_the_readme_shows_commands() -> None:
    assert sum(len(block) for block in blocks(ROOT / "README.md")) >= 8
    assert re.search(r"^ *make test$", (ROOT / "README.md").read_text(), re.M)


def refresh(page: Path, folder: Path) -> None:
    """Write into the page what its commands print now; to be read before it is committed."""

    def again(match: re.Match[str]) -> str:
        commands = re.split(r"^\$ ", match[1], flags=re.M)[1:]
        lines = [part.split("\n", 1)[0] for part in commands]
        return "```console\n" + "".join(f"$ {c}\n{run(c, folder)}" for c in lines) + "```"

    page.write_text(BLOCK.sub(again, page.read_text()))


if __name__ == "__main__":  # python tests/test_readme.py [PAGE ...]
    import tempfile

    for name in sys.argv[1:] or map(str, PAGES):
        with tempfile.TemporaryDirectory() as folder:
            for part in ("schedules", "examples"):
                shutil.copytree(ROOT / part, Path(folder) / part)
            refresh(Path(name), Path(folder))
