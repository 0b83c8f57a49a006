"""Is the program complete, placed and in order, and can it finish?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, repeat
from operator import le, lt, rshift

from tracegen.alike import alike
from tracegen.deps import NOTHING, blocked, cycle, index, waits
from tracegen.errors import DeadlockError, ProgramError
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    NO_MATE,
    STAGE_MASK,
    STAGE_SHIFT,
    Program,
    Stream,
    decode,
    encode,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.repeat import step_of


def validate(program: Program, finishes: bool = True) -> Program:
    """Return the program if it is sound.

    Every stage does F and one of B or I and W of every microbatch of its chain,
    once, on the rank that holds it (only F in a forward-only program); B and I
    come after their F and W after its I; and the ranks do not wait for each
    other in a cycle. Communication is not looked at.

    Args:
        program: to look at.
        finishes: whether to look for such cycles too, which who runs the program finds anyway.

    Raises:
        ProgramError: naming rank and action of each violation.
        DeadlockError: with the cycle of actions that wait for each other.
    """
    compute = program.compute_only()
    if compute.memo.get("valid"):
        return program
    if program.num_steps > 1:
        for number in range(program.num_steps):
            validate(step_of(compute, number), finishes)
        return program
    if not compute.memo.get("in_order"):
        for look in (_no_pairs, _misplaced, _duplicates, _missing, _out_of_order):
            if problems := list(look(compute)):
                raise ProgramError(program.name, problems)
        compute.memo["in_order"] = True
    if not finishes:
        return program
    if (stuck := blocked(compute)) is not None:
        raise DeadlockError(program.name, _deadlock(compute, stuck), program=program)
    compute.memo["valid"] = True
    return program


def where(program: Program, step: int) -> str:
    """A step as people look for it: rank, position and text form."""
    rank = program.rank_of_step(step)
    at = step - program.offsets[rank]
    return f"rank {rank}, action {at}: {program.ranks[rank][at]}"


def deadlock(program: Program, stuck: list[int], waited: Callable[[int], int]) -> list[str]:
    """What a DeadlockError says, a line each; `stuck` and `waited` as of `deps.cycle`."""
    done = sum(step - start for step, start in zip(stuck, program.offsets, strict=False))
    return [
        f"deadlock after {done} of {len(program)} actions",
        *(
            f"{where(program, step)} waits for {where(program, other)}"
            for step, other in cycle(program, stuck, waited)
        ),
    ]


def _no_pairs(program: Program) -> Iterator[str]:
    for rank, stream in enumerate(program.ranks):
        if not stream.has_mates:
            continue
        for at, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True)):
            if mate != NO_MATE and (
                code & KIND_MASK != FORWARD or mate & KIND_MASK not in (FULL, INPUT)
            ):
                yield f"rank {rank}, action {at}: {stream[at]} is no pair of an F and a B or I"


def _misplaced(program: Program) -> Iterator[str]:
    placement, M = program.placement, program.num_microbatches
    chain_of, owner = placement.chain_of_stages(), placement.ranks
    batch = [placement.microbatches_of(chain_of[s], M) for s in range(placement.num_stages)]
    for rank, stream in enumerate(program.ranks):
        if len(placement.chains) == 1 and _in_place(stream, rank, owner, M):
            continue
        # Codes that differ in the kind alone are right or wrong together.
        places = set(map(rshift, stream.codes, repeat(STAGE_SHIFT)))
        if stream.has_mates:
            places.update(map(rshift, stream.mates, repeat(STAGE_SHIFT)))
            places.discard(NO_MATE)
        for stage in placement.stages_of(rank):
            first, last = (
                encode(stage, 0, mb) >> STAGE_SHIFT
                for mb in (batch[stage].start, batch[stage].stop)
            )
            places.difference_update(range(first, last, encode(0, 0, 1) >> STAGE_SHIFT))
        if places:
            yield from _misplaced_on(rank, stream, places, owner, batch)


def _in_place(stream: Stream, rank: int, owner: Sequence[int], num_microbatches: int) -> bool:
    """Whether all codes are of the rank's stages and of the step's microbatches."""
    codes = {code for halves in alike(stream).sorts for code in halves} - {NO_MATE}
    stages = {code >> STAGE_SHIFT for code in codes}
    if not all(stage < len(owner) and owner[stage] == rank for stage in stages):
        return False
    columns = (stream.codes, stream.mates) if stream.has_mates else (stream.codes,)
    last = max(max(column, default=0) for column in columns)
    return last >> MICROBATCH_SHIFT < num_microbatches


def _misplaced_on(
    rank: int, stream: Stream, wrong: set[int], owner: Sequence[int], batch: Sequence[range]
) -> Iterator[str]:
    for at, code in stream.halves():
        if code >> STAGE_SHIFT not in wrong:
            continue
        stage, here = code >> STAGE_SHIFT & STAGE_MASK, f"rank {rank}, action {at}: {decode(code)}"
        if stage >= len(owner):
            yield f"{here} is of stage {stage}; the last stage is {len(owner) - 1}"
        elif owner[stage] != rank:
            yield f"{here} belongs on rank {owner[stage]}, which holds stage {stage}"
        else:
            run = batch[stage]
            yield (
                f"{here} is of microbatch {code >> MICROBATCH_SHIFT}; "
                f"stage {stage} does {run.start} to {run.stop - 1}"
            )


def _duplicates(program: Program) -> Iterator[str]:
    """Steps that make a result which another makes already: the same again, or B beside I or W."""
    if index(program).unique:
        return
    for rank, stream in enumerate(program.ranks):
        first: dict[tuple[int, int], tuple[int, int]] = {}
        for at, code in stream.halves():
            for result in _MAKES[code & KIND_MASK]:
                slot = (result, code >> STAGE_SHIFT)
                if slot in first:
                    before, by = first[slot]
                    yield (
                        f"rank {rank}, action {at}: {decode(code)} again does what "
                        f"{decode(by)}, action {before}, has done"
                    )
                    break
                first[slot] = (at, code)


_MAKES = {FORWARD: (0,), FULL: (1, 2), INPUT: (1,), WEIGHT: (2,)}


def _missing(program: Program) -> Iterator[str]:
    made, placement, M = index(program), program.placement, program.num_microbatches
    forward_only = program.forward_only
    for number, chain in enumerate(placement.chains):
        batch = placement.microbatches_of(number, M)
        for stage in chain:
            row = slice(stage * M + batch.start, stage * M + batch.stop)
            columns = (
                (made.forward,) if forward_only else (made.forward, made.gradient, made.weight)
            )
            if not any(column[row].count(NOTHING) for column in columns):
                continue
            for microbatch in batch:
                at = stage * M + microbatch
                f, g, w = made.forward[at], made.gradient[at], made.weight[at]
                if f != NOTHING and (forward_only or (g != NOTHING and w != NOTHING)):
                    continue
                yield from _missing_one(program, stage, microbatch, (f, g, w))


def _missing_one(
    program: Program, stage: int, microbatch: int, made: tuple[int, int, int]
) -> Iterator[str]:
    forward, gradient, weight = made
    here = f"rank {program.placement.ranks[stage]}"

    def text(kind: int) -> str:
        return str(decode(encode(stage, kind, microbatch)))

    if forward == NOTHING:
        yield f"{here}: {text(FORWARD)} is missing"
    if program.forward_only:
        return
    if gradient == NOTHING and weight == NOTHING:
        yield f"{here}: {text(FULL)} is missing (or {text(INPUT)} and {text(WEIGHT)})"
    elif gradient == NOTHING:
        yield f"{where(program, weight)} has no {text(INPUT)}, which is missing"
    elif weight == NOTHING:
        yield f"{where(program, gradient)} has no {text(WEIGHT)}, which is missing"


def _out_of_order(program: Program) -> Iterator[str]:
    made = index(program)
    columns = (made.forward, made.gradient, made.weight)
    if made.unique and all(all(map(le, a, b)) for a, b in pairwise(columns)):
        return
    own = waits(program).own
    if all(map(lt, own, range(len(program)))):
        return
    for rank, stream in enumerate(program.ranks):
        base = program.offsets[rank]
        for at in range(len(stream)):
            needed = own[base + at]
            if needed < base + at:  # NOTHING too
                continue
            yield (
                f"rank {rank}, action {at}: {stream[at]} comes before {stream[needed - base]}, "
                f"which is action {needed - base}"
            )


def _deadlock(program: Program, stuck: list[int]) -> list[str]:
    needs = waits(program)

    def waited(step: int) -> int:
        return next(w for w in needs.of(step) if w >= stuck[program.rank_of_step(w)])

    return deadlock(program, stuck, waited)
