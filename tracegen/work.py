"""Program + costs -> jobs on streams: what the engine runs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

from tracegen.deps import NOTHING, neighbours, waits
from tracegen.ir import KIND_MASK, NO_MATE, STAGE_MASK, STAGE_SHIFT, Program
from tracegen.ir import F as FORWARD
from tracegen.times import Times

NO_WAIT = -1


@dataclass(frozen=True, slots=True)
class Queued:
    """Jobs of the links: transfers that take a link one after another.

    A link serves them in the order they become ready; of those ready at the
    same ns the lowest `tie` goes first.

    Attributes:
        link: the link of each such job, by job number less `first`.
        tie: its place among those ready at the same time.
        first: the number of the first of them; every lower job is on a stream.
    """

    first: int
    link: list[int] = field(default_factory=list)
    tie: list[tuple[int, int]] = field(default_factory=list)


# A job waited for, and the ns from its end until its result is there.
Wait = tuple[int, int]


class Jobs:
    """Jobs that are added one by one, with their waits: the columns of Work."""

    def __init__(self) -> None:
        self.duration, self.first_wait = array("q"), array("q", [0])
        self.wait_on, self.lag = array("q"), array("q")

    def add(self, duration: int, *waits: list[Wait]) -> None:
        for some in waits:
            for job, lag in some:
                self.wait_on.append(job)
                self.lag.append(lag)
        self.duration.append(duration)
        self.first_wait.append(len(self.wait_on))

    def extend(self, other: Jobs) -> None:
        before = len(self.wait_on)
        self.duration += other.duration
        self.wait_on += other.wait_on
        self.lag += other.lag
        self.first_wait.extend(before + at for at in other.first_wait[1:])

    def work(
        self, streams: Sequence[Sequence[int]], queued: Queued, sharing: Sharing | None = None
    ) -> Work:
        """The jobs on their streams and links."""
        columns = (self.duration, self.first_wait, self.wait_on, self.lag)
        return Work(streams, *columns, queued, sharing)


@dataclass(frozen=True, slots=True)
class Sharing:
    """Streams that slow each other down: computation beside communication of the same device.

    Attributes:
        rate: how fast a job of the first stream of a pair advances while one of the second
            runs, above 0 up to 1.
        pairs: of streams, (slowed, slowing).
    """

    rate: Fraction
    pairs: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Work:
    """Jobs, each on one stream or link, with what it waits for.

    Attributes:
        streams: the jobs of each stream, in the order it runs them, one at a time.
        duration: ns of each job.
        first_wait: where the waits of each job begin in the next two columns, and their total.
        wait_on: the job waited for.
        lag: ns from that job's end until its result is there.
        queued: the jobs that take turns on links, numbered after all others.
        sharing: the streams that slow others down, if any.
    """

    streams: Sequence[Sequence[int]]
    duration: array[int]
    first_wait: array[int]
    wait_on: array[int]
    lag: array[int]
    queued: Queued
    sharing: Sharing | None = None


def lower(program: Program, times: Times) -> Work:
    """Each step of the program becomes the job of its number, each rank a stream.

    Where a link has a bandwidth, every transfer on it becomes a job too, numbered
    from len(program) on, and its target waits for it with the link's latency.
    A wait for a step of the same rank is left out: the rank's order is enough.
    """
    if times.links_queue:
        return _with_transfers(program, times)
    needs = waits(program)
    lag_forward, lag_backward = _lags(program, times)
    first_wait, wait_on, lag = array("q", [0]), array("q"), array("q")
    duration = array("q")
    for stream, base in zip(program.ranks, program.offsets, strict=False):
        duration += times.durations(stream)
        steps = slice(base, base + len(stream))
        for code, mate, forward, backward in zip(
            stream.codes, stream.mates, needs.forward[steps], needs.backward[steps], strict=True
        ):
            if forward != NOTHING:
                late = lag_forward[code >> STAGE_SHIFT & STAGE_MASK]
                if late != NO_WAIT:
                    wait_on.append(forward)
                    lag.append(late)
            if backward != NOTHING:
                half = code if mate == NO_MATE else mate
                late = lag_backward[half >> STAGE_SHIFT & STAGE_MASK]
                if late != NO_WAIT:
                    wait_on.append(backward)
                    lag.append(late)
            first_wait.append(len(wait_on))
    return Work(_streams(program), duration, first_wait, wait_on, lag, Queued(len(program)))


def _streams(program: Program) -> list[range]:
    offsets = program.offsets
    return [range(a, b) for a, b in pairwise(offsets)]


def _lags(program: Program, times: Times) -> tuple[list[int], list[int]]:
    """By stage, the ns from the previous and from the next stage, NO_WAIT on the same rank."""
    ranks = program.placement.ranks

    def lags(neighbour: list[int]) -> list[int]:
        return [
            NO_WAIT
            if other < 0 or ranks[other] == ranks[stage]
            else times.latency((ranks[other], ranks[stage]))
            for stage, other in enumerate(neighbour)
        ]

    previous, following = neighbours(program)
    return lags(previous), lags(following)


def _with_transfers(program: Program, times: Times) -> Work:
    """As `lower`, with a job for each transfer: slower, and only where a link is limited."""
    needs, steps = waits(program), len(program)
    previous, following = neighbours(program)
    ranks = program.placement.ranks
    first_wait, wait_on, lag = array("q", [0]), array("q"), array("q")
    duration, moved = array("q"), array("q")
    queued, sources = Queued(steps), array("q")
    links: dict[tuple[int, int], int] = {}

    def wait_for(source: int, neighbour: list[int], half: int) -> None:
        stage = half >> STAGE_SHIFT & STAGE_MASK
        other = neighbour[stage]
        link = (ranks[other], ranks[stage])
        if source == NOTHING or link[0] == link[1]:
            return
        wait_on.append(steps + len(sources))
        lag.append(times.latency(link))
        sources.append(source)
        moved.append(times.occupancy(link, min(stage, other)))
        queued.link.append(links.setdefault(link, len(links)))
        queued.tie.append((half & KIND_MASK != FORWARD, other))

    for stream, base in zip(program.ranks, program.offsets, strict=False):
        for step, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True), base):
            duration.append(times.duration(code, mate))
            wait_for(needs.forward[step], previous, code)
            wait_for(needs.backward[step], following, code if mate == NO_MATE else mate)
            first_wait.append(len(wait_on))
    for source in sources:
        wait_on.append(source)
        lag.append(0)
        first_wait.append(len(wait_on))
    return Work(_streams(program), duration + moved, first_wait, wait_on, lag, queued)
