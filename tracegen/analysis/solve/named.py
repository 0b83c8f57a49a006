"""The named schedules that answer the same question: where the search begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracegen import registry
from tracegen.analysis.solve.orders import fits, from_program, value
from tracegen.analysis.solve.problem import Order, Problem
from tracegen.errors import TracegenError
from tracegen.ir import KIND_MASK, Program
from tracegen.ir import B as BACKWARD
from tracegen.ir import W as WEIGHT
from tracegen.order import both_ways, loop, v_shape
from tracegen.passes.validate import validate

PLACES = {"loop": loop, "v": v_shape, "bidirectional": both_ways}

# v where it is not given: a loop of one stage a rank, a V, and two pipes that cross.
STAGES_PER_RANK = {"loop": 1, "v": 2, "bidirectional": 2}

MOST_ACTIONS = 300_000


@dataclass(frozen=True, slots=True)
class Named:
    """A named schedule as an answer.

    Attributes:
        schedule: its name.
        order: its order; with its full backwards split, its pairs one half after the other.
        value: of that order in ns; None if it does not run.
        fits: whether it keeps the memory limit.
        was_split: whether it has full backwards, which the order splits.
    """

    schedule: str
    order: Order
    value: int | None
    fits: bool
    was_split: bool = False

    def __str__(self) -> str:
        return self.schedule + " with its backwards split" * self.was_split


def named(problem: Problem) -> Iterator[Named]:
    """Every schedule that is defined for the problem's size and has its placement.

    Where the backward is not to be split, those that split it are left out.
    """
    placement = problem.placement
    p, v = problem.num_ranks, placement.num_stages // problem.num_ranks
    if 3 * problem.num_microbatches * placement.num_stages > MOST_ACTIONS:
        return
    every = registry.available()[0].values()
    # Of several that come out alike, the plainest: no MoE blocks, no v of the user's choice.
    for schedule in sorted(every, key=lambda s: (bool(s.block), s.stages_per_rank is None)):
        if schedule.stages_per_rank not in (None, v):
            continue
        try:
            pipe = schedule.pipe(p, problem.num_microbatches, v)
            if pipe.placement.ranks != placement.ranks or pipe.placement.chains != placement.chains:
                continue
            streams = tuple(schedule.streams(pipe))
            program = validate(Program(schedule.name, problem.num_microbatches, placement, streams))
        except TracegenError:
            continue
        kinds = {code & KIND_MASK for stream in streams for code in stream.codes}
        if not problem.split and WEIGHT in kinds:
            continue
        order = from_program(problem, program)
        was_split = problem.split and BACKWARD in kinds
        yield Named(schedule.name, order, value(problem, order), fits(problem, order), was_split)
