"""Curves and points in a plane -> SVG: plain shapes with their colours on them, as svg's.

Series are told apart by colour, by the shape of their points and by dashes, so
that they hold without colour too. Numbers are rounded to a tenth of a pixel, so
that the bytes are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10
from pathlib import Path

from tracegen.errors import CostError
from tracegen.files import write_text
from tracegen.ui.picture import THEMES, Theme, escape
from tracegen.ui.svg import FONT

WIDTH, HEIGHT = 780, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 46
LEGEND, LINE = 204, 18

# Okabe and Ito's colours, told apart by colour-blind eyes; yellow is too faint on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c2131")
SHAPES = ("circle", "square", "triangle")
DASHES = ("", "6 3", "2 2")
# As many series as colour, shape and dash tell apart.
MOST = len(COLOURS) * len(SHAPES)


@dataclass(frozen=True, slots=True)
class Series:
    """A named row of points.

    Attributes:
        line: whether they are joined.
    """

    name: str
    points: Sequence[tuple[float, float]]
    line: bool = True


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn.

    Attributes:
        title, x, y: what it shows, and what its axes are.
        series: in the order of the legend.
        steps: a line through these corners, as stairs: the best there is up to each x.
        percent: whether y is a share.
        from_zero: whether both axes begin at 0, or near the least that there is.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    steps: Sequence[tuple[float, float]] = ()
    percent: bool = False
    from_zero: bool = True


def write(plot: Plot, target: str | Path, theme: str = "paper") -> None:
    """Write the plot to a file, gzipped where its name ends in .gz, or to stdout for "-".

    Raises:
        CostError: for more series than can be told apart.
        FileError: if the target cannot be written.
    """
    if len(plot.series) > MOST:
        raise CostError(
            f"{target}: {len(plot.series)} curves cannot be told apart; sweep fewer schedules or "
            f"sizes, {MOST} curves at most"
        )
    write_text(target, _Drawing(plot, THEMES[theme]).chunks())


def ticks(most: float, at_most: int, least: float = 0.0) -> list[float]:
    """Round numbers from `least` up to `most`, in steps of 1, 2 or 5 times a power of ten.

    The first is `least` rounded down, so that an axis may begin there.
    """
    if most <= least:
        return [least]
    power = floor(log10((most - least) / at_most))
    step, count = next(
        (10.0**p * unit, last - first + 1)
        for p in range(power, power + 3)
        for unit in (1, 2, 5)
        for first, last in [_between(least, most, 10.0**p * unit)]
        if last - first <= at_most
    )
    first, _ = _between(least, most, step)
    return [float(f"{(first + at) * step:.12g}") for at in range(count)]


def _between(least: float, most: float, step: float) -> tuple[int, int]:
    """The steps from 0 to the last tick that is not above `least`, and not above `most`."""
    return floor(least / step + 1e-9), floor(most / step + 1e-9)


def _axis(
    values: Sequence[float], room: float, at_most: int, from_zero: bool
) -> tuple[list[float], float]:
    """The ticks of an axis, at the first of which it begins, and its end.

    One that need not begin at 0 still does where that takes less than a third of it.
    """
    least, most = min(values, default=0.0), max(values, default=0.0)
    if from_zero or least < (most - least) / 2:
        least, most = 0.0, most * room
    else:
        apart = (most - least) * (room - 1)
        least, most = least - apart, most + apart
    if most <= least:
        least, most = 0.0, most * room or 1.0
    return ticks(most, at_most, least), most


def _labelled(at: Sequence[float], percent: bool = False) -> Iterator[tuple[float, str]]:
    """Ticks with what stands at them, all to as many digits as their step needs."""
    step = at[1] - at[0] if len(at) > 1 else 1.0
    digits = max(0, -floor(log10(step * (100 if percent else 1)) + 1e-9))
    for value in at:
        yield value, f"{value:.{digits}{'%' if percent else 'f'}}"


def _num(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class _Drawing:
    def __init__(self, plot: Plot, theme: Theme) -> None:
        self.plot, self.theme = plot, theme
        points = [point for series in plot.series for point in series.points]
        self.ticks_x, self.most_x = _axis([x for x, _ in points], 1.03, 10, plot.from_zero)
        self.ticks_y, self.most_y = _axis([y for _, y in points], 1.06, 8, plot.from_zero)
        self.height = max(HEIGHT, TOP + LINE * len(plot.series) + BOTTOM)
        self.right = WIDTH - LEGEND - RIGHT
        self.floor = self.height - BOTTOM

    def x(self, value: float) -> float:
        least = self.ticks_x[0]
        return LEFT + (value - least) / (self.most_x - least) * (self.right - LEFT)

    def y(self, value: float) -> float:
        least = self.ticks_y[0]
        return self.floor - (value - least) / (self.most_y - least) * (self.floor - TOP)

    def chunks(self) -> Iterator[str]:
        plot, ink = self.plot, self.theme.ink
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{self.height}"'
            f' viewBox="0 0 {WIDTH} {self.height}" role="img" font-family="{FONT}"'
            f' font-size="12" fill="{ink}">\n<title>{escape(plot.title)}</title>\n'
            f'<rect width="{WIDTH}" height="{self.height}" fill="{self.theme.background}"/>\n'
            f'<text x="{LEFT}" y="22" font-size="13" font-weight="bold">{escape(plot.title)}'
            "</text>\n"
        )
        yield from self.axes()
        if plot.steps:
            yield self.stairs()
        for number, series in enumerate(plot.series):
            yield from self.series(number, series)
        yield "</svg>\n"

    def axes(self) -> Iterator[str]:
        faint, plot = self.theme.faint, self.plot
        yield f'<g font-size="11" fill="{faint}" stroke-width=".6">\n'
        for value, text in _labelled(self.ticks_y, plot.percent):
            y = _num(self.y(value))
            yield (
                f'<path d="M{LEFT} {y}H{self.right}" stroke="{faint}" stroke-opacity=".35"/>'
                f'<text x="{LEFT - 6}" y="{_num(self.y(value) + 4)}" text-anchor="end">{text}'
                "</text>\n"
            )
        for value, text in _labelled(self.ticks_x):
            x = _num(self.x(value))
            yield (
                f'<path d="M{x} {TOP}V{self.floor}" stroke="{faint}" stroke-opacity=".35"/>'
                f'<text x="{x}" y="{self.floor + 15}" text-anchor="middle">{text}</text>\n'
            )
        middle = _num((LEFT + self.right) / 2)
        down = _num((TOP + self.floor) / 2)
        yield (
            f'<text x="{middle}" y="{self.floor + 34}" text-anchor="middle">{escape(plot.x)}</text>'
            f'<text transform="translate(16 {down}) rotate(-90)" text-anchor="middle">'
            f"{escape(plot.y)}</text>\n</g>\n"
        )

    def stairs(self) -> str:
        (x, y), *others = self.plot.steps
        path = f"M{_num(self.x(x))} {_num(self.y(y))}"
        for x, y in others:
            path += f"H{_num(self.x(x))}V{_num(self.y(y))}"
        return (
            f'<path d="{path}H{self.right}" fill="none" stroke="{self.theme.ink}"'
            ' stroke-opacity=".55" stroke-width="1.2"/>\n'
        )

    def series(self, number: int, series: Series) -> Iterator[str]:
        """Its line, its points, and its entry in the legend."""
        colour = COLOURS[number % len(COLOURS)]
        turn = number // len(COLOURS)
        yield f'<g fill="{colour}" stroke="none"><title>{escape(series.name)}</title>\n'
        if series.line and len(series.points) > 1:
            path = "L".join(f"{_num(self.x(x))} {_num(self.y(y))}" for x, y in series.points)
            dash = f' stroke-dasharray="{DASHES[turn]}"' if DASHES[turn] else ""
            yield (
                f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.4"'
                f'{dash} stroke-linejoin="round"/>\n'
            )
        for x, y in series.points:
            yield _mark(SHAPES[turn], self.x(x), self.y(y))
        at = TOP + 8 + number * LINE
        yield _mark(SHAPES[turn], self.right + 22, at)
        yield (
            f'<text x="{self.right + 34}" y="{at + 4}" fill="{self.theme.ink}">'
            f"{escape(_short(series.name))}</text>\n</g>\n"
        )


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:28]}..."


def _mark(shape: str, x: float, y: float) -> str:
    if shape == "circle":
        return f'<circle cx="{_num(x)}" cy="{_num(y)}" r="2.8"/>\n'
    if shape == "square":
        return f'<rect x="{_num(x - 2.6)}" y="{_num(y - 2.6)}" width="5.2" height="5.2"/>\n'
    return f'<path d="M{_num(x)} {_num(y - 3.4)}l3.4 6h-6.8z"/>\n'
