"""Looped BFS: each of the rank's stages runs the whole batch before the next.

Lamy-Poirier 2023, "Breadth-First Pipeline Parallelism", arXiv:2211.05953.
Backwards start from the newest microbatch.

2 ranks, 4 microbatches, 2 stages a rank:

    rank 0   0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 2B3 2B2 2B1 2B0 0B3 0B2 0B1 0B0
    rank 1   1F0 1F1 1F2 1F3 3F0 3F1 3F2 3F3 3B3 3B2 3B1 3B0 1B3 1B2 1B1 1B0
"""

from tracegen.ir import Action, Kind
from tracegen.order import Order, Pipe
from tracegen.schedule import schedule


@schedule("looped-bfs", paper="arXiv:2211.05953", stages_per_rank=None, aliases=("breadth-first",))
def looped_bfs(rank: int, pipe: Pipe) -> Order:
    stages, microbatches = pipe.stages(rank), range(pipe.num_microbatches)
    forwards = [stage.F for stage in stages for _ in microbatches]
    backwards = [
        Action(stage.index, Kind.FULL_BACKWARD, microbatch)
        for stage in reversed(stages)
        for microbatch in reversed(microbatches)
    ]
    return forwards + backwards
