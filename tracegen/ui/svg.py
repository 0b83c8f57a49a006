"""Timeline -> SVG: the tiling as one self-contained picture, for papers and pages.

Ranks run down, time across, each tile has its microbatch; a pair is its forward
above its backward, since both run over all of its time. The foot of a tile tells
the rank's stages apart. Tiles too narrow to be seen one by one are merged.

The picture is made of plain shapes with their colours on them: no style sheet,
no script, no identifiers, nothing from elsewhere. All numbers are integers in
hundredths of a pixel until they are printed, so that the bytes are the same
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import hypot
from pathlib import Path

from tracegen import metrics
from tracegen.files import write_text
from tracegen.ir import MICROBATCH_SHIFT, NO_MATE, STAGE_MASK, STAGE_SHIFT
from tracegen.timeline import Timeline
from tracegen.ui import legend, picture
from tracegen.ui.merged import Merged, num
from tracegen.ui.picture import AGAIN, EDGE, THEMES, Theme, escape, time_text

PX = 100  # hundredths of a pixel
FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
# No common sans-serif has digits wider than this, in parts of the font size.
DIGIT = 0.64
LETTER = 0.6
SMALLEST_FONT = 5.5
HEAD = 4.5  # of an arrow

MARGIN, HEADING, AXIS, LEGEND_LINE, CURVE, KERNELS = 10, 24, 24, 20, 16, 9
# How wide the commonest tile is, where the picture's width is free, and where it has kernels.
UNIT, UNIT_OF_KERNELS = 22, 66
WIDTHS = (640, 1800)  # within these

# A tile is drawn by itself from this width on, as long as there are not more than so many.
NARROW = 3 * PX
TILES, NOTEBOOK_TILES = 40_000, 4_000


@dataclass(frozen=True, slots=True)
class Look:
    """What the picture shows.

    Attributes:
        theme: one of picture.THEMES.
        legend: whether the heading and the legend are there.
        arrows: whether every hand-over between ranks is an arrow.
        memory: whether each rank's activations are a curve under its tiles.
        width: in pixels; None for what the tiles need to be read.
        tiles: about how many tiles to draw one by one at most.
    """

    theme: str = "paper"
    legend: bool = True
    arrows: bool = False
    memory: bool = False
    width: int | None = None
    tiles: int = TILES


def write(line: Timeline, target: str | Path, look: Look = Look()) -> None:
    """Write the picture to a file, gzipped where its name ends in .gz, or to stdout for "-".

    Raises:
        FileError: if the target cannot be written.
    """
    write_text(target, chunks(line, look))


def html(line: Timeline) -> str:
    """The picture inside a page, as a notebook shows it: wide ones scroll, long ones merge."""
    drawn = "".join(chunks(line, Look(tiles=NOTEBOOK_TILES)))
    return f'<div style="overflow-x:auto">{drawn}</div>'


def chunks(line: Timeline, look: Look = Look()) -> Iterator[str]:
    """The picture as text, in pieces: a rank's tiles one by one."""
    return _Drawing(line, look).chunks()


class _Drawing:
    """One picture: where everything goes, and the shapes."""

    def __init__(self, line: Timeline, look: Look) -> None:
        self.line, self.look = line, look
        self.theme: Theme = THEMES[look.theme]
        self.whole = max(1, line.makespan_ns)
        self.index = picture.stage_index(line)
        p = line.program.num_ranks
        self.tall = 30 if p <= 64 else 14 if p <= 256 else 6
        self.label = max(11, min(12, self.tall - 1)) if self.tall > 10 else 0
        self.kernels = 2 * KERNELS + 2 if line.kernels is not None else 0
        if line.collectives:
            self.kernels = KERNELS + 2
        self.lane = self.tall + self.kernels + (CURVE + 2 if look.memory else 0)
        self.pitch = self.lane + (6 if p <= 64 else 2)
        self.left = MARGIN + round((len(str(p - 1)) + 5) * 12 * LETTER)
        self.right = MARGIN + (50 if look.memory else 6)
        self.width = look.width or min(max(self._wanted(), WIDTHS[0]), WIDTHS[1])
        self.span = max(50, self.width - self.left - self.right) * PX
        self.width = self.left + self.right + self.span // PX
        self.top = HEADING + 6 if look.legend else 8
        self.floor = self.top + p * self.pitch
        self.narrow = max(NARROW, p * self.span // look.tiles)
        entries = legend.items(line, self.theme, look.arrows, look.memory) if look.legend else ()
        self.legend = list(legend.placed(list(entries), self.span // PX))
        lines = 1 + max((row for _, row, *_ in self.legend), default=-1)
        self.height = self.floor + AXIS + lines * LEGEND_LINE + 4

    def _wanted(self) -> int:
        """The width that gives the commonest tile enough pixels."""
        counts: dict[int, int] = {}
        for start, end in zip(self.line.start_ns, self.line.end_ns, strict=True):
            if end > start:
                counts[end - start] = counts.get(end - start, 0) + 1
        wide = UNIT_OF_KERNELS if self.kernels else UNIT
        unit = max(counts, key=lambda ns: (counts[ns], -ns), default=self.whole)
        return self.left + self.right + min(10**6, wide * self.whole // unit)

    def x(self, ns: int) -> int:
        """Where a time is, in hundredths of a pixel."""
        return self.left * PX + (ns * self.span + self.whole // 2) // self.whole

    def chunks(self) -> Iterator[str]:
        program, theme = self.line.program, self.theme
        name = escape(f"{program.name}: {picture.sizes(self.line)}")
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}"'
            f' viewBox="0 0 {self.width} {self.height}" role="img" font-family="{FONT}"'
            f' font-size="12" fill="{theme.ink}">\n<title>{name}</title>\n'
            f'<rect width="{self.width}" height="{self.height}" fill="{theme.background}"/>\n'
        )
        if self.look.legend:
            yield self._heading()
        yield from self._axis()
        for rank in range(program.num_ranks):
            yield f'<g transform="translate(0 {self.top + rank * self.pitch})">\n'
            yield from self._rank(rank)
            yield "</g>\n"
        if self.look.arrows:
            yield from self._arrows()
        yield from self._legend_shapes()
        yield "</svg>\n"

    def _heading(self) -> str:
        name, sizes = self.line.program.name, picture.sizes(self.line)
        room = int((self.width - 2 * MARGIN) / (13 * LETTER)) - len(sizes) - 2
        if len(name) > room:
            name = name[: max(8, room - 3)] + "..."
        return (
            f'<text x="{MARGIN}" y="18" font-size="13"><tspan font-weight="bold">{escape(name)}'
            f'</tspan><tspan dx="12">{escape(sizes)}</tspan></text>\n'
        )

    def _axis(self) -> Iterator[str]:
        """Ticks at round times, under the ranks, with lines up to them."""
        faint = self.theme.faint
        yield f'<g font-size="11" text-anchor="middle" fill="{faint}">\n'
        for ns in picture.ticks(self.line.makespan_ns, max(2, self.span // PX // 90)):
            x = num(self.x(ns))
            yield (
                f'<path d="M{x} {self.top - 2}V{self.floor + 2}" stroke="{faint}"'
                f' stroke-opacity=".35" stroke-width=".6"/>'
                f'<text x="{x}" y="{self.floor + 14}">'
                f"{time_text(ns, self.whole) if ns else '0'}</text>\n"
            )
        yield "</g>\n"

    def _rank(self, rank: int) -> Iterator[str]:
        width = num(self.span)
        if self.label:
            yield (
                f'<text x="{self.left - 6}" y="{self.tall // 2 + 4}" font-size="{self.label}"'
                f' text-anchor="end">rank {rank}</text>\n'
            )
        box = f'x="{self.left}" width="{width}" height="{self.tall}"'
        yield f'<rect {box} fill="{self.theme.lane}"/>\n'
        merged = Merged(self.left * PX, self.span, self.whole, self.tall, self.narrow // 3)
        singly: list[str] = []
        for tile in picture.tiles(self.line, rank):
            _, start, end, code, mate, _ = tile
            x0, x1 = self.x(start), self.x(end)
            if x1 - x0 < self.narrow:
                merged.add(start, end, x0, x1, code, mate)
                continue
            title = escape(picture.describe(self.line, rank, tile))
            singly.append(f"<g><title>{title}</title>{self._tile(x0, x1, code, mate)}</g>\n")
        yield from merged.shapes(f"rank {rank}", "tiles too narrow to name")
        yield from singly
        if self.kernels:
            yield from self._kernels(rank)
        if self.look.memory:
            yield self._memory(rank)

    def _tile(self, x0: int, x1: int, code: int, mate: int) -> str:
        if mate == NO_MATE:
            return self._cell(x0, x1, 0, self.tall, code)
        half = self.tall // 2
        return (
            self._cell(x0, x1, 0, half, code)
            + self._cell(x0, x1, half, half, mate)
            + f'<rect x="{num(x0)}" width="{num(x1 - x0)}" height="{self.tall}" fill="none"'
            f' stroke="{EDGE}" stroke-width="1.6"/>'
        )

    def _cell(self, x0: int, x1: int, y: int, tall: int, code: int) -> str:
        kind = picture.fill_of(code)
        fill = picture.look(kind)
        box = f'x="{num(x0)}" y="{y}" width="{num(x1 - x0)}"'
        shape = (
            f'<rect {box} height="{tall}" fill="{fill.colour}" stroke="{EDGE}" stroke-width=".6"/>'
        )
        if kind == AGAIN:
            shape += legend.hollow(x0, x1 - x0, tall)
        foot = self._foot(code, tall)
        if foot:
            box = f'x="{num(x0)}" y="{num(y * PX + tall * PX - foot)}" width="{num(x1 - x0)}"'
            shape += f'<rect {box} height="{num(foot)}" fill="#000" fill-opacity=".5"/>'
        number = str(code >> MICROBATCH_SHIFT) if fill.letter else ""
        size = min(12.0, tall * 0.84, ((x1 - x0) / PX - 1.5) / (DIGIT * max(1, len(number))))
        size = int(2 * size) / 2
        if size < SMALLEST_FONT or not number:
            return shape
        middle = y * PX + (tall * PX - foot) // 2 + int(size * 36)
        return shape + (
            f'<text x="{num((x0 + x1) // 2)}" y="{num(middle)}" font-size="{size:g}"'
            f' text-anchor="middle" fill="{fill.ink}">{number}</text>'
        )

    def _foot(self, code: int, tall: int) -> int:
        """How high the foot is: none on the rank's first stage, highest on its last."""
        index = self.index[code >> STAGE_SHIFT & STAGE_MASK]
        last = max(2, self.line.program.stages_per_rank - 1)
        return 30 * tall * index // last

    def _kernels(self, rank: int) -> Iterator[str]:
        """The two streams of a rank with MoE costs: compute above communication; or that alone."""
        kernels = self.line.kernels
        if kernels is None:
            yield from self._collectives(rank)
            return
        for stream, name in enumerate(("compute", "comm")):
            row = Merged(self.left * PX, self.span, self.whole, KERNELS - 1, PX)
            for at in kernels.row(rank, stream):
                start, end = kernels.start_ns[at], kernels.end_ns[at]
                kind = picture.kernel_kind(kernels.parts.kernel[at], kernels.parts.code[at])
                row.add(start, end, self.x(start), self.x(end), kind, NO_MATE)
            y = self.tall + 2 + stream * KERNELS
            yield (
                f'<g transform="translate(0 {y})"><text x="{self.left - 6}" y="6.5" font-size="7"'
                f' text-anchor="end" fill="{self.theme.faint}">{name}</text>\n'
            )
            edge = f' stroke="{self.theme.lane}" stroke-width=".5"'
            yield from row.shapes(f"rank {rank}, {name} stream", "kernels", edge)
            yield "</g>\n"

    def _collectives(self, rank: int) -> Iterator[str]:
        y = self.tall + 2
        yield (
            f'<text x="{self.left - 6}" y="{y + 6.5}" font-size="7" text-anchor="end"'
            f' fill="{self.theme.faint}">comm</text>\n'
        )
        for one in self.line.collectives[rank]:
            x0, x1 = self.x(one.start_ns), self.x(one.end_ns)
            if one.end_ns > one.start_ns:
                span = f"from {time_text(one.start_ns)} for {time_text(one.end_ns - one.start_ns)}"
                fill = picture.look(picture.collective_kind(one.code))
                yield (
                    f'<rect x="{num(x0)}" y="{y}" width="{num(max(PX // 2, x1 - x0))}"'
                    f' height="{KERNELS - 1}" fill="{fill.colour}"><title>{one}, rank {rank},'
                    f" communication stream: {span}</title></rect>\n"
                )

    def _memory(self, rank: int) -> str:
        """The activations that a rank holds, as steps over time; all ranks on one scale."""
        floor = (self.tall + self.kernels + CURVE + 1) * PX
        most = max(self.line.peak_activations["freed_at_input"], default=0) or 1
        path, peak = [f"M{self.left} {num(floor)}"], 0.0
        for x, held in self._by_pixel(rank):
            peak = max(peak, held)
            path.append(f"H{num(x)}V{num(floor - round(held * CURVE * PX / most))}")
        end, theme = self.left * PX + self.span, self.theme
        return (
            f'<path d="{"".join(path)}H{num(end)}V{num(floor)}z" fill="{theme.curve}"'
            f' fill-opacity=".45" stroke="{theme.curve}" stroke-width=".8"><title>rank {rank}: '
            f"activations held, peak {peak:g}</title></path>"
            f'<text x="{num(end + 4 * PX)}" y="{num(floor - 3 * PX)}" font-size="10"'
            f' fill="{theme.faint}">peak {peak:g}</text>\n'
        )

    def _by_pixel(self, rank: int) -> Iterator[tuple[int, float]]:
        """Where the curve goes to: the changes, or a pixel's highest and last where it has many."""
        pixel, first, high, last = -1, 0, 0.0, 0.0
        for ns, held in metrics.activations(self.line, rank):
            x = self.x(ns)
            if x // PX != pixel:
                if last != high:
                    yield min(x, (pixel + 1) * PX), last
                pixel, first, high = x // PX, x, held
                yield first, high
            elif held > high:
                high = held
                yield first, high
            last = held
        if last != high:
            yield (pixel + 1) * PX, last

    def _arrows(self) -> Iterator[str]:
        """From the end of what made a result to the start of what waited for it."""
        line, base = self.line, self.top + self.tall // 2
        rows = [base + rank * self.pitch for rank in range(line.program.num_ranks)]
        rank_of = line.program.rank_of_step
        for forward, name, dash in (
            (True, "activation", ""),
            (False, "gradient", ' stroke-dasharray="3 2"'),
        ):
            yield (
                f'<path fill="none" stroke="{self.theme.ink}" stroke-width=".9"'
                f' stroke-opacity=".75"{dash} d="'
            )
            for move in line.transfers():
                a, b = move.source, move.target
                if move.forward != forward or not (self._is_wide(a) and self._is_wide(b)):
                    continue
                ends = (self.x(line.end_ns[a]), rows[rank_of(a)])
                yield arrow(*ends, self.x(line.start_ns[b]), rows[rank_of(b)])
            yield f'"><title>{name} from rank to rank</title></path>\n'

    def _is_wide(self, step: int) -> bool:
        return self.x(self.line.end_ns[step]) - self.x(self.line.start_ns[step]) >= self.narrow

    def _legend_shapes(self) -> Iterator[str]:
        for x, row, shapes, words in self.legend:
            y = self.floor + AXIS + row * LEGEND_LINE
            yield (
                f'<g transform="translate({self.left + x} {y})">{shapes}<text'
                f' x="{legend.SIZE + legend.GAP}" y="11" font-size="{legend.FONT_SIZE}">'
                f"{words}</text></g>\n"
            )


def arrow(x0: int, y0: int, x1: int, y1: int) -> str:
    """A path from one point to the other, with its head; x in hundredths of a pixel."""
    dx, dy = (x1 - x0) / PX, y1 - y0
    length = hypot(dx, dy) or 1.0
    ux, uy = dx / length, dy / length
    wings = [
        (x1 - round(PX * (HEAD * ux + side * uy)), y1 * PX - round(PX * (HEAD * uy - side * ux)))
        for side in (HEAD / 2, -HEAD / 2)
    ]
    (ax, ay), (bx, by) = wings
    tip = f"{num(x1)} {y1}"
    return f"M{num(x0)} {y0}L{tip}M{num(ax)} {num(ay)}L{tip}L{num(bx)} {num(by)}"
