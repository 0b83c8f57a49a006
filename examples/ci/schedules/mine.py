"""A schedule of one's own: 1F1B with one forward more in flight.

2 ranks, 4 microbatches:

    rank 0   0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
    rank 1   1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
"""

from tracegen.order import Order, Pipe
from tracegen.schedule import schedule

AHEAD = 1


@schedule("mine", paper="none yet")
def mine(rank: int, pipe: Pipe) -> Order:
    (stage,) = pipe.stages(rank)
    warmup = min(pipe.num_ranks - rank + AHEAD, pipe.num_microbatches)
    steady = pipe.num_microbatches - warmup
    return [stage.F] * warmup + [stage.B, stage.F] * steady + [stage.B] * warmup
