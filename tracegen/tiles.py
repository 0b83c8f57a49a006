"""The tiles of a rank: what each is called, coloured and said to have waited for.

The loop runs once a tile, millions of times in a long trace: what tiles have in
common (rank, stage, op, chain, phase) is looked up once, as their Shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracegen.alike import alike
from tracegen.deps import NOTHING
from tracegen.ir import (
    ALL_BUT_MICROBATCH,
    KIND_MASK,
    KINDS,
    MICROBATCH_SHIFT,
    NO_MATE,
    STAGE_MASK,
    STAGE_SHIFT,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.metrics import COOLDOWN, STEADY, WARMUP, phases_of_steps, waited_for
from tracegen.shape import Shape, Slice
from tracegen.timeline import Timeline

# What a tile is called, before its microbatch. Perfetto colours a tile by a hash of
# its name without digits: plain B looks like F there, and W like I. These give
# yellow, red, blue and green; a pair (F1B0) is violet.
LETTERS = {FORWARD: "F", FULL: "BP", INPUT: "I", WEIGHT: "WG"}
PAIR_LETTERS = {FULL: "B", INPUT: "I"}
# What a backward recomputes before it begins, as a tile in front of its own: pink.
RECOMPUTE_LETTERS, RECOMPUTE = "Re", "RECOMPUTE"
CATEGORY = {FORWARD: "forward", FULL: "backward", INPUT: "input", WEIGHT: "weight"}


class _Shapes:
    """The shapes of one rank's tiles, made as they are met."""

    def __init__(self, line: Timeline, rank: int, step: int, phase: str) -> None:
        self.line, self.rank, self.step, self.phase = line, rank, step, phase
        self.known: dict[tuple[int, int, bool, bool], tuple[str, str, Shape]] = {}

    def make(self, code: int, mate: int, waited: bool, blocked: bool) -> tuple[str, str, Shape]:
        """The letters before each microbatch of the name, and the shape."""
        kind, stage = code & KIND_MASK, code >> STAGE_SHIFT & STAGE_MASK
        chain = self.line.program.placement.chain_of_stages()[stage]
        fixed: list[tuple[str, Any]] = [("rank", self.rank), ("stage", stage)]
        fixed += [("op", KINDS[kind].value), ("chain", chain), ("phase", self.phase)]
        keys, letters, category = ["microbatch"], (LETTERS[kind], ""), CATEGORY[kind]
        if mate != NO_MATE:
            other = mate & KIND_MASK
            letters, category = (LETTERS[kind], PAIR_LETTERS[other]), "overlap"
            fixed += [("backward_op", KINDS[other].value)]
            fixed += [("backward_stage", mate >> STAGE_SHIFT & STAGE_MASK)]
            keys += ["backward_microbatch"]
        if self.line.program.num_steps > 1:
            fixed += [("step", self.step)]
        keys += ["wait_us"] * waited + ["waited_for"] * blocked
        return *letters, Shape(category, tuple(keys), tuple(fixed))

    def bare(self, code: int, mate: int) -> Shape:
        """The shape of a step that waits for nothing: its recomputation has."""
        alike = mate if mate == NO_MATE else mate & ALL_BUT_MICROBATCH
        key = (code & ALL_BUT_MICROBATCH, alike, False, False)
        if key not in self.known:
            self.known[key] = self.make(code, mate, False, False)
        return self.known[key][2]

    def again(self, code: int, mate: int, waited: bool, blocked: bool) -> Shape:
        """The shape of a step's recomputation: of the forward whose backward it is."""
        half = code if mate == NO_MATE else mate
        stage = half >> STAGE_SHIFT & STAGE_MASK
        chain = self.line.program.placement.chain_of_stages()[stage]
        fixed: list[tuple[str, Any]] = [("rank", self.rank), ("stage", stage)]
        fixed += [("op", RECOMPUTE), ("chain", chain), ("phase", self.phase)]
        if self.line.program.num_steps > 1:
            fixed += [("step", self.step)]
        keys = ["microbatch", *["wait_us"] * waited, *["waited_for"] * blocked]
        return Shape("recompute", tuple(keys), tuple(fixed))


def tiles(line: Timeline, rank: int) -> Iterator[Slice]:
    """The steps of a rank that take time, as slices, by time."""
    program = line.program
    stream, base = program.ranks[rank], program.offsets[rank]
    size = len(stream) // program.num_steps
    free = 0
    for number, (steady, cooldown) in enumerate(phases_of_steps(program, rank)):
        edges = (number * size, steady, cooldown, (number + 1) * size)
        for phase, first, last in zip(
            (WARMUP, STEADY, COOLDOWN), edges[:3], edges[1:], strict=True
        ):
            if last > first:
                shapes = _Shapes(line, rank, number, phase)
                run = _run if line.recomputed_ns is None else _run_again
                yield from run(shapes, range(base + first, base + last), free)
                free = line.end_ns[base + last - 1]


def _run(shapes: _Shapes, steps: range, free: int) -> Iterator[Slice]:
    """The tiles of steps of one phase, the rank being free from then on."""
    line, known = shapes.line, shapes.known
    base, stream = line.program.offsets[shapes.rank], line.program.ranks[shapes.rank]
    a, b = steps.start, steps.stop
    sorts, numbers = alike(stream)
    plain: list[tuple[str, str, Shape] | None] = [None] * len(sorts)
    for step, number, code, mate, start, end, blocker in zip(
        steps,
        numbers[a - base : b - base],
        stream.codes[a - base : b - base],
        stream.mates[a - base : b - base],
        line.start_ns[a:b],
        line.end_ns[a:b],
        line.blocker[a:b],
        strict=True,
    ):
        waited, free = start - free, end
        if end == start:
            continue
        if blocker == NOTHING and not waited:  # most tiles of most traces
            if (made := plain[number]) is None:
                made = plain[number] = shapes.make(code, mate, False, False)
            letter, other, shape = made
            microbatch = code >> MICROBATCH_SHIFT
            if mate == NO_MATE:
                yield start, end, f"{letter}{microbatch}", shape, (microbatch,)
                continue
            second = mate >> MICROBATCH_SHIFT
            yield start, end, f"{letter}{microbatch}{other}{second}", shape, (microbatch, second)
            continue
        key = (*sorts[number], waited != 0, blocker != NOTHING)
        try:
            letter, other, shape = known[key]
        except KeyError:
            letter, other, shape = known[key] = shapes.make(code, mate, key[2], key[3])
        microbatch, values = code >> MICROBATCH_SHIFT, tuple[Any, ...]()
        if mate == NO_MATE:
            name, values = f"{letter}{microbatch}", (microbatch,)
        else:
            second = mate >> MICROBATCH_SHIFT
            name, values = f"{letter}{microbatch}{other}{second}", (microbatch, second)
        if waited:
            values += (waited,)
        if blocker != NOTHING:
            values += (waited_for(line, shapes.rank, step),)
        yield start, end, name, shape, values


def _run_again(shapes: _Shapes, steps: range, free: int) -> Iterator[Slice]:
    """As `_run`, with what is recomputed as a tile of its own, which then is what waited."""
    line, known = shapes.line, dict[tuple[int, int, bool, bool], Shape]()
    base, stream = line.program.offsets[shapes.rank], line.program.ranks[shapes.rank]
    assert line.recomputed_ns is not None
    lasting = (step for step in steps if line.end_ns[step] > line.start_ns[step])
    for step, tile in zip(lasting, _run(shapes, steps, free), strict=True):
        start, end, name, shape, values = tile
        if (until := line.recomputed_ns[step]) == start:
            yield tile
            continue
        code, mate = stream.codes[step - base], stream.mates[step - base]
        waits = [key for key in shape.keys if key.startswith("wait")]
        alike = (code & ALL_BUT_MICROBATCH, mate if mate == NO_MATE else mate & ALL_BUT_MICROBATCH)
        key = (*alike, "wait_us" in waits, "waited_for" in waits)
        if key not in known:
            known[key] = shapes.again(code, mate, key[2], key[3])
        about = values[: len(values) - len(waits)]
        microbatch = about[-1]  # of a pair, the backward's
        yield (
            start,
            until,
            f"{RECOMPUTE_LETTERS}{microbatch}",
            known[key],
            (microbatch, *values[len(about) :]),
        )
        yield until, end, name, shapes.bare(code, mate), about
