"""Program + costs -> Timeline: the replay.

The engine runs jobs on streams. A stream runs its jobs in order, one at a time;
a job starts when its stream is free and everything it waits for is there. A
link runs its jobs, the transfers, in the order they become ready.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from heapq import heappop, heappush

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
from tracegen.passes.validate import validate
from tracegen.timeline import FREED_AT, Timeline
from tracegen.work import Work, lower

PENDING = -1


@dataclass(frozen=True, slots=True)
class Run:
    """When each job ran.

    Attributes:
        start, end: in ns; PENDING for a job that never could.
        blocker: the job that a job waited for last, NOTHING if its stream was what it waited for.
    """

    start: array[int]
    end: array[int]
    blocker: array[int]


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
    work = lower(program, costs.times(program))
    try:
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


def _queued_spans(work: Work, done: Run) -> dict[tuple[int, int], tuple[int, int]]:
    """(source, target) -> when a transfer that took a link left and arrived."""
    first, spans = work.queued.first, {}
    for step in range(first):
        for at in range(work.first_wait[step], work.first_wait[step + 1]):
            if (job := work.wait_on[at]) >= first:
                source = work.wait_on[work.first_wait[job]]
                spans[source, step] = (done.start[job], done.end[job] + work.lag[at])
    return spans


def run(work: Work) -> Run:
    """Run every job as early as it can be. Jobs that wait for each other stay PENDING."""
    return _by_the_clock(work) if work.queued.link else _as_far_as_it_goes(work)


def _as_far_as_it_goes(work: Work) -> Run:
    """Each stream in turn until it must wait for another: when no order depends on the time.

    The times are the longest path, whatever order they are found in; without
    links to queue for, a clock would only cost (see `_by_the_clock`, which
    gives the same).
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


class _Clock:
    """The jobs in the order of time: events are (ns, phase, tie, job).

    Phase 0 is the end of a job, phase 1 a transfer that asks for its link:
    of all that ask at one time the lowest tie is served first.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        pending = array("q", [PENDING]) * len(work.duration)
        self.start, self.end = pending[:], pending[:]
        self.blocker = array("q", [NOTHING]) * len(work.duration)
        self.position, self.free = [0] * len(work.streams), [0] * len(work.streams)
        self.link_free = [0] * (max(work.queued.link, default=-1) + 1)
        self.asleep: dict[int, list[int]] = {}
        self.running = [False] * len(work.streams)
        self.stream_of = {job: s for s, jobs in enumerate(work.streams) for job in jobs}
        self.events: list[tuple[int, int, tuple[int, int], int]] = []
        self.carriers: dict[int, list[int]] = {}
        for job in range(work.queued.first, len(work.duration)):
            source = work.wait_on[work.first_wait[job]]
            self.carriers.setdefault(source, []).append(job)

    def try_next(self, stream: int) -> None:
        """Start the stream's next job if all it waits for has ended."""
        work, jobs = self.work, self.work.streams[stream]
        if self.running[stream] or self.position[stream] == len(jobs):
            return
        job = jobs[self.position[stream]]
        begin, held_by = self.free[stream], NOTHING
        for wait in range(work.first_wait[job], work.first_wait[job + 1]):
            source = work.wait_on[wait]
            if self.end[source] == PENDING:
                self.asleep.setdefault(source, []).append(stream)
                return
            if (ready := self.end[source] + work.lag[wait]) > begin:
                begin, held_by = ready, source
        self.start[job], self.blocker[job] = begin, held_by
        self.position[stream] += 1
        self.running[stream] = True
        heappush(self.events, (begin + work.duration[job], 0, (0, 0), job))

    def finish(self, job: int, now: int) -> None:
        self.end[job] = now
        queued = self.work.queued
        for carrier in self.carriers.get(job, ()):
            heappush(self.events, (now, 1, queued.tie[carrier - queued.first], carrier))
        for stream in self.asleep.pop(job, ()):
            self.try_next(stream)
        if job in self.stream_of:
            stream = self.stream_of[job]
            self.running[stream], self.free[stream] = False, now
            self.try_next(stream)

    def take_link(self, job: int, now: int) -> None:
        link = self.work.queued.link[job - self.work.queued.first]
        self.start[job] = max(now, self.link_free[link])
        self.link_free[link] = self.start[job] + self.work.duration[job]
        heappush(self.events, (self.link_free[link], 0, (0, 0), job))


def _by_the_clock(work: Work) -> Run:
    """Every job in the order of time: where links decide who is served by who asks first."""
    clock = _Clock(work)
    for stream in range(len(work.streams)):
        clock.try_next(stream)
    while clock.events:
        now, phase, _, job = heappop(clock.events)
        if phase == 0:
            clock.finish(job, now)
        else:
            clock.take_link(job, now)
    return Run(clock.start, clock.end, clock.blocker)


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
    return int(most) if most == int(most) else round(most, 9)
