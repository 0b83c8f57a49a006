"""Jobs that ran -> the columns of a Timeline: compute, what else held the ranks, who held whom."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tracegen.clock import PENDING, Run
from tracegen.collective import is_collective
from tracegen.deps import NOTHING, index, waits
from tracegen.full_work import FullWork
from tracegen.held import Held
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    NO_MATE,
    RECV_F,
    STAGE_MASK,
    STAGE_SHIFT,
    SUM_REPLICAS,
    Program,
)
from tracegen.ir import W as WEIGHT
from tracegen.passes.messages import RECEIVES, is_message, other_end
from tracegen.repeat import folded
from tracegen.times import Times


def _column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class Columns:
    """What a Timeline is made of.

    Attributes:
        program: what ran, compute only; of a program that hangs, what ran before it did.
        held: by rank, what else held it, in order.
        collectives: by rank, what ran on its other stream, in order; empty if there is none.
        stuck: by rank, the action that it never came past, NOTHING if it finished.
        spans: as `Timeline.queued`.
    """

    program: Program
    start: array[int] = field(default_factory=_column)
    end: array[int] = field(default_factory=_column)
    blocker: array[int] = field(default_factory=_column)
    busy: list[int] = field(default_factory=list)
    held: list[list[Held]] = field(default_factory=list)
    collectives: list[list[Held]] = field(default_factory=list)
    stuck: list[int] = field(default_factory=list)
    spans: dict[tuple[int, int, bool], tuple[int, int]] = field(default_factory=dict)


def columns(full: FullWork, done: Run, times: Times, num_steps: int) -> Columns:
    """The columns of a run of `full.work`, whose actions may not all have run."""
    return _Reading(full, done, times, num_steps).columns()


class _Reading:
    def __init__(self, full: FullWork, done: Run, times: Times, num_steps: int) -> None:
        self.full, self.done, self.times, self.num_steps = full, done, times, num_steps
        # The number of each action among the compute steps, NOTHING for others.
        self.compute = array("q", [NOTHING]) * len(full.program)
        self.action_of = array("q", [NOTHING]) * len(full.work.duration)
        for action, (first, last) in enumerate(zip(full.first, full.last, strict=True)):
            self.action_of[first] = self.action_of[last] = action
        self.begins = set(full.program.offsets)
        self.origins: dict[int, int] = {}
        self.beside = full.two_streams
        self.before = self.in_streams() if self.beside else {}

    def in_streams(self) -> dict[int, int]:
        """The job before each on its stream."""
        return {b: a for jobs in self.full.work.streams for a, b in pairwise(jobs)}

    def columns(self) -> Columns:
        program, offsets = self.full.program, self.full.program.offsets
        streams, stuck, number = [], [], 0
        for rank, stream in enumerate(program.ranks):
            ran = self.ran(rank)
            stuck.append(NOTHING if ran == len(stream) else offsets[rank] + ran)
            kept = [at for at in range(ran) if stream.codes[at] & KIND_MASK <= WEIGHT]
            for at in kept:
                self.compute[offsets[rank] + at] = number
                number += 1
            streams.append(stream.kept(kept))
        compute = replace(program, ranks=tuple(streams), memo={})
        if all(action == NOTHING for action in stuck):
            compute = folded(compute, self.num_steps)
        found = Columns(compute, stuck=stuck)
        for rank in range(program.num_ranks):
            self.rank(rank, found)
        self.spans(found.spans)
        return found

    def ran(self, rank: int) -> int:
        """How many of the rank's actions are over."""
        base, count = self.full.program.offsets[rank], len(self.full.program.ranks[rank])
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self.done.end[self.full.last[base + middle]] == PENDING:
                high = middle
            else:
                low = middle + 1
        return low

    def rank(self, rank: int, found: Columns) -> None:
        program, done = self.full.program, self.done
        stream, base = program.ranks[rank], program.offsets[rank]
        held, collectives = list[Held](), list[Held]()
        busy, before = 0, 0
        for at, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True)):
            action = base + at
            first, last = self.full.first[action], self.full.last[action]
            if code & KIND_MASK > WEIGHT:
                if done.start[first] == PENDING:
                    break
                step = at * self.num_steps // len(stream)
                one = self.hold(rank, action, code, mate, step, before)
                (collectives if self.beside and is_collective(code) else held).append(one)
                busy += one.end_ns - one.start_ns if one.is_optimizer and one.over else 0
            elif done.end[last] == PENDING:
                break
            else:
                before += 1
                found.start.append(done.start[first])
                found.end.append(done.end[last])
                found.blocker.append(self.blocker(first, action))
                busy += done.end[last] - done.start[first]
                continue
            if done.end[last] == PENDING:
                break
        found.held.append(held)
        if self.beside:
            found.collectives.append(collectives)
        found.busy.append(busy)

    def hold(self, rank: int, action: int, code: int, mate: int, step: int, before: int) -> Held:
        done, first, last = self.done, self.full.first[action], self.full.last[action]
        start, end = done.start[first], done.end[last]
        met, other, other_rank, bandwidth = start, NOTHING, rank, 0
        peer = rank
        if is_message(code):
            met, other, bandwidth = self.meeting(action, code, mate)
            peer = self.full.program.rank_of_step(self.full.ends[other])
            other = self.times.in_step(other_end(self.full.program, other))
            other_rank = peer if met > start or end == PENDING else rank
        elif code & KIND_MASK == SUM_REPLICAS and end != PENDING:
            met = done.start[last]
            if (by := done.blocker[last]) != NOTHING:
                other_rank = self.full.program.rank_of_step(self.action_of[by])
        code = self.times.in_step(code)
        mate = mate if mate == NO_MATE else self.times.in_step(mate)
        end = NOTHING if end == PENDING else end
        return Held(code, mate, step, before, start, met, end, other, other_rank, peer, bandwidth)

    def meeting(self, action: int, code: int, mate: int) -> tuple[int, int, int]:
        """When both ends of a message had met, the message, its bandwidth part.

        Of an exchange the message that was over last; of one that hangs, one that does.
        """
        found = []
        for message in (code, mate):
            if message != NO_MATE:
                there = self.done.start[self.full.first[self.full.ends[message]]]
                here = self.done.start[self.full.first[action]]
                met = max(here, there)
                latency, bandwidth = self.full.flights[message]
                hangs = there == PENDING
                found.append((hangs, met + latency + bandwidth, met, message, bandwidth))
        _, _, met, message, bandwidth = max(found)
        return met, message, bandwidth

    def blocker(self, first: int, action: int) -> int:
        """The compute step that held this one, through messages and sums, if not that before it."""
        origin = self.origin(self.cause(first))
        if origin == NOTHING:
            return NOTHING
        source, rank_of = self.action_of[origin], self.full.program.rank_of_step
        follows = self.compute[source] == self.compute[action] - 1
        return NOTHING if follows and rank_of(source) == rank_of(action) else self.compute[source]

    def cause(self, job: int) -> int:
        """The job at whose end a job began: that it waited for last, or the one before it."""
        work = self.full.work
        if job >= work.queued.first:
            return work.wait_on[work.first_wait[job]]
        if (by := self.done.blocker[job]) != NOTHING:
            return by
        if self.beside:
            return self.before.get(job, NOTHING)
        action = self.action_of[job]
        if action == NOTHING:  # a barrier
            return job - 1 if self.action_of[job - 1] == NOTHING else NOTHING
        first = job == self.full.first[action] and action in self.begins
        return NOTHING if first else job - 1

    def origin(self, job: int) -> int:
        """The compute job that a chain of causes leads back to, NOTHING if to none."""
        path = []
        while job != NOTHING and job not in self.origins:
            action = self.action_of[job]
            if action != NOTHING and self.compute[action] != NOTHING:
                break
            path.append(job)
            job = self.cause(job)
        found = self.origins.get(job, job)
        self.origins.update(dict.fromkeys(path, found))
        return found

    def spans(self, found: dict[tuple[int, int, bool], tuple[int, int]]) -> None:
        """When each result that a message or a link carried left, and when it arrived."""
        full, done, program = self.full, self.done, self.full.program
        needs, made = waits(program), index(program)
        for stream, base in zip(program.ranks, program.offsets, strict=False):
            for at, code in stream.halves():
                if code & KIND_MASK not in RECEIVES:
                    continue
                forward = code & KIND_MASK == RECV_F
                place = (code >> STAGE_SHIFT & STAGE_MASK) * program.num_microbatches
                target = (made.forward if forward else made.gradient)[
                    place + (code >> MICROBATCH_SHIFT)
                ]
                source = (needs.forward if forward else needs.backward)[target]
                ends = (full.first[base + at], full.first[full.ends[code]])
                met = max(done.start[end] for end in ends)
                if PENDING not in (done.start[ends[0]], done.start[ends[1]]):
                    key = (self.compute[source], self.compute[target], forward)
                    found[key] = (met, met + sum(full.flights[code]))
        for job, moved in enumerate(full.carried, full.work.queued.first):
            if done.end[job] != PENDING:
                key = (self.compute[moved.source], self.compute[moved.target], moved.forward)
                found[key] = (done.start[job], done.end[job] + moved.latency)
