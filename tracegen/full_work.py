"""Program + costs -> jobs, where ranks do more than compute: messages that hold them, and tails.

Every action but those of other kinds is one job. A message is two of 0 ns: the
rank comes to it (*posts*), and it is over, a transfer's time after both ends
have come. A sum over replicas is two: the rank comes to it, and the sum itself,
which begins when all have come. Jobs are numbered by rank, in order; after them
come the barriers, then the transfers on links that have a bandwidth.

With `zero` among the costs every rank has a second stream, for its collectives.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tracegen.collective import is_collective
from tracegen.deps import NOTHING, neighbours, waits
from tracegen.ir import (
    KIND_MASK,
    NO_MATE,
    OPTIMIZER,
    RECV_B,
    REDUCE_GRAD,
    SEND_F,
    STAGE_MASK,
    STAGE_SHIFT,
    SUM_REPLICAS,
    Program,
)
from tracegen.ir import F as FORWARD
from tracegen.ir import W as WEIGHT
from tracegen.passes.messages import SENDS, is_message, neighbour, other_end
from tracegen.repeat import flat
from tracegen.tail import replicas
from tracegen.times import Times
from tracegen.work import Jobs, Queued, Wait, Work


@dataclass(frozen=True, slots=True)
class Carried:
    """A transfer on a link that has a bandwidth: from action to action."""

    source: int
    target: int
    forward: bool
    latency: int


@dataclass(frozen=True, slots=True)
class FullWork:
    """Work, and which jobs the actions of the program became.

    Attributes:
        program: the actions, whose steps are numbered apart (`repeat.flat`).
        first, last: by action, its first and its last job.
        ends: of each message, the action of its other end, by its code.
        flights: of each message, (latency, bandwidth part) in ns, by its code.
        carried: what the jobs of links carry.
        two_streams: whether every rank has one for its collectives.
    """

    work: Work
    program: Program
    first: array[int]
    last: array[int]
    ends: dict[int, int]
    flights: dict[int, tuple[int, int]]
    carried: list[Carried]
    two_streams: bool


def lower(program: Program, times: Times, blocking: bool, sync: bool) -> FullWork:
    """The jobs of a program of one or more steps, with its messages if they block.

    Args:
        program: checked; folded.
        times: of a program of one step.
        blocking: whether messages carry what crosses ranks; else transfers run beside compute.
        sync: whether barriers stand before the optimizer and after each step.
    """
    return _Lowering(program, times, blocking, sync).lower()


class _Lowering:
    def __init__(self, program: Program, times: Times, blocking: bool, sync: bool) -> None:
        self.num_steps, self.program = program.num_steps, flat(program)
        self.times, self.blocking, self.sync = times, blocking, sync
        self.needs, self.ranks = waits(self.program), program.placement.ranks
        self.previous, self.following = neighbours(self.program)
        self.jobs = Jobs()
        self.first, self.last, self.begins = self.number()
        self.ends, self.flights = self.pair_messages()
        self.groups = self.gather_sums()
        self.barriers = self.first_transfer = self.begins[-1]
        if sync:
            self.first_transfer += 2 * self.num_steps
        self.queued, self.carried = Queued(self.first_transfer), list[Carried]()
        self.occupied = array("q")
        self.links: dict[tuple[int, int], int] = {}

    def number(self) -> tuple[array[int], array[int], list[int]]:
        """The first and the last job of every action; where each rank's jobs begin."""
        first, last, begins = array("q"), array("q"), [0]
        job = 0
        for stream in self.program.ranks:
            for code in stream.codes:
                two = is_message(code) or code & KIND_MASK == SUM_REPLICAS
                first.append(job)
                last.append(job + two)
                job += 1 + two
            begins.append(job)
        return first, last, begins

    def pair_messages(self) -> tuple[dict[int, int], dict[int, tuple[int, int]]]:
        program, action_of, flights = self.program, dict[int, int](), {}
        for stream, base in zip(program.ranks, program.offsets, strict=False):
            for at, code in stream.halves():
                if is_message(code):
                    action_of[code] = base + at
                    flights[code] = self.flight(code)
        ends = {code: action_of[other_end(program, code)] for code in action_of}
        return ends, flights

    def flight(self, code: int) -> tuple[int, int]:
        kind, stage = code & KIND_MASK, code >> STAGE_SHIFT & STAGE_MASK
        here, there = self.ranks[stage], neighbour(self.program, code)
        link = (here, there) if kind in SENDS else (there, here)
        lower = stage if kind in (SEND_F, RECV_B) else self.previous[stage]
        return self.times.latency(link), self.times.occupancy(link, lower)

    def gather_sums(self) -> dict[tuple[int, int], list[int]]:
        """(step, first of the stages with one slice) -> the first jobs of their sum."""
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        if len(self.program.placement.chains) == 1:
            return groups
        together, program = replicas(self.program), self.program
        for stream, base in zip(program.ranks, program.offsets, strict=False):
            for at, code in enumerate(stream.codes):
                if code & KIND_MASK == SUM_REPLICAS:
                    key = (self.step(stream.codes, at), together[self.stage(code)][0])
                    groups[key].append(self.first[base + at])
        self.replicas = together
        return groups

    def step(self, column: array[int], at: int) -> int:
        return at * self.num_steps // len(column)

    def stage(self, code: int) -> int:
        return code >> STAGE_SHIFT & STAGE_MASK

    def lower(self) -> FullWork:
        for rank in range(self.program.num_ranks):
            self.rank(rank)
        streams: list[Sequence[int]] = [range(a, b) for a, b in pairwise(self.begins)]
        if two := self.times.zero is not None:
            streams = self.two_a_rank()
        if self.sync:
            self.add_barriers()
            streams.append(range(self.barriers, self.first_transfer))
        for moved, occupied in zip(self.carried, self.occupied, strict=True):
            self.jobs.add(occupied, [(self.last[moved.source], 0)])
        work = self.jobs.work(streams, self.queued)
        actions = (self.program, self.first, self.last)
        return FullWork(work, *actions, self.ends, self.flights, self.carried, two)

    def two_a_rank(self) -> list[Sequence[int]]:
        """By rank the jobs of its compute stream, then by rank those of the other."""
        beside: list[list[int]] = [[] for _ in self.program.ranks]
        compute: list[list[int]] = [[] for _ in self.program.ranks]
        for rank, (stream, base) in enumerate(
            zip(self.program.ranks, self.program.offsets, strict=False)
        ):
            for action, code in enumerate(stream.codes, base):
                jobs = range(self.first[action], self.last[action] + 1)
                (beside if is_collective(code) else compute)[rank].extend(jobs)
        return [*compute, *beside]

    def rank(self, rank: int) -> None:
        stream, base = self.program.ranks[rank], self.program.offsets[rank]
        before, optimizing, beside = 0, -1, _Beside(self.times.zero is not None)
        for at, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True)):
            held: list[Wait] = []
            step, kind = self.step(stream.codes, at), code & KIND_MASK
            if self.sync and step != before:
                held.append((self.barriers + 2 * before + 1, 0))
                before = step
            if self.sync and kind == OPTIMIZER and optimizing != step:
                held.append((self.barriers + 2 * step, 0))
                optimizing = step
            held += beside.waits(code, mate, self.last[base + at])
            if is_message(code):
                self.jobs.add(0, held)
                self.jobs.add(0, self.meetings(base + at, code, mate))
            elif kind == SUM_REPLICAS:
                self.jobs.add(0, held)
                group = self.groups[step, self.replicas[self.stage(code)][0]]
                self.jobs.add(self.times.whole_stage(code), [(job, 0) for job in group])
            elif kind > WEIGHT:
                self.jobs.add(self.times.whole_stage(code), held)
            else:
                inputs = self.inputs(base + at, code, mate)
                self.jobs.add(self.times.duration(code, mate), held, inputs)

    def meetings(self, action: int, code: int, mate: int) -> list[Wait]:
        """A transfer's time after both ends have come to a message, or to both of an exchange."""
        return [
            (self.first[end], sum(self.flights[message]))
            for message in (code, mate)
            if message != NO_MATE
            for end in (action, self.ends[message])
        ]

    def inputs(self, action: int, code: int, mate: int) -> list[Wait]:
        """What an F, B or I waits for from other ranks, if no message brings it."""
        if self.blocking:
            return []
        backward = code if mate == NO_MATE else mate
        return [
            *self.arrival(self.needs.forward[action], action, self.previous, code),
            *self.arrival(self.needs.backward[action], action, self.following, backward),
        ]

    def arrival(self, source: int, action: int, neighbour: list[int], half: int) -> list[Wait]:
        stage = self.stage(half)
        if source == NOTHING or self.ranks[neighbour[stage]] == self.ranks[stage]:
            return []
        other = neighbour[stage]
        link = (self.ranks[other], self.ranks[stage])
        latency, forward = self.times.latency(link), half & KIND_MASK == FORWARD
        if not self.times.links_queue:
            return [(self.last[source], latency)]
        self.carried.append(Carried(source, action, forward, latency))
        self.occupied.append(self.times.occupancy(link, min(stage, other)))
        self.queued.link.append(self.links.setdefault(link, len(self.links)))
        self.queued.tie.append((not forward, other))
        return [(self.first_transfer + len(self.carried) - 1, latency)]

    def add_barriers(self) -> None:
        """Of each step one before its optimizers and one at its end, in a stream of their own."""
        before: list[list[Wait]] = [[] for _ in range(self.num_steps)]
        after: list[list[Wait]] = [[] for _ in range(self.num_steps)]
        for stream, base in zip(self.program.ranks, self.program.offsets, strict=False):
            size = len(stream) // self.num_steps
            trailing = 0
            while trailing < size and stream.codes[size - 1 - trailing] & KIND_MASK == OPTIMIZER:
                trailing += 1
            for step in range(self.num_steps if size else 0):
                end = base + (step + 1) * size - 1
                after[step].append((self.last[end], 0))
                if trailing < size:
                    before[step].append((self.last[end - trailing], 0))
        for step in range(self.num_steps):
            self.jobs.add(0, before[step])
            self.jobs.add(0, after[step])


class _Beside:
    """What the actions of a rank wait for of its other stream; nothing if it has none."""

    def __init__(self, there: bool) -> None:
        self.there = there
        self.computed = self.reduced = NOTHING
        self.fetched: dict[int, int] = {}

    def waits(self, code: int, mate: int, job: int) -> list[Wait]:
        """What the next action waits for, whose last job that is."""
        if not self.there:
            return []
        stage, kind = code >> STAGE_SHIFT & STAGE_MASK, code & KIND_MASK
        if is_collective(code):
            if kind == REDUCE_GRAD:
                self.reduced = job
            else:
                self.fetched[stage] = job
            return [] if self.computed == NOTHING else [(self.computed, 0)]
        self.computed = job
        if kind > WEIGHT:
            return [] if self.reduced == NOTHING else [(self.reduced, 0)]
        stages = {stage} if mate == NO_MATE else {stage, mate >> STAGE_SHIFT & STAGE_MASK}
        return [(self.fetched[one], 0) for one in sorted(stages & self.fetched.keys())]
