"""Makes what the gallery shows again.

    python examples/gallery/make.py [--traces] [FOLDER]

The commands are those of README.md beside this file: `tracegen show` makes the
pictures, `tracegen run` the traces.
"""

import argparse
import os
import re
import shlex
from pathlib import Path

from tracegen.cli import main

HERE = Path(__file__).parent
COMMAND = re.compile(r"^    tracegen (.+)$", re.M)


def commands(name: str) -> list[list[str]]:
    """The arguments of every `tracegen NAME` on the page."""
    found = map(shlex.split, COMMAND.findall((HERE / "README.md").read_text("utf-8")))
    return [arguments for arguments in found if arguments[0] == name]


def make(folder: Path, traces: bool = False) -> None:
    """Write the pictures, or the traces, into a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        for arguments in commands("run" if traces else "show"):
            main.main([*arguments, *(["--quiet"] if traces else [])], standalone_mode=False)
    finally:
        os.chdir(before)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", action="store_true", help="the traces, not the pictures")
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="an existing one")
    asked = parser.parse_args()
    if not asked.folder.is_dir():
        parser.error(f"no such folder: {asked.folder}")
    make(asked.folder, asked.traces)
