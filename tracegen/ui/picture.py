"""What the pictures share: the colours of the tiles, the themes, and words for tiles and times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tracegen import metrics
from tracegen.deps import NOTHING
from tracegen.held import Held
from tracegen.ir import KIND_MASK, NO_MATE, UNSHARD, decode
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.moe import Kernel
from tracegen.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Fill:
    """How the tiles of a kind look: fill, the colour of what is written on it, and its name."""

    colour: str
    ink: str
    letter: str
    name: str


# What holds a rank beside compute has one fill and no number.
OTHER = WEIGHT + 1
# What a tile is whose action recomputes first: a kind of pictures alone, beside KINDS.
AGAIN = 15

# F, I, W, B in this order are each 15 or more L* darker than the one before, so they hold in
# greyscale; yellow, blue, green and red are the terminal's colours too. A pair has no colour of
# its own: it is its forward above its backward. tests/test_svg.py has the numbers, for
# colour-blind eyes too.
FILLS = {
    FORWARD: Fill("#f6d55c", "#000", "F", "forward"),
    INPUT: Fill("#6cb4e4", "#000", "I", "input gradient"),
    WEIGHT: Fill("#3a8268", "#fff", "W", "weight gradient"),
    FULL: Fill("#8c2131", "#fff", "B", "backward"),
    OTHER: Fill("#ffffff", "#000", "", "message, gradient sum, optimizer"),
}
# Between the others in greyscale, it is told apart there by its form: a frame around white.
RECOMPUTED = Fill("#c8649b", "#000", "R", "recomputation")
PAIR = "overlapped pair"
EDGE = "#16181d"


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours around the tiles; the tiles have the same in every theme.

    Attributes:
        background: of the whole picture.
        lane: of a rank's row, where it is idle.
        ink: of text and arrows.
        faint: of the axis and the memory curve's ground.
        curve: of the memory curve.
    """

    background: str
    lane: str
    ink: str
    faint: str
    curve: str


THEMES = {
    "paper": Theme("#ffffff", "#f3f3f3", "#1a1a1a", "#8a8a8a", "#5b5b8f"),
    "dark": Theme("#14171c", "#1f242c", "#e6e8eb", "#8b929c", "#a9a6e0"),
}

UNITS = (("s", 10**9), ("ms", 10**6), ("\u00b5s", 10**3), ("ns", 1))

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


# step or NOTHING, start, end, code, code of a second half or NO_MATE, ns idle before it
Tile = tuple[int, int, int, int, int, int]


def time_text(ns: int, beside: int | None = None) -> str:
    """A time in the unit that people would say it in, or would say the one beside it in.

    With three decimals where it needs them.
    """
    said = ns if beside is None else beside
    unit, size = next((unit for unit in UNITS if said >= unit[1]), UNITS[-1])
    return f"{ns / size:.3f}".rstrip("0").rstrip(".") + f" {unit}"


def ticks(makespan_ns: int, at_most: int) -> range:
    """Round times for an axis, 0 first: in steps of 1, 2 or 5 times a power of ten."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if makespan_ns // step < max(1, at_most):
                return range(0, makespan_ns + 1, step)
        power *= 10


def clean(text: str) -> str:
    """Text without what neither XML nor UTF-8 can hold."""
    return _NOT_XML.sub("\ufffd", text)


def fill_of(code: int) -> int:
    """Which of FILLS an action has: its kind's, or that of what is no compute; or AGAIN."""
    return AGAIN if code & KIND_MASK == AGAIN else min(OTHER, code & KIND_MASK)


def look(kind: int) -> Fill:
    """The fill of what `fill_of` says."""
    return RECOMPUTED if kind == AGAIN else FILLS[kind]


def escape(text: str) -> str:
    """Text for the inside of an element, or of an attribute in double quotes."""
    text = clean(text).replace("&", "&amp;").replace("<", "&lt;")
    return text.replace(">", "&gt;").replace('"', "&quot;")


def sizes(line: Timeline) -> str:
    """`p=8 m=20 v=2`, and how long the step takes and idles."""
    program = line.program
    return (
        f"p={program.num_ranks} m={program.num_microbatches} v={program.stages_per_rank}"
        f", makespan {time_text(line.makespan_ns)}, bubble ratio {metrics.bubble_ratio(line):.1%}"
    )


def action(code: int, mate: int) -> str:
    """The text form; of a pair, both halves of it."""
    if code & KIND_MASK == AGAIN:
        return f"recomputation of {decode(code - AGAIN + FORWARD)}"
    name = str(decode(code))
    return name if mate == NO_MATE else f"{name} + {decode(mate)}"


def describe(line: Timeline, rank: int, tile: Tile) -> str:
    """What a tile says of itself: action, rank, when, what it waited for and how long."""
    step, start, end, code, mate, waited = tile
    text = (
        f"{action(code, mate)}, rank {rank}: from {time_text(start)} for {time_text(end - start)}"
    )
    wanted = "" if step == NOTHING else metrics.waited_for(line, rank, step)
    if waited > 0:
        text += f", waited {time_text(waited)}" + (f" for {wanted}" if wanted else "")
    return text


def kinds(line: Timeline) -> tuple[list[int], int | None]:
    """The kinds that occur, in the order of FILLS, and of what kind the backwards of pairs are."""
    present: set[int] = set()
    mates: set[int] = set()
    for stream in line.program.ranks:
        present.update({fill_of(code) for code in stream.codes})
        mates.update({mate & KIND_MASK for mate in stream.mates if mate != NO_MATE})
    present |= mates
    if any(line.held):
        present.add(OTHER)
    if line.recomputed_ns is not None:
        present.add(AGAIN)
    return [kind for kind in (*FILLS, AGAIN) if kind in present], next(iter(sorted(mates)), None)


def stage_index(line: Timeline) -> list[int]:
    """Of each stage, how many of its rank's stages come before it."""
    placement = line.program.placement
    index, before = [0] * placement.num_stages, [0] * line.program.num_ranks
    for chain in placement.chains:
        for stage in chain:
            rank = placement.ranks[stage]
            index[stage] = before[rank]
            before[rank] += 1
    return index


def tiles(line: Timeline, rank: int) -> Iterator[Tile]:
    """A rank's tiles that last: its steps, and between them what else held it, without a step.

    What a step recomputes first is a tile of the step before its own.
    """
    stream, base, free = line.program.ranks[rank], line.program.offsets[rank], 0
    held = line.held[rank] if line.held else []
    between = 0
    for at, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True)):
        while between < len(held) and held[between].before <= at:
            yield from _held(held[between], free)
            free, between = max(free, held[between].end_ns), between + 1
        start, end = line.start_ns[base + at], line.end_ns[base + at]
        waited, free = start - free, end
        if line.recomputed_ns is not None and (until := line.recomputed_ns[base + at]) > start:
            half = code if mate == NO_MATE else mate
            again = half - (half & KIND_MASK) + AGAIN
            yield base + at, start, until, again, NO_MATE, waited
            start, waited = until, 0
        if end > start:
            yield base + at, start, end, code, mate, waited
    for one in held[between:]:
        yield from _held(one, free)
        free = max(free, one.end_ns)


def _held(one: Held, free: int) -> Iterator[Tile]:
    if one.end_ns > one.start_ns:
        yield NOTHING, one.start_ns, one.end_ns, one.code, one.mate, one.start_ns - free


def collective_kind(code: int) -> int:
    """Whose colour a collective has: F's, which needs weights first, or W's, whose sum it is."""
    return FORWARD if code & KIND_MASK == UNSHARD else WEIGHT


def kernel_kind(kernel: int, code: int) -> int:
    """Whose colour a kernel has: a full backward's are B, but those for its weights W."""
    if kernel < Kernel.COMB_B:
        return FORWARD
    return WEIGHT if kernel >= Kernel.MLP_W else FULL if code & KIND_MASK == FULL else INPUT
