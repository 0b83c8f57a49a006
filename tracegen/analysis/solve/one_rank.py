"""A lower bound of one rank alone: it does one action at a time, none before it can begin.

Give every action of a rank a head, the ns before which it cannot start, and a tail, the ns
that pass at least between its end and the end of all. Let the rank break off an action and
go on with it later as it likes. Then to do always what has the longest tail of what can start
is best (Jackson's preemptive schedule: Carlier 1982, "The one-machine sequencing problem"), and
no order, in which nothing is broken off, is done sooner.
"""

from __future__ import annotations

from heapq import heappop, heappush

from tracegen.analysis.solve.problem import NO_ACTION, F, I, Problem, W

NO_TAIL = -(1 << 60)


def least_end(jobs: list[tuple[int, int, int]]) -> int:
    """When all (head, ns, tail) can be done at the soonest, if each may be broken off."""
    jobs = sorted(jobs)
    now, at, best = 0, 0, NO_TAIL
    waiting: list[tuple[int, int]] = []
    while at < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[at][0])
        while at < len(jobs) and jobs[at][0] <= now:
            heappush(waiting, (-jobs[at][2], jobs[at][1]))
            at += 1
        less, ns = heappop(waiting)
        free = jobs[at][0] - now if at < len(jobs) else ns
        done = min(ns, free)
        now += done
        if done < ns:
            heappush(waiting, (less, ns - done))
        else:
            best = max(best, now - less)
    return best


def tails(problem: Problem, rank: int | None) -> list[list[int]]:
    """By kind and stage, the ns from an action's end to the last end that counts.

    All ends count, or those of one rank. What follows an action is its microbatch's way on.
    """
    stages, ns = range(problem.num_stages), problem.ns
    found = [[NO_TAIL] * len(stages) for _ in range(3)]

    def after(kind: int, stage: int, lag: int) -> int:
        if stage == NO_ACTION or (kind == W and not problem.split):
            return NO_TAIL
        return lag + ns[kind][stage] + found[kind][stage]

    before, behind = problem.neighbours
    for stage in stages:
        if rank is None or problem.placement.ranks[stage] == rank:
            for kind in problem.kinds:
                found[kind][stage] = 0
    for chain in problem.placement.chains:
        for stage in chain:
            lag = problem.lag_backward[before[stage]]
            to = (after(I, before[stage], lag), after(W, stage, 0))
            found[I][stage] = max(found[I][stage], *to)
        for stage in reversed(chain):
            lag = problem.lag_forward[behind[stage]]
            to = (after(F, behind[stage], lag), after(I, stage, 0))
            found[F][stage] = max(found[F][stage], *to)
    return found


def end_of(problem: Problem, rank: int, ends: list[list[list[int]]], own: bool) -> int:
    """When all, or if `own` the rank, can be done at the soonest, by what the rank has to do.

    Args:
        problem: the question.
        rank: which.
        ends: by kind, stage and count, the ns at which an action can end at the soonest.
        own: whether the ends of other ranks do not count.
    """
    found = tails(problem, rank if own else None)
    return least_end(
        [
            (end - problem.ns[kind][stage], problem.ns[kind][stage], found[kind][stage])
            for kind in problem.kinds
            for stage in problem.stages_of[rank]
            for end in ends[kind][stage]
        ]
    )
