"""tracegen against torch.distributed.pipelining on the same schedules.

    python benchmarks/against_torch.py [--timeout 120] [--ranks 8,16,32,64] [--microbatches 64,256]

torch generates its order, adds SEND and RECV, simulates and dumps a Chrome
trace, timed without its import; tracegen is timed as a whole process that does
the same and writes more, the median of three. Where there are two cores tracegen
uses both for long traces, so its CPU seconds are given beside the clock's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from measure import medians, run, say, table, tiles, tracegen

CLASSES = {
    "1f1b": ("1F1B", 1),
    "interleaved-1f1b": ("Interleaved1F1B", 2),
    "zbv": ("ZBVZeroBubble", 2),
    "dualpipev": ("DualPipeV", 2),
}


def torch_steps(schedule: str, p: int, m: int, target: str) -> None:
    """Take the way to a trace that torch has; prints the seconds it took."""
    from torch.distributed.pipelining import _schedule_visualizer as visualizer
    from torch.distributed.pipelining import schedules as pipelining

    name, v = CLASSES[schedule]
    start = time.perf_counter()
    ops = visualizer.get_schedule_ops(name, p, m, v)
    order = {rank: [*_split(row, rank, p, schedule)] for rank, row in enumerate(ops)}
    last = p * v - 1

    def stage_to_rank(stage: int) -> int:
        return (
            stage % p if schedule != "zbv" and schedule != "dualpipev" else min(stage, last - stage)
        )

    lowered = pipelining._add_send_recv(order, stage_to_rank, p * v)
    simulated = pipelining._simulate_comms_compute(lowered, stage_to_rank, p * v)
    pipelining._dump_chrometrace(simulated, target)
    say(wall_s=time.perf_counter() - start)


def _split(row: list, rank: int, p: int, schedule: str) -> list:
    """The actions that torch's simulator can run.

    Without bubbles and REDUCE_GRAD; a pair as its two halves; and the last rank of 1F1B
    renumbered, whose forwards torch draws as 1 to m.
    """
    from torch.distributed.pipelining import schedules as pipelining

    for action in row:
        if action is None or action.computation_type == pipelining.REDUCE_GRAD:
            continue
        for part in action.sub_actions or (action,):
            if schedule == "1f1b" and rank == p - 1 and part.computation_type == pipelining.F:
                part = part._replace(microbatch_index=part.microbatch_index - 1)
            yield part


def compare(schedule: str, p: int, m: int, timeout_s: float, folder: Path) -> list[object]:
    ours_file = folder / "ours.json"
    _, v = CLASSES[schedule]
    size = ["-p", p, "-m", m] + (["-v", v] if schedule.startswith("interleaved") else [])
    ours = medians(tracegen("--schedule", schedule, *size, "-o", ours_file))
    child = [sys.executable, __file__, "--torch", schedule, str(p), str(m), str(folder / "t.json")]
    theirs = run(child, timeout_s)
    count = tiles(ours_file)
    torch_s = None if theirs is None else json.loads(theirs.output.splitlines()[-1])["wall_s"]
    return [
        schedule,
        p,
        m,
        count,
        f"{ours.wall_s:.2f}",
        f"{ours.cpu_s:.2f}",
        f"> {timeout_s:.0f}" if torch_s is None else f"{torch_s:.2f}",
        *(_times(timeout_s, torch_s, ours_s) for ours_s in (ours.wall_s, ours.cpu_s)),
    ]


def _times(timeout_s: float, torch_s: float | None, ours_s: float) -> str:
    return f"> {timeout_s / ours_s:.0f}" if torch_s is None else f"{torch_s / ours_s:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--torch", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--schedules", default=",".join(CLASSES))
    parser.add_argument("--ranks", default="8,16,32,64")
    parser.add_argument("--microbatches", default="64,256,1024")
    asked = parser.parse_args()
    if asked.torch:
        schedule, p, m, target = asked.torch
        torch_steps(schedule, int(p), int(m), target)
        return
    rows: list[list[object]] = [
        ["schedule", "p", "m", "tiles", "tracegen s", "its CPU s", "torch s", "ratio", "by CPU"]
    ]
    with tempfile.TemporaryDirectory() as folder:
        for schedule in asked.schedules.split(","):
            for p in map(int, asked.ranks.split(",")):
                for m in map(int, asked.microbatches.split(",")):
                    if schedule == "dualpipev" and m < 2 * p:  # as torch and the paper have it
                        continue
                    rows.append(compare(schedule, p, m, asked.timeout, Path(folder)))
                    sys.stderr.write(f"{rows[-1]}\n")
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
