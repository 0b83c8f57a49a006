"""V-Half and V-Min: ZB-V's placement at about a half and a third of 1F1B's memory.

Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv:2405.15362.
One building block, the cells of a microbatch on every rank, stands on a grid and
repeats every six cells; how long it keeps a stage's activations is the memory.
V-Min goes straight down the V and back; V-Half takes two cells a rank on the
stages of the way down, half as dense, which leaves less bubble. At the turn a
block waits a little where else two cells would meet.
"""

from tracegen.order import Order, Pipe, squeeze, v_shape
from tracegen.schedule import schedule


@schedule(
    "v-half", paper="arXiv:2405.15362", place=v_shape, stages_per_rank=2, aliases=("zbv-half",)
)
def v_half(rank: int, pipe: Pipe) -> Order:
    """V-Half: about half of 1F1B's memory, and less than half of its bubble."""
    R = pipe.num_ranks
    wait = 3 if R % 2 == 0 else 0
    block = [
        (2 * r, 3 * R - 2 - r, 3 * R - 1 + wait + 2 * r, 6 * R - 2 + wait - r) for r in range(R)
    ]
    return squeeze(block, rank, pipe, limit=(R + 2) // 2 * 2)


@schedule("v-min", paper="arXiv:2405.15362", place=v_shape, stages_per_rank=2, aliases=("zbv-min",))
def v_min(rank: int, pipe: Pipe) -> Order:
    """V-Min: about a third of 1F1B's memory, at two thirds of its bubble or less."""
    R = pipe.num_ranks
    wait = 2 if R % 3 == 0 else 0
    block = [(r, 2 * R - 1 - r, 2 * R + wait + r, 4 * R - 1 + wait - r) for r in range(R)]
    return squeeze(block, rank, pipe, limit=(R + 4) // 3 * 2)
