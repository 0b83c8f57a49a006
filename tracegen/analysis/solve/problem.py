"""What is to be solved: times, lags and memory as integers, and what makes an order good.

Every microbatch takes the same time on a stage, so which of them an action is of
does not matter, only how many came before. Of any schedule, let the n-th forward
of each stage be of its n-th microbatch, and the n-th I and W too: no wait becomes
longer (matching sorted times to sorted times never does), and what is held does not
change. So some best order has all microbatches in order everywhere, and to find it
is to interleave, on each rank, sequences that are known: F, I and W of each stage.

A full backward is never better than I and W right after it: its gradient would
leave later and its activations be given back no earlier. So the backward is split
unless that is ruled out, for runtimes that cannot do it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import floor, gcd, lcm

from tracegen.cost_checks import WHOLE_STAGE
from tracegen.costs import Costs
from tracegen.errors import CostError, ScheduleError
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import Placement, Program, Stream
from tracegen.ir import W as WEIGHT
from tracegen.memory import Limit, changes, resident

# The kinds of a slot, as indices of `Problem.ns` and `Problem.change`.
F, I, W = range(3)
KINDS = 3

# An action is (stage * KINDS + kind) * m + n, n counting from the first microbatch of its chain;
# an order has a list of them for each rank.
Order = list[list[int]]

NO_ACTION = -1


class Objective(StrEnum):
    """What an order is to make short.

    MAKESPAN: the end of the last action.
    SPAN: the longest of the ranks' spans, each from its first start to its last end.
    STEADY: what each further training step takes when many follow each other without a barrier.
    """

    MAKESPAN = "makespan"
    SPAN = "span"
    STEADY = "steady"


@dataclass(frozen=True)
class Problem:
    """One question.

    Attributes:
        placement: where the stages are.
        num_microbatches: m.
        objective: what to make short.
        split: whether the backward may be split; if not, I stands for all of it and there is no W.
        ns: by kind (F, I, W) and stage, how long it takes.
        lag_forward: by stage, the ns until its previous stage's forward is here; 0 within a rank.
        lag_backward: by stage, the ns until its next stage's gradient is here.
        change: by kind and stage, what it adds to what its rank holds, in some unit.
        room: by rank, what it may hold in that unit; None for no limit.
    """

    placement: Placement
    num_microbatches: int
    objective: Objective
    split: bool
    ns: tuple[tuple[int, ...], ...]
    lag_forward: tuple[int, ...]
    lag_backward: tuple[int, ...]
    change: tuple[tuple[int, ...], ...]
    room: tuple[int, ...] | None

    @property
    def num_ranks(self) -> int:
        return max(self.placement.ranks) + 1

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    @property
    def kinds(self) -> range:
        """F, I and, if the backward may be split, W."""
        return range(KINDS if self.split else W)

    @cached_property
    def stages_of(self) -> list[list[int]]:
        """By rank, its stages in the order of the forward, or of the chains."""
        return [self.placement.stages_of(rank) for rank in range(self.num_ranks)]

    @cached_property
    def neighbours(self) -> tuple[list[int], list[int]]:
        """The previous and the next stage of each, -1 where there is none."""
        return self.placement.neighbours()

    @cached_property
    def count(self) -> list[int]:
        """By stage, how many microbatches run through it."""
        chain_of, place = self.placement.chain_of_stages(), self.placement
        return [len(place.microbatches_of(c, self.num_microbatches)) for c in chain_of]

    @cached_property
    def duration(self) -> list[int]:
        """By action, how many ns it takes."""
        return self._by_action(lambda stage, kind: self.ns[kind][stage])

    @cached_property
    def taken(self) -> list[int]:
        """By action, what it adds to what its rank holds."""
        return self._by_action(lambda stage, kind: self.change[kind][stage])

    @cached_property
    def lag(self) -> list[int]:
        """By action, the ns until the result it waits for is here."""
        of_kind = (self.lag_forward, self.lag_backward, (0,) * self.num_stages)
        return self._by_action(lambda stage, kind: of_kind[kind][stage])

    @cached_property
    def source(self) -> list[int]:
        """By action, whose result it waits for, beside its own F or I: NO_ACTION if of none."""
        m, (before, after) = self.num_microbatches, self.neighbours
        found = []
        for stage in range(self.num_stages):
            for kind, other in ((F, before[stage]), (I, after[stage]), (W, NO_ACTION)):
                base = (other * KINDS + kind) * m
                found += [NO_ACTION if other < 0 else base + n for n in range(m)]
        return found

    def _by_action(self, value: Callable[[int, int], int]) -> list[int]:
        m = self.num_microbatches
        slots = product(range(self.num_stages), range(KINDS))
        return [value(stage, kind) for stage, kind in slots for _ in range(m)]

    @cached_property
    def work(self) -> list[int]:
        """By rank, the ns of all it has to do."""
        return [
            sum(self.count[s] * sum(self.ns[kind][s] for kind in self.kinds) for s in stages)
            for stages in self.stages_of
        ]


def problem_of(
    placement: Placement,
    num_microbatches: int,
    costs: Costs,
    objective: Objective = Objective.MAKESPAN,
    limit: Limit | None = None,
    *,
    split: bool = True,
) -> Problem:
    """The question that costs ask.

    Args:
        placement: where the stages are.
        num_microbatches: m.
        costs: of the placement's stages.
        objective: what to make short.
        limit: in the unit of the costs' activations.
        split: whether the backward may be split into I and W.

    Raises:
        ScheduleError: if the pipes of crossing chains cannot have equal shares of m.
        CostError: for costs that do not go with the placement, or under which actions differ
            that are alike to the solver.
    """
    _check(costs)
    if num_microbatches % (chains := len(placement.chains)):
        raise ScheduleError(
            f"solve: m = {num_microbatches} microbatches for {chains} pipes; use a multiple of "
            f"{chains}, an equal share for each"
        )
    ranks = (Stream.of(()),) * (max(placement.ranks) + 1)
    empty = Program("solve", num_microbatches, placement, ranks)
    times = costs.times(empty)
    columns = [times.of_kind[kind] for kind in (FORWARD, INPUT, WEIGHT)]
    if not split:
        columns[I:] = [times.of_kind[FULL], [0] * placement.num_stages]
    before, after = placement.neighbours()

    if times.links_queue:
        raise CostError(
            "solve does not take bandwidths, for which transfers take turns on a link; "
            "give what a hand-over takes in all as --alpha"
        )

    def lag(source: int, target: int) -> int:
        a, b = placement.ranks[source], placement.ranks[target]
        return 0 if source < 0 or a == b else times.latency((a, b))

    stages = range(placement.num_stages)
    change, room = _memory(empty, costs, limit, split)
    return Problem(
        placement,
        num_microbatches,
        objective,
        split,
        tuple(map(tuple, columns)),
        tuple(lag(before[s], s) for s in stages),
        tuple(lag(after[s], s) for s in stages),
        change,
        room,
    )


def _check(costs: Costs) -> None:
    """Refuse costs under which actions differ that are alike to the solver."""
    whole = WHOLE_STAGE
    for bad, what, instead in (
        (costs.moe is not None, "kernel costs", "the sums of the kernels as --f, --i and --w"),
        (costs.fb_us is not None, "the cost of a pair", "--f, --i and --w: it orders no pairs"),
        (bool(costs.jitter), "jitter", "costs without it, and replay the answer with it"),
        (bool(costs.microbatch), "costs of single microbatches", "the same costs for all"),
        (
            any("microbatch" in entry or "fb_us" in entry for entry in costs.stage.values()),
            "costs of single microbatches or pairs of a stage",
            "the same costs for all its actions",
        ),
        (
            costs.zero is not None
            or any(getattr(costs, name) != 0 for name in whole)
            or any(name in entry for name in whole for entry in costs.stage.values()),
            "sums of gradients, the optimizer and UNSHARD",
            "costs without them, and replay the answer with them",
        ),
    ):
        if bad:
            raise CostError(f"solve does not take {what}; give {instead}")


def _memory(
    empty: Program, costs: Costs, limit: Limit | None, split: bool
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...] | None]:
    """What actions change, and what ranks have room for, as integers of one unit."""
    S = empty.num_stages
    at = "freed_at_weight" if limit is None else limit.at
    kinds = changes(costs, S, at)
    rows = [kinds[kind] for kind in (FORWARD, INPUT, WEIGHT)]
    if not split:
        rows[I:] = [kinds[FULL], [0.0] * S]
    exact = [[Fraction(x).limit_denominator(10**6) for x in row] for row in rows]
    # A full backward gives back what the forward took, whatever rounding says.
    exact[W if split else I] = [
        -f - i if split else -f for f, i in zip(exact[F], exact[I], strict=True)
    ]
    whole = lcm(*(x.denominator for row in exact for x in row))
    scale = Fraction(whole, gcd(*(int(x * whole) for row in exact for x in row)) or 1)
    change = tuple(tuple(int(x * scale) for x in row) for row in exact)
    if limit is None:
        return change, None
    free = [limit.size - held for held in resident(empty, costs)]
    return change, tuple(floor(Fraction(x).limit_denominator(10**6) * scale) for x in free)
