"""A difference -> text, JSON, and the annotations of a pull request."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tracegen.comparison.model import Change, Difference, What
from tracegen.comparison.words import (
    action,
    describe,
    effect,
    first_line,
    firsts,
    grouped,
    shift_line,
)
from tracegen.deps import NOTHING
from tracegen.metrics import readable

SCHEMA_VERSION = 1
SHOWN = 10
# GitHub shows no more than ten annotations of a step.
ANNOTATIONS = 10

_EFFECT = {
    "makespan_us": "makespan",
    "bubble_ratio": "bubble ratio",
    "bubble_overhead": "bubble overhead",
    "span_rate": "span rate",
    "peak_freed_at_input": "peak activations (freed at input)",
    "peak_freed_at_weight": "peak activations (freed at weight)",
}


_SAID = {
    What.MISSING: "missing",
    What.ADDED: "added",
    What.STAGE_MOVED: "stages moved",
    What.MOVED: "moved",
    What.SWAPPED: "swapped",
    What.REORDERED: "out of order",
    What.SPLIT: "no longer a pair",
    What.JOINED: "now a pair",
    What.DURATION: "longer or shorter",
    What.DELAYED: "late or early of themselves",
}


def headline(found: Difference) -> str:
    """The verdict in a line: `different: 1 missing, 2 longer or shorter, 117 that only follow`."""
    if found.same:
        actions = len(found.golden.program)
        how = {"exact": "", "order-only": " in their order"}.get(
            found.tolerance.text, f" within {found.tolerance.text}"
        )
        return f"same: {actions} actions on {found.golden.program.num_ranks} ranks agree{how}"
    counts = Counter[str]()
    for change in found.steps:
        counts[_SAID[change.what]] += 1
    rest = {
        "configuration": len(found.configuration),
        "arrows": len(found.arrows),
        "counters": len(found.counters),
        "other rows": len(found.rows),
        "figures": len(found.figures),
    }
    said = [f"{count} {what}" for what, count in counts.items()]
    said += [_counted(count, what) for what, count in rest.items() if count]
    if found.shifted:
        said.append(f"{len(found.shifted)} that only follow{'s' * (len(found.shifted) == 1)}")
    return f"different: {', '.join(said)}"


def _counted(count: int, what: str) -> str:
    """A number of what is named in the plural, if it is."""
    return f"{count} {what.removesuffix('s') if count == 1 else what}"


def text(found: Difference) -> Iterator[str]:
    """The report, line by line."""
    return map(readable, _lines(found))


def _lines(found: Difference) -> Iterator[str]:
    yield headline(found)
    if found.steps:
        yield f"the first: {describe(found, found.steps[0])}"
    yield from _part("configuration", map(str, found.configuration))
    first = [
        f"rank {rank}: {first_line(found, change, follows)}"
        for rank, change, follows in firsts(found)
    ]
    yield from _part("first divergence on each rank", first, everything=True)
    yield from _part("changes", changes(found))
    follow = [shift_line(found)] if found.shifted else []
    follow += [f"{_counted(count, what)} with them" for what, count in found.follows.items()]
    yield from _part("what follows from these", follow)
    yield from _part("effect", _effect(found))


def changes(found: Difference) -> list[str]:
    """Every change, a line each, alike ones in one."""
    beside: list[Change] = [*found.arrows, *found.counters, *found.rows, *found.figures]
    return [line for line, _, _ in grouped(found)] + [str(change) for change in beside]


def _part(title: str, lines: Any, everything: bool = False) -> Iterator[str]:
    lines = list(lines)
    if not lines:
        return
    yield ""
    yield title
    shown = len(lines) if everything and len(lines) <= 64 else SHOWN
    yield from (f"  {line}" for line in lines[:shown])
    if len(lines) > shown:
        yield f"  and {len(lines) - shown} more"


def _effect(found: Difference) -> Iterator[str]:
    for name, (a, b) in effect(found).items():
        share = f" ({100 * (b - a) / a:+.1f} %)" if a else ""
        unit = " us" if name.endswith("_us") else ""
        if name.startswith("peak"):
            yield f"{_EFFECT[name]} {a} -> {b}{share}"
        elif unit:
            yield f"{_EFFECT[name]} {a:.3f} -> {b:.3f}{unit}{share}"
        else:
            yield f"{_EFFECT[name]} {100 * a:.2f} % -> {100 * b:.2f} %"


def as_data(found: Difference) -> dict[str, Any]:
    """The report as plain data, complete."""
    return {
        "schema_version": SCHEMA_VERSION,
        "same": found.same,
        "times": found.tolerance.text,
        "headline": headline(found),
        "configuration": [_change(change) for change in found.configuration],
        "first": [
            {"rank": rank, "text": first_line(found, change, follows), "follows": follows}
            for rank, change, follows in firsts(found)
        ],
        "actions": [
            {
                "change": str(change.what),
                "golden": _step(found, change.golden, new=False),
                "new": _step(found, change.new, new=True),
                "text": describe(found, change),
            }
            for change in found.steps
        ],
        "arrows": [_change(change) for change in found.arrows],
        "counters": [_change(change) for change in found.counters],
        "rows": [_change(change) for change in found.rows],
        "figures": [_change(change) for change in found.figures],
        "follows": {"starts": len(found.shifted), **found.follows},
        "effect": {name: {"golden": a, "new": b} for name, (a, b) in effect(found).items()},
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        "where": change.where,
        "golden": change.golden,
        "new": change.new,
        "text": str(change),
    }


def _step(found: Difference, step: int, new: bool) -> dict[str, Any] | None:
    if step == NOTHING:
        return None
    line = found.new if new else found.golden
    rank = line.program.rank_of_step(step)
    return {
        "action": action(line, step),
        "rank": rank,
        "index": step - line.program.offsets[rank],
        "start_us": line.start_ns[step] / 1000,
        "end_us": line.end_ns[step] / 1000,
    }


def as_json(found: Difference) -> str:
    """The report as one JSON object."""
    return json.dumps(as_data(found), indent=2, default=str)


def github(found: Difference, file: str) -> Iterator[str]:
    """Annotations for a pull request, then the report as it is read in the log.

    Args:
        found: the difference.
        file: the golden, as the repository knows it, which the annotations are put at.
    """
    if found.same:
        yield f"::notice file={_property(file)},title=tracegen::{_data(headline(found))}"
        return
    effects = "; ".join(_effect(found))
    summary = headline(found) + (f"\n{effects}" if effects else "")
    yield f"::error file={_property(file)},title=tracegen diff::{_data(summary)}"
    lines = [*map(str, found.configuration), *map(readable, changes(found))]
    for line in lines[: ANNOTATIONS - 1]:
        yield f"::error file={_property(file)},title=tracegen diff::{_data(line)}"
    yield from text(found)


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
