"""What a process of the recorded training runs does; see test_record.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WIDTH = 6


def train(session: Any, name: str, microbatches: int, folder: str, step: str = "step") -> Any:
    """Two steps of a schedule of torch's, recorded: what torch ran, and what was seen."""
    import torch
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    import tracegen

    rank, size = session.world.rank, session.world.size
    owned = {
        "GPipe": [rank],
        "1F1B": [rank],
        "Interleaved1F1B": [rank, rank + size],
        "LoopedBFS": [rank, rank + size],
        "ZBVZeroBubble": [rank, 2 * size - 1 - rank],
        "DualPipeV": [rank, 2 * size - 1 - rank],
    }[name]
    total = size * len(owned)

    def stage(number: int) -> Any:
        torch.manual_seed(number)
        module = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())
        return PipelineStage(module, number, total, torch.device("cpu"))

    stages = [stage(number) for number in owned]
    kind = getattr(pipelining, f"Schedule{name}")
    mean = torch.nn.functional.mse_loss
    schedule = kind(stages[0] if len(stages) == 1 else stages, microbatches, loss_fn=mean)
    x = torch.randn(microbatches * 2, WIDTH)
    path = Path(folder) / f"{name}-{size}.json"
    with tracegen.record(schedule, path) as recording:
        for _ in range(2):
            args = (x,) if 0 in owned else ()
            keep = {"target": x, "losses": []} if total - 1 in owned else {}
            getattr(schedule, step)(*args, **keep)
    assert not {"forward_one_chunk", "backward_one_chunk"} & vars(stages[0]).keys()
    if name in ("GPipe", "1F1B"):
        return None, recording.line
    order = schedule.pipeline_order[rank]
    return [str(a) for a in order if a is not None], recording.line


def no_step(session: Any) -> Any:
    """A block in which nothing ran."""
    import torch
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    import tracegen

    rank, size = session.world.rank, session.world.size
    stage = PipelineStage(torch.nn.Linear(4, 4), rank, size, torch.device("cpu"))
    try:
        with tracegen.record(ScheduleGPipe(stage, 2)):
            pass
    except tracegen.TracegenError as error:
        return str(error)
    return None
