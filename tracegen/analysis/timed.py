"""A timeline's own times -> jobs: the graph of a measured step.

Each step is a job of the duration it had. What held it is what ended last of what
it is known to have waited for: the step before it on its rank, or a result of another. What
passed between is kept, as the time of a transfer or of the host. Results that
came earlier than they were needed take as long as the quickest on their link
took, if that fits.
"""

from __future__ import annotations

from array import array

from tracegen.blame import causes
from tracegen.deps import NOTHING, waits
from tracegen.timeline import Timeline
from tracegen.work import Queued, Work

Link = tuple[int, int]


def work_of(line: Timeline) -> Work:
    """The jobs, numbered as the steps, and then one of 0 ns at time 0."""
    program, start, end = line.program, line.start_ns, line.end_ns
    needs, steps = waits(program), len(line.program)
    rank_of = [rank for rank, stream in enumerate(program.ranks) for _ in range(len(stream))]
    firsts, held = set(program.offsets), causes(line)
    before: list[list[int]] = []
    for step in range(steps):
        sources = [source for source in needs.of(step) if rank_of[source] != rank_of[step]]
        before.append([*sources, step - 1] if step not in firsts else sources)
    quickest: dict[Link, int] = {}
    for step, sources in enumerate(before):
        for source in sources:
            link = (rank_of[source], rank_of[step])
            took = start[step] - end[source]
            quickest[link] = min(quickest.get(link, took), took)
    first_wait, wait_on, lag = array("q", [0]), array("q"), array("q")
    for step, sources in enumerate(before):
        last = held[step] if held[step] in sources else NOTHING if step in firsts else step - 1
        if last == NOTHING:
            last = max(sources, key=end.__getitem__, default=NOTHING)
        for source in sources:
            link = (rank_of[source], rank_of[step])
            room = start[step] - end[source]
            usual = 0 if link[0] == link[1] else max(0, quickest[link])
            wait_on.append(source)
            lag.append(room if source == last else min(usual, room))
        if last == NOTHING:
            wait_on.append(steps)
            lag.append(start[step])
        first_wait.append(len(wait_on))
    first_wait.append(len(wait_on))
    duration = array("q", [b - a for a, b in zip(start, end, strict=True)] + [0])
    streams = [range(step, step + 1) for step in range(steps + 1)]
    return Work(streams, duration, first_wait, wait_on, lag, Queued(steps + 1))
