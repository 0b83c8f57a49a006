"""Both tilings in one trace, with a marker at every difference, for ui.perfetto.dev."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from tracegen.comparison.model import Difference, StepChange
from tracegen.comparison.words import action, describe
from tracegen.deps import NOTHING
from tracegen.drawn import rank_name
from tracegen.emit import us
from tracegen.files import write_text
from tracegen.timeline import Timeline

# The processes. A thread's id must not be that of its process, and these are no ranks.
GOLDEN, NEW, DIFFERENCES = 1_000_000, 2_000_000, 3_000_000
FOLLOWS = "follows"


def write(found: Difference, target: str | Path) -> None:
    """Write the overlay.

    Raises:
        FileError: if it cannot be written.
    """
    write_text(target, _chunks(found))


def _chunks(found: Difference) -> Iterator[str]:
    ranks = max(found.golden.program.num_ranks, found.new.program.num_ranks)
    yield '{"displayTimeUnit":"ns",\n"traceEvents":[\n'
    yield ",\n".join(_names(ranks))
    for pid, line in ((GOLDEN, found.golden), (NEW, found.new)):
        for events in _tiles(pid, line):
            yield ",\n" + events
    for event in _markers(found):
        yield ",\n" + event
    yield "\n]}\n"


def _names(ranks: int) -> Iterator[str]:
    for order, (pid, name) in enumerate(
        ((GOLDEN, "golden"), (NEW, "new"), (DIFFERENCES, "what differs"))
    ):
        about = ((0, "process_name", "name", name), (0, "process_sort_index", "sort_index", order))
        of_rank = (
            (rank + 1, what, key, value)
            for rank in range(ranks)
            for what, key, value in (
                ("thread_name", "name", rank_name(rank, ranks)),
                ("thread_sort_index", "sort_index", rank),
            )
        )
        for tid, what, key, value in (*about, *of_rank):
            event = {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {key: value}}
            yield json.dumps(event, separators=(",", ":"))


def _tiles(pid: int, line: Timeline) -> Iterator[str]:
    """The tiles of a rank at a time."""
    program = line.program
    for rank, stream in enumerate(program.ranks):
        events = []
        for step, name in enumerate(map(str, stream), program.offsets[rank]):
            start, end = line.start_ns[step], line.end_ns[step]
            if end > start:
                events.append(
                    f'{{"ph":"X","pid":{pid},"tid":{rank + 1},"ts":{us(start)}'
                    f',"dur":{us(end - start)},"name":{json.dumps(name)}}}'
                )
        if events:
            yield ",\n".join(events)


def _markers(found: Difference) -> Iterator[str]:
    """An instant on the rank's row of `what differs`, at the time of each change."""
    for change in found.steps:
        yield _marker(found, change, str(change.what), describe(found, change))
    for change in found.shifted:
        yield _marker(found, change, FOLLOWS, action(found.golden, change.golden))
    for beside in (*found.arrows, *found.counters, *found.rows):
        yield _instant(0, max(0, beside.at_ns or 0), beside.where, str(beside))


def _marker(found: Difference, change: StepChange, what: str, text: str) -> str:
    line, step = found.new, change.new
    if step == NOTHING:
        line, step = found.golden, change.golden
    rank = line.program.rank_of_step(step)
    name = f"{what} {action(line, step)}"
    return _instant(rank + 1, max(0, line.start_ns[step]), name, text)


def _instant(tid: int, ns: int, name: str, text: str) -> str:
    scope = "t" if tid else "p"
    said = f'"name":{json.dumps(name)},"args":{{"difference":{json.dumps(text)}}}'
    return f'{{"ph":"i","s":"{scope}","pid":{DIFFERENCES},"tid":{tid},"ts":{us(ns)},{said}}}'
