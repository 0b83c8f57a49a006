"""Why ranks wait, in the terminal: the parts of each rank's idle time, and the longest waits."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracegen import metrics
from tracegen.attribution import Cause, Part, idle, totals
from tracegen.deps import NOTHING
from tracegen.timeline import Timeline
from tracegen.view import MAX_RANKS, duration, stacked

LONGEST = 10


def explain(line: Timeline, out: Console) -> None:
    """Print a table of the causes by rank, and the longest parts, a line each however narrow."""
    ranks = range(min(line.program.num_ranks, MAX_RANKS))
    out.print(Text("\nwhy ranks wait", style="bold"))
    for table in causes(line, out.width):
        out.print(table)
    waits = [
        (rank, part)
        for rank in ranks
        for part in idle(line, rank)
        if part.cause not in (Cause.WARM_UP, Cause.DRAIN)
    ]
    if waits:
        out.print(Text("\nthe longest, but for warm-up and drain", style="bold"))
    waits.sort(key=lambda one: (-one[1].ns, one[1].start_ns, one[0]))
    for rank, part in waits[:LONGEST]:
        what = metrics.readable(say(part))
        text = f"rank {rank} at {duration(part.start_ns)}: {duration(part.ns)}  {what}"
        out.print(text, soft_wrap=True)


def causes(line: Timeline, width: int) -> Iterator[Table]:
    """The idle time of each rank by its causes, for a terminal so wide."""
    ranks = range(min(line.program.num_ranks, MAX_RANKS))
    parts = [totals(line, rank) for rank in ranks]
    columns = {"rank": [*map(str, ranks)], "idle": [duration(line.idle_ns[rank]) for rank in ranks]}
    for cause in Cause:
        if any(part[cause] for part in parts):
            columns[cause] = [duration(part[cause]) if part[cause] else "" for part in parts]
    return stacked(columns, width)


def say(part: Part) -> str:
    """A part in words."""
    whose, at = "" if part.rank == NOTHING else f" of rank {part.rank}", part.at or "its end"
    if part.cause == Cause.WAIT:
        return f"{at} waits for {part.on or 'its rank'}{whose}"
    if part.cause == Cause.EXPOSED:
        return f"{at} waits for its own {part.on}"
    if part.cause in (Cause.QUEUE, Cause.BANDWIDTH, Cause.LATENCY):
        what = f"the transfer of {part.on}{whose}" if part.on else "its transfer"
        return f"{at} waits for {what}: {part.cause}"
    return f"{at}: {part.cause}"
