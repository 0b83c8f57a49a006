"""Chimera: pipes that cross, so that one fills the bubbles of another.

Li and Hoefler 2021, "Chimera: Efficiently Training Large-Scale Neural Networks
with Bidirectional Pipelines", arXiv:2107.06925. Every rank holds a stage of
each pipe, so the weights are there once a pipe. The batch runs in units of p
microbatches, an equal share of each pipe; a longer batch repeats the unit
(the paper's direct concatenation), a shorter one leaves slots out.

2 ranks, 4 microbatches, 2 stages a rank:

    rank 0   0F0 3F2 3B2 0B0 0F1 3F3 3B3 0B1
    rank 1   2F2 1F0 1B0 2B2 2F3 1F1 1B1 2B3
"""

from tracegen.order import Order, Pipe, both_ways, cross, require
from tracegen.schedule import schedule


@schedule(
    "chimera",
    paper="arXiv:2107.06925",
    place=both_ways,
    stages_per_rank=None,
    default_stages_per_rank=2,
    needs="v is the number of pipes, even; p and m multiples of it",
)
def chimera(rank: int, pipe: Pipe) -> Order:
    R, M, pipes = pipe.num_ranks, pipe.num_microbatches, pipe.stages_per_rank
    require(R % pipes == 0, f"p is a multiple of {pipes}, so that every pipe has an equal share")
    # The rank's stages in pipes down and up the ranks, those earlier in their pipe first.
    stages = pipe.stages(rank)
    near, far = (sorted(way, key=lambda s: s.index % R) for way in (stages[0::2], stages[1::2]))
    behind = far[0].index % R - near[0].index % R
    if behind < 0:
        near, far = far, near
    return cross(near, far, run=R // pipes, behind=abs(behind), units=-(-M // R))
