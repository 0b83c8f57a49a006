"""Where the idle time went: every gap of a rank in parts that add up to it, each with its cause."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from tracegen import blame, metrics
from tracegen.deps import NOTHING, neighbours, waits
from tracegen.held import Held
from tracegen.ir import KIND_MASK, NO_MATE, STAGE_MASK, STAGE_SHIFT, SUM_REPLICAS, decode
from tracegen.kernels import COMMUNICATION, COMPUTE
from tracegen.timeline import Timeline
from tracegen.times import Times


class Cause(StrEnum):
    """Why a rank stands still."""

    WARM_UP = "warm-up"  # before its first action
    WAIT = "wait"  # for an action of another rank
    QUEUE = "queue"  # a transfer waits for others on its link
    BANDWIDTH = "bandwidth"  # its bytes are on the link
    LATENCY = "latency"  # and on their way
    EXPOSED = "exposed"  # the rank's own communication, with nothing to compute beside it
    GRADIENTS = "gradients"  # sums of gradients
    BARRIER = "barrier"  # all wait for all
    BETWEEN = "between"  # of a measured step: the rank's own time between two actions
    DRAIN = "drain"  # after its last action


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a gap.

    Attributes:
        start_ns, end_ns: when; never empty.
        cause: why.
        at: the rank's own action that cannot go on, in text form; "" if it has none left.
        on: the action that it waits for; "" where the cause says enough.
        rank: the rank of that, NOTHING where there is none.
    """

    start_ns: int
    end_ns: int
    cause: Cause
    at: str = ""
    on: str = ""
    rank: int = NOTHING

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


def idle(line: Timeline, rank: int) -> list[Part]:
    """The parts of a rank's idle time, in order; their lengths add up to `line.idle_ns[rank]`."""
    if line.kernels is not None:
        return [part for part in _beside_kernels(line, rank) if part.ns > 0]
    parts = [part for part in _Gaps(line, rank).parts() if part.ns > 0]
    return list(_exposing(line, rank, parts)) if line.collectives else parts


def _exposing(line: Timeline, rank: int, parts: list[Part]) -> Iterator[Part]:
    """The parts, with those apart in which the rank's communication stream runs."""
    ran = line.collectives[rank]
    for part in parts:
        now = part.start_ns
        for one in islice(ran, bisect_right(ran, now, key=lambda one: one.end_ns), None):
            if one.start_ns >= part.end_ns:
                break
            begin, until = max(one.start_ns, now), min(one.end_ns, part.end_ns)
            if until > begin:
                if begin > now:
                    yield replace(part, start_ns=now, end_ns=begin)
                yield Part(begin, until, Cause.EXPOSED, part.at, str(one), rank)
                now = until
        if part.end_ns > now:
            yield replace(part, start_ns=now)


def totals(line: Timeline, rank: int) -> Counter[Cause]:
    """The ns of each cause."""
    found: Counter[Cause] = Counter()
    for part in idle(line, rank):
        found[part.cause] += part.ns
    return found


def rows(line: Timeline) -> list[list[dict[str, Any]]]:
    """By rank, the parts as plain data, times in µs."""
    return [
        [
            {
                "cause": part.cause.value,
                "start_us": part.start_ns / 1000,
                "end_us": part.end_ns / 1000,
                **({"at": part.at} if part.at else {}),
                **({"waits_for": part.on} if part.on else {}),
                **({"of_rank": part.rank} if part.rank != NOTHING else {}),
            }
            for part in idle(line, rank)
        ]
        for rank in range(line.program.num_ranks)
    ]


class _Gaps:
    """The gaps of one rank whose actions run one at a time."""

    def __init__(self, line: Timeline, rank: int) -> None:
        self.line, self.rank = line, rank
        self.times = line.costs.times(line.program)
        self.base = line.program.offsets[rank]
        self.held = line.held[rank] if line.held else []

    def parts(self) -> Iterator[Part]:
        line, base = self.line, self.base
        stream, now, next_held = line.program.ranks[self.rank], 0, 0
        for at in range(len(stream)):
            while next_held < len(self.held) and self.held[next_held].before <= at:
                if at:
                    yield from self.of_held(self.held[next_held], now)
                    now = self.held[next_held].end_ns
                next_held += 1
            start = line.start_ns[base + at]
            if not at:
                yield Part(0, start, Cause.WARM_UP, *self.waits_for(base))
            elif start > now:
                yield from self.of_compute(base + at, now)
            now = line.end_ns[base + at]
        for one in self.held[next_held:]:
            if one.over:
                yield from self.of_held(one, now)
                now = one.end_ns
        yield Part(now, line.makespan_ns, Cause.DRAIN)

    def waits_for(self, step: int) -> tuple[str, str, int]:
        """A compute step, the action that it waited for, and whose that is."""
        line, blocker = self.line, self.line.blocker[step]
        text = str(line.program.ranks[self.rank][step - self.base])
        if blocker == NOTHING:
            return text, "", NOTHING
        whose = line.program.rank_of_step(blocker)
        return text, metrics.waited_for(line, self.rank, step), whose

    def of_compute(self, step: int, now: int) -> Iterator[Part]:
        """The gap before a compute step: its source, then the transfer's parts."""
        line, start = self.line, self.line.start_ns[step]
        about = self.waits_for(step)
        cuts = _transfer(line, self.times, self.rank, step)
        if cuts is None:
            yield Part(now, start, self.of_no_input(step), *about)
            return
        made, *moving = cuts
        ends = (made, blame.receiving_ns(line, step), *moving, start)
        for cause, until in zip(_ALONG, ends, strict=True):
            until = min(max(until, now), start)
            yield Part(now, until, cause, *(about[:1] if cause == Cause.BETWEEN else about))
            now = until

    def of_no_input(self, step: int) -> Cause:
        """Why the rank stands still before a step that waits for no input from another rank.

        A replay's does so at a barrier: at the beginning of a training step, or held by another.
        """
        line, program = self.line, self.line.program
        size = len(program.ranks[self.rank]) // program.num_steps
        barrier = line.blocker[step] != NOTHING or (step - self.base) % size == 0
        return Cause.BARRIER if barrier and not blame.is_measured(line) else Cause.BETWEEN

    def of_held(self, one: Held, now: int) -> Iterator[Part]:
        """The gap before something that holds the rank, and itself unless it is compute."""
        text = str(one)
        yield Part(now, one.start_ns, Cause.BARRIER, text)
        if one.is_optimizer:
            return
        if one.is_message:
            other = str(decode(one.other))
            moved = one.met_ns + one.bandwidth_ns
            yield Part(one.start_ns, one.met_ns, Cause.WAIT, text, other, one.other_rank)
            yield Part(one.met_ns, moved, Cause.BANDWIDTH, text)
            yield Part(moved, one.end_ns, Cause.LATENCY, text)
            return
        if one.code & KIND_MASK == SUM_REPLICAS:
            on = "SUM_REPLICAS"
            yield Part(one.start_ns, one.met_ns, Cause.WAIT, text, on, one.other_rank)
        yield Part(one.met_ns, one.end_ns, Cause.GRADIENTS, text)


# What is made before a measured rank comes to its receive did not hold it until then.
_ALONG = (Cause.WAIT, Cause.BETWEEN, Cause.QUEUE, Cause.BANDWIDTH, Cause.LATENCY)


def _transfer(line: Timeline, times: Times, rank: int, step: int) -> tuple[int, int, int] | None:
    """When what a step waited for was made, took the link, and had left it.

    None if it waited for no result of another rank.
    """
    program, source = line.program, line.blocker[step]
    needs = waits(program)
    if source == NOTHING or source not in (needs.forward[step], needs.backward[step]):
        return None
    stream, at = program.ranks[rank], step - program.offsets[rank]
    forward = source == needs.forward[step]
    previous, following = neighbours(program)
    half = stream.codes[at] if forward or stream.mates[at] == NO_MATE else stream.mates[at]
    stage = half >> STAGE_SHIFT & STAGE_MASK
    other = (previous if forward else following)[stage]
    made = line.made_ns(source, forward)
    if (span := line.queued.get((source, step, forward))) is None:
        return made, made, made
    link = (program.placement.ranks[other], rank)
    return made, span[0], span[0] + times.occupancy(link, min(stage, other))


def _beside_kernels(line: Timeline, rank: int) -> Iterator[Part]:
    """Gaps between compute kernels: exposed communication, and what is left by its cause."""
    kernels, program = line.kernels, line.program
    assert kernels is not None
    base, stream = program.offsets[rank], program.ranks[rank]
    communications = list(kernels.of_stream(rank, COMMUNICATION))
    now, next_one, first = 0, 0, True
    spans = [(k.start_ns, k.end_ns, k.step) for k in kernels.of_stream(rank, COMPUTE)]
    for start, end, step in [*spans, (line.makespan_ns, line.makespan_ns, NOTHING)]:
        at = on = ""
        whose, cause = NOTHING, Cause.WARM_UP if first else Cause.WAIT
        if step == NOTHING:
            cause = Cause.DRAIN
        else:
            at, on = str(stream[step - base]), metrics.waited_for(line, rank, step)
            whose = program.rank_of_step(line.blocker[step]) if on else NOTHING
        while next_one < len(communications) and communications[next_one].start_ns < start:
            one = communications[next_one]
            begin, until = max(one.start_ns, now), min(one.end_ns, start)
            if until > begin:
                yield Part(now, begin, cause, at, on, whose)
                name = f"{one.kernel.label}({one.layer}) of microbatch {one.microbatch}"
                yield Part(begin, until, Cause.EXPOSED, at, name, rank)
                now = until
            if one.end_ns > start:
                break
            next_one += 1
        yield Part(now, start, cause, at, on, whose)
        now, first = end, False
