"""tracegen against PP-Schedule-Visualization, from a checkout of it, on 1F1B.

    python benchmarks/against_visualizer.py --checkout FOLDER [--microbatches 256,1024,4096]

FOLDER has github.com/Victarry/PP-Schedule-Visualization. Its generator and its
`execute` are timed, without imports and without its picture, each the median of three;
tracegen as whole processes, that writes a trace and that writes none. Both must find the
same makespan. It looks every operation up in its rank's list, so its time grows with m^2.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from measure import medians, run, say, table, tracegen


def visualizer_steps(checkout: str, p: int, m: int) -> None:
    """Generate and execute; prints the seconds it took and the makespan in its units."""
    sys.path.insert(0, checkout)
    sys.setrecursionlimit(10**6)
    from src.execution_model import ScheduleConfig
    from src.strategies import generate_1f1b_schedule

    start = time.perf_counter()
    times = {"forward": 1.0, "backward": 2.0}
    schedule = generate_1f1b_schedule(ScheduleConfig(p, p, m, op_times=times))
    schedule.execute()
    took = time.perf_counter() - start
    say(wall_s=took, makespan=schedule.get_total_execution_time())


def compare(checkout: str, p: int, m: int, folder: Path) -> list[object]:
    size = ("--schedule", "1f1b", "-p", p, "-m", m, "--f", 1000, "--b", 2000)
    whole = medians(tracegen(*size, "-o", folder / "ours.json"))
    bare = medians(tracegen(*size, "--no-trace", "--json"))
    child = [sys.executable, __file__, "--checkout", checkout, "--steps", str(p), str(m)]
    theirs = sorted(_said(child) for _ in range(3))[1]
    ours_ms = json.loads(bare.output)["makespan_us"] / 1000
    if ours_ms != theirs[1]:
        raise SystemExit(f"p={p} m={m}: the makespan is {theirs[1]}, tracegen says {ours_ms}")
    return [
        p,
        m,
        2 * p * m,
        f"{theirs[0]:.2f}",
        *(
            text
            for t in (whole, bare)
            for text in (f"{t.wall_s:.2f}", f"{theirs[0] / t.wall_s:.1f}")
        ),
    ]


def _said(command: list[str]) -> tuple[float, float]:
    took = run(command)
    assert took is not None
    said = json.loads(took.output.splitlines()[-1])
    return said["wall_s"], said["makespan"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkout")
    parser.add_argument("--steps", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", default="32")
    parser.add_argument("--microbatches", default="256,1024,4096")
    asked = parser.parse_args()
    if asked.checkout is None:
        parser.error("the other program has to be there: give --checkout FOLDER")
    if asked.steps:
        visualizer_steps(asked.checkout, *asked.steps)
        return
    head = ["p", "m", "tiles", "its s", "tracegen s", "ratio", "without a trace s", "ratio"]
    rows: list[list[object]] = [[*head]]
    with tempfile.TemporaryDirectory() as folder:
        for p in map(int, asked.ranks.split(",")):
            for m in map(int, asked.microbatches.split(",")):
                rows.append(compare(asked.checkout, p, m, Path(folder)))
                sys.stderr.write(f"{rows[-1]}\n")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
