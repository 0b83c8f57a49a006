"""When steps run whose order no time decides: the longest path to each, rank by rank.

The engine's shorter way where every link is alike and none is queued for: a loop
over the columns of a program without jobs made of it first, several times as
fast and with the same result as `Clock`'s.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import pairwise
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
    duration = array("q")
    for stream in program.ranks:
        duration.extend(times.durations(stream))
    forward, backward = _between_ranks(program, lag)
    end = array("q", [_UNKNOWN]) * len(program)
    end.append(-lag)  # at NOTHING: what waits for nothing can start at 0
    blocker = array("q", [NOTHING]) * len(program)
    asleep: dict[int, list[Iterator[int]]] = {}
    agenda: list[Iterator[int]] = []
    for first, last in pairwise(program.offsets):
        of = slice(first, last)
        rows = zip(range(first, last), forward[of], backward[of], duration[of], strict=True)
        agenda.append(_going(rows, lag, end, blocker, asleep, agenda))
    while agenda:
        rank = agenda.pop()
        if (wait := next(rank, None)) is not None:
            asleep.setdefault(wait, []).append(rank)
    if asleep:
        validate(program)  # says which
    end.pop()
    return Run(array("q", map(sub, end, duration)), end, blocker)


def _going(
    rows: Iterable[tuple[int, int, int, int]],
    lag: int,
    end: array[int],
    blocker: array[int],
    asleep: dict[int, list[Iterator[int]]],
    agenda: list[Iterator[int]],
) -> Iterator[int]:
    """Run a rank; gives the step it must wait for wherever that has not run.

    Args:
        rows: each step of the rank, the two it waits for, and its ns.
        lag: the latency.
        end: when each step of any rank ends, as far as that is found.
        blocker: what each waited for last.
        asleep: by step, the ranks that wait for it. When it has run, they go to the agenda.
        agenda: the ranks that can go on.
    """
    now = 0
    for step, wait, other, ns in rows:
        while (ready := end[wait]) == _UNKNOWN:
            yield wait
        if other != NOTHING:
            while (late := end[other]) == _UNKNOWN:
                yield other
            if late > ready:
                ready, wait = late, other
        if (ready := ready + lag) > now:
            now, blocker[step] = ready, wait
        end[step] = now = now + ns
        if step in asleep:
            agenda.extend(asleep.pop(step))


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
