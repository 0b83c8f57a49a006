"""UNSHARD, RESHARD and REDUCE_GRAD, as PyTorch's runtime wants them for FSDP: add, and check."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from tracegen.errors import ProgramError
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
    decode,
    encode,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import W as WEIGHT

# How many stages of a rank are whole at one time: one in its forward, one in
# its backward, one being fetched. PyTorch's number.
ACTIVE_STAGES = 3


def add_whole_stage(program: Program) -> Program:
    """The program with each stage fetched before use, dropped when not among the next, and reduced.

    Before every step the next ACTIVE_STAGES stages of the rank are there;
    what is not among them is dropped. A stage's gradients are reduced right
    after its last B or W: without REDUCE_GRAD torch's runtime leaves out the
    division by the number of microbatches too.
    """
    return program.with_ranks(
        _with_reduction(_with_shards(stream), program) for stream in program.ranks
    )


def add_zero(program: Program, level: int) -> Program:
    """The program with what ZeRO's stage `level` needs, as PyTorch's runtime would have it.

    What it has of its own stays. With 1 and 2 each stage is fetched once, before all else, in
    the order of use; with 3 as `add_whole_stage` says.

    Args:
        program: without messages.
        level: 0 to 3.

    Raises:
        ProgramError: if it fetches stages itself, though they are not sharded.
    """
    kinds = {code & KIND_MASK for stream in program.ranks for code in stream.codes}
    if kinds & {UNSHARD, RESHARD}:
        if level < 3:
            what = f"it has UNSHARD or RESHARD, which zero = {level} has not; use zero = 3"
            raise ProgramError(program.name, [what])
    elif level == 3:
        program = program.with_ranks(_with_shards(stream) for stream in program.ranks)
    elif level > 0:
        program = program.with_ranks(_fetched_once(stream) for stream in program.ranks)
    if REDUCE_GRAD in kinds:
        return program
    return program.with_ranks(_with_reduction(stream, program) for stream in program.ranks)


def most_whole(stream: Stream, size: list[float]) -> float:
    """The most that a rank's stages hold of weights at once, with ZeRO's stage 3.

    Args:
        stream: compute only.
        size: of each stage's weights.
    """
    now = most = 0.0
    for code in _with_shards(stream).codes:
        if code & KIND_MASK in (UNSHARD, RESHARD):
            now += size[_stage(code)] if code & KIND_MASK == UNSHARD else -size[_stage(code)]
            most = max(most, now)
    return most


def _fetched_once(stream: Stream) -> Stream:
    used = dict.fromkeys(_stage(code) for _, code in stream.halves())
    first = array("q", [encode(stage, UNSHARD, 0) for stage in used])
    return Stream(first + stream.codes, array("q", [NO_MATE]) * len(first) + stream.mates)


def check_whole_stage(program: Program) -> Program:
    """Return the program if its whole-stage actions are where PyTorch's runtime can do them.

    REDUCE_GRAD once, on the stage's rank, after its last backward: it divides the gradients.
    Where a stage has UNSHARD or RESHARD, they alternate and it computes between them.

    Raises:
        ProgramError: naming rank and action of each violation.
    """
    if problems := [text for rank in range(program.num_ranks) for text in _wrong(program, rank)]:
        raise ProgramError(program.name, problems)
    return program


def _wrong(program: Program, rank: int) -> Iterator[str]:
    stream, owner = program.ranks[rank], program.placement.ranks
    whole = (UNSHARD, RESHARD, REDUCE_GRAD)
    for at, code in enumerate(stream.codes):
        if code & KIND_MASK in whole and owner[_stage(code)] != rank:
            yield (
                f"{_where(rank, at, code)} belongs on rank {owner[_stage(code)]}, "
                f"which holds stage {_stage(code)}"
            )
    yield from _reduced_wrongly(stream, rank)
    yield from _sharded_wrongly(stream, rank)


def _reduced_wrongly(stream: Stream, rank: int) -> Iterator[str]:
    reduced: dict[int, int] = {}
    for at, code in stream.halves():
        before = reduced.get(_stage(code))
        if code & KIND_MASK == REDUCE_GRAD:
            if before is not None:
                yield f"{_where(rank, at, code)} again does what action {before} has done"
            reduced.setdefault(_stage(code), at)
        elif FORWARD < code & KIND_MASK <= WEIGHT and before is not None:
            reduction = decode(encode(_stage(code), REDUCE_GRAD, 0))
            yield (
                f"{_where(rank, at, code)} comes after {reduction}, action {before}, "
                "which lacks its gradient"
            )


def _sharded_wrongly(stream: Stream, rank: int) -> Iterator[str]:
    sharded = {_stage(code) for code in stream.codes if code & KIND_MASK in (UNSHARD, RESHARD)}
    there: set[int] = set()
    for at, code in stream.halves() if sharded else ():
        kind, stage = code & KIND_MASK, _stage(code)
        if kind == UNSHARD:
            if stage in there:
                yield f"{_where(rank, at, code)} comes when stage {stage} is there already"
            there.add(stage)
        elif kind == RESHARD or (kind <= WEIGHT and stage in sharded):
            if stage not in there:
                yield f"{_where(rank, at, code)} needs stage {stage}; UNSHARD it before"
            if kind == RESHARD:
                there.discard(stage)


def _where(rank: int, at: int, code: int) -> str:
    return f"rank {rank}, action {at}: {decode(code)}"


def _stage(code: int) -> int:
    return code >> STAGE_SHIFT & STAGE_MASK


def _stages(code: int, mate: int) -> list[int]:
    return [_stage(half) for half in (code, mate) if half != NO_MATE]


def _next_stages(stream: Stream) -> list[list[int]]:
    """At each position, the next ACTIVE_STAGES different stages from there on, nearest first.

    A pair counts whole, so that there may be one more.
    """
    nearest: list[tuple[int, int]] = []  # stage, position, from the end backwards
    found: list[list[int]] = []
    for at in range(len(stream) - 1, -1, -1):
        here = dict.fromkeys(_stages(stream.codes[at], stream.mates[at]))
        nearest = [(stage, at) for stage in here] + [n for n in nearest if n[0] not in here]
        reach = nearest[min(ACTIVE_STAGES, len(nearest)) - 1][1]
        found.append([stage for stage, position in nearest if position <= reach])
    return found[::-1]


def _with_shards(stream: Stream) -> Stream:
    codes, mates = array("q"), array("q")
    active: list[int] = []

    def add(code: int, mate: int = NO_MATE) -> None:
        codes.append(code)
        mates.append(mate)

    for code, mate, wanted in zip(stream.codes, stream.mates, _next_stages(stream), strict=True):
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
                stage = _stage(half)
                left[stage] -= 1
                if left[stage] == 0:
                    codes.append(encode(stage, REDUCE_GRAD, 0))
                    mates.append(NO_MATE)
    return Stream(codes, mates)
