"""Interleaved 1F1B: 1F1B over several stages per rank, a round at a time.

Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM", arXiv:2104.04473. A round is a group of
microbatches that runs through one of the rank's stages before the next stage
starts; as in torch, batches that are not a multiple of num_ranks use longer
rounds.

2 ranks, 4 microbatches, 2 stages a rank:

    rank 0   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3
    rank 1   1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
"""

from tracegen.order import Order, Pipe, alternate
from tracegen.schedule import schedule


@schedule(
    "interleaved-1f1b",
    paper="arXiv:2104.04473",
    stages_per_rank=None,
    needs="m a multiple of max(1, m div p)",
    aliases=("interleaved", "vpp", "1f1b-interleaved", "1f1b-vpp"),
)
def interleaved_1f1b(rank: int, pipe: Pipe) -> Order:
    R, M, V = pipe.num_ranks, pipe.num_microbatches, pipe.stages_per_rank
    stages = pipe.stages(rank)
    forwards = [stage.F for stage in pipe.in_rounds(stages)]
    backwards = [stage.B for stage in pipe.in_rounds(stages[::-1])]

    warmup = min((V - 1) * pipe.round_length + 2 * (R - 1 - rank), M * V)
    steady = M * V - warmup
    return forwards[:warmup] + alternate(forwards[warmup:], backwards[:steady]) + backwards[steady:]
