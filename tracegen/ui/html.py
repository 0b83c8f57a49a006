"""Timeline -> one HTML page that zooms, pans and names the tile under the pointer.

Everything is in the page: style, script and data, and a policy that lets it load
nothing else, so it works from the file system and where scripts are allowed by
their hash. The tiles are drawn on a canvas from columns of integers.
"""

from __future__ import annotations

import base64
import hashlib
import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import gcd
from pathlib import Path
from typing import Any

from tracegen import metrics
from tracegen.deps import NOTHING
from tracegen.files import write_text
from tracegen.ir import (
    KIND_MASK,
    KINDS,
    MICROBATCH_SHIFT,
    NO_MATE,
    STAGE_MASK,
    STAGE_SHIFT,
    Exchange,
    Overlap,
    parse,
)
from tracegen.moe import Kernel
from tracegen.timeline import Timeline
from tracegen.ui import legend, picture
from tracegen.ui.picture import FILLS, RECOMPUTED, Fill, Theme, escape

PARTS = ("page_model.js", "page_drawing.js", "page_pointing.js")
# In the legend the colours of the theme in force are the style sheet's.
LEGEND = Theme("none", "none", "currentColor", "currentColor", "#8a87c4")
HELP = (
    "Wheel or <kbd>+</kbd> <kbd>-</kbd> to zoom, drag or arrow keys to move, <kbd>.</kbd> "
    "<kbd>,</kbd> from tile to tile, <kbd>0</kbd> for all"
)


@dataclass(frozen=True, slots=True)
class Look:
    """What the page shows.

    Attributes:
        theme: one of picture.THEMES; None for the reader's own.
        legend: whether the legend is there.
        arrows: whether every hand-over between ranks is an arrow.
        memory: whether each rank's activations are a curve under its tiles.
    """

    theme: str | None = None
    legend: bool = True
    arrows: bool = False
    memory: bool = False


def write(line: Timeline, target: str | Path, look: Look = Look()) -> None:
    """Write the page to a file, or to stdout for "-".

    Raises:
        FileError: if the target cannot be written.
    """
    write_text(target, chunks(line, look))


def chunks(line: Timeline, look: Look = Look()) -> Iterator[str]:
    """The page as text, in pieces: a rank's tiles at a time."""
    name, sizes = escape(line.program.name), escape(picture.sizes(line))
    style, script = _resources()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    yield (
        f'<!DOCTYPE html>\n<html lang="en" data-theme="{look.theme or "auto"}">\n<head>\n'
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name}: {sizes}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{name}</h1><p>{sizes}</p></header>\n"
    )
    if look.legend:
        yield f"<ul>{''.join(_legend(line, look))}</ul>\n"
    yield (
        f'<p id="help">{HELP}</p>\n<main><canvas tabindex="0" role="application"'
        f' aria-label="Tiling of {name}: ranks down, time across" aria-describedby="help"></canvas>'
        '<div id="tip" hidden></div><div id="status" role="status"></div>\n'
        "<noscript>This page draws with its own script, which is not allowed to run here."
        '</noscript></main>\n<script type="application/json" id="data">'
    )
    for part in _data(line, look):
        yield part.replace("<", "\\u003c")
    yield f"</script>\n<script>{script}</script>\n</body>\n</html>\n"


@cache
def _resources() -> tuple[str, str]:
    """The style sheet, and the script that its parts make."""
    here = files("tracegen.ui")
    parts = "\n".join((here / part).read_text("utf-8") for part in PARTS)
    return (here / "page.css").read_text("utf-8"), f'"use strict";\n(() => {{\n{parts}}})();\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _legend(line: Timeline, look: Look) -> Iterator[str]:
    for shapes, words in legend.items(line, LEGEND, look.arrows, look.memory):
        side = legend.SIZE
        yield (
            f'<li><svg width="{side}" height="{side}" viewBox="0 0 {side} {side}"'
            f' aria-hidden="true">{shapes}</svg>{words}</li>'
        )


def _data(line: Timeline, look: Look) -> Iterator[str]:
    """The page's data as JSON, in pieces. page_model.js reads it.

    A tile is five numbers: how long after the end before it starts, how long it
    lasts, what it is, what else (of a pair), what it waited for. All times are in
    multiples of `unit` ns.
    """
    program, encode = line.program, _Encoder(line)
    placement = program.placement
    about: dict[str, Any] = {
        "whole": line.makespan_ns,
        "unit": encode.unit,
        "v": program.stages_per_rank,
        "ranks": placement.ranks,
        "index": picture.stage_index(line),
        "kinds": KINDS,
        "fills": [[fill.colour, fill.ink, fill.name] for fill in _fills(line)],
    }
    yield _json(about)[:-1]
    ranks = range(program.num_ranks)
    yield from _listed("rows", (encode.tiles(rank) for rank in ranks))
    if line.kernels is not None:
        yield f',"kernelNames":{_json([kernel.label for kernel in Kernel])}'
        streams = ((rank, stream) for rank in ranks for stream in (0, 1))
        yield from _listed("kernels", (encode.kernels(*of) for of in streams))
    elif line.collectives:
        streams = ((rank, stream) for rank in ranks for stream in (0, 1))
        yield from _listed("kernels", (encode.collectives(*of) for of in streams))
    if look.memory:
        peaks = list(line.peak_activations["freed_at_input"])
        yield f',"peaks":{_json(peaks)}'
        yield from _listed("memory", (encode.memory(rank) for rank in ranks))
    if look.arrows:
        yield from _listed("arrows", encode.arrows())
    yield "}"


def _fills(line: Timeline) -> list[Fill]:
    fills = [fill for _, fill in sorted(FILLS.items())]
    return fills if line.recomputed_ns is None else [*fills, RECOMPUTED]


def _listed(name: str, rows: Iterable[list[Any]]) -> Iterator[str]:
    before = f',"{name}":['
    for row in rows:
        yield before + _json(row)
        before = ",\n"
    yield "]"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


class _Encoder:
    """Rows of integers: times as differences in a common unit, actions as one number each."""

    def __init__(self, line: Timeline) -> None:
        self.line, self.stages = line, line.program.num_stages
        times = [line.start_ns, line.end_ns]
        if line.kernels is not None:
            times += [line.kernels.start_ns, line.kernels.end_ns]
        if line.recomputed_ns is not None:
            times.append(line.recomputed_ns)
        held = [one for ran in (*line.held, *line.collectives) for one in ran]
        times += [array("q", [one.start_ns, one.end_ns]) for one in held]
        self.unit = max(1, gcd(line.makespan_ns, *(gcd(*column) for column in times)))

    def what(self, code: int) -> int:
        """A number for an action: kind + 16 * (stage + stages * microbatch)."""
        stage = code >> STAGE_SHIFT & STAGE_MASK
        return (code & KIND_MASK) + 16 * (stage + self.stages * (code >> MICROBATCH_SHIFT))

    def tiles(self, rank: int) -> list[int]:
        row: list[int] = []
        for step, start, end, code, mate, waited in picture.tiles(self.line, rank):
            other = 0 if mate == NO_MATE else self.what(mate) + 1
            wanted = self._wanted(rank, step) if waited > 0 and step != NOTHING else 0
            row += (waited // self.unit, (end - start) // self.unit, self.what(code), other, wanted)
        return row

    def _wanted(self, rank: int, step: int) -> int:
        """What a step waited for, plus 1; 0 for nothing."""
        text = metrics.waited_for(self.line, rank, step)
        if not text:
            return 0
        action = parse(text)
        assert not isinstance(action, Exchange)
        return self.what((action.forward if isinstance(action, Overlap) else action).code) + 1

    def kernels(self, rank: int, stream: int) -> list[int]:
        kernels = self.line.kernels
        assert kernels is not None
        row, free = [], 0
        for at in kernels.row(rank, stream):
            start, end = kernels.start_ns[at], kernels.end_ns[at]
            if start == end:
                continue
            number, code = kernels.parts.kernel[at], kernels.parts.code[at]
            row += [(start - free) // self.unit, (end - start) // self.unit]
            row += [number + len(Kernel) * kernels.parts.layer[at], self.what(code)]
            row.append(picture.kernel_kind(number, code))
            free = end
        return row

    def collectives(self, rank: int, stream: int) -> list[int]:
        """A row like `kernels`, whose names are those of the actions."""
        row, free = [], 0
        for one in self.line.collectives[rank] if stream else ():
            if one.end_ns > one.start_ns:
                row += [(one.start_ns - free) // self.unit]
                row += [(one.end_ns - one.start_ns) // self.unit, 0, self.what(one.code)]
                row.append(picture.collective_kind(one.code))
                free = one.end_ns
        return row

    def memory(self, rank: int) -> list[float]:
        """0, how long, how much: a row like the others, without gaps."""
        row: list[float] = []
        samples = list(metrics.activations(self.line, rank))
        ends = [ns for ns, _ in samples[1:]] + [self.line.makespan_ns]
        for (ns, held), end in zip(samples, ends, strict=True):
            row += (0, (end - ns) // self.unit, held)
        return row

    def arrows(self) -> Iterator[list[int]]:
        """By rank: tile, the rank that an arrow comes from, the tile there, 1 for an activation."""
        line, program = self.line, self.line.program
        place: dict[int, int] = {}  # of a step in its row: of its last tile
        first: dict[int, int] = {}  # of a step that recomputes: of the tile before
        for rank in range(program.num_ranks):
            for at, (step, *_) in enumerate(picture.tiles(line, rank)):
                if step in place:
                    first[step] = place[step]
                place[step] = at
        place.pop(NOTHING, None)
        rows: list[list[int]] = [[] for _ in range(program.num_ranks)]
        for move in line.transfers():
            source, target = place.get(move.source), place.get(move.target)
            target = first.get(move.target, target)
            if source is None or target is None:  # what takes no time has no tile
                continue
            rank = program.rank_of_step(move.target)
            rows[rank] += (target, program.rank_of_step(move.source), source, int(move.forward))
        yield from rows
