"""The legend of a picture: a swatch and a word for what occurs in it, in lines that fit."""

from __future__ import annotations

from collections.abc import Iterator

from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.timeline import Timeline
from tracegen.ui import picture
from tracegen.ui.merged import num
from tracegen.ui.picture import AGAIN, EDGE, FILLS, PAIR, Theme

SIZE, FONT_SIZE = 14, 11
# Wide letters; a legend that is a little too loose is better than one that runs together.
LETTER = 0.58
GAP, BETWEEN = 5, 16

Item = tuple[str, str]


def items(line: Timeline, theme: Theme, arrows: bool, memory: bool) -> Iterator[Item]:
    """(shapes in a square of SIZE, words) of everything that occurs."""
    kinds, backward = picture.kinds(line)
    for kind in kinds:
        fill = picture.look(kind)
        letter = (
            f'<text x="7" y="11" font-size="10" text-anchor="middle" fill="{fill.ink}">'
            f"{fill.letter}</text>"
        )
        inside = hollow(0, SIZE * 100, SIZE) if kind == AGAIN else ""
        yield _square(fill.colour) + inside + letter, fill.name
    if backward is not None:
        yield _pair(backward), PAIR
    if len(set(line.program.placement.ranks)) < line.program.num_stages:
        yield _square(FILLS[INPUT].colour) + _foot(), _of_the_foot(line)
    if arrows:
        yield _line(theme.ink, ""), "activation sent"
        yield _line(theme.ink, ' stroke-dasharray="3 2"'), "gradient sent"
    if memory:
        yield _curve(theme.curve), "activations held"


def placed(entries: list[Item], width: int) -> Iterator[tuple[int, int, str, str]]:
    """(x, line, shapes, words) of each, from left to right and in as many lines as it takes."""
    x, row = 0, 0
    for shapes, words in entries:
        wide = SIZE + GAP + round(len(words) * FONT_SIZE * LETTER)
        if x and x + wide > width:
            x, row = 0, row + 1
        yield x, row, shapes, words
        x += wide + BETWEEN


def hollow(x: int, wide: int, tall: int) -> str:
    """The white inside of a recomputation's tile; x and width in hundredths of a pixel."""
    rim, edge = min(300, wide // 4), min(3, tall // 4)
    return (
        f'<rect x="{num(x + rim)}" y="{edge}" width="{num(wide - 2 * rim)}"'
        f' height="{tall - 2 * edge}"'
        ' fill="#fff"/>'
    )


def _of_the_foot(line: Timeline) -> str:
    program = line.program
    if len(program.placement.chains) > 1:
        return "foot: a later stage of the rank, of another pipe"
    if program.stages_per_rank == 2:
        return "foot: the rank's second stage"
    return "foot: the higher, the later of the rank's stages"


def _square(colour: str) -> str:
    return (
        f'<rect width="{SIZE}" height="{SIZE}" fill="{colour}" stroke="{EDGE}" stroke-width=".6"/>'
    )


def _pair(backward: int) -> str:
    half = SIZE // 2
    return (
        f'<rect width="{SIZE}" height="{half}" fill="{FILLS[FORWARD].colour}"/>'
        f'<rect y="{half}" width="{SIZE}" height="{half}" fill="{FILLS[backward].colour}"/>'
        f'<rect width="{SIZE}" height="{SIZE}" fill="none" stroke="{EDGE}" stroke-width="1.6"/>'
    )


def _foot() -> str:
    return f'<rect y="10" width="{SIZE}" height="4" fill="#000" fill-opacity=".5"/>'


def _line(colour: str, dash: str) -> str:
    return f'<path d="M0 7H14" stroke="{colour}"{dash}/>'


def _curve(colour: str) -> str:
    return (
        f'<path d="M0 14V8H5V2H10V6H14V14z" fill="{colour}" fill-opacity=".45" stroke="{colour}"/>'
    )
