"""The words a schedule file is written in: slots, and the rule that numbers them.

A slot says what a rank does next ("a forward of stage 2") and leaves out for
which microbatch: as in the papers' figures, that is a matter of counting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from typing import NamedTuple

from tracegen.errors import BrokenSchedule, ScheduleError
from tracegen.ir import (
    Action,
    Kind,
    Placement,
)


class Cell:
    """One cell of the paper's figure, without its microbatch number."""

    __slots__ = ()


class Slot(Cell):
    """The next forward, backward or weight gradient of a stage."""

    __slots__ = ("kind", "stage")

    def __init__(self, stage: Stage, kind: Kind) -> None:
        self.stage, self.kind = stage, kind


class OldestW(Cell):
    """The rank's oldest weight gradient that is still owed, of whichever stage."""

    __slots__ = ()


W = OldestW()


class Stage:
    """A stage placed on this rank, as the maker of its slots.

    Attributes:
        index: its number.
        microbatches: those that run through it: not all of them where the batch
            is split between several pipes.
        F, B, I, W: its slots.
    """

    __slots__ = ("B", "F", "I", "W", "index", "microbatches")

    def __init__(self, index: int, microbatches: range) -> None:
        self.index, self.microbatches = index, microbatches
        self.F = Slot(self, Kind.FORWARD)
        self.B = Slot(self, Kind.FULL_BACKWARD)
        self.I = Slot(self, Kind.BACKWARD_INPUT)
        self.W = Slot(self, Kind.BACKWARD_WEIGHT)


class OverlapSlot(Cell):
    """A forward and a backward slot that run as one block."""

    __slots__ = ("backward", "forward")

    def __init__(self, forward: Slot, backward: Slot) -> None:
        self.forward, self.backward = forward, backward


def overlap(forward: Slot, backward: Slot) -> OverlapSlot:
    """A pair.

    Raises:
        BrokenSchedule: if they are not an F and a B or I.
    """
    for slot, kinds, what in (
        (forward, (Kind.FORWARD,), "first an F"),
        (backward, (Kind.FULL_BACKWARD, Kind.BACKWARD_INPUT), "then a B or I"),
    ):
        if not isinstance(slot, Slot) or slot.kind not in kinds:
            raise BrokenSchedule(f"a pair is of two slots of stages, {what}")
    return OverlapSlot(forward, backward)


def alternate(*orders: Sequence[Slot]) -> list[Slot]:
    """The first of each, then the second of each, and so on."""
    return list(chain.from_iterable(zip(*orders, strict=True)))


def cross(
    near: Sequence[Stage], far: Sequence[Stage], run: int, behind: int, units: int
) -> list[Slot]:
    """What a rank does where microbatches enter every other tick and take one a stage.

    Every other tick: forwards of the near stages, then backwards of the far ones, `run` of
    each at a time; the ticks between, which begin `behind` ticks later, forwards of the far
    stages and backwards of the near. Each unit of microbatches begins as the one before ends.
    """

    def there_and_back(there: Sequence[Stage], back: Sequence[Stage]) -> list[Slot]:
        slots = [stage.F for stage in there] + [stage.B for stage in reversed(back)]
        return [slot for slot in slots for _ in range(run)] * units

    first, second = there_and_back(near, far), there_and_back(far, near)
    lead = (behind + 1) // 2
    steady = len(first) - lead
    return first[:lead] + alternate(second[:steady], first[lead:]) + second[steady:]


# Where the cells of one microbatch stand on a grid of equal cells, on one rank of a V:
# F on the way down, F on the way up, I on the way up's stage, I on the way down's.
Block = tuple[int, int, int, int]
DOWN_F, UP_F, UP_I, DOWN_I, SOME_W = range(5)
PERIOD = 6  # cells of a microbatch on a rank: two F, two I, two W


def squeeze(blocks: Sequence[Block], rank: int, pipe: Pipe, limit: int) -> list[Cell]:
    """A building block for each microbatch, six cells after the one before, pushed together.

    A rank runs its cells in the order in which the blocks have them, its weight gradients
    in the gaps, but fills the gaps of both ends. In the warm-up, up to the rank's first I,
    with forwards: of the way up, or else of the way down, as many as a block keeps in
    flight. In the cool-down, after its last forward on the way down, with what is ready
    first of: forwards, I of the stage of the way down, I of the other, weight gradients.

    `limit` is the most activations a rank may hold, each until its weight gradient.
    """
    down, up = pipe.stages(rank)
    cells = (down.F, up.F, up.I, down.I, W)
    kinds = _squeezed(tuple(blocks), pipe.num_microbatches, limit)[rank]
    return [cells[kind] for kind in kinds]


@lru_cache(maxsize=4)  # a schedule asks for one rank at a time, and the ranks depend on each other
def _squeezed(blocks: tuple[Block, ...], count: int, limit: int) -> list[list[int]]:
    """The kinds of all ranks' cells, in order."""
    ranks = [_VRank(block, count, limit) for block in blocks]
    first, last = ranks[0], ranks[-1]
    for above, below in pairwise(ranks):
        below.after[DOWN_F], above.after[UP_F] = (above, DOWN_F), (below, UP_F)
        below.after[UP_I], above.after[DOWN_I] = (above, UP_I), (below, DOWN_I)
    last.after[UP_F], last.after[DOWN_I] = (last, DOWN_F), (last, UP_I)
    first.after[UP_I] = (first, UP_F)
    while any(len(rank.order) < PERIOD * count for rank in ranks):
        chosen = [(rank, rank.choice()) for rank in ranks]  # at one moment, then run at once
        require(any(k is not None for _, k in chosen), f"blocks fit {limit} activations a rank")
        for rank, kind in chosen:
            if kind is not None:
                rank.done[kind] += 1
                rank.order.append(kind)
    return [rank.order for rank in ranks]


class _VRank:
    """One rank of a V while its blocks are squeezed.

    Attributes:
        after: for each kind, whose cell of which kind its next cell waits for.
        done: how many of each kind have run.
        planned: (kind, how many before it) of every cell, where the blocks have it.
    """

    def __init__(self, block: Block, count: int, limit: int) -> None:
        self.after: dict[int, tuple[_VRank, int]] = {}
        self.done, self.order = [0] * 5, list[int]()
        self.count, self.limit = count, limit
        self.in_flight = -(-(block[DOWN_I] - block[DOWN_F]) // PERIOD)
        gaps = set(range(PERIOD)) - {at % PERIOD for at in block}
        require(len(gaps) == PERIOD - 4, "the four cells of a block are different modulo six")
        near = min(gaps, key=lambda gap: (gap - block[UP_I]) % PERIOD)
        (far,) = gaps - {near}
        weights = [block[i] + (gap - block[i]) % PERIOD for i, gap in ((UP_I, near), (DOWN_I, far))]
        kinds = (DOWN_F, UP_F, UP_I, DOWN_I, SOME_W, SOME_W)
        cells = list(zip((*block, *weights), kinds, strict=True))
        seen = [0] * 5
        self.planned: list[tuple[int, int]] = []
        for _, kind in sorted((at + PERIOD * n, kind) for n in range(count) for at, kind in cells):
            self.planned.append((kind, seen[kind]))
            seen[kind] += 1
        self.head = 0

    def choice(self) -> int | None:
        """The kind of the cell to run now, if any."""
        done, last = self.done, len(self.planned) - 1
        as_planned, before = self.planned[self.head]
        while done[as_planned] > before and self.head < last:
            self.head += 1
            as_planned, before = self.planned[self.head]
        if done[UP_I] == 0:
            wanted: tuple[int, ...] = (as_planned, UP_F, DOWN_F, UP_I)
        elif done[DOWN_F] == self.count:
            wanted = (UP_F, DOWN_I, UP_I, SOME_W)
        else:
            wanted = (as_planned, SOME_W)
        return next((kind for kind in wanted if self.can_run(kind)), None)

    def can_run(self, kind: int) -> bool:
        done = self.done
        if kind == SOME_W:
            return done[UP_I] + done[DOWN_I] > done[SOME_W]
        if done[kind] == self.count:
            return False
        if kind in (DOWN_F, UP_F) and done[DOWN_F] + done[UP_F] - done[SOME_W] == self.limit:
            return False
        if kind == DOWN_F and done[UP_I] == 0 and done[DOWN_F] >= self.in_flight:
            return False
        if kind == UP_I and done[UP_F] == done[UP_I]:
            return False
        if kind not in self.after:
            return True
        other, before = self.after[kind]
        return other.done[before] > done[kind]


def require(condition: bool, rule: str) -> None:
    """Say that a schedule is defined only where a rule holds.

    Raises:
        ScheduleError: with the rule, where it does not.
    """
    if not condition:
        raise ScheduleError(rule)


# What one rank does, in order. An Action is for schedules that skip the counting.
Order = Sequence[Cell | Action]

# Number of ranks, stages per rank -> where the stages are.
Place = Callable[[int, int], Placement]


def loop(num_ranks: int, stages_per_rank: int) -> Placement:
    """Round and round: stage s on rank s mod p."""
    stages = range(num_ranks * stages_per_rank)
    return Placement("loop", tuple(s % num_ranks for s in stages), (tuple(stages),))


def v_shape(num_ranks: int, stages_per_rank: int) -> Placement:
    """Down the ranks and back up, again and again: 0 1 .. p-1 p-1 .. 1 0 0 1 .."""
    stages = range(num_ranks * stages_per_rank)
    ranks = (
        s % num_ranks if s // num_ranks % 2 == 0 else num_ranks - 1 - s % num_ranks for s in stages
    )
    return Placement("v", tuple(ranks), (tuple(stages),))


def both_ways(num_ranks: int, stages_per_rank: int) -> Placement:
    """Crossing pipes, each a chain of its own: pairs of one down the ranks and one back up.

    Pair k of f starts its down pipe on rank k * p / f. A rank holds a stage of each pipe.

    Raises:
        ScheduleError: if the ranks cannot be shared out between the pipes.
    """
    pairs = stages_per_rank // 2
    require(stages_per_rank % 2 == 0, "pipes come in pairs, one down and one up")
    require(num_ranks % 2 == 0, "p is even, since one pipe goes down the ranks and one up")
    require(num_ranks % pairs == 0, f"p is a multiple of {pairs}, the pairs of pipes")
    ranks: list[int] = []
    for pipe in range(stages_per_rank):
        shift = pipe // 2 * num_ranks // pairs
        along = range(num_ranks) if pipe % 2 == 0 else range(num_ranks - 1, -1, -1)
        ranks += [(shift + j) % num_ranks for j in along]
    chains = tuple(
        tuple(range(pipe * num_ranks, (pipe + 1) * num_ranks)) for pipe in range(stages_per_rank)
    )
    return Placement("bidirectional", tuple(ranks), chains)


class Pipe(NamedTuple):
    """The size of the problem a schedule is written for."""

    num_ranks: int
    num_microbatches: int
    stages_per_rank: int
    placement: Placement

    @property
    def round_length(self) -> int:
        """Microbatches that run through one of a rank's stages before its next."""
        M, rounds = self.num_microbatches, max(1, self.num_microbatches // self.num_ranks)
        require(M % rounds == 0, "m is a multiple of the number of rounds, max(1, m div p)")
        return M // rounds

    def in_rounds(self, stages: Sequence[Stage]) -> list[Stage]:
        """The stage of each slot where a round runs through one of the stages after another."""
        once = [stage for stage in stages for _ in range(self.round_length)]
        return once * (self.num_microbatches // self.round_length)

    def stages(self, rank: int) -> list[Stage]:
        """The rank's stages, in the order of the forward, or of the chains."""
        chain_of, placement = self.placement.chain_of_stages(), self.placement
        return [
            Stage(s, placement.microbatches_of(chain_of[s], self.num_microbatches))
            for s in placement.stages_of(rank)
        ]
