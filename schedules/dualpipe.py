"""DualPipe and DualPipeV: in the steady state every forward overlaps a backward.

DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", arXiv:2412.19437, and
github.com/deepseek-ai/DualPipe, whose eight steps these are. DualPipe feeds half
of the batch from each end of the pipe; DualPipeV is that pipe cut and folded.
"""

from tracegen.order import Order, Pipe, Stage, W, both_ways, overlap, require, v_shape
from tracegen.schedule import schedule

PAPER = "arXiv:2412.19437"


@schedule(
    "dualpipev", paper=PAPER, place=v_shape, stages_per_rank=2, example=(4, 10), needs="m >= 2p"
)
def dualpipev(rank: int, pipe: Pipe) -> Order:
    """DualPipeV: DualPipe's V-shaped half, two stages a rank and no second copy of the weights."""
    near, far = pipe.stages(rank)
    return steps(rank, pipe.num_ranks, pipe.num_microbatches, near, far)


@schedule(
    "dualpipe",
    paper=PAPER,
    place=both_ways,
    stages_per_rank=2,
    example=(8, 20),
    needs="p even, m even, m >= 2p",
)
def dualpipe(rank: int, pipe: Pipe) -> Order:
    """DualPipe: batches from both ends, every steady forward overlapped with a backward."""
    R, M = pipe.num_ranks, pipe.num_microbatches
    down, up = pipe.stages(rank)
    if rank < R // 2:
        return steps(rank, R // 2, M // 2, near=down, far=up)
    return steps(R - 1 - rank, R // 2, M // 2, near=up, far=down)


def steps(rank: int, R: int, M: int, near: Stage, far: Stage) -> Order:
    """The eight steps on the rank-th of R ranks: 0 is its near stage, 1 its far one."""
    require(M >= 2 * R, "m >= 2p")
    F0, B0, I0, F1, B1, I1 = near.F, near.B, near.I, far.F, far.B, far.I
    to_last = R - 1 - rank
    # On the last rank the first pair is too early to overlap.
    turn = [F0, B1] if to_last == 0 else [overlap(F0, B1)]
    step_4 = turn + [overlap(F1, B0)] + [overlap(F0, B1), overlap(F1, B0)] * (M - 2 * R + rank)
    # Half-way through the drain, weight gradients begin to be left for later.
    step_6 = ([B1, B0] * (rank + 1))[: rank + 1] + ([I1, I0] * (rank + 1))[rank + 1 :]
    return (
        [F0] * (2 * to_last)
        + [F0, F1] * (rank + 1)
        + [I1, W, F1] * to_last
        + step_4
        + [B1, overlap(F1, B0)] * to_last
        + step_6
        + [W, I0] * to_last
        + [W] * (rank + 1)
    )
