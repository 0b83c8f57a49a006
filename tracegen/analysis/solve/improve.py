"""Local search: actions of the critical path move to other places of their rank."""

from __future__ import annotations

from random import Random

from tracegen.analysis.solve.orders import ends, fits_row, value_of
from tracegen.analysis.solve.problem import KINDS, Objective, Order, Problem

# How far an action moves at most, in places.
REACH = 12


def improve(problem: Problem, order: Order, tries: int, goal: int, seed: int = 0) -> Order:
    """The order, or a better one.

    Each try moves one action that the objective depends on, and is kept unless what it
    makes is worse; of two orders with the same value that is better whose ranks are done
    earlier in sum.

    Args:
        problem: the question.
        order: to start from; it runs and fits.
        tries: how many to make.
        goal: the value at which to stop.
        seed: of the choice.
    """
    random = Random(seed)
    now, end = [row[:] for row in order], ends(problem, order)
    assert end is not None
    score = _score(problem, now, end)
    steps = _critical(problem, now, end)
    for _ in range(tries):
        if score[0] <= goal or not steps:
            break
        rank, at = random.choice(steps)
        to = max(0, min(len(now[rank]) - 1, at + random.randint(-REACH, REACH)))
        moved = _moved(problem, now[rank], at, to)
        if moved is None:
            continue
        other = [*now[:rank], moved, *now[rank + 1 :]]
        end = ends(problem, other)
        if end is None or (new := _score(problem, other, end)) > score:
            continue
        if new < score or random.random() < 0.5:
            now, score = other, new
            steps = _critical(problem, now, end)
    return now


def _score(problem: Problem, order: Order, end: list[int]) -> tuple[int, int]:
    return value_of(problem, order, end), sum(end[row[-1]] for row in order)


def _moved(problem: Problem, row: list[int], at: int, to: int) -> list[int] | None:
    """The row with one action elsewhere; None if that breaks its own order or its room."""
    if at == to:
        return None
    action, m = row[at], problem.num_microbatches
    passed = row[to:at] if to < at else row[at + 1 : to + 1]
    slot, n = divmod(action, m)
    kind = slot % KINDS
    if to < at:  # not before the one before it of its kind, nor its own F or I
        bad = {action - 1 if n else -1, action - m if kind else -1}
    else:
        bad = {action + 1 if n + 1 < m else -1, action + m if kind < KINDS - 1 else -1}
    if not bad.isdisjoint(passed):
        return None
    moved = row[:at] + row[at + 1 :]
    moved.insert(to, action)
    return moved if fits_row(problem, moved, problem.placement.ranks[slot // KINDS]) else None


def _critical(problem: Problem, order: Order, end: list[int]) -> list[tuple[int, int]]:
    """(rank, position) of the actions that the value is the sum of."""
    places = {a: (rank, at) for rank, row in enumerate(order) for at, a in enumerate(row)}
    duration = problem.duration

    def span(row: list[int]) -> int:
        start = 0 if problem.objective is Objective.MAKESPAN else end[row[0]] - duration[row[0]]
        return end[row[-1]] - start

    action, found = max(order, key=span)[-1], []
    while True:
        rank, at = places[action]
        found.append((rank, at))
        start = end[action] - duration[action]
        before = order[rank][at - 1] if at else -1
        if before >= 0 and end[before] == start:
            action = before
        elif (wait := problem.source[action]) >= 0 and end[wait] + problem.lag[action] == start:
            action = wait
        else:
            return found
