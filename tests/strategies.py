"""Random programs for property tests: any order a rank may follow, not only the shipped ones."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from tracegen.ir import Action, Kind, Overlap, Placement, Program, Step, Stream
from tracegen.order import both_ways, loop, v_shape

FULL, INPUT, WEIGHT = Kind.FULL_BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT


@st.composite
def placements(draw: st.DrawFn, max_ranks: int = 3, max_stages_per_rank: int = 2) -> Placement:
    """One of the three named placements, or stages on any ranks at all."""
    p = draw(st.integers(1, max_ranks))
    v = draw(st.integers(1, max_stages_per_rank))
    named = [loop, v_shape] + ([both_ways] if p % 2 == 0 and v % 2 == 0 else [])
    place = draw(st.sampled_from([*named, None]))
    if place is not None:
        return place(p, v)
    ranks = tuple(draw(st.lists(st.integers(0, p - 1), min_size=p * v, max_size=p * v)))
    return Placement("any", ranks, (tuple(range(p * v)),))


@st.composite
def programs(
    draw: st.DrawFn,
    max_ranks: int = 3,
    max_microbatches: int = 3,
    max_stages_per_rank: int = 2,
    sound: bool = True,
) -> Program:
    """A complete program: a random order of what the actions of all ranks wait for.

    If it is not to be `sound`, each rank's order is only right by itself, and
    the ranks may wait for each other for ever.
    """
    place = draw(placements(max_ranks, max_stages_per_rank))
    share = draw(st.integers(1, max(1, max_microbatches // len(place.chains))))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return _Growing(place, share * len(place.chains), rng, sound).program()


class _Growing:
    """A program in the making."""

    def __init__(self, place: Placement, m: int, rng: random.Random, sound: bool) -> None:
        self.place, self.m, self.rng, self.sound = place, m, rng, sound
        self.before, self.after = place.neighbours()
        self.pairs, self.split = rng.random(), rng.random()
        self.num_ranks = max(len(set(place.ranks)), max(place.ranks) + 1)
        self.rows: list[list[Step]] = [[] for _ in range(self.num_ranks)]
        self.done: set[tuple[int, str, int]] = set()
        self.open: list[Action] = []
        for number, chain in enumerate(place.chains):
            for mb in place.microbatches_of(number, m):
                for stage in chain:
                    self.open.append(Action(stage, Kind.FORWARD, mb))
                    if rng.random() < self.split:
                        self.open += [Action(stage, INPUT, mb), Action(stage, WEIGHT, mb)]
                    else:
                        self.open.append(Action(stage, FULL, mb))

    def program(self) -> Program:
        while self.open:
            first = self.rng.choice([action for action in self.open if self.ready(action)])
            mate = self.mate(first)
            self.take(first)
            if mate is None:
                self.row(first).append(first)
            else:
                self.take(mate)
                f, b = (first, mate) if first.kind is Kind.FORWARD else (mate, first)
                self.row(first).append(Overlap(f, b))
        rows = tuple(Stream.of(row) for row in self.rows)
        return Program("random", self.m, self.place, rows)

    def row(self, action: Action) -> list[Step]:
        return self.rows[self.place.ranks[action.stage]]

    def mate(self, first: Action) -> Action | None:
        """An action that a pair with this one may have as its other half."""
        if first.kind is WEIGHT or self.rng.random() >= self.pairs:
            return None
        backward = first.kind is Kind.FORWARD
        rank = self.place.ranks[first.stage]
        fits = [
            action
            for action in self.open
            if self.place.ranks[action.stage] == rank
            and action.kind.starts_backward == backward
            and action.kind is not WEIGHT
            and self.ready(action)
        ]
        return self.rng.choice(fits) if fits else None

    def take(self, action: Action) -> None:
        self.open.remove(action)
        self.done.add((action.stage, "FIIW"[list(Kind).index(action.kind)], action.microbatch))

    def ready(self, action: Action) -> bool:
        stage, mb = action.stage, action.microbatch
        if action.kind is Kind.FORWARD:
            needs = [(self.before[stage], "F", mb)] if self.sound else []
        elif action.kind is WEIGHT:
            needs = [(stage, "I", mb)]
        else:
            needs = [(stage, "F", mb)]
            needs += [(self.after[stage], "I", mb)] if self.sound else []
        return all(need in self.done for need in needs if need[0] >= 0)
