"""Many steps in a row: what each takes, and a longer batch by repeating an order's pattern.

A rank goes on to its next step as soon as it is done with one. So the n-th step's
first starts follow from the last ends of the step before by the longest way from
each rank's first action to each rank's last, and what a step takes in the long run
is the largest mean over the cycles of these ways (the eigenvalue of that matrix in
max-plus algebra; Karp 1978, "A characterization of the minimum cycle mean in a digraph").
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from tracegen.analysis.solve.problem import KINDS, Order, Problem

NO_WAY = -(1 << 60)


def period(problem: Problem, order: Order) -> int | None:
    """What each further step takes in ns, rounded up; None for an order that deadlocks."""
    first_in = sequence(problem, order)
    if first_in is None:
        return None
    ways = [_ways(problem, order, first_in, rank) for rank in range(len(order))]
    return ceil(_largest_mean(ways))


def sequence(problem: Problem, order: Order) -> list[int] | None:
    """All actions of the order, each after what it waits for; None if there is no such sequence."""
    at, found = [0] * len(order), list[int]()
    done = bytearray(len(problem.duration) + 1)
    done[-1] = 1  # of NO_ACTION
    asleep: dict[int, int] = {}
    agenda = list(range(len(order)))
    while agenda:
        rank = agenda.pop()
        row = order[rank]
        while at[rank] < len(row):
            action = row[at[rank]]
            if not done[wait := problem.source[action]]:
                asleep[wait] = rank
                break
            done[action] = 1
            found.append(action)
            at[rank] += 1
            if action in asleep:
                agenda.append(asleep.pop(action))
    return None if asleep else found


def _ways(problem: Problem, order: Order, actions: Sequence[int], start: int) -> list[int]:
    """By rank, the longest way from the start of one rank's first action to that rank's end."""
    end = [NO_WAY] * (len(problem.duration) + 1)
    free = [0 if rank == start else NO_WAY for rank in range(len(order))]
    rank_of, m = problem.placement.ranks, problem.num_microbatches
    for action in actions:
        rank = rank_of[action // m // KINDS]
        now = max(free[rank], end[problem.source[action]] + problem.lag[action])
        if now > NO_WAY // 2:
            end[action] = free[rank] = now + problem.duration[action]
    return [end[row[-1]] for row in order]


def _largest_mean(ways: list[list[int]]) -> Fraction:
    """Karp's theorem, with the largest in the place of the smallest."""
    n = len(ways)
    best = [[0] * n]
    for _ in range(n):
        last = best[-1]
        best.append([max(last[a] + ways[a][b] for a in range(n)) for b in range(n)])
    means = [min(Fraction(best[n][b] - best[k][b], n - k) for k in range(n)) for b in range(n)]
    return max(means)
