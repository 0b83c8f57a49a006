"""A second replay, for the tests: the longest path over a graph of waits, in exact numbers.

It knows nothing of the package but the text form of an action, so what it says
about an order is independent of how the package replays one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise

Number = int | Fraction
# stage, kind and microbatch
Part = tuple[int, str, int]

ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@cache
def parts(step: str) -> tuple[Part, ...]:
    """The action of a step, or both of a pair."""
    return tuple((int(stage), kind, int(mb)) for stage, kind, mb in ACTION.findall(step))


@dataclass(frozen=True)
class Case:
    """An order: the steps of each rank, the rank of each stage, the stages of each chain."""

    rows: Sequence[Sequence[str]]
    rank_of: Sequence[int]
    chains: Sequence[Sequence[int]]
    num_microbatches: int


@dataclass(frozen=True)
class Times:
    """When each step starts and ends, by rank and position."""

    starts: list[list[Number]]
    ends: list[list[Number]]

    @property
    def makespan(self) -> Number:
        return max(end for row in self.ends for end in row)

    def busy(self, rank: int) -> Number:
        return sum((b - a for a, b in self._tiles(rank)), start=0)

    def span(self, rank: int) -> Number:
        return self.ends[rank][-1] - self.starts[rank][0]

    def idle(self, rank: int) -> Number:
        return self.makespan - self.busy(rank)

    @property
    def span_rate(self) -> Fraction:
        """1 - busy/span of the rank with the longest span, of tied ranks the lowest."""
        longest = max(range(len(self.ends)), key=lambda rank: (self.span(rank), -rank))
        return 1 - Fraction(self.busy(longest)) / Fraction(self.span(longest))

    def _tiles(self, rank: int) -> list[tuple[Number, Number]]:
        return list(zip(self.starts[rank], self.ends[rank], strict=True))


class Stuck(Exception):
    """The order cannot finish; the arguments are the steps that never start."""


def replay(
    case: Case,
    f: Number = 1,
    i: Number = 1,
    w: Number = 1,
    fb: Number | None = None,
    latency: Number = 0,
) -> Times:
    """Every step at its earliest: the longest path to it, waits and rank order being the edges."""
    cost = {"F": f, "B": i + w, "I": i, "W": w}
    steps = [step for row in case.rows for step in row]
    lasts = {
        step: fb if fb is not None and len(parts(step)) == 2 else sum(cost[k] for _, k, _ in acts)
        for step, acts in ((step, parts(step)) for step in set(steps))
    }
    edges, waits = graph(case, latency)
    starts: list[Number] = [0] * len(steps)
    ends: list[Number] = [0] * len(steps)
    free = [at for at, count in enumerate(waits) if count == 0]
    finished = 0
    while free:
        at = free.pop()
        finished += 1
        ends[at] = starts[at] + lasts[steps[at]]
        for after, extra in edges[at]:
            starts[after] = max(starts[after], ends[at] + extra)
            waits[after] -= 1
            if waits[after] == 0:
                free.append(after)
    if finished < len(steps):
        raise Stuck(*(step for step, count in zip(steps, waits, strict=True) if count))
    return Times(by_rank(case, starts), by_rank(case, ends))


def graph(case: Case, latency: Number) -> tuple[list[list[tuple[int, Number]]], list[int]]:
    """(who waits for a step, how much longer), and how many steps each waits for."""
    place = [(rank, step) for rank, row in enumerate(case.rows) for step in row]
    node = {part: at for at, (_, step) in enumerate(place) for part in parts(step)}
    edges: list[list[tuple[int, Number]]] = [[] for _ in place]
    waits = [0] * len(place)

    def wait(before: int, after: int) -> None:
        away = place[before][0] != place[after][0]
        edges[before].append((after, latency if away else 0))
        waits[after] += 1

    for before, after in pairwise(range(len(place))):
        if place[before][0] == place[after][0]:
            wait(before, after)
    sources = waits_of(case)
    for part, at in node.items():
        for need in sources(part):
            if not any(n in node for n in need):
                raise Stuck(f"{need[0]} is nowhere")
            wait(next(node[n] for n in need if n in node), at)
    return edges, waits


def by_rank(case: Case, values: list[Number]) -> list[list[Number]]:
    cut, first = [], 0
    for row in case.rows:
        cut.append(values[first : first + len(row)])
        first += len(row)
    return cut


def waits_of(case: Case) -> Callable[[Part], list[tuple[Part, ...]]]:
    """What a part waits for: one of each tuple."""
    before, after = {}, {}
    for chain in case.chains:
        for a, b in pairwise(chain):
            before[b], after[a] = a, b

    def sources(part: Part) -> list[tuple[Part, ...]]:
        stage, kind, mb = part
        if kind == "F":
            return [((before[stage], "F", mb),)] if stage in before else []
        if kind == "W":
            return [((stage, "I", mb),)]
        own: list[tuple[Part, ...]] = [((stage, "F", mb),)]
        if stage in after:
            own.append(((after[stage], "B", mb), (after[stage], "I", mb)))
        return own

    return sources


def peaks(case: Case, freed_at: str) -> list[int]:
    """The most stage-activations each rank holds; freed_at is I or W, for split backwards."""
    found = []
    for row in case.rows:
        held = most = 0
        for step in row:
            for _, kind, _ in parts(step):
                held += kind == "F"
                most = max(most, held)
                held -= kind in ("B", freed_at)
        found.append(most)
    return found


def faults(case: Case) -> list[str]:
    """What is missing, there twice or on another rank than its stage; nothing if all is well."""
    wrong = []
    done: dict[tuple[int, int], list[str]] = defaultdict(list)
    for rank, row in enumerate(case.rows):
        for step in row:
            for stage, kind, mb in parts(step):
                done[stage, mb].append(kind)
                if case.rank_of[stage] != rank:
                    wrong.append(f"{step} on rank {rank}")
    share, rest = divmod(case.num_microbatches, len(case.chains))
    if rest:
        wrong.append("the chains have unequal shares")
    wanted = {
        (stage, mb)
        for number, chain in enumerate(case.chains)
        for stage in chain
        for mb in range(number * share, (number + 1) * share)
    }
    wrong += [f"stage {s} microbatch {mb}: not there" for s, mb in sorted(wanted - done.keys())]
    for (stage, mb), kinds in done.items():
        if (stage, mb) not in wanted or sorted(kinds) not in (["B", "F"], ["F", "I", "W"]):
            wrong.append(f"stage {stage} microbatch {mb}: {kinds}")
    return wrong
