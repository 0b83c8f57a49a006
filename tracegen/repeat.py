"""Several training steps in a row: N times one program, one of them, or all numbered apart."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace

from tracegen.ir import MICROBATCH_SHIFT, NO_MATE, Program, Stream


def repeat(program: Program, num_steps: int, tails: Sequence[Sequence[int]] = ()) -> Program:
    """A program of `num_steps` steps, each rank going through its actions so many times.

    Args:
        program: of one step.
        num_steps: 1 or more.
        tails: by rank, codes that follow its actions in every step.
    """
    streams = []
    for rank, stream in enumerate(program.ranks):
        tail = array("q", tails[rank] if tails else ())
        codes, mates = stream.codes + tail, stream.mates + array("q", [NO_MATE]) * len(tail)
        streams.append(Stream(codes * num_steps, mates * num_steps))
    return replace(program, ranks=tuple(streams), num_steps=num_steps, memo={})


def step_of(program: Program, number: int) -> Program:
    """One training step of several."""
    if program.num_steps == 1:
        return program

    def cut(column: array[int]) -> array[int]:
        size = len(column) // program.num_steps
        return column[number * size : (number + 1) * size]

    streams = tuple(Stream(cut(s.codes), cut(s.mates)) for s in program.ranks)
    return replace(program, ranks=streams, num_steps=1, memo={})


def flat(program: Program) -> Program:
    """The same actions as one training step: microbatch 0 of the second is number m, and so on."""
    if program.num_steps == 1:
        return program
    if "flat" not in program.memo:
        N, m = program.num_steps, program.num_microbatches
        streams = tuple(_shifted(s, N, lambda n: n * m) for s in program.ranks)
        program.memo["flat"] = replace(
            program, ranks=streams, num_microbatches=m * N, num_steps=1, memo={}
        )
    return program.memo["flat"]  # type: ignore[no-any-return]


def folded(program: Program, num_steps: int) -> Program:
    """What `flat` was made of. The steps of a rank must follow each other."""
    if num_steps == 1:
        return program
    m = program.num_microbatches // num_steps
    streams = tuple(_shifted(s, num_steps, lambda n: -n * m) for s in program.ranks)
    return replace(program, ranks=streams, num_microbatches=m, num_steps=num_steps, memo={})


def _shifted(stream: Stream, num_steps: int, by: Callable[[int], int]) -> Stream:
    """The stream with `by(n)` added to the microbatches of step n."""
    size = len(stream) // num_steps
    codes, mates = array("q"), array("q")
    for number in range(num_steps):
        shift = by(number) * (1 << MICROBATCH_SHIFT)
        part = slice(number * size, (number + 1) * size)
        codes.extend(code + shift for code in stream.codes[part])
        mates.extend(NO_MATE if mate == NO_MATE else mate + shift for mate in stream.mates[part])
    return Stream(codes, mates)
