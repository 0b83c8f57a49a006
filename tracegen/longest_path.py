"""When steps run whose order no time decides: the longest path to each, rank by rank.

The engine's shorter way where every link is alike and none is queued for: a loop
over the columns of a program without jobs made of it first, several times as
fast and with the same result as `Clock`'s.
"""

from __future__ import annotations

from array import array
from itertools import chain
from operator import sub

from tracegen.clock import Run
from tracegen.deps import NOTHING, index, neighbours, waits
from tracegen.ir import Program
from tracegen.passes.validate import validate
from tracegen.times import Times

_UNKNOWN = -1 << 62


def applies(times: Times) -> bool:
    """Whether the latency of all links is the same and none of them is taken in turn."""
    return not times.alpha and not times.links_queue


def run(program: Program, times: Times) -> Run:
    """Run every step as early as it can be; times in ns.

    Args:
        program: in order, compute only.
        times: such that `applies`.

    Raises:
        DeadlockError: if steps wait for each other in a cycle.
    """
    lag = times.any_alpha
    duration = array("q", chain.from_iterable(map(times.durations, program.ranks)))
    forward, backward = _between_ranks(program, lag)
    end = array("q", [_UNKNOWN]) * len(program)
    end.append(-lag)  # at NOTHING: what waits for nothing can start at 0
    blocker = array("q", [NOTHING]) * len(program)
    at, last, free = program.offsets[:-1], program.offsets[1:], [0] * program.num_ranks
    asleep: dict[int, list[int]] = {}
    agenda = list(range(program.num_ranks))
    while agenda:
        rank = agenda.pop()
        step, until, now = at[rank], last[rank], free[rank]
        while step < until:
            if (ready := end[wait := forward[step]]) == _UNKNOWN:
                break
            if (other := end[backward[step]]) > ready:
                ready, wait = other, backward[step]
            elif other == _UNKNOWN:
                wait = backward[step]
                break
            if (ready := ready + lag) > now:
                now, blocker[step] = ready, wait
            end[step] = now = now + duration[step]
            if step in asleep:
                agenda += asleep.pop(step)
            step += 1
        at[rank], free[rank] = step, now
        if step < until:
            asleep.setdefault(wait, []).append(rank)
    if at != last:
        validate(program)  # says which
    end.pop()
    return Run(array("q", map(sub, end, duration)), end, blocker)


def _between_ranks(program: Program, lag: int) -> tuple[array[int], array[int]]:
    """The waits for forwards and for gradients, without those that no latency applies to.

    Of its own rank a step waits for one before it, which does not matter unless it seems late.
    """
    needs, made = waits(program), index(program)
    if not lag:
        return needs.forward, needs.backward
    M, owner, (previous, _) = program.num_microbatches, program.placement.ranks, neighbours(program)
    forward, backward = needs.forward[:], needs.backward[:]
    for stage, before in enumerate(previous):
        if before >= 0 and owner[before] == owner[stage]:
            for column, steps, of in (
                (forward, made.forward, stage),
                (backward, made.gradient, before),
            ):
                for step in steps[of * M : (of + 1) * M]:
                    if step != NOTHING:
                        column[step] = NOTHING
    return forward, backward
