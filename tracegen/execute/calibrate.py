"""The costs of a model's stages, measured for replays to come. No torch in this module.

Either the schedule itself is executed, and so that every op is met also with
its backwards split, or joined; or each distinct stage runs alone on one device,
so that one device predicts a pipeline of many.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from tracegen.costs import Costs
from tracegen.execute.launch import Task, run
from tracegen.execute.measure import measured
from tracegen.execute.op_costs import OpCosts
from tracegen.execute.options import Options
from tracegen.ir import KIND_MASK, NO_MATE, Program, Stream
from tracegen.ir import B as FULL
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.passes.communication import add_communication
from tracegen.passes.split import split_backward


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        costs: what every op of every stage takes.
        boundary_bytes: by stage, what it hands to the next, 0 for a last one; empty where unknown.
        device: what it was measured on.
        alone: whether each stage ran alone.
    """

    costs: OpCosts
    device: str
    alone: bool
    boundary_bytes: Mapping[int, int] = field(default_factory=dict)

    def for_program(self, program: Program) -> Costs:
        """Costs of the program's stages, the same for every microbatch."""
        return self.costs.for_program(program, singles=False)


def in_place(program: Program, options: Options) -> Calibration:
    """Execute the program, and again with its backwards the other way.

    Raises:
        ExecuteError: as an execution does.
    """
    compute = program.compute_only()
    others = [o for o in (split_backward(compute), joined(compute)) if o.ranks != compute.ranks]
    found, device = [], ""
    for each in (compute, *others):
        outcome = run(Task("run", add_communication(each), options))
        if outcome.verdict is not None:
            outcome.verdict.insist()
        found.append(measured(each, outcome).costs)
        device = str(outcome.about["device"])
    return Calibration(OpCosts.merged(found), device, alone=False)


def joined(program: Program) -> Program:
    """Every I becomes a full B, a pair's too, and no W is left."""
    return program.with_ranks(_joined(stream) for stream in program.ranks)


def _joined(stream: Stream) -> Stream:
    kept = [at for at, code in enumerate(stream.codes) if code & KIND_MASK != WEIGHT]
    codes, mates = (
        array("q", [_full(column[at]) for at in kept]) for column in (stream.codes, stream.mates)
    )
    return Stream(codes, mates)


def _full(code: int) -> int:
    return code - INPUT + FULL if code != NO_MATE and code & KIND_MASK == INPUT else code


def alone(program: Program, options: Options) -> Calibration:
    """Each distinct stage alone, in one process on one device.

    Raises:
        ExecuteError: as an execution does.
    """
    found: Calibration = run(Task("calibrate", program, options))
    return found
