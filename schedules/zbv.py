"""ZB-V: two stages per rank in a V, with the weight gradients in the bubbles.

Qi et al. 2024, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 6.
No bubble when F, I and W take equal time. In the names below, 0 is the rank's
stage on the way down the V and 1 its stage on the way up.
"""

from tracegen.order import Order, Pipe, v_shape
from tracegen.schedule import schedule


@schedule(
    "zbv",
    paper="arXiv:2401.10241",
    place=v_shape,
    stages_per_rank=2,
    aliases=("zbv-zero-bubble", "zero-bubble-v"),
)
def zbv(rank: int, pipe: Pipe) -> Order:
    R = pipe.num_ranks
    M = max(2 * R - 1, pipe.num_microbatches)  # a shorter batch leaves slots out
    down, up = pipe.stages(rank)
    F0, I0, W0 = down.F, down.I, down.W
    F1, I1, W1 = up.F, up.I, up.W
    return (
        # warm up
        [F0] * (2 * (R - rank) - 1)
        + [F1, F0] * rank
        + [F1, I1, W1] * (R - rank)
        # steady
        + [F0, I0, W0, F1, I1, W1] * (M - 2 * R + rank + 1)
        + [I0, W0, F1, I1, W1] * (R - rank - 1)
        # cool down
        + [I0, I1] * rank
        + [I0, W0] * (R - rank)
        + [W1] * rank
        + [W0] * rank
    )
