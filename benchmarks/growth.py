"""How time and memory grow: commands on one schedule at m, 4m, 16m, and at p, 4p.

    python benchmarks/growth.py [--schedule 1f1b] [--microbatches 1024] [--only diff]

Of each command the whole process, less what the same command takes at p = 2, m = 4:
its start. Four times the actions should cost four times as much.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import TRACEGEN, Took, medians, table, tiles

START = (2, 4)
# What is run -> the command, on the schedule at its size or on its trace.
COMMANDS = {
    "run, JSON": "run {at} -q -o {new}.json",
    "run, .json.gz": "run {at} -q -o {new}.json.gz",
    "run, .pftrace": "run {at} -q -o {new}.pftrace",
    "run, no trace": "run {at} --no-trace --json",
    "check": "check {at}",
    "explain": "explain {trace}",
    "show": "show {trace}",
    "show --svg": "show {trace} --svg {new}.svg",
    "diff": "diff {trace} {trace}",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--microbatches", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", choices=COMMANDS, action="append")
    asked = parser.parse_args()
    p, m = asked.ranks, asked.microbatches
    sizes = [(p, m), (p, 4 * m), (p, 16 * m), (4 * p, m)]
    rows: list[list[object]] = [
        ["command", *(f"p={p} m={m}" for p, m in sizes), "time, 4x", "memory, 4x"]
    ]
    with tempfile.TemporaryDirectory() as folder:
        traces = {size: _trace(asked.schedule, size, Path(folder)) for size in (START, *sizes)}
        counts = [tiles(traces[size]) for size in sizes]
        rows.append(["tiles", *counts, "", ""])
        for name in COMMANDS:
            if not asked.only or name in asked.only:
                rows.append(_row(name, asked.schedule, traces, asked.runs))
                sys.stderr.write(f"{rows[-1]}\n")
    sys.stdout.write(table(rows) + "\n\nCPU seconds, and MiB at the peak, less the start\n")


def _trace(schedule: str, size: tuple[int, int], folder: Path) -> Path:
    target = folder / f"p{size[0]}m{size[1]}.json"
    medians([*TRACEGEN, "run", *_at(schedule, size), "-q", "-o", str(target)], 1)
    return target


def _at(schedule: str, size: tuple[int, int]) -> list[str]:
    return ["-s", schedule, "-p", str(size[0]), "-m", str(size[1])]


def _row(name: str, schedule: str, traces: dict[tuple[int, int], Path], runs: int) -> list[object]:
    def took(size: tuple[int, int]) -> Took:
        trace = traces[size]
        words = COMMANDS[name].replace("{at}", " ".join(_at(schedule, size))).split()
        if name == "check":  # which takes the schedule as it is
            words.remove("-s")
        return medians(
            [*TRACEGEN, *(w.format(trace=trace, new=trace.with_name("new")) for w in words)], runs
        )

    start, *found = map(took, traces)
    cpu = [one.cpu_s - start.cpu_s for one in found]
    peak = [(one.peak_bytes - start.peak_bytes) / 2**20 for one in found]
    steps = [(1, 0), (2, 1), (3, 0)]  # the last has four times the ranks of the first
    return [
        name,
        *(f"{s:.2f} s, {mib:.0f} MiB" for s, mib in zip(cpu, peak, strict=True)),
        " ".join(_times(cpu[b], cpu[a], 0.02) for b, a in steps),
        " ".join(_times(peak[b], peak[a], 5) for b, a in steps),
    ]


def _times(more: float, less: float, enough: float) -> str:
    """The ratio, where what is divided by is enough to say something."""
    return f"{more / less:.2f}" if less >= enough else "-"


if __name__ == "__main__":
    main()
