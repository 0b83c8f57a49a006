"""The clock where a job's speed depends on what runs beside it: communication that takes SMs."""

from __future__ import annotations

from tracegen.clock import END, START, Clock
from tracegen.work import Work


class SharedClock(Clock):
    """A clock whose compute jobs advance at a lower rate beside a communication job.

    What is left of a compute job is kept exactly, as an integer multiple of
    1/denominator ns. Its end is rounded up to a whole ns and everything later
    builds on it, so that all times stay integers.
    """

    def __init__(self, work: Work) -> None:
        super().__init__(work)
        assert work.sharing is not None
        self.full, self.slow = work.sharing.rate.denominator, work.sharing.rate.numerator
        self.slowed = {slowing: slowed for slowed, slowing in work.sharing.pairs}
        self.slowing = set(self.slowed.values())
        self.beside = dict.fromkeys(self.slowing, False)
        # Of the job that each compute stream runs: what is left of it, since when, when it is due.
        self.current: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.since: dict[int, int] = {}
        self.due: dict[int, int] = {}

    def launch(self, job: int, begin: int) -> None:
        if self.stream_of[job] in self.beside or self.stream_of[job] in self.slowed:
            self.at(begin, START, job)
        else:
            super().launch(job, begin)

    def happen(self, now: int, what: int, job: int) -> None:
        if what == START:
            self.begin(job, now)
        elif what != END or self.stream_of.get(job) not in self.beside or self.is_due(job, now):
            super().happen(now, what, job)

    def is_due(self, job: int, now: int) -> bool:
        """Whether an end foretold for a compute job still holds."""
        stream = self.stream_of[job]
        return self.current.get(stream) == job and self.due[stream] == now

    def begin(self, job: int, now: int) -> None:
        stream = self.stream_of[job]
        if stream in self.beside:
            self.current[stream], self.due[stream] = job, -1
            self.left[stream], self.since[stream] = self.work.duration[job] * self.full, now
            self.foretell(stream)
        else:
            self.turn(self.slowed[stream], True, now)
            self.at(now + self.work.duration[job], END, job)

    def finish(self, job: int, now: int) -> None:
        stream = self.stream_of.get(job, -1)
        if stream in self.beside:
            del self.current[stream]
        elif stream in self.slowed:
            self.turn(self.slowed[stream], False, now)
        super().finish(job, now)

    def turn(self, stream: int, beside: bool, now: int) -> None:
        """Communication beside the compute stream begins or ends."""
        if stream in self.current:
            self.left[stream] -= (now - self.since[stream]) * self.speed(stream)
            self.since[stream] = now
        self.beside[stream] = beside
        if stream in self.current:
            self.foretell(stream)

    def speed(self, stream: int) -> int:
        return self.slow if self.beside[stream] else self.full

    def foretell(self, stream: int) -> None:
        """Note when the stream's job will end if nothing changes."""
        ends = self.since[stream] + max(0, -(-self.left[stream] // self.speed(stream)))
        if ends != self.due[stream]:
            self.due[stream] = ends
            self.at(ends, END, self.current[stream])
