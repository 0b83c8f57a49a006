"""What a process of the profiled training runs does; see test_profiles_runs.py.

`python tests/profiles_worker.py FOLDER` records the small profiles of examples/profiles.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

WIDTH = 384
NAMES = {
    "Interleaved1F1B": "interleaved-1f1b",
    "InterleavedZeroBubble": "zb1p-interleaved",
    "DualPipeV": "dualpipev",
    "ZBVZeroBubble": "zbv",
    "LoopedBFS": "looped-bfs",
    "GPipe": "gpipe",
    "1F1B": "1f1b",
}


def schedule_of(
    rank: int, size: int, name: str, microbatches: int, nap: float = 0.0, width: int = WIDTH
) -> Any:
    """A schedule of torch's, and the arguments of its step; `nap` s of sleep in stage 0's F1."""
    import torch
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    owned = [rank]
    if name in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"):
        owned = [rank, rank + size]
    if name in ("ZBVZeroBubble", "DualPipeV"):
        owned = [rank, 2 * size - 1 - rank]
    total = size * len(owned)

    class Napping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls == microbatches + 3:  # after a step and the one that infers shapes
                time.sleep(nap)
            return x

    def stage(number: int) -> Any:
        torch.manual_seed(number)
        parts: list[Any] = [torch.nn.Linear(width, width), torch.nn.Tanh()]
        if nap and number == 0:
            parts.append(Napping())
        module = torch.nn.Sequential(*parts, torch.nn.Linear(width, width), torch.nn.Tanh())
        return PipelineStage(module, number, total, torch.device("cpu"))

    stages = [stage(number) for number in owned]
    mean = torch.nn.functional.mse_loss
    one = stages[0] if len(stages) == 1 else stages
    schedule = getattr(pipelining, f"Schedule{name}")(one, microbatches, loss_fn=mean)
    x = torch.randn(microbatches * 64, width)

    def step() -> None:
        args = (x,) if 0 in owned else ()
        keep = {"target": x, "losses": []} if total - 1 in owned else {}
        schedule.step(*args, **keep)

    return schedule, step


def train(
    session: Any,
    name: str,
    microbatches: int,
    folder: str,
    nap: float = 0.0,
    steps: int = 1,
    warm: int = 1,
    width: int = WIDTH,
) -> Any:
    """Steps under the profiler and `record`: what torch's order is, and what `record` found."""
    from torch import distributed as dist
    from torch.profiler import ProfilerActivity, profile

    import tracegen

    rank, size = session.world.rank, session.world.size
    schedule, step = schedule_of(rank, size, name, microbatches, nap, width)
    for _ in range(warm):
        step()
    dist.barrier()
    with (
        tracegen.record(schedule) as recording,
        profile(activities=[ProfilerActivity.CPU]) as profiler,
    ):
        for _ in range(steps):
            step()
    profiler.export_chrome_trace(f"{folder}/rank{rank}.json.gz")
    order = None if name in ("GPipe", "1F1B") else schedule.pipeline_order
    rows = None if order is None else [str(a) for a in order[rank] if a is not None]
    return rows, recording.line


def scrub(path: Path, target: Path) -> None:
    """A profile without what names a machine, and without what no reader looks at."""
    said = json.loads(gzip.decompress(path.read_bytes()))
    for key in ("trace_id", "traceName", "deviceProperties"):
        said.pop(key, None)
    said["host_name"] = "host"
    kept = []
    for event in said["traceEvents"]:
        if event.get("ph") in ("X", "s", "f") and event.get("cat") != "Trace":
            event.pop("args", None)
            event["pid"] = event["tid"] = 1
            kept.append(event)
    said["traceEvents"] = kept
    text = json.dumps(said, separators=(",", ":"))
    target.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main(folder: Path) -> None:
    """Record the samples."""
    import tempfile

    from execute_team import Team

    team = Team(2)
    for name, microbatches in (("DualPipeV", 4), ("GPipe", 3), ("1F1B", 3)):
        with tempfile.TemporaryDirectory() as raw:
            team.run(train, name, microbatches, raw, 0.0, 1, 5, 1536)
            target = folder / NAMES[name]
            target.mkdir(parents=True, exist_ok=True)
            for path in sorted(Path(raw).iterdir()):
                scrub(path, target / path.name)
    team.end()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import profiles_worker  # so that the processes of the team find these functions by name

    profiles_worker.main(Path(sys.argv[1]))
