"""Zero Bubble: the weight gradients leave the backward and fill the bubbles.

Qi et al. 2024, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241. B splits
into I, which the previous rank waits for, and W, which nobody does. Rank r of
ZB-H1 runs r input gradients ahead of its weight gradients, which keeps the
memory of 1F1B and shortens the drain. ZB-H2 warms up with 2 (p-1-r) forwards
and runs 2r input gradients ahead: with the memory of 2p-1 microbatches no rank
idles inside its own span where F, I and W take equal time and m >= 2p-1.
"""

from tracegen.order import Cell, Order, Pipe, Slot, W
from tracegen.schedule import schedule


@schedule("zb-h1", paper="arXiv:2401.10241", aliases=("zero-bubble", "zb", "zb-1p"))
def zb_h1(rank: int, pipe: Pipe) -> Order:
    """ZB-H1: 1F1B with its weight gradients moved into the drain, at 1F1B's memory."""
    R, M = pipe.num_ranks, pipe.num_microbatches
    (stage,) = pipe.stages(rank)
    return with_late_weights([stage.F] * M, [stage.I] * M, warmup=R - 1 - rank, late=rank)


@schedule("zb-h2", paper="arXiv:2401.10241", aliases=("zb-2p",))
def zb_h2(rank: int, pipe: Pipe) -> Order:
    """ZB-H2: forwards enough before the first backward for no bubble, at twice 1F1B's memory."""
    R, M = pipe.num_ranks, pipe.num_microbatches
    (stage,) = pipe.stages(rank)
    # A batch below 2p-1 has forwards for a part of it, and at m = p for none: this is ZB-H1.
    ahead = min(R - 1, max(0, M - R))
    warmup = R - 1 - rank + min(R - 1 - rank, ahead)
    return with_late_weights(
        [stage.F] * M, [stage.I] * M, warmup=warmup, late=rank + min(rank, ahead)
    )


@schedule(
    "interleaved-zb",
    paper="arXiv:2401.10241",
    stages_per_rank=None,
    needs="m a multiple of max(1, m div p)",
    aliases=("interleaved-zero-bubble",),
)
def interleaved_zb(rank: int, pipe: Pipe) -> Order:
    """ZB-H1 over the rounds of interleaved 1F1B, as torch's ScheduleInterleavedZeroBubble."""
    stages = pipe.stages(rank)
    forwards = [stage.F for stage in pipe.in_rounds(stages)]
    inputs = [stage.I for stage in pipe.in_rounds(stages[::-1])]
    warmup = (len(stages) - 1) * pipe.round_length + pipe.num_ranks - 1 - rank
    return with_late_weights(forwards, inputs, warmup, late=rank)


def with_late_weights(forwards: list[Slot], inputs: list[Slot], warmup: int, late: int) -> Order:
    """One forward for each input gradient after the warm-up; each W follows `late` I behind."""
    count = len(inputs)
    warmup, late = min(warmup, count), min(late, count)
    order: list[Cell] = [*forwards[:warmup]]
    for k, backward_input in enumerate(inputs):
        order += forwards[warmup + k : warmup + k + 1] + [backward_input] + [W] * (k >= late)
    return order + [W] * late
