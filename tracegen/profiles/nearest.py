"""Which schedule a program is, or is nearly, with what is different."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracegen import compiler, registry
from tracegen.comparison import steps
from tracegen.comparison.model import Difference, StepChange, Tolerance
from tracegen.comparison.words import describe
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.errors import TracegenError
from tracegen.ir import Program
from tracegen.timeline import Timeline

# Of two programs that differ in more than this share of the actions, neither is nearly the other.
NEARLY = 0.25


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a program.

    Attributes:
        names: the schedules that it is, the plainest first.
        nearest: if there are none, the one that it is nearly; "" if it is near none.
        differences: from that, a line each.
    """

    names: list[str] = field(default_factory=list)
    nearest: str = ""
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        if self.names:
            return f"this is {' or '.join(self.names)}"
        if not self.nearest:
            return "no schedule known by name, and near none"
        count = len(self.differences)
        return f"nearly {self.nearest}: {count} difference{'s' * (count != 1)}"


def known(line: Timeline) -> Known:
    """The schedules that the program of a timeline is, or the nearest."""
    program = line.program
    if names := compiler.recognise(program):
        return Known(names)
    best: tuple[int, str, Program, list[StepChange]] | None = None
    size = (program.num_ranks, program.num_microbatches, program.stages_per_rank)
    for name in registry.available()[0]:
        try:
            other = compiler.compile(name, *size, communication=False)
        except TracegenError:
            continue
        if other.placement.ranks != program.placement.ranks:
            continue
        changes = steps.match(other, program).changes
        if best is None or (len(changes), len(name), name) < (len(best[3]), len(best[1]), best[1]):
            best = len(changes), name, other, changes
    if best is None or len(best[3]) > NEARLY * len(program):
        return Known()
    try:
        golden = replay(best[2], line.costs)
    except TracegenError:
        golden = replay(best[2], Costs())
    found = Difference(golden, line, Tolerance.parse("order-only"), steps=best[3])
    return Known([], best[1], [describe(found, change) for change in best[3]])
