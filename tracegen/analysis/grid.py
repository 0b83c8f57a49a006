"""Grids of sizes and costs: `m=4..64 p=4,8 f/b=0.5,1` as points, in the order written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isclose
from typing import Any, TypeVar

from tracegen.analysis.measure import Size
from tracegen.analysis.model import Model
from tracegen.analysis.normalise import OneModel, PerStage, Source
from tracegen.costs import Costs
from tracegen.errors import CostError
from tracegen.times import DEFAULTS, times_at

Data = TypeVar("Data", Size, Costs, Model)

SIZES = ("p", "m", "v")
TIMES = ("f", "b", "i", "w", "fb", "r")
# What else may be swept -> the cost.
COSTS = {
    "alpha": "alpha_us",
    "bandwidth": "bandwidth_GBps",
    "bytes": "boundary_bytes",
    "w-share": "w_share",
}
MODEL = {"microbatch-size": "microbatch_size", "seq": "seq", "data": "data", "zero": "zero"}
MOST = 1_000_000

_RANGE = re.compile(r"(\d{1,15})\.\.(\d{1,15})(?:([*+])(\d{1,15}))?")


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that is swept, and its values."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """What all points have in common.

    Attributes:
        given: costs of a 1F1B stage, or the model they follow from.
        ranks: of how many such stages the model is; None for each point's own p.
        per_stage: whether costs are of any schedule's stage instead.
    """

    given: Costs | Model
    ranks: int | None = None
    per_stage: bool = False

    def source(self, p: int, changes: Sequence[tuple[str, float]] = ()) -> Source:
        """Where the costs of a point come from.

        Raises:
            CostError: for a change that does not go with these costs.
        """
        if isinstance(self.given, Model):
            return _changed_model(self.given, changes)
        given = _changed(self.given, changes)
        return PerStage(given) if self.per_stage else OneModel(given, self.ranks or p)


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a grid.

    Attributes:
        changes: what its costs differ in, by the axes' names.
    """

    size: Size
    changes: tuple[tuple[str, float], ...]


def axis(text: str) -> Axis:
    """The axis of a text such as m=4..64, m=4..64*2, p=4,8, f/b=0.5 or alpha=0,10.

    Raises:
        CostError: naming what is wrong with it.
    """
    name, equals, values = text.partition("=")
    parts = name.split("/")
    known = (*SIZES, *TIMES, *COSTS, *MODEL)
    if not equals or not values:
        raise CostError(f"sweep {text!r}: write NAME=VALUES, such as m=4..64 or p=4,8")
    ratio = len(parts) == 2 and set(parts) <= {*TIMES} and parts[0] != parts[1]
    if name not in known and not ratio:
        raise CostError(
            f"sweep {text!r}: nothing is called {name!r}; there are {', '.join(known)}, and "
            "ratios such as f/b"
        )
    found = [value for part in values.split(",") for value in _values(text, part)]
    least = 0 if name == "zero" else 1
    whole = all(value.is_integer() and value >= least for value in found)
    if name in (*SIZES, *MODEL) and not whole:
        raise CostError(f"sweep {text!r}: {name} is a whole number, {least} or more")
    return Axis(name, tuple(dict.fromkeys(found)))


def _values(text: str, part: str) -> list[float]:
    if match := _RANGE.fullmatch(part):
        first, last = int(match[1]), int(match[2])
        step = int(match[4] or 1)
        if match[3] == "*":
            if first < 1:
                raise CostError(f"sweep {text!r}: {part} never ends; start at 1 or more")
            if step < 2:
                raise CostError(f"sweep {text!r}: {part} never ends; multiply by 2 or more")
            values = []
            while first <= last:
                values.append(float(first))
                first *= step
        else:
            if step < 1:
                raise CostError(f"sweep {text!r}: {part} has no end; step by 1 or more")
            if (count := (last - first) // step + 1) > MOST:
                raise CostError(
                    f"sweep {text!r}: {count} values, and a sweep has {MOST} points at most; "
                    f"take larger steps, such as {max(first, 1)}..{last}*2"
                )
            values = [float(value) for value in range(first, last + 1, step)]
        if not values:
            raise CostError(f"sweep {text!r}: {part} is empty; write the smaller number first")
        return values
    try:
        return [float(part)]
    except ValueError:
        raise CostError(
            f"sweep {text!r}: {part!r} is no number; write 4,8 or 4..64 or 4..64*2 or 4..64+4"
        ) from None


def points(schedules: Sequence[str], axes: Sequence[Axis], base: Size) -> list[Point]:
    """The product: schedules, then the axes in their order, the last running fastest.

    A schedule whose stages per rank are not the user's choice comes once, not once for each v.

    Args:
        schedules: their names.
        axes: what is swept.
        base: the size where an axis does not say; its schedule does not matter.

    Raises:
        CostError: for more points than are sensible.
    """
    names = [one.name for one in axes]
    total = len(schedules)
    for one in axes:
        total *= len(one.values)
    if total > MOST:
        raise CostError(f"sweep: {total} points; use {MOST} or fewer")
    found: dict[Point, None] = {}
    for schedule in schedules:
        for values in product(*(one.values for one in axes)):
            found.setdefault(_point(schedule, dict(zip(names, values, strict=True)), base))
    return list(found)


def check(axes: Sequence[Axis], base: Base, p: int) -> None:
    """Refuse a sweep of costs none of whose values go together.

    Raises:
        CostError: of the first of them.
    """
    costs = [one for one in axes if one.name not in SIZES]
    names, refused = [one.name for one in costs], None
    for values in product(*(one.values for one in costs)):
        try:
            base.source(p, tuple(zip(names, values, strict=True)))
        except CostError as error:
            refused = refused or error
        else:
            return
    if refused is not None:
        raise refused


def _point(schedule: str, values: dict[str, float], base: Size) -> Point:
    size = replace(base, schedule=schedule)
    for name in SIZES:
        if name in values:
            size = _with(size, name, int(values[name]))
    if not _v_is_free(schedule):
        size = replace(size, v=None)
    return Point(size, tuple((k, v) for k, v in values.items() if k not in SIZES))


def _v_is_free(schedule: str) -> bool:
    from tracegen import registry

    return not schedule.endswith(".csv") and registry.find(schedule).stages_per_rank is None


def _changed_model(model: Model, changes: Sequence[tuple[str, float]]) -> Model:
    """The model with each change made; what devices shard after how many there are."""
    for name, value in sorted(changes, key=lambda change: change[0] == "zero"):
        if name in MODEL:
            model = _with(model, MODEL[name], int(value))
        elif name in ("alpha", "bandwidth"):
            model = _with(model, COSTS[name], value)
        else:
            raise CostError(f"sweep: {name} follows from the model; sweep {', '.join(MODEL)}")
    return model


def _changed(given: Costs, changes: Sequence[tuple[str, float]]) -> Costs:
    """The costs with each change made: a time, a ratio of two, or another cost.

    Raises:
        CostError: if there is no such cost, or the changes contradict each other.
    """
    times: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for name, value in changes:
        if name in MODEL:
            raise CostError(f"sweep: {name} is of a model; give --model-layers and the rest")
        if name in COSTS:
            given = _with(given, COSTS[name], value)
        elif given.moe is not None:
            raise CostError(
                f"sweep: {name} beside kernel costs; those of the kernels cannot be swept"
            )
        else:
            (ratios if "/" in name else times)[name] = value
    set_us = {f"{name}_us": us for name, us in times.items()}
    for _ in ratios:  # one may be to what another sets
        for name, ratio in ratios.items():
            what, _, of = name.partition("/")
            others = {key: us for key, us in set_us.items() if key != f"{what}_us"}
            set_us[f"{what}_us"] = _by_ratio(given.override(**others), what, of, ratio)
    given = given.override(**set_us)
    if ratios:
        _check(given, times, ratios)
    return given


def _by_ratio(others: Costs, what: str, of: str, ratio: float) -> float:
    """The us of a time that is so many times another; a known b is what i and w share."""
    if {what, of} == {"i", "w"} and others.b_us is not None and getattr(others, f"{of}_us") is None:
        return _in_force(others, "b") * ratio / (1 + ratio)
    return ratio * _in_force(others, of)


def _check(given: Costs, times: dict[str, float], ratios: dict[str, float]) -> None:
    """Refuse times and ratios that do not all hold: setting one has undone another."""
    for name, value in (times | ratios).items():
        what, _, of = name.partition("/")
        wanted = value * _in_force(given, of) if of else value
        if not isclose(_in_force(given, what), wanted, rel_tol=1e-9, abs_tol=1e-9):
            asked = ", ".join(f"{n}={us:g}" for n, us in (times | ratios).items())
            raise CostError(f"sweep: {asked} contradict each other; leave out {name}, or another")


def _with(data: Data, field: str, value: Any) -> Data:
    return replace(data, **{field: value})


def _in_force(given: Costs, name: str) -> float:
    """The us of f, b, i, w, fb or r, for all stages alike.

    Raises:
        CostError: if stages differ.
    """
    values: dict[str, Any] = {f"{n}_us": getattr(given, f"{n}_us") for n in TIMES}
    if given.stage or any(isinstance(value, Sequence) for value in values.values()):
        raise CostError(f"sweep: a ratio to {name}, which differs between stages; sweep others")
    times = times_at(values, DEFAULTS)
    f, i, w, r = (times[n] or 0.0 for n in ("f_us", "i_us", "w_us", "r_us"))
    fb = f + i + w if times["fb_us"] is None else times["fb_us"]
    return {"f": f, "b": i + w, "i": i, "w": w, "fb": fb, "r": r}[name]


def axes(texts: Sequence[str]) -> Iterator[Axis]:
    """The axes of texts, each of which may hold several with blanks between.

    Raises:
        CostError: naming what is wrong with one, or two that set the same.
    """
    said: dict[str, str] = {}
    for text in (one for several in texts for one in several.split()):
        found = axis(text)
        what = found.name.partition("/")[0]
        if what in said:
            raise CostError(f"sweep {said[what]!r} and {text!r}: both set {what}; give one of them")
        said[what] = text
        yield found
