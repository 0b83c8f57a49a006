"""What a rank does between two training steps: sums of gradients, and the optimizer."""

from __future__ import annotations

from tracegen.alike import alike
from tracegen.ir import (
    KIND_MASK,
    OPTIMIZER,
    REDUCE_GRAD,
    STAGE_MASK,
    STAGE_SHIFT,
    SUM_REPLICAS,
    Program,
    encode,
)
from tracegen.times import Times


def tails(program: Program, times: Times) -> list[list[int]]:
    """By rank, the codes of what follows its actions, those that cost something.

    REDUCE_GRAD of its stages (but those it reduces in its own order), then
    SUM_REPLICAS in the order of the model, which is the same on all ranks, then
    OPTIMIZER. A forward-only program has none.
    """
    placement = program.placement
    if program.forward_only:
        return [[] for _ in program.ranks]
    place = {stage: at for chain in placement.chains for at, stage in enumerate(chain)}
    found = []
    for rank, stream in enumerate(program.ranks):
        stages = placement.stages_of(rank)
        own = {
            code >> STAGE_SHIFT & STAGE_MASK
            for code, _ in alike(stream).sorts
            if code & KIND_MASK == REDUCE_GRAD
        }
        along = sorted(stages, key=lambda stage: (place[stage], stage))
        tail = [encode(stage, REDUCE_GRAD, 0) for stage in stages if stage not in own]
        if len(placement.chains) > 1:
            tail += [encode(stage, SUM_REPLICAS, 0) for stage in along]
        tail += [encode(stage, OPTIMIZER, 0) for stage in stages]
        found.append([code for code in tail if times.whole_stage(code)])
    return found


def replicas(program: Program) -> list[list[int]]:
    """By stage, all stages that hold the same slice of the model: one of each chain."""
    groups: list[list[int]] = [[] for _ in range(program.num_stages)]
    for together in zip(*program.placement.chains, strict=True):
        for stage in together:
            groups[stage] = list(together)
    return groups
