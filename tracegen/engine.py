"""Program + costs -> Timeline: the replay.

The engine runs jobs on streams. A stream runs its jobs in order, one at a time;
a job starts when its stream is free and everything it waits for is there. A
link runs its jobs, the transfers, in the order they become ready.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from tracegen import kernel_line, kernel_work
from tracegen.clock import PENDING, Clock, Run
from tracegen.costs import Costs
from tracegen.deps import NOTHING
from tracegen.errors import CostError
from tracegen.ir import (
    KIND_MASK,
    STAGE_MASK,
    STAGE_SHIFT,
    Program,
    Stream,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.moe import BlockOrder, MoE
from tracegen.passes.validate import validate
from tracegen.sharing import SharedClock
from tracegen.timeline import FREED_AT, Timeline, as_number
from tracegen.times import Times
from tracegen.work import Work, lower


def replay(program: Program, costs: Costs | None = None) -> Timeline:
    """Predict when every step of the program runs, by DESIGN's rules 1 to 6.

    Each rank runs its steps in order; F waits for the previous stage's F, B and
    I for their own F and the next stage's B or I, W for its I; a result of
    another rank is there after the transfer: latency, and the bytes' time on a
    link that they take in turn. Transfers run beside compute.

    Args:
        program: its communication is not looked at.
        costs: of one stage's actions; 1000 us each of f, i and w unless given.

    Raises:
        ProgramError: if the program is incomplete or out of order.
        DeadlockError: if it cannot finish.
        CostError: if the costs do not fit the program.
    """
    program, costs = validate(program).compute_only(), costs or Costs()
    try:
        times = costs.times(program)
        if costs.moe is not None:
            return _replay_kernels(program, costs, costs.moe, times)
        work = lower(program, times)
        done = run(work)
    except OverflowError:
        raise CostError("the times exceed 2**63 ns, 292 years; use smaller costs") from None
    steps = len(program)
    queued = _queued_spans(work, done)
    blocker = done.blocker[:steps]
    for step, job in enumerate(blocker):
        if job >= steps:  # a transfer: what it carried
            blocker[step] = work.wait_on[work.first_wait[job]]
    return Timeline(
        program,
        costs,
        done.start[:steps],
        done.end[:steps],
        blocker,
        [sum(work.duration[job] for job in jobs) for jobs in work.streams],
        peaks(program, costs),
        queued,
    )


def _replay_kernels(program: Program, costs: Costs, moe: MoE, times: Times) -> Timeline:
    """`replay` of MoE stages, by DESIGN's section 6: two streams a rank, kernels on them."""
    lowered = kernel_work.lower(program, moe, times)
    done = run(lowered.work)
    found = kernel_line.kernels(lowered, done)
    alone = moe.block == BlockOrder.NONE
    start, end = kernel_line.tiles(found, len(program), alone)
    return Timeline(
        program,
        costs,
        start,
        end,
        kernel_line.step_blockers(found, program, alone),
        found.busy_ns,
        peaks(program, costs),
        _queued_spans(lowered.work, done, lowered.step_of),
        kernels=found,
    )


def _queued_spans(
    work: Work, done: Run, step_of: Callable[[int], int] = int
) -> dict[tuple[int, int, bool], tuple[int, int]]:
    """(source, target, forward) -> when a transfer that took a link left and arrived.

    Args:
        work: what ran.
        done: when.
        step_of: the step of a job that is no transfer.
    """
    first, spans = work.queued.first, {}
    for target in range(first):
        for at in range(work.first_wait[target], work.first_wait[target + 1]):
            if (job := work.wait_on[at]) >= first:
                source = work.wait_on[work.first_wait[job]]
                forward = work.queued.tie[job - first][0] == 0
                span = (done.start[job], done.end[job] + work.lag[at])
                spans[step_of(source), step_of(target), forward] = span
    return spans


def run(work: Work) -> Run:
    """Run every job as early as it can be. Jobs that wait for each other stay PENDING."""
    if work.sharing is not None:
        return SharedClock(work).run()
    return Clock(work).run() if work.queued.link else _as_far_as_it_goes(work)


def _as_far_as_it_goes(work: Work) -> Run:
    """Each stream in turn until it must wait for another: when no order depends on the time.

    The times are the longest path, whatever order they are found in; without
    links to queue for, a clock would only cost (see `Clock`, which gives the
    same).
    """
    duration, first_wait, wait_on, lag = work.duration, work.first_wait, work.wait_on, work.lag
    pending = array("q", [PENDING]) * len(duration)
    start, end, blocker = pending[:], pending[:], array("q", [NOTHING]) * len(duration)
    position, free = [0] * len(work.streams), [0] * len(work.streams)
    asleep: dict[int, list[int]] = {}
    agenda = list(range(len(work.streams) - 1, -1, -1))
    while agenda:
        stream = agenda.pop()
        jobs, now = work.streams[stream], free[stream]
        for at in range(position[stream], len(jobs)):
            job = jobs[at]
            begin, held_by = now, NOTHING
            for wait in range(first_wait[job], first_wait[job + 1]):
                source = wait_on[wait]
                ready = end[source]
                if ready == PENDING:
                    asleep.setdefault(source, []).append(stream)
                    break
                ready += lag[wait]
                if ready > begin:
                    begin, held_by = ready, source
            else:
                start[job], blocker[job] = begin, held_by
                end[job] = now = begin + duration[job]
                if job in asleep:
                    agenda += asleep.pop(job)
                continue
            position[stream] = at
            break
        else:
            position[stream] = len(jobs)
        free[stream] = now
    return Run(start, end, blocker)


def peaks(program: Program, costs: Costs) -> dict[str, list[float]]:
    """The most activations each rank holds, by both conventions.

    Taken when F starts; given back when B ends, or, split, when I ends less the
    share `w_share`, which W gives back (`freed_at_input`), or all when W ends
    (`freed_at_weight`). In units of one stage's activations of one microbatch,
    or in bytes where the costs give them. A pair's F is taken before its B
    gives back; without backward an activation is given back when its F ends.
    """
    size = costs.activations(program.num_stages)
    kept = {"freed_at_input": costs.w_share, "freed_at_weight": 1.0}
    return {
        at: [_peak(stream, size, kept[at], program.forward_only) for stream in program.ranks]
        for at in FREED_AT
    }


def _peak(stream: Stream, size: list[float], kept: float, forward_only: bool) -> float:
    """The most a rank holds when `kept` of an activation stays from I to W."""
    change = {FORWARD: 1.0, FULL: -1.0, INPUT: kept - 1.0, WEIGHT: -kept}
    held = most = 0.0
    for _, code in stream.halves():
        held += change[code & KIND_MASK] * size[code >> STAGE_SHIFT & STAGE_MASK]
        most = max(most, held)
        if forward_only:
            held = 0.0
    return as_number(most)
