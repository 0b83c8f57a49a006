"""`tracegen.record` without torch, so that `help(tracegen)` works where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracegen.execute.recording import Recording


def record(schedule: Any, path: str | Path | None = None) -> Recording:
    """Record what the block runs of a schedule of torch.distributed.pipelining.

        with tracegen.record(schedule, "trace.json") as recording:
            schedule.step(x)
        if recording.line is not None: ...

    All ranks of the pipeline enter and leave the block at once: its end merges what they
    saw, on the pipeline's first rank. Of several steps the one of median makespan counts,
    among those that ran the order of the last.

    Args:
        schedule: GPipe, 1F1B, interleaved, ZBV, DualPipeV, one loaded from CSV, ...
        path: of the trace, which the process of rank 0 of all writes.
    """
    from tracegen.execute.recording import Recording

    return Recording(schedule, path)
