"""Add UNSHARD, RESHARD and REDUCE_GRAD, as PyTorch's runtime wants them for FSDP."""

from __future__ import annotations

from array import array

from tracegen.ir import (
    KIND_MASK,
    NO_MATE,
    REDUCE_GRAD,
    RESHARD,
    STAGE_MASK,
    STAGE_SHIFT,
    UNSHARD,
    Program,
    Stream,
    encode,
)
from tracegen.ir import B as FULL
from tracegen.ir import W as WEIGHT

# How many stages of a rank are whole at one time: one in its forward, one in
# its backward, one being fetched. PyTorch's number.
ACTIVE_STAGES = 3


def add_whole_stage(program: Program, active_stages: int = ACTIVE_STAGES) -> Program:
    """The program with each stage fetched before use, dropped when not among the next, and reduced.

    Before every step the next `active_stages` stages of the rank are there;
    what is not among them is dropped. A stage's gradients are reduced right
    after its last B or W: without REDUCE_GRAD torch's runtime leaves out the
    division by the number of microbatches too.
    """
    return program.with_ranks(
        _with_reduction(_with_shards(stream, active_stages), program) for stream in program.ranks
    )


def _stages(code: int, mate: int) -> list[int]:
    return [half >> STAGE_SHIFT & STAGE_MASK for half in (code, mate) if half != NO_MATE]


def _next_stages(stream: Stream, count: int) -> list[list[int]]:
    """At each position, the next `count` different stages from there on, nearest first.

    A pair counts whole, so that there may be one more.
    """
    nearest: list[tuple[int, int]] = []  # stage, position, from the end backwards
    found: list[list[int]] = []
    for at in range(len(stream) - 1, -1, -1):
        here = dict.fromkeys(_stages(stream.codes[at], stream.mates[at]))
        nearest = [(stage, at) for stage in here] + [n for n in nearest if n[0] not in here]
        reach = nearest[min(count, len(nearest)) - 1][1]
        found.append([stage for stage, position in nearest if position <= reach])
    return found[::-1]


def _with_shards(stream: Stream, active_stages: int) -> Stream:
    codes, mates = array("q"), array("q")
    active: list[int] = []

    def add(code: int, mate: int = NO_MATE) -> None:
        codes.append(code)
        mates.append(mate)

    wanted_at = _next_stages(stream, active_stages)
    for code, mate, wanted in zip(stream.codes, stream.mates, wanted_at, strict=True):
        for stage in sorted(set(active) - set(wanted)):
            add(encode(stage, RESHARD, 0))
        for stage in wanted:
            if stage not in active:
                add(encode(stage, UNSHARD, 0))
        active = wanted
        add(code, mate)
    for stage in sorted(active):
        add(encode(stage, RESHARD, 0))
    return Stream(codes, mates)


def _with_reduction(stream: Stream, program: Program) -> Stream:
    placement, M = program.placement, program.num_microbatches
    left = {
        stage: len(placement.microbatches_of(number, M))
        for number, chain in enumerate(placement.chains)
        for stage in chain
    }
    codes, mates = array("q"), array("q")
    for code, mate in zip(stream.codes, stream.mates, strict=True):
        codes.append(code)
        mates.append(mate)
        for half in (code, mate):
            if half != NO_MATE and half & KIND_MASK in (FULL, WEIGHT):
                stage = half >> STAGE_SHIFT & STAGE_MASK
                left[stage] -= 1
                if left[stage] == 0:
                    codes.append(encode(stage, REDUCE_GRAD, 0))
                    mates.append(NO_MATE)
    return Stream(codes, mates)
