"""GPipe: all forwards, then all backwards.

Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using
Pipeline Parallelism", arXiv:1811.06965. Every rank holds the activations of
the whole batch.

2 ranks, 4 microbatches:

    rank 0   0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
    rank 1   1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3
"""

from tracegen.order import Order, Pipe
from tracegen.schedule import schedule


@schedule("gpipe", paper="arXiv:1811.06965", aliases=("afab", "fill-drain"))
def gpipe(rank: int, pipe: Pipe) -> Order:
    (stage,) = pipe.stages(rank)
    return [stage.F] * pipe.num_microbatches + [stage.B] * pipe.num_microbatches
