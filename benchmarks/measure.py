"""What the benchmarks share: a command as a whole process, its time and its memory."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

# The command that is timed: this Python's, or one that is installed elsewhere.
TRACEGEN = shlex.split(
    os.environ.get("TRACEGEN") or shlex.quote(str(Path(sys.executable).with_name("tracegen")))
)


@dataclass(frozen=True)
class Took:
    """A command's whole process.

    Attributes:
        wall_s, cpu_s: seconds; cpu is user and system.
        peak_bytes: its largest resident size.
        output: what it printed.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def run(command: list[str], timeout_s: float | None = None) -> Took | None:
    """Run a command to its end; None if it took longer than `timeout_s`."""
    # Compiled once and kept, as where it is installed.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as out:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
        late = threading.Timer(timeout_s or 0, child.kill)
        if timeout_s is not None:
            late.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        late.cancel()
        if timeout_s is not None and wall > timeout_s:
            return None
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read()
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{text}")
    return Took(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, text)


def medians(command: list[str], runs: int = 3) -> Took:
    """The medians of several runs, after one that is not counted."""
    run(command)
    took = [found for _ in range(runs) if (found := run(command)) is not None]
    return Took(
        median(t.wall_s for t in took),
        median(t.cpu_s for t in took),
        int(median(t.peak_bytes for t in took)),
        took[-1].output,
    )


def tracegen(*options: object) -> list[str]:
    """The command line of `tracegen run` with a trace to write, unless --no-trace."""
    return [*TRACEGEN, "run", "--quiet", *map(str, options)]


def tiles(trace: Path) -> int:
    """How many tiles a trace says it has, from the text, without reading it whole."""
    with trace.open() as text:
        return sum(line.startswith('{"ph":"X","pid":0,') for line in text)


def table(rows: list[list[object]]) -> str:
    """Rows as a Markdown table, the first being its head."""
    head, *body = [[str(cell) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def say(**facts: object) -> None:
    """A line of JSON on stdout, for the process that asked."""
    sys.stdout.write(json.dumps(facts) + "\n")
