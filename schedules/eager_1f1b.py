"""Eager 1F1B: 1F1B that runs ahead, so that transfers hide behind computation.

Zhuang et al. 2023, "On Optimizing the Communication of Model Parallelism",
arXiv:2211.05322. About twice the forwards of 1F1B before the first backward:
a rank has one more in hand for each hand-over there and back. It costs
2 (p-1-r) + 1 activations on rank r where 1F1B holds p-r, and without latency
it gains nothing.

2 ranks, 4 microbatches:

    rank 0   0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
    rank 1   1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3
"""

from tracegen.order import Order, Pipe
from tracegen.schedule import schedule


@schedule("eager-1f1b", paper="arXiv:2211.05322", aliases=("eager",))
def eager_1f1b(rank: int, pipe: Pipe) -> Order:
    (stage,) = pipe.stages(rank)
    warmup = min(2 * (pipe.num_ranks - 1 - rank) + 1, pipe.num_microbatches)
    steady = pipe.num_microbatches - warmup
    return [stage.F] * warmup + [stage.B, stage.F] * steady + [stage.B] * warmup
