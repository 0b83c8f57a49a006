"""The fastest schedule within a memory limit, and what more memory would buy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tracegen.analysis.compare import same
from tracegen.analysis.measure import Figures, Impossible

# Microbatches that are tried where none are asked for, in ranks.
MICROBATCHES = (1, 2, 3, 4, 6, 8)
# The rule of thumb: with m >= 4p the bubble of 1F1B is under a quarter of the work.
THUMB = 4
STAGES_PER_RANK = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Step:
    """What a larger limit would buy.

    Attributes:
        limit: the memory it takes.
        figures: the fastest within it.
        saves_us: of the makespan.
    """

    limit: float
    figures: Figures
    saves_us: float


@dataclass(frozen=True, slots=True)
class Advice:
    """What to run.

    Attributes:
        m: microbatches.
        fits: who fits, the fastest first.
        one_more: what one more unit of memory would buy, None if nothing.
        steps: who would be faster, with less and less of that, by the memory it takes.
        least: who needs least memory of all, with that.
        replicas: the fastest that would fit, if it is faster, of those left out because they
            hold the weights more than once.
    """

    m: int
    fits: list[Figures]
    one_more: Step | None
    steps: list[Step]
    least: tuple[float, Figures]
    replicas: Figures | None = None


def needs(row: Figures, at: str) -> float:
    """The memory of the fullest rank: all that it holds where that is known, or activations.

    Args:
        row: of the schedule.
        at: freed_at_input or freed_at_weight.
    """
    suffix = at.removeprefix("freed_")
    whole = getattr(row, f"held_{suffix}")
    held: float = getattr(row, f"peak_{suffix}") if whole is None else whole
    return held


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for.

    Attributes:
        limit: that no rank may hold more than.
        at: the convention, as for `needs`.
        unit: one more of what would be of interest.
        once: leave out schedules that hold the weights more than once: memory does not say so.
    """

    limit: float
    at: str = "freed_at_weight"
    unit: float = 1.0
    once: bool = True


def choose(
    microbatches: Sequence[int],
    measure: Callable[[int], Sequence[Figures | Impossible]],
    wanted: Wanted,
) -> Advice | None:
    """The advice with a number of microbatches that is enough; None if nothing is possible.

    Of several numbers the first is taken with which the bubble costs the fastest that
    fits no more than it costs 1F1B by the rule of thumb, (p-1)/4p; if none is, the one
    with which it costs least.

    Args:
        microbatches: the numbers, rising.
        measure: of all candidates at a number.
        wanted: what is asked for.
    """
    best: Advice | None = None
    for m in microbatches:
        advice = advise(measure(m), wanted)
        if advice is None:
            continue
        if advice.fits and advice.fits[0].bubble_overhead <= thumb(advice.fits[0].p) + 1e-9:
            return advice
        if best is None or _overhead(advice) < _overhead(best):
            best = advice
    return best


def _overhead(advice: Advice) -> float:
    return advice.fits[0].bubble_overhead if advice.fits else float("inf")


def advise(found: Sequence[Figures | Impossible], wanted: Wanted) -> Advice | None:
    """The advice from the figures of every candidate at one size; None if there are none."""
    every = [row for row in found if isinstance(row, Figures)]
    if not every:
        return None
    weights = min(row.weights for row in every)
    rows = [row for row in every if not wanted.once or same(row.weights, weights)]
    advice = _of_candidates(rows, wanted.limit, wanted.at, wanted.unit)
    others = [
        row
        for row in every
        if not same(row.weights, weights) and _within(needs(row, wanted.at), wanted.limit)
    ]
    best = min(others, key=lambda row: (row.makespan_us, row.weights), default=None)
    if not wanted.once or best is None:
        return advice
    if advice.fits and best.makespan_us >= advice.fits[0].makespan_us:
        return advice
    return replace(advice, replicas=best)


def thumb(p: int) -> float:
    """The bubble overhead of 1F1B with as many microbatches as the rule of thumb asks for."""
    return (p - 1) / (THUMB * p)


def _of_candidates(every: Sequence[Figures], limit: float, at: str, unit: float) -> Advice:
    rows = sorted(
        every,
        key=lambda row: (round(row.makespan_us, 6), needs(row, at), row.weights, row.transfers),
    )
    fits = [row for row in rows if _within(needs(row, at), limit)]
    least = min(rows, key=lambda row: (needs(row, at), row.makespan_us))
    time = fits[0].makespan_us if fits else float("inf")
    steps: list[Step] = []
    for row in sorted(rows, key=lambda row: (needs(row, at), row.makespan_us)):
        fastest = steps[-1].figures.makespan_us if steps else time
        if row.makespan_us < fastest and not same(row.makespan_us, fastest):
            if steps and same(steps[-1].limit, needs(row, at)):
                del steps[-1]  # as much memory, rounded in another way
            steps.append(Step(needs(row, at), row, time - row.makespan_us))
    within = [step for step in steps if _within(step.limit, limit + unit)]
    return Advice(
        rows[0].m, fits, within[-1] if within and fits else None, steps, (needs(least, at), least)
    )


def _within(held: float, limit: float) -> bool:
    return held <= limit or same(held, limit)
