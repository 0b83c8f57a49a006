"""Dynamic dispatch: an idle rank takes any ready action. Finds the order that comes about.

Backwards (B, I) first, then F, then W; of those the lowest microbatch, then the
lowest stage. Pairs are split. A rank looks at nothing beyond what is ready: this
is what an asynchronous runtime does. Replayed as a static order, what it finds
takes the same times, since every action started as soon as it could.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush

from tracegen.deps import NOTHING, neighbours, waits
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    NO_MATE,
    OPTIMIZER,
    STAGE_MASK,
    STAGE_SHIFT,
    SUM_REPLICAS,
    Program,
    Stream,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.repeat import flat, folded, repeat
from tracegen.tail import replicas
from tracegen.times import Times

# What is taken first.
TURN = {FULL: 0, INPUT: 0, FORWARD: 1, WEIGHT: 2}

# What happens at one ns, in this order: a rank chooses when all that is ready then is known.
OVER, ARRIVED, ASK, CHOOSE = range(4)


def dispatch(
    program: Program, times: Times, num_steps: int, tails: Sequence[Sequence[int]], sync: bool
) -> Program:
    """The program in the order that dynamic dispatch gives, with its tails, of `num_steps` steps.

    Args:
        program: sound, of one step, compute only; its order does not matter.
        times: of the program.
        num_steps: in a row; no action of a step is taken before the rank is done with the last.
        tails: by rank, what follows its actions in each step.
        sync: whether barriers stand before the optimizer and after each step.
    """
    steps = repeat(without_pairs(program), num_steps)
    streams = _Dispatch(flat(steps), times, num_steps, tails, sync).run()
    whole = replace(flat(steps), ranks=tuple(streams), recipe={}, memo={})
    return folded(whole, num_steps)


def without_pairs(program: Program) -> Program:
    """The program with the halves of each pair as actions of their own, the forward first."""
    streams = []
    for stream in program.ranks:
        codes = array("q", [code for _, code in stream.halves()])
        streams.append(Stream(codes, array("q", [NO_MATE]) * len(codes)))
    return program.with_ranks(streams)


class _Dispatch:
    def __init__(
        self,
        program: Program,
        times: Times,
        num_steps: int,
        tails: Sequence[Sequence[int]],
        sync: bool,
    ) -> None:
        self.program, self.times, self.num_steps, self.sync = program, times, num_steps, sync
        self.m = program.num_microbatches // num_steps
        self.tails = [self.with_barriers(tail) for tail in tails]
        self.replicas = replicas(program)
        self.codes = array("q", [code for stream in program.ranks for code in stream.codes])
        self.rank_of = array(
            "q", [rank for rank, stream in enumerate(program.ranks) for _ in stream.codes]
        )
        self.unmet, self.needed_by = self.graph()
        p = program.num_ranks
        self.ready: list[list[tuple[int, int, int, int, int]]] = [[] for _ in range(p)]
        self.idle, self.step = [True] * p, [0] * p
        # Of the step that each rank is in: actions to come; and then, how far it is in its tail.
        self.left = [len(stream) // num_steps for stream in program.ranks]
        self.in_tail = [0] * p
        self.joined: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.found: list[array[int]] = [array("q") for _ in range(p)]
        self.link_free: dict[tuple[int, int], int] = defaultdict(int)
        self.events: list[tuple[int, int, tuple[int, int], int]] = []

    def with_barriers(self, tail: Sequence[int]) -> list[int]:
        """The tail with NOTHING where the rank waits for all others."""
        if not self.sync:
            return list(tail)
        sums = [code for code in tail if code & KIND_MASK != OPTIMIZER]
        return [*sums, NOTHING, *tail[len(sums) :], NOTHING]

    def graph(self) -> tuple[array[int], list[list[int]]]:
        """How many results each action waits for, and which actions wait for each."""
        needs = waits(self.program)
        unmet = array("q", [0]) * len(self.codes)
        needed_by: list[list[int]] = [[] for _ in self.codes]
        for action in range(len(self.codes)):
            for source in needs.of(action):
                unmet[action] += 1
                needed_by[source].append(action)
        return unmet, needed_by

    def run(self) -> list[Stream]:
        for action, count in enumerate(self.unmet):
            if count == 0:
                self.arrive(action, 0)
        for rank in range(self.program.num_ranks):
            self.at(0, CHOOSE, rank, (rank, 0))
        while self.events:
            now, what, _, number = heappop(self.events)
            if what == OVER:
                self.over(number, now)
            elif what == ARRIVED:
                self.unmet[number] -= 1
                if self.unmet[number] == 0:
                    self.arrive(number, now)
            elif what == ASK:
                self.take_link(number, now)
            elif self.idle[number]:
                self.choose(number, now)
        assert all(step == self.num_steps for step in self.step)
        return [Stream(codes, array("q", [NO_MATE]) * len(codes)) for codes in self.found]

    def at(self, ns: int, what: int, number: int, tie: tuple[int, int] = (0, 0)) -> None:
        heappush(self.events, (ns, what, tie, number))

    def arrive(self, action: int, now: int) -> None:
        """All that an action waits for is there."""
        code, rank = self.codes[action], self.rank_of[action]
        step, microbatch = divmod(code >> MICROBATCH_SHIFT, self.m)
        stage = code >> STAGE_SHIFT & STAGE_MASK
        heappush(self.ready[rank], (step, TURN[code & KIND_MASK], microbatch, stage, action))
        self.at(now, CHOOSE, rank, (rank, 0))

    def choose(self, rank: int, now: int) -> None:
        """Start the first of what is ready, or go on with the tail of a step that is done."""
        if self.step[rank] == self.num_steps:
            return
        if self.left[rank] == 0:
            self.go_on(rank, now)
        elif self.ready[rank] and self.ready[rank][0][0] == self.step[rank]:
            action = heappop(self.ready[rank])[-1]
            self.idle[rank] = False
            self.left[rank] -= 1
            self.found[rank].append(self.codes[action])
            self.at(now + self.times.duration(self.codes[action]), OVER, action)

    def over(self, number: int, now: int) -> None:
        """An action has ended, or, numbered below 0, something of a rank's tail."""
        rank = -1 - number if number < 0 else self.rank_of[number]
        self.idle[rank] = True
        self.at(now, CHOOSE, rank, (rank, 0))
        for target in self.needed_by[number] if number >= 0 else ():
            if self.rank_of[target] == rank:
                self.at(now, ARRIVED, target)
            elif self.times.links_queue:
                forward, other, _ = self.handover(target)
                self.at(now, ASK, target, (not forward, other))
            else:
                self.at(now + self.times.latency(self.handover(target)[2]), ARRIVED, target)

    def handover(self, target: int) -> tuple[bool, int, tuple[int, int]]:
        """Of what comes from another rank: whether it is forward, from which stage, its link."""
        code = self.codes[target]
        forward, stage = code & KIND_MASK == FORWARD, code >> STAGE_SHIFT & STAGE_MASK
        previous, following = neighbours(self.program)
        other, ranks = (previous if forward else following)[stage], self.program.placement.ranks
        return forward, other, (ranks[other], ranks[stage])

    def take_link(self, target: int, now: int) -> None:
        _, other, link = self.handover(target)
        stage = self.codes[target] >> STAGE_SHIFT & STAGE_MASK
        start = max(now, self.link_free[link])
        self.link_free[link] = start + self.times.occupancy(link, min(stage, other))
        self.at(self.link_free[link] + self.times.latency(link), ARRIVED, target)

    def go_on(self, rank: int, now: int) -> None:
        """The next of the rank's tail, or its next step."""
        tail, at = self.tails[rank], self.in_tail[rank]
        if at == len(tail):
            self.in_tail[rank] = 0
            self.left[rank] = len(self.program.ranks[rank]) // self.num_steps
            self.step[rank] += 1
            self.at(now, CHOOSE, rank, (rank, 0))
            return
        code, step = tail[at], self.step[rank]
        self.idle[rank] = False
        self.in_tail[rank] += 1
        if code == NOTHING:
            last = at == len(tail) - 1
            self.join((step, NOTHING, last), self.program.num_ranks, rank, 0, now)
            return
        self.found[rank].append(code + (step * self.m << MICROBATCH_SHIFT))
        lasts, stage = self.times.whole_stage(code), code >> STAGE_SHIFT & STAGE_MASK
        if code & KIND_MASK == SUM_REPLICAS:
            together = self.replicas[stage]
            self.join((step, SUM_REPLICAS, together[0]), len(together), rank, lasts, now)
        else:
            self.at(now + lasts, OVER, -1 - rank)

    def join(self, key: tuple[int, int, int], count: int, rank: int, lasts: int, now: int) -> None:
        """Wait until `count` ranks have come, and then so many ns more."""
        waiting = self.joined[key]
        waiting.append(rank)
        if len(waiting) == count:
            for member in waiting:
                self.at(now + lasts, OVER, -1 - member)
