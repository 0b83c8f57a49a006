"""Jobs in the order of time: the engine where an order depends on when things happen."""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from tracegen.deps import NOTHING

if TYPE_CHECKING:
    from tracegen.work import Work

PENDING = -1

# What an event is. At one ns, starts and ends come before requests for links, so
# that all who ask at that time are known when the first of them is served.
START, END, ASK = -1, 0, 1


class Run(NamedTuple):
    """When each job ran.

    Attributes:
        start, end: in ns; PENDING for a job that never could.
        blocker: the job that a job waited for last, NOTHING if its stream was what it waited for.
    """

    start: array[int]
    end: array[int]
    blocker: array[int]


class Clock:
    """The state of all streams and links; events are (ns, START | END | ASK, tie, job).

    Of all transfers that ask for a link at one time the lowest tie is served first.
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

    def run(self) -> Run:
        """Run every job as early as it can be. Jobs that wait for each other stay PENDING."""
        for stream in range(len(self.work.streams)):
            self.try_next(stream)
        while self.events:
            now, what, _, job = heappop(self.events)
            self.happen(now, what, job)
        return Run(self.start, self.end, self.blocker)

    def happen(self, now: int, what: int, job: int) -> None:
        if what == END:
            self.finish(job, now)
        else:
            self.take_link(job, now)

    def try_next(self, stream: int) -> None:
        """Launch the stream's next job if all it waits for has ended."""
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
        self.launch(job, begin)

    def launch(self, job: int, begin: int) -> None:
        """Note when the job, which starts at `begin`, will end."""
        self.at(begin + self.work.duration[job], END, job)

    def at(self, ns: int, what: int, job: int, tie: tuple[int, int] = (0, 0)) -> None:
        heappush(self.events, (ns, what, tie, job))

    def finish(self, job: int, now: int) -> None:
        self.end[job] = now
        queued = self.work.queued
        for carrier in self.carriers.get(job, ()):
            self.at(now, ASK, carrier, queued.tie[carrier - queued.first])
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
        self.at(self.link_free[link], END, job)
