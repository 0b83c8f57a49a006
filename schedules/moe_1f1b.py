"""1F1B for mixture-of-experts stages, whose all-to-all is to hide behind computation.

A forward and a backward of different microbatches that run as one block can
hide each other's communication. The orders are those of NVIDIA Megatron-LM's
combined 1F1B, as PP-Schedule-Visualization draws them; interleaving is Narayanan
et al. 2021, arXiv:2104.04473. What makes a run MoE is its costs, not its order.
"""

from tracegen.order import Order, Pipe, Slot, overlap
from tracegen.schedule import schedule


@schedule("moe-1f1b", paper="arXiv:2006.09503", block="none")
def moe_1f1b(rank: int, pipe: Pipe) -> Order:
    """1F1B without pairs: every all-to-all is exposed."""
    R, M = pipe.num_ranks, pipe.num_microbatches
    (stage,) = pipe.stages(rank)
    warmup = min(R - rank, M)
    return [stage.F] * warmup + [stage.B, stage.F] * (M - warmup) + [stage.B] * warmup


@schedule(
    "moe-1f1b-bad-overlap", paper="github.com/Victarry/PP-Schedule-Visualization", block="pair"
)
def moe_1f1b_bad_overlap(rank: int, pipe: Pipe) -> Order:
    """1F1B of merged pairs: what overlaps is inside a block, whose end holds back all behind it."""
    R, M = pipe.num_ranks, pipe.num_microbatches
    (stage,) = pipe.stages(rank)
    return paired([stage.F] * M, [stage.B] * M, warmup=2 * (R - 1 - rank) + 1)


@schedule(
    "moe-1f1b-overlap",
    paper="arXiv:2104.04473",
    stages_per_rank=None,
    block="dualpipe",
    aliases=("combined-1f1b", "moe-interleaved-1f1b"),
    needs="m a multiple of max(1, m div p)",
)
def moe_1f1b_overlap(rank: int, pipe: Pipe) -> Order:
    """Interleaved 1F1B of merged pairs, as Megatron's combined 1F1B."""
    stages = pipe.stages(rank)
    forwards = [stage.F for stage in pipe.in_rounds(stages)]
    backwards = [stage.B for stage in pipe.in_rounds(stages[::-1])]
    warmup = (len(stages) - 1) * pipe.round_length + 2 * (pipe.num_ranks - 1 - rank) + 1
    return paired(forwards, backwards, warmup)


def paired(forwards: list[Slot], backwards: list[Slot], warmup: int) -> Order:
    """After the warm-up each forward is one block with a backward.

    One more warm-up forward than without pairs: both halves are ready at once
    only where the forward is of a later microbatch than the backward.
    """
    steady = max(0, len(forwards) - warmup)
    pairs = [overlap(f, b) for f, b in zip(forwards[warmup:], backwards[:steady], strict=True)]
    return forwards[:warmup] + pairs + backwards[steady:]
