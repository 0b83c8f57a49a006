"""Rows of a sweep -> plots: the bubble against m, and memory against time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracegen.analysis.sweep import Row
from tracegen.timeline import as_number
from tracegen.ui.plot import Plot, Series

GIB = 2**30


def bubble(rows: Sequence[Row], axes: Sequence[str]) -> Plot:
    """The bubble overhead against m, a curve for whatever else was swept; equal curves are one.

    Args:
        rows: of the sweep.
        axes: the names of what was swept.
    """
    named: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        point = (float(row["m"]), row["bubble_overhead"])
        named.setdefault(_name(row, axes, rows), []).append(point)
    alike: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for name, points in named.items():
        alike.setdefault(tuple(sorted(points)), []).append(name)
    series = [Series(" = ".join(names), points) for points, names in alike.items()]
    return Plot("Bubble overhead against m", "microbatches", "idle / busy", series, percent=True)


def frontier(rows: Sequence[Row], axes: Sequence[str], in_bytes: bool) -> Plot:
    """Time against memory, and the stairs of those that nothing beats in both.

    Where m is swept it is the time of a microbatch: the makespan divided by m.

    Args:
        rows: of the sweep.
        axes: the names of what was swept.
        in_bytes: whether memory is in bytes.
    """
    each = "m" in axes
    named: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        time = row["makespan_us"] / 1000 / (row["m"] if each else 1)
        point = (memory(row, in_bytes), time)
        named.setdefault(_name(row, axes, rows, without=("m",)), []).append(point)
    series = [Series(name, points, line=False) for name, points in named.items()]
    every = [point for points in named.values() for point in points]
    return Plot(
        "Time against memory",
        "peak memory of a rank, GiB" if in_bytes else "peak activations of a rank, 1F1B stages",
        "makespan / m, ms" if each else "makespan, ms",
        series,
        steps=unbeaten(every),
        from_zero=False,
    )


def memory(row: Row, in_bytes: bool) -> float:
    """The most that a rank holds, freed at weight: activations, or all of it in GiB."""
    if not in_bytes:
        return float(row["peak_at_weight"])
    whole = row["peak_at_weight"] if row["held_at_weight"] is None else row["held_at_weight"]
    return float(whole) / GIB


def unbeaten(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points than which none is both no larger in x and smaller in y, by x."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if not found or y < found[-1][1]:
            found.append((x, y))
    return found


def _name(row: Row, axes: Sequence[str], rows: Sequence[Row], without: Sequence[str] = ()) -> str:
    """The schedule, and what else tells this row's curve from the others."""
    shown = [str(row["schedule"])]
    for axis in axes:
        if axis == "m" or axis in without or len({r[axis] for r in rows}) == 1:
            continue
        if axis == "v" and len({r["v"] for r in rows if r["schedule"] == row["schedule"]}) == 1:
            continue
        shown.append(f"{axis}={as_number(float(row[axis])):g}")
    return " ".join(shown)
