"""What the ranks of a measured step stood still for, as far as its own times say.

A replay knows what each step waited for. Of a step that was measured, or that another tool's
trace shows, it follows from the times: the input whose maker still ran when the rank was free, or
else the input in whose receive the rank then stood. Where a rank came late to its receive, the
time until then is its own. Of any other gap nothing is known.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tracegen.deps import NOTHING, Waits, waits
from tracegen.ir import NO_MATE, Program
from tracegen.timeline import Timeline


def is_measured(line: Timeline) -> bool:
    """Whether the times are those of a run, or of another tool's, and not a replay's."""
    if line.waiting_ns is not None or "executed" in line.config:
        return True
    return line.found is not None and not line.found.own


def blockers(
    program: Program,
    start: Sequence[int],
    end: Sequence[int],
    waiting: Sequence[int] | None = None,
    pairs_wait_inside: bool = False,
) -> array[int]:
    """By step, the step of another rank that it waited for; NOTHING where nothing says so.

    Args:
        program: whose steps they are.
        start: of each step.
        end: likewise.
        waiting: when the rank of each step began to stand in a receive, NOTHING where that is
            not known.
        pairs_wait_inside: whether a pair waits for its backward's input only after its forward,
            as torch's runtime does.
    """
    needs, found = waits(program), array("q", [NOTHING]) * len(start)
    for rank, stream in enumerate(program.ranks):
        own, free = range(program.offsets[rank], program.offsets[rank + 1]), 0
        for step, mate in zip(own, stream.mates, strict=True):
            if (now := start[step]) > free:
                inside = pairs_wait_inside and mate != NO_MATE
                source = _source(needs, step, own, (start, end), inside)
                if source != NOTHING and _held(free, end[source], _began(waiting, step, now), now):
                    found[step] = source
            free = max(free, end[step])
    return found


def _held(free: int, made: int, began: int, start: int) -> bool:
    """Whether a rank stood still for an input, and not longer for something of its own.

    Args:
        free: when the rank was.
        made: when the input was.
        began: when the rank came to its receive, NOTHING where that is not known.
        start: when the rank went on.
    """
    if began == NOTHING:
        return made > free
    own = max(0, began - max(free, made))
    return 2 * own <= start - free


def _began(waiting: Sequence[int] | None, step: int, start: int) -> int:
    """When a step's rank came to its receive, NOTHING where that is not known before its start."""
    return waiting[step] if waiting is not None and waiting[step] < start else NOTHING


def _source(
    needs: Waits,
    step: int,
    own: range,
    times: tuple[Sequence[int], Sequence[int]],
    inside: bool,
) -> int:
    """The step of another rank whose result was the last that a step needed to start."""
    start, end = times
    forward, backward = needs.forward[step], needs.backward[step]
    either = [wait for wait in (forward, backward) if wait != NOTHING and wait not in own]
    if inside and forward in either:
        return forward
    now = start[step]
    begun = [wait for wait in either if start[wait] < now or end[wait] <= now]
    over = [wait for wait in begun if end[wait] <= now]
    return max(over or ([] if inside else begun), key=end.__getitem__, default=NOTHING)


def causes(line: Timeline) -> array[int]:
    """The blocker of each step where it is what the step's start follows from.

    A measured step follows from the step before it on its rank if that ended later: its rank may
    then have stood in a receive, but a maker that is faster would not end that sooner.
    """
    found = line.blocker
    if is_measured(line):
        found = found[:]
        for first, last in zip(line.program.offsets, line.program.offsets[1:], strict=False):
            free = 0
            for step in range(first, last):
                if found[step] != NOTHING and line.end_ns[found[step]] <= free:
                    found[step] = NOTHING
                free = max(free, line.end_ns[step])
    return found


def receiving_ns(line: Timeline, step: int) -> int:
    """From when on a step's rank stood in the receive of its input; 0 where that is not known."""
    return max(0, _began(line.waiting_ns, step, line.start_ns[step]))
