"""The figures of one schedule at one size: a row of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from tracegen import compiler, engine, metrics, registry
from tracegen.analysis.normalise import Source
from tracegen.costs import Costs
from tracegen.deps import NOTHING
from tracegen.errors import TracegenError
from tracegen.ir import Placement, Program
from tracegen.memory import peak_bytes
from tracegen.timeline import Timeline, as_number


@dataclass(frozen=True, slots=True)
class Size:
    """A schedule at a size; v is None for the schedule's own.

    Attributes:
        pipes: v of schedules whose stages per rank are pipes that cross.
    """

    schedule: str
    p: int
    m: int
    v: int | None = None
    pipes: int | None = None


@dataclass(frozen=True, slots=True)
class Figures:
    """What a schedule costs.

    Attributes:
        schedule, p, m, v: as it was compiled.
        stages: that the model is cut into.
        makespan_us: of one step.
        bubble_ratio, bubble_overhead, span_rate: as in `metrics`.
        peak_at_input, peak_at_weight: the most activations of any rank, given back with the
            input's or the weight's gradient: in 1F1B stages, or in bytes where costs give them.
        weights: of the rank with most, in the same unit; in bytes with gradients and
            optimizer state.
        held_at_input, held_at_weight: activations, weights and all of the fullest rank, in
            bytes; None where the costs do not say.
        transfers: hand-overs between two ranks in a step.
        exposed_us: of the rank that has most, the time it stands still while what it waits
            for is on its way; with MoE costs or `zero`, the time its communication runs and it
            does not.
    """

    schedule: str
    p: int
    m: int
    v: int
    stages: int
    makespan_us: float
    bubble_ratio: float
    bubble_overhead: float
    span_rate: float
    peak_at_input: float
    peak_at_weight: float
    weights: float
    held_at_input: float | None
    held_at_weight: float | None
    transfers: int
    exposed_us: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Impossible:
    """A schedule that is not defined for a size, or costs that do not go with it."""

    size: Size
    reason: str


def compiled(size: Size) -> Program:
    """The program of a size.

    Raises:
        ScheduleError: if the schedule is not defined for it.
    """
    return compiler.compile(size.schedule, size.p, size.m, _own_v(size), communication=False)


def placement_of(size: Size) -> Placement:
    """The placement of a size's program.

    Raises:
        ScheduleError: if the schedule is not defined for it.
    """
    return registry.find(size.schedule).pipe(size.p, size.m, _own_v(size)).placement


def _own_v(size: Size) -> int | None:
    found = registry.find(size.schedule)
    if size.pipes is not None and found.crosses(size.p, size.pipes):
        return size.pipes
    return None if found.stages_per_rank is not None else size.v


def measured(size: Size, source: Source, program: Program | None = None) -> Figures | Impossible:
    """The figures of a schedule, or why there are none.

    Args:
        size: which.
        source: of the costs.
        program: of that size, if it is there already.
    """
    try:
        program = program or compiled(size)
        costs = with_block(source.costs(program.placement), program)
        line = engine.replay(program, costs)
    except TracegenError as error:
        return Impossible(size, reason(error, size))
    return figures(line, source.unit(program.placement))


def with_block(costs: Costs, program: Program) -> Costs:
    """With MoE costs, those in the block order that the schedule was written for."""
    if costs.moe is None or "schedule" not in program.recipe:
        return costs
    block = registry.find(program.recipe["schedule"]).block
    return replace(costs, moe=replace(costs.moe, block=block)) if block else costs


def reason(error: TracegenError, size: Size) -> str:
    """A refusal without the schedule's name and size, which the reader has before him."""
    text = str(error)
    _, found, rest = text.partition(" is not defined for ")
    return rest.partition(": ")[2] if found else text.removeprefix(f"{size.schedule}: ")


def figures(line: Timeline, unit: float) -> Figures:
    """The figures of a replay.

    Args:
        line: the replay.
        unit: how many 1F1B stages a stage is.
    """
    program, costs = line.program, line.costs
    scale = 1.0 if costs.in_bytes else unit
    peaks = {at: as_number(max(held) * scale) for at, held in line.peak_activations.items()}
    known = peak_bytes(program, costs) if costs.in_bytes else None
    return Figures(
        program.name,
        program.num_ranks,
        program.num_microbatches,
        program.stages_per_rank,
        len(program.placement.chains[0]),
        metrics.us(line.makespan_ns),
        metrics.bubble_ratio(line),
        metrics.bubble_overhead(line),
        metrics.span_rate(line),
        peaks["freed_at_input"],
        peaks["freed_at_weight"],
        weights(program, costs, unit),
        None if known is None else max(known["freed_at_input"]),
        None if known is None else max(known["freed_at_weight"]),
        transfers(program),
        metrics.us(max(exposed_ns(line), default=0)),
    )


def weights(program: Program, costs: Costs, unit: float) -> float:
    """What the rank with most holds of weights: in 1F1B stages, or in bytes where known."""
    if costs.memory and costs.in_bytes:
        from tracegen.memory import resident

        return as_number(max(resident(program, costs)))
    held = [0] * program.num_ranks
    for rank in program.placement.ranks:
        held[rank] += 1
    return as_number(max(held) * unit)


def transfers(program: Program) -> int:
    """Hand-overs between two ranks in a step, forward and backward."""
    placement, m = program.placement, program.num_microbatches
    ways = 1 if program.forward_only else 2
    return ways * sum(
        len(placement.microbatches_of(number, m))
        for number, chain in enumerate(placement.chains)
        for a, b in pairwise(chain)
        if placement.ranks[a] != placement.ranks[b]
    )


def exposed_ns(line: Timeline) -> list[int]:
    """By rank, the communication that is not hidden: see `Figures.exposed_us`."""
    if line.kernels is not None or line.collectives:
        return line.exposed_ns
    return [sum(_in_flight(line, rank)) for rank in range(line.program.num_ranks)]


def _in_flight(line: Timeline, rank: int) -> Iterator[int]:
    """Of each gap, the part in which what ends it was on its way."""
    for step, gap in metrics.gaps(line, rank):
        source = line.blocker[step]
        if source != NOTHING:
            yield min(gap, max(0, line.start_ns[step] - line.end_ns[source]))
