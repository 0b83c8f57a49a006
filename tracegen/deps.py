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
from dataclasses import dataclass

from tracegen.ir import KIND_MASK, MICROBATCH_SHIFT, STAGE_MASK, STAGE_SHIFT, Program
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.repeat import flat

NOTHING = -1


@dataclass(frozen=True, slots=True)
class Index:
    """Where each result is made: a step by `stage * num_microbatches + microbatch`, or NOTHING.

    Attributes:
        forward: the step of F.
        gradient: the step of B or I, which makes the gradient for the previous stage.
        weight: the step of B or W, which makes the weight's gradient.
    """

    forward: array[int]
    gradient: array[int]
    weight: array[int]


@dataclass(frozen=True, slots=True)
class Waits:
    """What each step waits for, as three columns of steps, NOTHING where there is no such wait.

    Attributes:
        own: the F of a B or I, the I of a W: always a step of the same rank.
        forward: the previous stage's F, which the F of this step waits for.
        backward: the next stage's B or I, which the B or I of this step waits for.
    """

    own: array[int]
    forward: array[int]
    backward: array[int]

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
    M = program.num_microbatches
    empty = array("q", [NOTHING]) * (program.num_stages * M)
    forward, gradient, weight = empty[:], empty[:], empty[:]
    made_by = {FORWARD: (forward,), FULL: (gradient, weight), INPUT: (gradient,), WEIGHT: (weight,)}
    for stream, step in zip(program.ranks, program.offsets, strict=False):
        for at, code in stream.halves():
            for made in made_by.get(code & KIND_MASK, ()):
                made[(code >> STAGE_SHIFT & STAGE_MASK) * M + (code >> MICROBATCH_SHIFT)] = (
                    step + at
                )
    return program.memo.setdefault("index", Index(forward, gradient, weight))  # type: ignore[no-any-return]


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
    M, made = program.num_microbatches, index(program)
    previous, following = neighbours(program)
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
    return program.memo.setdefault("waits", Waits(own, forward, backward))  # type: ignore[no-any-return]


def blocked(program: Program) -> list[int] | None:
    """The first step of each rank that can never start, or None if the program finishes.

    Runs every rank as far as it can go, each step once, without times.
    A rank that is done has the number one past its last step.
    """
    needs = waits(program)
    own, forward, backward = needs.own, needs.forward, needs.backward
    at, last = program.offsets[:-1], program.offsets[1:]
    done = bytearray(len(program) + 1)
    done[NOTHING] = 1  # the last byte: what waits for nothing is ready
    asleep: dict[int, list[int]] = {}
    agenda = list(range(program.num_ranks))
    while agenda:
        rank = agenda.pop()
        step, end = at[rank], last[rank]
        while step < end:
            for wait in (forward[step], backward[step], own[step]):
                if not done[wait]:
                    asleep.setdefault(wait, []).append(rank)
                    break
            else:
                done[step] = 1
                agenda += asleep.pop(step, ())
                step += 1
                continue
            break
        at[rank] = step
    return None if at == last else at


def cycle(program: Program, stuck: list[int]) -> list[tuple[int, int]]:
    """Steps that wait for each other: (a stuck step, the step it waits for), round the cycle.

    A stuck step waits for a result; the rank that would make it stands at a
    stuck step of its own. Following that from any rank must come back.

    Args:
        program: the program that cannot finish.
        stuck: as from `blocked`.
    """
    needs, offsets = waits(program), program.offsets
    rank = next(r for r in range(program.num_ranks) if stuck[r] < offsets[r + 1])
    seen: dict[int, int] = {}
    path: list[tuple[int, int]] = []
    while rank not in seen:
        seen[rank] = len(path)
        waited = next(w for w in needs.of(stuck[rank]) if w >= stuck[program.rank_of_step(w)])
        path.append((stuck[rank], waited))
        rank = program.rank_of_step(waited)
    return path[seen[rank] :]
