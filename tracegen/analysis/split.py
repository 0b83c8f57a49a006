"""How many layers each stage gets: evenly, as told, or such that the slowest stage is fastest."""

from __future__ import annotations

from functools import lru_cache

from tracegen.errors import CostError

EVEN, BEST = "even", "best"


def split(
    how: str, layers: int, stages: int, layer: float = 1.0, first: float = 0.0, last: float = 0.0
) -> tuple[int, ...]:
    """The layers of each stage.

    Args:
        how: even, best, or numbers such as 8,9,9,6.
        layers: of the model.
        stages: to cut it into.
        layer: the time of a layer, for `best`.
        first: the time of what the first stage has beside layers.
        last: that of the last.

    Raises:
        CostError: if the numbers are not so many, do not add up or are none.
    """
    if how not in (EVEN, BEST):
        return _told(how, layers, stages)
    if stages > layers:
        raise CostError(
            f"{layers} layers are too few for {stages} stages; use {layers} stages or fewer"
        )
    return even(layers, stages) if how == EVEN else best(layers, stages, layer, first, last)


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
def best(layers: int, stages: int, layer: float, first: float, last: float) -> tuple[int, ...]:
    """The split whose slowest stage is fastest; of those, the one with the least sum of squares.

    Exact, by dynamic programming over stages and layers dealt out, twice: for the
    slowest stage's time, then for the squares with no stage slower than that. The
    first and the last stage may have no layer beside what they have anyway.
    """

    def cost(stage: int, count: int) -> float:
        return (
            count * layer + (first if stage == 0 else 0.0) + (last if stage == stages - 1 else 0.0)
        )

    def least(stage: int) -> int:
        return 0 if stage in (0, stages - 1) and stages > 1 else 1

    def deal(slowest: float | None) -> tuple[float, tuple[int, ...]]:
        """The best sum of squares with no stage over `slowest`, or the best slowest stage."""
        row: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
        for stage in range(stages):
            new: dict[int, tuple[float, tuple[int, ...]]] = {}
            for dealt, (so_far, counts) in row.items():
                for count in range(least(stage), layers - dealt + 1):
                    time = cost(stage, count)
                    if slowest is not None and time > slowest:
                        break
                    value = max(so_far, time) if slowest is None else so_far + time * time
                    total = dealt + count
                    if total not in new or value < new[total][0]:
                        new[total] = (value, (*counts, count))
            row = new
        return row[layers]

    return deal(deal(None)[0])[1]
