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

from tracegen.order import Order, Pipe, Slot, Stage, alternate, both_ways, require
from tracegen.schedule import schedule


@schedule(
    "chimera",
    paper="arXiv:2107.06925",
    place=both_ways,
    stages_per_rank=None,
    default_stages_per_rank=2,
    needs="v pipes, an even number; p and m multiples of it",
)
def chimera(rank: int, pipe: Pipe) -> Order:
    R, M, pipes = pipe.num_ranks, pipe.num_microbatches, pipe.stages_per_rank
    require(R % pipes == 0, f"p is a multiple of {pipes}, so that every pipe has an equal share")
    units, share = -(-M // R), R // pipes
    # The rank's stages down and up the ranks, those that are earlier in their pipe first.
    downs, ups = ordered(pipe.stages(rank)[0::2], R), ordered(pipe.stages(rank)[1::2], R)

    # A microbatch takes a tick a stage, there and back, and enters its pipe every other
    # tick: so forwards of the downs, then backwards of the ups, are two ticks apart, and
    # the others lie between them.
    first, second = (
        there_and_back(downs, ups, share) * units,
        there_and_back(ups, downs, share) * units,
    )
    behind = ups[0].index % R - downs[0].index % R
    if behind < 0:
        first, second, behind = second, first, -behind
    lead = (behind + 1) // 2
    steady = len(first) - lead
    return first[:lead] + alternate(second[:steady], first[lead:]) + second[steady:]


def ordered(stages: list[Stage], num_ranks: int) -> list[Stage]:
    return sorted(stages, key=lambda stage: stage.index % num_ranks)


def there_and_back(there: list[Stage], back: list[Stage], share: int) -> list[Slot]:
    forwards = [stage.F for stage in there for _ in range(share)]
    return forwards + [stage.B for stage in reversed(back) for _ in range(share)]
