"""Which steps a step waits for: the only statement of that rule.

F(s, mb) waits for F of the previous stage of its chain; B and I wait for their
own F and for the B or I of the next stage; W waits for its own I. The
validator, the lowering to communication, replay and the deadlock report all
ask here.

Steps are numbered through all ranks (Program.offsets); a pair is one step and
waits for what both its halves wait for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import cached_property, partial
from operator import lt
from typing import Any, NamedTuple

from tracegen.alike import alike
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    Program,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.repeat import flat

NOTHING = -1


class Index(NamedTuple):
    """Where each result is made: a step by `stage * num_microbatches + microbatch`, or NOTHING.

    Attributes:
        forward: the step of F.
        gradient: the step of B or I, which makes the gradient for the previous stage.
        weight: the step of B or W, which makes the weight's gradient.
        unique: whether no two steps make the same.
    """

    forward: array[int]
    gradient: array[int]
    weight: array[int]
    unique: bool


class Waits:
    """What each step waits for, as three columns of steps, NOTHING where there is no such wait.

    Attributes:
        forward: the previous stage's F, which the F of this step waits for.
        backward: the next stage's B or I, which the B or I of this step waits for.
        find_own: finds `own`, which a program in order is replayed without.
    """

    def __init__(
        self, forward: array[int], backward: array[int], find_own: Callable[[], array[int]]
    ) -> None:
        self.forward, self.backward, self.find_own = forward, backward, find_own

    @cached_property
    def own(self) -> array[int]:
        """The F of a B or I, the I of a W: always a step of the same rank."""
        return self.find_own()

    def of(self, step: int) -> list[int]:
        every = (self.own[step], self.forward[step], self.backward[step])
        return [wait for wait in every if wait != NOTHING]


def index(program: Program) -> Index:
    """Where each result of the program is made. Of duplicates, the last counts.

    Of several training steps, as of `repeat.flat`.
    """
    if (known := program.memo.get("index")) is not None:
        return known  # type: ignore[no-any-return]
    if program.num_steps > 1:
        return index(flat(program))
    forward, full, of_input, of_weight = _steps_by_kind(program)
    kinds = program.kinds
    gradient, weight = full, full
    if kinds[INPUT] or kinds[WEIGHT]:
        # Of steps that make the same the last counts, and it has the highest number.
        gradient, weight = (
            array("q", map(max, full, half)) if kinds[FULL] else half
            for half in (of_input, of_weight)
        )
    makes = kinds[FORWARD] + 2 * kinds[FULL] + kinds[INPUT] + kinds[WEIGHT]
    made = sum(len(steps) - steps.count(NOTHING) for steps in (forward, gradient, weight))
    return program.memo.setdefault("index", Index(forward, gradient, weight, made == makes))  # type: ignore[no-any-return]


def _steps_by_kind(program: Program) -> list[array[int]]:
    """By kind (F, B, I, W) the steps, by stage and microbatch.

    A loop over every action: what actions alike have in common is looked up once.
    """
    M = program.num_microbatches
    empty = array("q", [NOTHING]) * (program.num_stages * M)
    steps = [empty[:] for _ in range(WEIGHT + 1)]
    elsewhere: dict[int, int] = {}  # what makes no result, or is no mate
    for stream, base in zip(program.ranks, program.offsets, strict=False):
        sorts, numbers = alike(stream)
        columns = [stream.codes, stream.mates] if stream.has_mates else [stream.codes]
        for column, keys in zip(columns, zip(*sorts, strict=True), strict=False):
            slots: list[tuple[Any, int]] = [
                (steps[kind], (key >> STAGE_SHIFT & STAGE_MASK) * M)
                if (kind := key & KIND_MASK) <= WEIGHT
                else (elsewhere, 0)
                for key in keys
            ]
            rows = zip(column, map(slots.__getitem__, numbers), strict=True)
            for step, (code, (made, first)) in enumerate(rows, base):
                made[first + (code >> MICROBATCH_SHIFT)] = step
    return steps


def neighbours(program: Program) -> tuple[list[int], list[int]]:
    """The previous and the next stage of each stage in its chain, -1 where there is none."""
    if "neighbours" not in program.memo:
        program.memo["neighbours"] = program.placement.neighbours()
    return program.memo["neighbours"]  # type: ignore[no-any-return]


def waits(program: Program) -> Waits:
    """What each step of the program waits for; nothing for communication.

    A pair of a forward with its own backward waits for nothing inside itself. A result
    that no step makes is not waited for: the validator reports it.
    """
    if (known := program.memo.get("waits")) is not None:
        return known  # type: ignore[no-any-return]
    if program.num_steps > 1:
        return waits(flat(program))
    made = index(program)
    found = _waits_by_result(program, made) if made.unique else _waits_by_step(program, made)
    return program.memo.setdefault("waits", found)  # type: ignore[no-any-return]


def _waits_by_result(program: Program, made: Index) -> Waits:
    """From where a result is made to where it is waited for: no action is looked at again.

    A stage's microbatches stand in a row in the index, and so do those of the
    next stage that wait for them. What is not there writes to a slot past the end.
    """
    M, (previous, following) = program.num_microbatches, neighbours(program)
    forward = array("q", [NOTHING]) * (len(program) + 1)
    backward = forward[:]

    def of(steps: array[int], stage: int) -> array[int]:
        return steps[stage * M : (stage + 1) * M]

    for stage in range(program.num_stages):
        if previous[stage] >= 0:
            _scatter(forward, of(made.forward, stage), of(made.forward, previous[stage]))
        if following[stage] >= 0:
            _scatter(backward, of(made.gradient, stage), of(made.gradient, following[stage]))
    for column in (forward, backward):
        column.pop()
    return Waits(forward, backward, partial(_own_by_result, made, len(program)))


def _own_by_result(made: Index, num_steps: int) -> array[int]:
    own = array("q", [NOTHING]) * (num_steps + 1)
    _scatter(own, made.gradient, made.forward)
    if made.weight != made.gradient:
        _scatter(own, made.weight, made.gradient)
    own.pop()
    return own


def _scatter(column: array[int], steps: array[int], sources: array[int]) -> None:
    """Note the source of each step; of a step that makes it itself, nothing."""
    for step, source in zip(steps, sources, strict=True):
        if step != source:
            column[step] = source


def _waits_by_step(program: Program, made: Index) -> Waits:
    """From each action to what it waits for: also where two make the same, and both wait."""
    M, (previous, following) = program.num_microbatches, neighbours(program)
    nothing = array("q", [NOTHING]) * len(program)
    own, forward, backward = nothing[:], nothing[:], nothing[:]
    for stream, base in zip(program.ranks, program.offsets, strict=False):
        for at, code in stream.halves():
            kind = code & KIND_MASK
            stage, microbatch = code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
            if kind == FORWARD:
                if previous[stage] >= 0:
                    forward[base + at] = made.forward[previous[stage] * M + microbatch]
            elif kind == WEIGHT:
                own[base + at] = made.gradient[stage * M + microbatch]
            elif kind <= WEIGHT:
                first = made.forward[stage * M + microbatch]
                own[base + at] = NOTHING if first == base + at else first
                if following[stage] >= 0:
                    backward[base + at] = made.gradient[following[stage] * M + microbatch]
    return Waits(forward, backward, partial(array, "q", own))


def blocked(program: Program) -> list[int] | None:
    """The first step of each rank that can never start, or None if the program finishes.

    Runs every rank as far as it can go, each step once, without times.
    A rank that is done has the number one past its last step.
    """
    needs = waits(program)
    forward, backward = needs.forward, needs.backward
    # What a step needs of its own rank is done before it in an order that is any good.
    in_order = all(map(lt, needs.own, range(len(program))))
    at, last = program.offsets[:-1], program.offsets[1:]
    done = bytearray(len(program) + 1)
    done[NOTHING] = 1  # the last byte: what waits for nothing is ready
    asleep: dict[int, list[int]] = {}
    agenda = list(range(program.num_ranks))
    while agenda:
        rank = agenda.pop()
        step, end = at[rank], last[rank]
        while step < end:
            if not done[wait := forward[step]] or not done[wait := backward[step]]:
                break
            if not in_order and not done[wait := needs.own[step]]:
                break
            done[step] = 1
            if step in asleep:
                agenda += asleep.pop(step)
            step += 1
        at[rank] = step
        if step < end:
            asleep.setdefault(wait, []).append(rank)
    return None if at == last else at


def cycle(
    program: Program, stuck: list[int], waited: Callable[[int], int]
) -> list[tuple[int, int]]:
    """Steps that wait for each other: (a stuck step, the step it waits for), round the cycle.

    A stuck step waits for a step of a rank that stands at a stuck step of its
    own, or for that one. Following that from any rank must come back.

    Args:
        program: the program that cannot finish.
        stuck: the step that each rank never came past; of a rank that is done, one past its last.
        waited: of a stuck step, a step that it waits for and that never ends.
    """
    rank = next(r for r, step in enumerate(stuck) if step < program.offsets[r + 1])
    seen: dict[int, int] = {}
    path: list[tuple[int, int]] = []
    while rank not in seen:
        seen[rank] = len(path)
        path.append((stuck[rank], waited(stuck[rank])))
        rank = program.rank_of_step(path[-1][1])
    return path[seen[rank] :]
