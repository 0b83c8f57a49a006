"""Why ranks wait, in the terminal: the parts of each rank's idle time, and the longest waits."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tracegen import metrics
from tracegen.attribution import Cause, Part, idle, totals
from tracegen.deps import NOTHING
from tracegen.timeline import Timeline
from tracegen.view import MAX_RANKS, duration

LONGEST = 10


def explain(line: Timeline, out: Console) -> None:
    """Print a table of the causes by rank, and the longest parts, a line each however narrow."""
    ranks = range(min(line.program.num_ranks, MAX_RANKS))
    out.print(Text("\nwhy ranks wait", style="bold"))
    out.print(causes(line))
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


def causes(line: Timeline) -> Table:
    """The idle time of each rank by its causes."""
    ranks = range(min(line.program.num_ranks, MAX_RANKS))
    parts = {rank: totals(line, rank) for rank in ranks}
    there = [cause for cause in Cause if any(parts[rank][cause] for rank in ranks)]
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("rank", "idle", *there):
        table.add_column(name, justify="right", no_wrap=True, overflow="fold")
    for rank in ranks:
        shown = (duration(parts[rank][cause]) if parts[rank][cause] else "" for cause in there)
        table.add_row(str(rank), duration(line.idle_ns[rank]), *shown)
    return table


def say(part: Part) -> str:
    """A part in words."""
    whose = "" if part.rank == NOTHING else f" of rank {part.rank}"
    if part.cause == Cause.WAIT:
        return f"{part.at} waits for {part.on or 'its rank'}{whose}"
    if part.cause == Cause.EXPOSED:
        return f"{part.at} waits for its own {part.on}"
    if part.cause in (Cause.QUEUE, Cause.BANDWIDTH, Cause.LATENCY):
        what = f"the transfer of {part.on}{whose}" if part.on else "its transfer"
        return f"{part.at} waits for {what}: {part.cause}"
    return f"{part.at}: {part.cause}"
