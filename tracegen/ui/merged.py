"""Tiles too narrow to be drawn one by one: a rank's, as one shape a kind."""

from __future__ import annotations

from collections.abc import Iterator

from tracegen.ir import NO_MATE
from tracegen.ui.picture import AGAIN, FILLS, fill_of, look

# A column's share of time is told in so many steps of its height, so that neighbours
# with about the same share become one rectangle.
STEPS = 12
KINDS = (*FILLS, AGAIN)
PX = 100


def num(hundredths: int) -> str:
    """Hundredths of a pixel as SVG writes numbers: 12.5."""
    whole, rest = divmod(abs(hundredths), 100)
    sign = "-" if hundredths < 0 else ""
    if not rest:
        return f"{sign}{whole}"
    return f"{sign}{whole or ''}.{rest:02d}".rstrip("0")


class Merged:
    """Collects the narrow tiles of one rank, in the order of time.

    One as wide as a column keeps its place. Of those narrower each column is
    filled from the top as far as its time was, the kinds above each other: what
    stays empty below was idle.
    """

    def __init__(self, left: int, span: int, whole_ns: int, tall: int, column: int) -> None:
        """The row is `span` wide from `left` on, in hundredths of a pixel, for `whole_ns`."""
        self.left, self.span, self.whole, self.tall = left, span, whole_ns, tall
        self.column = column
        self.boxes: dict[int, list[str]] = {kind: [] for kind in KINDS}
        self.count = dict.fromkeys(KINDS, 0)
        self.shares: dict[int, dict[int, int]] = {}

    def add(self, start: int, end: int, x0: int, x1: int, code: int, mate: int) -> None:
        """A tile from start to end, in ns, and in hundredths of a pixel."""
        halves = [fill_of(code)] if mate == NO_MATE else [fill_of(code), fill_of(mate)]
        tall = self.tall // len(halves)
        for at, kind in enumerate(halves):
            self.count[kind] += 1
            if x1 - x0 >= self.column:
                self.boxes[kind].append(_box(x0, at * tall * PX, x1 - x0, tall * PX))
        if x1 - x0 < self.column:
            for column, ns in self._columns(start, end):
                share = self.shares.setdefault(column, {})
                for kind in halves:
                    share[kind] = share.get(kind, 0) + ns * STEPS // len(halves)

    def _columns(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The columns that a time lies in, with the ns in each."""
        size = self.column * self.whole
        while start < end:
            column = start * self.span // size
            until = min(end, -(-(column + 1) * size // self.span))
            yield column, until - start
            start = until

    def shapes(self, where: str, what: str, style: str = "") -> Iterator[str]:
        """A path a kind, titled `where, kind: number what`; style is more of its attributes."""
        self._stack()
        for kind, boxes in self.boxes.items():
            if not boxes:
                continue
            fill = look(kind)
            yield (
                f'<path fill="{fill.colour}"{style} d="{"".join(boxes)}">'
                f"<title>{where}, {fill.name}: {self.count[kind]} {what}</title></path>\n"
            )

    def _stack(self) -> None:
        """Columns to boxes; neighbours that look the same become one."""
        first, last = 0, -1
        run: tuple[int, ...] = ()
        for column, share in self.shares.items():
            levels = self._levels(share)
            if levels != run or column != last + 1:
                self._stacked(first, last + 1, run)
                first, run = column, levels
            last = column
        self._stacked(first, last + 1, run)

    def _levels(self, share: dict[int, int]) -> tuple[int, ...]:
        """How far down each kind reaches, in STEPS of the row's height."""
        size, levels, total = self.column * self.whole, [], 0
        for kind in KINDS:
            total += share.get(kind, 0)
            levels.append(min(STEPS, (total * self.span + size // 2) // size))
        if not levels[-1]:  # too little to see: show that there was something
            at = KINDS.index(max(share, key=lambda kind: share[kind]))
            levels[at:] = [1] * (len(levels) - at)
        return tuple(levels)

    def _stacked(self, first: int, stop: int, levels: tuple[int, ...]) -> None:
        x, above = first * self.column, 0
        wide = min(stop * self.column, self.span) - x
        for kind, level in zip(KINDS, levels, strict=False):
            if level > above and wide > 0:
                y, tall = above * self.tall * PX // STEPS, level * self.tall * PX // STEPS
                self.boxes[kind].append(_box(self.left + x, y, wide, tall - y))
            above = level


def _box(x: int, y: int, wide: int, tall: int) -> str:
    return f"M{num(x)} {num(y)}h{num(wide)}v{num(tall)}h{num(-wide)}z"
