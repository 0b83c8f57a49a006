"""A long batch: the steady pattern of a short one's order, repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracegen.analysis.solve.orders import ends
from tracegen.analysis.solve.problem import KINDS, F, Order, Problem


@dataclass(frozen=True, slots=True)
class Pattern:
    """A part of an order after which every rank stands as it did before, some microbatches on.

    Attributes:
        microbatches: how many.
        ns: how long it lasts.
        first, last: by rank, the position at which it begins and that at which it is over.
    """

    microbatches: int
    ns: int
    first: list[int]
    last: list[int]


def patterns(problem: Problem, order: Order) -> list[Pattern]:
    """The order's repeating parts, those that take least time for a microbatch first.

    The cuts are at moments: what has begun before a moment needs nothing that begins after
    it, so what lies between two of them can be done twice, and holds no more than it did.
    """
    end = ends(problem, order)
    if end is None or len(problem.placement.chains) > 1:
        return []
    seen: dict[tuple[int, ...], tuple[int, int, list[int]]] = {}
    found = []
    for count, (now, at, state) in enumerate(_moments(problem, order, end)):
        if state in seen:
            before, then, first = seen[state]
            found.append(Pattern(count - before, now - then, first, at))
        seen[state] = (count, now, at)
    return sorted(found, key=lambda one: (one.ns / one.microbatches, one.microbatches))


def _moments(
    problem: Problem, order: Order, end: list[int]
) -> Iterator[tuple[int, list[int], tuple[int, ...]]]:
    """At each start of the first stage's F: the ns, where each rank stands, what each has done."""
    m, first = problem.num_microbatches, problem.placement.chains[0][0]
    starts = [[end[a] - problem.duration[a] for a in row] for row in order]
    at, done = [0] * len(order), [0] * (problem.num_stages * KINDS)
    for n in range(m):
        action = (first * KINDS + F) * m + n
        now = end[action] - problem.duration[action]
        for rank, row in enumerate(order):
            while at[rank] < len(row) and starts[rank][at[rank]] < now:
                done[row[at[rank]] // m] += 1
                at[rank] += 1
        yield now, at[:], tuple(n - count for count in done)


def extended(problem: Problem, order: Order, pattern: Pattern, num_microbatches: int) -> Order:
    """The order with its pattern repeated until it has so many microbatches."""
    m, more = problem.num_microbatches, num_microbatches - problem.num_microbatches
    times = more // pattern.microbatches
    assert times * pattern.microbatches == more
    longer: Order = []
    for row, first, last in zip(order, pattern.first, pattern.last, strict=True):
        slots = [action // m for action in row]
        slots = slots[:last] + slots[first:last] * times + slots[last:]
        longer.append(numbered(slots, num_microbatches))
    return longer


def numbered(slots: list[int], num_microbatches: int) -> list[int]:
    """A rank's actions, of its slots (stage * KINDS + kind): each kind of each stage counts up."""
    seen: dict[int, int] = {}
    row = []
    for slot in slots:
        n = seen.get(slot, 0)
        seen[slot] = n + 1
        row.append(slot * num_microbatches + n)
    return row


def shorter(problem: Problem, num_microbatches: int) -> Problem:
    """The same with fewer microbatches."""
    return replace(problem, num_microbatches=num_microbatches)
