"""How many layers each stage gets: evenly, as told, or such that the slowest rank is fastest."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tracegen.errors import CostError

EVEN, BEST = "even", "best"


def split(
    how: str,
    layers: int,
    stages: int,
    layer: float = 1.0,
    first: float = 0.0,
    last: float = 0.0,
    ranks: tuple[tuple[int, ...], ...] = (),
) -> tuple[int, ...]:
    """The layers of each stage.

    Args:
        how: even, best, or numbers such as 8,9,9,6.
        layers: of the model.
        stages: to cut it into.
        layer: the time of a layer, for `best`.
        first: the time of what the first stage has beside layers.
        last: that of the last.
        ranks: the stages of each rank, for `best`, as `best` has them.

    Raises:
        CostError: if the numbers are not so many, do not add up or are none.
    """
    if how not in (EVEN, BEST):
        return _told(how, layers, stages)
    if stages > layers:
        raise CostError(
            f"{layers} layers are too few for {stages} stages; use {layers} stages or fewer"
        )
    if how == EVEN:
        return even(layers, stages)
    return best(layers, stages, layer, first, last, ranks)


def even(layers: int, stages: int) -> tuple[int, ...]:
    """Equally many, or one more on some: the first and the last stage come last with that."""
    size, extra = divmod(layers, stages)
    order = [*range(1, stages - 1), 0, stages - 1]
    longer = set(order[:extra])
    return tuple(size + (stage in longer) for stage in range(stages))


def _told(how: str, layers: int, stages: int) -> tuple[int, ...]:
    try:
        told = tuple(int(text) for text in how.split(","))
    except ValueError:
        raise CostError(f"split {how!r}: use even, best, or layers by stage, as 8,9,9,6") from None
    if min(told) < 0:
        raise CostError(f"split {how}: a stage has 0 layers or more")
    if sum(told) != layers:
        raise CostError(f"split {how} is of {sum(told)} layers; the model has {layers}")
    if len(told) != stages:
        raise CostError(f"split {how} is for {len(told)} stages; here are {stages}")
    return told


@lru_cache(maxsize=256)
def best(
    layers: int,
    stages: int,
    layer: float,
    first: float,
    last: float,
    ranks: tuple[tuple[int, ...], ...] = (),
) -> tuple[int, ...]:
    """The split whose slowest rank is fastest, and within each rank its slowest stage.

    A rank works on all of its stages, so the slowest one sets the pace whichever of its stages
    is long. The first and the last stage may have no layer beside what they have anyway.

    `ranks` has the stages of each rank, once for ranks that have the same; without, each stage
    is by itself. All else is as of `split`.
    """
    beside = [0.0] * stages
    beside[0] += first
    beside[-1] += last
    least = [int(0 < stage < stages - 1 or stages == 1) for stage in range(stages)]
    counts = [0] * stages
    own = ranks or [(stage,) for stage in range(stages)]
    whole = [(sum(beside[at] for at in held), sum(least[at] for at in held)) for held in own]
    for held, share in zip(own, _dealt(layers, layer, whole), strict=True):
        parts = [(beside[stage], least[stage]) for stage in held]
        for stage, count in zip(held, _dealt(share, layer, parts), strict=True):
            counts[stage] = count
    return tuple(counts)


def _dealt(layers: int, layer: float, places: Sequence[tuple[float, int]]) -> tuple[int, ...]:
    """The layers of each place such that the slowest is fastest, then with the least squares.

    Exact, by dynamic programming over places and layers dealt out, twice: for the slowest
    place's time, then for the squares with none slower than that.

    Args:
        layers: to deal out.
        layer: the time of one.
        places: of each, its time beside layers and its fewest layers.
    """

    def deal(slowest: float | None) -> tuple[float, tuple[int, ...]]:
        """The best sum of squares with no place over `slowest`, or the best slowest place."""
        row: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        for beside, least in places:
            new: dict[int, tuple[float, tuple[int, ...]]] = {}
            for dealt, (so_far, counts) in row.items():
                for count in range(least, layers - dealt + 1):
                    time = count * layer + beside
                    if slowest is not None and time > slowest:
                        break
                    value = max(so_far, time) if slowest is None else so_far + time * time
                    total = dealt + count
                    if total not in new or value < new[total][0]:
                        new[total] = (value, (*counts, count))
            row = new
        return row[layers]

    return deal(deal(None)[0])[1]
