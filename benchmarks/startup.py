"""How long a command takes to start, beside what Python and its packages take by themselves.

python benchmarks/startup.py [--runs 9]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from measure import TRACEGEN, medians, table

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import click": [sys.executable, "-c", "import click"],
    "tracegen --help": [*TRACEGEN, "--help"],
    "import click, rich.console, rich.table": [
        *(sys.executable, "-c", "import click, rich.console, rich.table")
    ],
    "tracegen list": [*TRACEGEN, "list"],
    "tracegen run -s dualpipev -q": [*TRACEGEN, "run", "-s", "dualpipev", "-q"],
    "tracegen run -s dualpipev": [*TRACEGEN, "run", "-s", "dualpipev"],
    "tracegen show dualpipev.json": [*TRACEGEN, "show", "dualpipev.json"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=9)
    asked = parser.parse_args()
    rows: list[list[object]] = [["", "CPU ms", "MiB at the peak"]]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, command in COMMANDS.items():
            took = medians(command, asked.runs)
            rows.append([name, f"{took.cpu_s * 1000:.0f}", f"{took.peak_bytes / 2**20:.0f}"])
        os.chdir("/")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
