"""The straight lines between two sets of points: a clock against another, as messages bound it.

A message that another clock's owner sent says that this clock is at least so much ahead, one
that it received that it is at most so much: points below and above the line `offset + rate * t`.
The lines that fit are a convex set, so its widest and its extreme members are found by halving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

# No clock that is disciplined by NTP or PTP runs faster or slower than this against another.
MAX_RATE = 1e-3
_HALVINGS = 80
# A slope must leave this times the room of a level line, and the points must bound it to less
# than MAX_RATE either way, or it is no more than chance.
_MUCH = 1.5

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """How a clock stands to another: what to add to its time t is `offset + rate * t`.

    Attributes:
        slack_ns: how far the line is from the nearest point on either side; negative if no
            line fits.
        spread_ns: how far any line that fits is from this one, over the time of the points.
    """

    offset: float
    rate: float
    slack_ns: float
    spread_ns: float


def between(below: Sequence[Point], above: Sequence[Point], *, one_clock: bool = False) -> Line:
    """The line in the middle of those that fit; a level one where no other has much more room.

    Args:
        below: (time, bound) of points that are not above it; not empty.
        above: likewise of those that are not below it.
        one_clock: whether a level line is meant, if any fits.
    """
    times = [t for t, _ in (*below, *above)]
    first, last = min(times), max(times)
    lower, upper = _hull(below, 1), _hull(above, -1)

    def low(rate: float) -> float:
        return max(bound - rate * t for t, bound in lower)

    def high(rate: float) -> float:
        return min(bound - rate * t for t, bound in upper)

    def room(rate: float) -> float:
        return high(rate) - low(rate)

    level = room(0.0)
    best = _peak(room, -MAX_RATE, MAX_RATE)
    slowest, fastest = _edge(room, -MAX_RATE, best), _edge(room, MAX_RATE, best)
    sure = slowest > -MAX_RATE and fastest < MAX_RATE and room(best) > _MUCH * level
    rate = best if level < 0 or (sure and not one_clock) else 0.0
    offset, slack = (high(rate) + low(rate)) / 2, room(rate) / 2
    if slack < 0:
        return Line(offset, rate, slack, 0.0)
    spread = slack
    for t in (first, last):
        here = offset + rate * t
        top = _peak(lambda r, t=t: high(r) + r * t, slowest, fastest)  # type: ignore[misc]
        bottom = _peak(lambda r, t=t: -low(r) - r * t, slowest, fastest)  # type: ignore[misc]
        spread = max(spread, high(top) + top * t - here, here - low(bottom) - bottom * t)
    return Line(offset, rate, slack, spread)


def _hull(points: Sequence[Point], side: int) -> list[Point]:
    """The points that a line can touch: the upper convex hull for side 1, the lower for -1."""
    hull: list[Point] = []
    for t, bound in sorted(points, key=lambda p: (p[0], -side * p[1])):
        if hull and hull[-1][0] == t:
            continue
        while len(hull) > 1 and side * _turn(hull[-2], hull[-1], (t, bound)) >= 0:
            hull.pop()
        hull.append((t, bound))
    return hull


def _turn(a: Point, b: Point, c: Point) -> float:
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def _peak(function: Callable[[float], float], a: float, b: float) -> float:
    """Where a concave function is highest."""
    for _ in range(_HALVINGS):
        third = (b - a) / 3
        if function(a + third) < function(b - third):
            a += third
        else:
            b -= third
    return (a + b) / 2


def _edge(room: Callable[[float], float], outside: float, inside: float) -> float:
    """The rate nearest to `outside` at which there is room still."""
    if room(outside) >= 0:
        return outside
    for _ in range(_HALVINGS):
        middle = (outside + inside) / 2
        if room(middle) >= 0:
            inside = middle
        else:
            outside = middle
    return inside
