"""Jobs as a graph of what waits for what: how much later each could end, and what less would do.

A makespan is the length of a longest path. Where times only get shorter, the new
longest path is among the jobs that had little slack: a path that is now the
longest was never more than the gain shorter than the old one. So a change is
worked out on those jobs alone, and the result is what a replay of all would give.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property

from tracegen.deps import NOTHING
from tracegen.work import Work


class CycleError(Exception):
    """Jobs wait for each other in a circle.

    Attributes:
        waits: (job, job that it waits for), less what the order of a stream says.
    """

    def __init__(self, waits: list[tuple[int, int]]) -> None:
        super().__init__(waits)
        self.waits = waits


class Graph:
    """The jobs of a Work whose order on every stream is fixed.

    Attributes:
        work: the jobs; none takes turns on links, and none slows another down.
        order: the jobs, each after all that it waits for.
        start, end: when each runs.
        makespan: the end of the last.
    """

    def __init__(self, work: Work) -> None:
        assert not work.queued.link
        assert work.sharing is None
        self.work = work
        self.before = array("q", [NOTHING]) * len(work.duration)
        for stream in work.streams:
            last = NOTHING
            for job in stream:
                self.before[job], last = last, job
        self.order = self._topological()
        self.start, self.end = array("q", work.duration), array("q", work.duration)
        for job in self.order:
            begin = self._begin(job)
            self.start[job], self.end[job] = begin, begin + work.duration[job]
        self.makespan = max(self.end, default=0)

    def waits(self, job: int) -> Iterator[tuple[int, int, int]]:
        """(job waited for, lag, number of the wait) of a job; NOTHING for its stream's order."""
        if (before := self.before[job]) != NOTHING:
            yield before, 0, NOTHING
        work = self.work
        for at in range(work.first_wait[job], work.first_wait[job + 1]):
            yield work.wait_on[at], work.lag[at], at

    def _begin(self, job: int) -> int:
        return max((self.end[source] + lag for source, lag, _ in self.waits(job)), default=0)

    def _topological(self) -> array[int]:
        left = array("q", [0]) * len(self.before)
        needed_by: list[list[int]] = [[] for _ in left]
        for job in range(len(left)):
            for source, _, _ in self.waits(job):
                left[job] += 1
                needed_by[source].append(job)
        agenda = [job for job, count in enumerate(left) if not count]
        order = array("q")
        while agenda:
            order.append(job := agenda.pop())
            for target in needed_by[job]:
                left[target] -= 1
                if not left[target]:
                    agenda.append(target)
        if len(order) != len(left):
            raise CycleError(self._cycle(left))
        return order

    def _cycle(self, left: array[int]) -> list[tuple[int, int]]:
        """Of jobs that wait for each other in a circle, (job, a result it waits for) in order.

        Args:
            left: by job, for how many of those in the circle or behind it.
        """
        job = next(job for job, count in enumerate(left) if count)
        seen: dict[int, int] = {}
        path: list[tuple[int, int, int]] = []
        while job not in seen:
            seen[job] = len(path)
            source, _, at = next(wait for wait in self.waits(job) if left[wait[0]])
            path.append((job, source, at))
            job = source
        return [(job, source) for job, source, at in path[seen[job] :] if at != NOTHING]

    @cached_property
    def slack(self) -> array[int]:
        """By job, how much later it could end without the makespan's growing."""
        tail = array("q", [0]) * len(self.order)
        duration = self.work.duration
        for job in reversed(self.order):
            behind = duration[job] + tail[job]
            for source, lag, _ in self.waits(job):
                tail[source] = max(tail[source], lag + behind)
        return array("q", [self.makespan - end - t for end, t in zip(self.end, tail, strict=True)])

    def cause(self, job: int) -> tuple[int, int]:
        """(the job at whose end, or a lag later, a job could start, the wait); NOTHING at 0."""
        for source, lag, at in self.waits(job):
            if self.end[source] + lag == self.start[job]:
                return source, at
        return NOTHING, NOTHING

    @cached_property
    def path(self) -> list[tuple[int, int]]:
        """A longest path, first to last: each job and the number of the wait that leads to it."""
        if not self.order:
            return []
        job = max(range(len(self.end)), key=self.end.__getitem__)
        found = []
        while job != NOTHING:
            source, at = self.cause(job)
            found.append((job, at))
            job = source
        return found[::-1]

    @cached_property
    def _by_slack(self) -> tuple[list[int], list[int]]:
        jobs = sorted(range(len(self.slack)), key=self.slack.__getitem__)
        return jobs, [self.slack[job] for job in jobs]

    @cached_property
    def _rank(self) -> array[int]:
        rank = array("q", [0]) * len(self.order)
        for at, job in enumerate(self.order):
            rank[job] = at
        return rank

    def shortened(self, duration: Mapping[int, int], lag: Mapping[int, int]) -> int:
        """The makespan if some jobs and lags were shorter.

        Args:
            duration: the new duration of jobs, none longer than before.
            lag: the new lag of waits, by their number, none longer than before.
        """
        work = self.work
        if not (gain := self.at_most(duration, lag)):
            return self.makespan
        jobs, slacks = self._by_slack
        near = jobs[: bisect_right(slacks, gain)]
        near.sort(key=self._rank.__getitem__)
        end: dict[int, int] = {}
        for job in near:  # `waits` spelt out: this runs for every change over most of the jobs
            begin = end.get(self.before[job], 0)
            for at in range(work.first_wait[job], work.first_wait[job + 1]):
                if (ready := end.get(work.wait_on[at])) is not None:
                    begin = max(begin, ready + (lag[at] if at in lag else work.lag[at]))
            end[job] = begin + (duration[job] if job in duration else work.duration[job])
        return max(end.values())

    def at_most(self, duration: Mapping[int, int], lag: Mapping[int, int]) -> int:
        """What `shortened` can take off the makespan at most: what one longest path loses."""
        work = self.work
        gain = sum(work.duration[job] - duration[job] for job, _ in self.path if job in duration)
        return gain + sum(work.lag[at] - lag[at] for _, at in self.path if at in lag)

    def changed(self, duration: Mapping[int, int], lag: Mapping[int, int]) -> Work:
        """The work with other durations and lags."""
        from dataclasses import replace

        durations, lags = self.work.duration[:], self.work.lag[:]
        for job, ns in duration.items():
            durations[job] = ns
        for at, ns in lag.items():
            lags[at] = ns
        return replace(self.work, duration=durations, lag=lags)
