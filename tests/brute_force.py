"""The best order by trying all of them, for sizes where that can be done.

Knows nothing of the solver: its own times, its own memory, its own steady step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

# (kind, microbatch) of one stage a rank; kinds F, I, W are 0, 1, 2.
Row = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Question:
    """One stage a rank, costs of each, the latency, and what each rank may hold."""

    f: Sequence[int]
    i: Sequence[int]
    w: Sequence[int]
    alpha: int
    limit: int
    freed_at: int  # 1: at I; 2: at W

    @property
    def num_ranks(self) -> int:
        return len(self.f)


def rows(m: int, in_order: bool) -> Iterator[Row]:
    """What one rank may do, in every order; or only those in which no microbatch overtakes."""
    every = [(kind, mb) for kind in range(3) for mb in range(m)]

    def grow(done: Row) -> Iterator[Row]:
        if len(done) == len(every):
            yield done
        for kind, mb in every:
            if (kind, mb) in done or (kind and (kind - 1, mb) not in done):
                continue
            if in_order and mb and (kind, mb - 1) not in done:
                continue
            yield from grow((*done, (kind, mb)))

    yield from grow(())


def peak(row: Row, freed_at: int) -> int:
    held = most = 0
    for kind, _ in row:
        held += (kind == 0) - (kind == freed_at)
        most = max(most, held)
    return most


def times(
    asked: Question, order: Sequence[Row], steps: int = 1
) -> tuple[list[int], list[int]] | None:
    """By rank, first start and last end of several steps in a row; None if they deadlock."""
    p = asked.num_ranks
    cost = (asked.f, asked.i, asked.w)
    end: dict[tuple[int, int, int, int], int] = {}
    at, free, first = [0] * p, [0] * p, [-1] * p
    whole = len(order[0]) * steps
    while any(n < whole for n in at):
        moved = False
        for rank, row in enumerate(order):
            while at[rank] < whole:
                step, place = divmod(at[rank], len(row))
                kind, mb = row[place]
                other = rank + (-1, 1, p)[kind]
                ready = 0
                if 0 <= other < p:
                    if (source := end.get((step, other, kind, mb))) is None:
                        break
                    ready = source + asked.alpha
                start = max(free[rank], ready)
                first[rank] = start if first[rank] < 0 else first[rank]
                free[rank] = end[step, rank, kind, mb] = start + cost[kind][rank]
                at[rank] += 1
                moved = True
        if not moved:
            return None
    return first, free


def best(asked: Question, m: int, in_order: bool = True) -> dict[str, float]:
    """The least makespan, span and steady step of any order that keeps the limit."""
    fit = [row for row in rows(m, in_order) if peak(row, asked.freed_at) <= asked.limit]
    first = fit
    if not in_order:  # the names of microbatches are free: rank 0 may have its F in order
        first = [r for r in fit if [mb for kind, mb in r if kind == 0] == list(range(m))]
    found = {"makespan": float("inf"), "span": float("inf"), "steady": float("inf")}
    for order in product(first, *[fit] * (asked.num_ranks - 1)):
        if (done := times(asked, order)) is None:
            continue
        starts, ends = done
        span = max(e - s for s, e in zip(starts, ends, strict=True))
        found["makespan"] = min(found["makespan"], max(ends))
        found["span"] = min(found["span"], span)
        if in_order:
            found["steady"] = min(found["steady"], steady(asked, order))
    return found


def steady(asked: Question, order: Sequence[Row]) -> float:
    """What a further step takes after so many that the ranks have found their rhythm."""
    turns = 1
    for n in range(2, asked.num_ranks + 1):
        turns *= n  # a rhythm may be one of several steps
    early, late = times(asked, order, 4 * turns), times(asked, order, 5 * turns)
    assert early is not None
    assert late is not None
    return (max(late[1]) - max(early[1])) / turns
