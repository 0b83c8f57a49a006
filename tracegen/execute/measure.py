"""What was measured -> a Timeline, the costs that it shows, and what replay predicts of those."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from tracegen.blame import blockers
from tracegen.costs import Costs
from tracegen.deps import waits
from tracegen.engine import replay
from tracegen.errors import ExecuteError
from tracegen.execute.op_costs import OpCosts
from tracegen.execute.outcome import NO_WAIT, Outcome, StepTimes
from tracegen.ir import NO_MATE, Program, Stream
from tracegen.memory import peaks
from tracegen.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Spread:
    """How steps differed.

    Attributes:
        makespans_ns: of every measured step.
        p50_ns, p95_ns: of those.
        straggler: in the slowest step, the rank that computed longest beyond its own median,
            and by how many ns.
    """

    makespans_ns: list[int]
    p50_ns: int
    p95_ns: int
    straggler: tuple[int, int]


@dataclass(frozen=True)
class Measurement:
    """One execution, and replay's prediction from its own costs.

    Attributes:
        line: the median step.
        predicted: the same program replayed at `costs`.
        costs: what every op of every stage took.
        spread: over the measured steps.
        broken_waits: of the median step, as `broken_waits` has them.
        outcome: as it came.
    """

    line: Timeline
    predicted: Timeline
    costs: OpCosts
    spread: Spread
    broken_waits: list[str]
    outcome: Outcome


def measured(program: Program, outcome: Outcome) -> Measurement:
    """Make sense of an outcome.

    Args:
        program: that ran; its communication is not looked at.
        outcome: of its execution.

    Raises:
        ExecuteError: if a rank ran something else than the program.
    """
    program = program.compute_only()
    steps = [_on_one_axis(program, times, outcome) for times in outcome.steps]
    for times in outcome.steps:
        for rank, of_rank in enumerate(times):
            check_order(program, rank, of_rank)
    makespans = [max(end) - min(start) for start, end, _ in steps]
    chosen = sorted(range(len(steps)), key=makespans.__getitem__)[(len(steps) - 1) // 2]
    costs = OpCosts.of_steps(program, [(start, end) for start, end, _ in steps])
    spread = _spread(program, steps, makespans)
    recorded = "recorded" in outcome.about
    line = _timeline(program, costs.for_program(program), *steps[chosen], recorded)
    uncertainty = max(
        times.uncertainty_ns + offset.uncertainty_ns
        for times, offset in zip(outcome.steps[chosen], outcome.offsets, strict=True)
    )
    broken = broken_waits(line, 2 * uncertainty, pairs_wait_inside=recorded)
    predicted = replay(program, costs.for_program(program))
    facts = _facts(line, predicted, spread, outcome, uncertainty, broken)
    line = replace(line, config={**line.config, "executed": facts}, beside=predicted)
    return Measurement(line, predicted, costs, spread, broken, outcome)


def check_order(program: Program, rank: int, times: StepTimes) -> None:
    """Is what the events say the rank did what the program says?

    Raises:
        ExecuteError: naming the first action that differs.
    """
    order = sorted(range(len(times.codes)), key=times.start_ns.__getitem__)
    ran = Stream(
        array("q", [times.codes[at] for at in order]), array("q", [times.mates[at] for at in order])
    )
    if ran == program.ranks[rank]:
        return
    for at, (did, should) in enumerate(zip(ran, program.ranks[rank], strict=False)):
        if did != should:
            raise ExecuteError(f"rank {rank}, action {at}: {did} ran where {should} stands")
    raise ExecuteError(
        f"rank {rank} ran {len(ran)} actions; the program has {len(program.ranks[rank])}"
    )


def broken_waits(line: Timeline, uncertainty_ns: int, pairs_wait_inside: bool = False) -> list[str]:
    """Steps that started before what replay's rules let them wait for had ended.

    Args:
        line: measured.
        uncertainty_ns: how much earlier may be the clocks' fault.
        pairs_wait_inside: whether a pair waits for its backward's input only after its forward,
            as torch's runtime does; what is checked is then the pair's end.
    """
    program, needs = line.program, waits(line.program)
    found = []
    for rank, stream in enumerate(program.ranks):
        for step, mate in enumerate(stream.mates, program.offsets[rank]):
            inside = pairs_wait_inside and mate != NO_MATE
            for wait in needs.of(step):
                late = line.end_ns if inside and wait == needs.backward[step] else line.start_ns
                early = line.end_ns[wait] - late[step]
                if early > uncertainty_ns:
                    found.append(
                        f"{_text(program, step)} starts {early} ns before "
                        f"{_text(program, wait)} ends"
                    )
    return found


def _text(program: Program, step: int) -> str:
    rank = program.rank_of_step(step)
    return str(program.ranks[rank][step - program.offsets[rank]])


Times = tuple["array[int]", "array[int]", "array[int]"]


def _on_one_axis(program: Program, times: Sequence[StepTimes], outcome: Outcome) -> Times:
    """Start, end and wait of every step of the program, from the start of the first."""
    start, end, wait = array("q"), array("q"), array("q")
    for of_rank, offset in zip(times, outcome.offsets, strict=True):
        start.extend(ns + offset.ns for ns in of_rank.start_ns)
        end.extend(ns + offset.ns for ns in of_rank.end_ns)
        wait.extend(NO_WAIT if ns == NO_WAIT else ns + offset.ns for ns in of_rank.wait_ns)
    zero = min(start, default=0)
    return (
        array("q", [ns - zero for ns in start]),
        array("q", [ns - zero for ns in end]),
        array("q", [ns if ns == NO_WAIT else max(0, ns - zero) for ns in wait]),
    )


def _timeline(
    program: Program,
    costs: Costs,
    start: array[int],
    end: array[int],
    wait: array[int],
    recorded: bool,
) -> Timeline:
    busy = [
        sum(end[a:b]) - sum(start[a:b])
        for a, b in zip(program.offsets, program.offsets[1:], strict=False)
    ]
    return Timeline(
        program,
        costs,
        start,
        end,
        blockers(program, start, end, wait, pairs_wait_inside=recorded),
        busy,
        peaks(program, costs),
        waiting_ns=wait,
    )


def _spread(program: Program, steps: Sequence[Times], makespans: list[int]) -> Spread:
    busy = [
        [sum(end[a:b]) - sum(start[a:b]) for start, end, _ in steps]
        for a, b in zip(program.offsets, program.offsets[1:], strict=False)
    ]
    slowest = max(range(len(steps)), key=makespans.__getitem__)
    beyond = [round(of_rank[slowest] - median(of_rank)) for of_rank in busy]
    straggler = max(range(len(beyond)), key=beyond.__getitem__)
    return Spread(
        makespans,
        quantile(makespans, 0.5),
        quantile(makespans, 0.95),
        (straggler, beyond[straggler]),
    )


def quantile(values: Sequence[int], share: float) -> int:
    """The smallest value that at least that share of all are not above."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(share * 100) * len(ordered) // 100) - 1)]


def _facts(
    line: Timeline,
    predicted: Timeline,
    spread: Spread,
    outcome: Outcome,
    uncertainty_ns: int,
    broken: list[str],
) -> dict[str, Any]:
    """What the trace's metadata says of the execution; times in µs."""
    most = max(len(stream) for stream in line.program.ranks)
    facts: dict[str, Any] = {
        **outcome.about,
        "steps_measured": len(spread.makespans_ns),
        "makespans_us": [ns / 1000 for ns in spread.makespans_ns],
        "p50_us": spread.p50_ns / 1000,
        "p95_us": spread.p95_ns / 1000,
        "straggler": {"rank": spread.straggler[0], "beyond_median_us": spread.straggler[1] / 1000},
        "predicted_makespan_us": predicted.makespan_ns / 1000,
        "clock_uncertainty_us": uncertainty_ns / 1000,
        "clock_offsets_us": [offset.ns / 1000 for offset in outcome.offsets],
        "measuring_us_per_action": outcome.measuring_ns / 1000,
        "measuring_share": most * outcome.measuring_ns / max(1, line.makespan_ns),
        "broken_waits": broken,
    }
    if outcome.verdict is not None:
        facts["loss"] = outcome.verdict.loss
        facts["gradient_error"] = outcome.verdict.gradient_error
    if outcome.peak_bytes is not None:
        facts["peak_bytes"] = outcome.peak_bytes
    return facts
