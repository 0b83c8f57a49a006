"""Hanayo: waves through a model that is folded to and fro over the ranks.

Liu et al. 2023, "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced
Large Model Training Efficiency", arXiv:2308.15762. Two stages a rank are one
wave, and that is Chimera's pipe, cut in half and folded at the cut: its order,
with no second copy of the weights. More waves make the stages smaller, and the
bubble with them. A longer batch than p repeats the unit of p microbatches, a
shorter one leaves slots out.

2 ranks, 2 microbatches, 2 stages a rank:

    rank 0   0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1
    rank 1   1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1
"""

from tracegen.order import Order, Pipe, cross, require, v_shape
from tracegen.schedule import schedule


@schedule(
    "hanayo",
    paper="arXiv:2308.15762",
    place=v_shape,
    stages_per_rank=None,
    needs="v even, two stages a rank for each wave",
    aliases=("wave",),
)
def hanayo(rank: int, pipe: Pipe) -> Order:
    R, M = pipe.num_ranks, pipe.num_microbatches
    require(pipe.stages_per_rank % 2 == 0, "v is even, two stages a rank for each wave")
    stages = pipe.stages(rank)
    to_turn = 2 * (R - 1 - rank) + 1
    return cross(stages[0::2], stages[1::2], run=R, behind=to_turn, units=-(-M // R))
