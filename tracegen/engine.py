"""Program + costs -> Timeline: the replay.

The engine runs jobs on streams. A stream runs its jobs in order, one at a time;
a job starts when its stream is free and everything it waits for is there. A
link runs its jobs, the transfers, in the order they become ready.

What a plain replay does not need is imported where it is: a command starts in the
time that its imports take.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from os import PathLike
from typing import TYPE_CHECKING

from tracegen import longest_path
from tracegen.clock import PENDING, Clock, Run
from tracegen.costs import Costs
from tracegen.deps import NOTHING
from tracegen.errors import CostError, ProgramError
from tracegen.ir import Program
from tracegen.memory import peaks
from tracegen.mode import Mode
from tracegen.passes.validate import validate
from tracegen.recompute import marked
from tracegen.tail import tails
from tracegen.timeline import Timeline
from tracegen.times import Times

if TYPE_CHECKING:
    from tracegen.moe import MoE
    from tracegen.work import Work


def replay(
    program: Program,
    costs: Costs | None = None,
    *,
    p2p: str = "async",
    p2p_order: str | None = None,
    dispatch: str = "static",
    steps: int = 1,
    sync: bool = False,
) -> Timeline:
    """Predict when every step of the program runs, by DESIGN's rules 1 to 10.

    Each rank runs its steps in order; F waits for the previous stage's F, B and
    I for their own F and the next stage's B or I, W for its I; a result of
    another rank is there after the transfer: latency, and the bytes' time on a
    link that they take in turn. Transfers run beside compute, unless p2p is
    blocking.

    Args:
        program: its communication is looked at only if p2p is blocking and no p2p_order given.
        costs: of one stage's actions; 1000 us each of f, i and w unless given.
        p2p: async or blocking.
        p2p_order: of blocking: torch, naive or fused; see `Mode`.
        dispatch: static or dynamic.
        steps: training steps in a row.
        sync: whether the ranks wait for each other between the steps.

    Raises:
        ProgramError: if the program is incomplete or out of order.
        DeadlockError: if it cannot finish.
        CostError: if the costs do not fit the program, or the mode is none.
    """
    if not isinstance(program, Program):
        raise ProgramError(*_no_program(program))
    mode, costs = Mode(p2p, p2p_order, dispatch, steps, sync), Costs() if costs is None else costs
    if not isinstance(costs, Costs):
        raise CostError(f"costs = {costs!r} are no Costs; use Costs(...) or Costs.from_dict(...)")
    validate(program, finishes=False)
    try:
        times = costs.times(program)
        plain = costs.moe is None and is_plain(program, times, mode)
        if not (plain and longest_path.applies(times)):  # which itself finds what cannot run
            validate(program)
        if costs.moe is not None:
            return _replay_kernels(program.compute_only(), costs, costs.moe, times, mode)
        if not plain:
            from tracegen import full_replay

            return full_replay.replay(program, costs, times, mode, run)
        return _replay_plain(program.compute_only(), costs, times)
    except OverflowError:
        raise CostError("the times exceed 2**63 ns, 292 years; use smaller costs") from None


def _no_program(given: object) -> tuple[str, list[str]]:
    """What is wrong with what is given in a program's place, such as a schedule's name."""
    if isinstance(given, str | PathLike):
        return str(given), [f"it is no Program; tracegen.compile({str(given)!r}) makes one"]
    return type(given).__name__, ["it is no Program; tracegen.compile makes one"]


def is_plain(program: Program, times: Times, mode: Mode) -> bool:
    """Whether ranks do nothing but one step's compute, each in its order, without blocking."""
    plain = mode == Mode() and times.zero is None
    return plain and not any(tails(program.compute_only(), times))


def until_it_hangs(program: Program, costs: Costs, mode: Mode) -> Timeline:
    """As `replay`, of a program that cannot finish: the timeline up to where it hangs."""
    from tracegen import full_replay

    line, _ = full_replay.until_it_hangs(program, costs, costs.times(program), mode, run)
    return line


def _replay_plain(program: Program, costs: Costs, times: Times) -> Timeline:
    """`replay` where ranks do nothing but one step's compute and transfers run beside it."""
    if longest_path.applies(times):
        done, queued = longest_path.run(program, times), {}
        start, end, blocker = done.start, done.end, done.blocker
    else:
        from tracegen.work import lower

        work, steps = lower(program, times), len(program)
        done = run(work)
        queued = _queued_spans(work, done)
        start, end, blocker = done.start[:steps], done.end[:steps], done.blocker[:steps]
        for step, job in enumerate(blocker):
            if job >= steps:  # a transfer: what it carried
                blocker[step] = work.wait_on[work.first_wait[job]]
    busy = [sum(end[a:b]) - sum(start[a:b]) for a, b in pairwise(program.offsets)]
    line = Timeline(program, costs, start, end, blocker, busy, peaks(program, costs), queued)
    return marked(line, times)


def _replay_kernels(program: Program, costs: Costs, moe: MoE, times: Times, mode: Mode) -> Timeline:
    """`replay` of MoE stages, by DESIGN's section 6: two streams a rank, kernels on them."""
    from tracegen import kernel_line, kernel_work
    from tracegen.moe import BlockOrder, check_modes
    from tracegen.repeat import flat, repeat

    check_modes(mode.p2p, mode.dispatch)
    if mode.sync or any(tails(program, times)):
        raise CostError(
            "MoE costs with sync, grad_sync_us, replica_sync_us or optimizer_us: kernels run on "
            "two streams and nothing waits for both; leave those out"
        )
    repeated = repeat(program, mode.steps) if mode.steps > 1 else program
    actions = flat(repeated)
    lowered = kernel_work.lower(actions, moe, times)
    done = run(lowered.work)
    for number, code in enumerate(lowered.parts.code if mode.steps > 1 else ()):
        lowered.parts.code[number] = times.in_step(code)
    found = kernel_line.kernels(lowered, done)
    alone = moe.block == BlockOrder.NONE
    start, end = kernel_line.tiles(found, len(actions), alone)
    line = Timeline(
        repeated,
        costs,
        start,
        end,
        kernel_line.step_blockers(found, actions, alone),
        found.busy_ns,
        peaks(repeated, costs),
        _queued_spans(lowered.work, done, lowered.step_of),
        {"replay": mode.given()} if mode != Mode() else {},
        kernels=found,
        source=program,
    )
    if mode.steps > 1:
        one = _replay_kernels(program, costs, moe, times, Mode())
        line = replace(line, first_step_ns=one.makespan_ns)
    return line


def _queued_spans(
    work: Work, done: Run, step_of: Callable[[int], int] = int
) -> dict[tuple[int, int, bool], tuple[int, int]]:
    """(source, target, forward) -> when a transfer that took a link left and arrived.

    Args:
        work: what ran.
        done: when.
        step_of: the step of a job that is no transfer.
    """
    first = work.queued.first
    spans: dict[tuple[int, int, bool], tuple[int, int]] = {}
    if not work.queued.link:
        return spans
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
        from tracegen.sharing import SharedClock

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
