"""What a change would buy: exact, from slack where the order of transfers cannot change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from tracegen import engine
from tracegen.analysis import timed
from tracegen.analysis.changes import FASTER, LESS, PAIR, Change, changes, with_change
from tracegen.analysis.graph import CycleError, Graph
from tracegen.deps import waits
from tracegen.errors import ProgramError, TracegenError
from tracegen.ir import KIND_MASK, NO_MATE, STAGE_MASK, STAGE_SHIFT
from tracegen.mode import Mode
from tracegen.passes.validate import where
from tracegen.timeline import Timeline
from tracegen.times import Times
from tracegen.work import Work, lower

# Actions times changes that are replayed in full, half a minute's worth, and that are worked
# out from slack, ten seconds' worth.
MOST_REPLAYED = 4_000_000
MOST_FROM_SLACK = 10_000_000


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change buys.

    Attributes:
        saves_ns: of the makespan.
    """

    change: Change
    saves_ns: int


def predicted(line: Timeline) -> Timeline | None:
    """The replay that gives these times; None if none does, as of times that were measured."""
    if line.found is None:
        return line
    if not line.found.own:
        return None
    try:
        mode = Mode.from_dict(line.config.get("replay", {}))
        again = engine.replay(line.source or line.program, line.costs, **mode.given())
    except TracegenError:
        return None
    same = (again.start_ns, again.end_ns) == (line.start_ns, line.end_ns)
    return replace(again, config=line.config) if same else None


def _measured(line: Timeline) -> Graph:
    """The graph of a measured timeline.

    Raises:
        ProgramError: if its ranks cannot have run their actions in the order it says.
    """
    try:
        return Graph(timed.work_of(line))
    except CycleError as error:
        program, needs = line.program, waits(line.program)
        rank_of = program.rank_of_step
        every = ((step, need) for step in range(len(program)) for need in needs.of(step))
        found = [(a, b) for a, b in every if b > a and rank_of(a) == rank_of(b)]
        found = found or [(a, b) for a, b in error.waits if b != a - 1]
        problems = [f"{where(program, a)} waits for {where(program, b)}" for a, b in found]
        why = "its ranks cannot have run their actions in this order"
        raise ProgramError(f"{program.name}: {why}", problems) from None


class WhatIf:
    """A timeline under changes.

    Attributes:
        line: the timeline: predicted, or measured.
        measured: whether its times are its own, and no costs give them.
    """

    def __init__(self, line: Timeline, measured: bool) -> None:
        self.line, self.measured = line, measured
        self.mode = Mode.from_dict(line.config.get("replay", {}))
        if measured:
            _ = self.graph  # which refuses what cannot be

    @property
    def from_slack(self) -> bool:
        """Whether no change can alter an order, so that slack says all."""
        return self.graph is not None

    @cached_property
    def graph(self) -> Graph | None:
        line = self.line
        if self.measured:
            return _measured(line)
        alone = line.kernels is None and not line.collectives and not any(line.held)
        plain = self.mode == Mode() and alone
        if not plain or self.times.links_queue:
            return None
        return Graph(lower(line.program, self.times))

    @cached_property
    def times(self) -> Times:
        return self.line.costs.times(self.line.program)

    @cached_property
    def rank_of(self) -> list[int]:
        """By step."""
        return [rank for rank, stream in enumerate(self.line.program.ranks) for _ in stream.codes]

    def changes(self) -> list[Change]:
        """All that are worth a thought, or, where each takes a replay, as many as are quick."""
        found = list(changes(self.line.program, None if self.measured else self.line.costs))
        if self.from_slack:
            return found
        most = max(1, MOST_REPLAYED // max(1, len(self.line.program)))
        found.sort(key=lambda change: len(change.stages) == 1)
        return found[:most]

    def makespan(self, change: Change) -> int:
        """The makespan with the change made."""
        if self.graph is None:
            return self.replayed(change)
        return self.graph.shortened(*self.shorter(change))

    def replayed(self, change: Change) -> int:
        """The same by a replay of everything."""
        if self.measured:
            assert self.graph is not None
            done = engine.run(self.graph.changed(*self.shorter(change)))
            return max(done.end, default=0)
        line = self.line
        program = line.source or line.program
        costs = with_change(line.costs, line.program, change)
        return engine.replay(program, costs, **self.mode.given()).makespan_ns

    def shorter(self, change: Change) -> tuple[dict[int, int], dict[int, int]]:
        """The jobs and the waits that a change makes shorter, with their new ns."""
        assert self.graph is not None
        work = self.graph.work
        if change.links:
            return {}, self._lags(work, change)
        if self.measured:
            return {step: round(work.duration[step] * LESS) for step in self._steps(change)}, {}
        times = with_change(self.line.costs, self.line.program, change).times(self.line.program)
        durations = ((step, times.duration(*self.halves[step])) for step in self._touched(change))
        return {step: ns for step, ns in durations if ns != work.duration[step]}, {}

    @cached_property
    def halves(self) -> list[tuple[int, int]]:
        """By step, its code and its mate."""
        streams = self.line.program.ranks
        return [both for s in streams for both in zip(s.codes, s.mates, strict=True)]

    @cached_property
    def _steps_of_stage(self) -> list[list[int]]:
        """By stage, the steps that have to do with it."""
        found: list[list[int]] = [[] for _ in range(self.line.program.num_stages)]
        for step, halves in enumerate(self.halves):
            for stage in {half >> STAGE_SHIFT & STAGE_MASK for half in halves if half != NO_MATE}:
                found[stage].append(step)
        return found

    def _touched(self, change: Change) -> Iterable[int]:
        """The steps that a change may make shorter, some of them twice."""
        if change.rank is not None:
            return self._of_rank(change.rank)
        return (step for stage in change.stages for step in self._steps_of_stage[stage])

    def _of_rank(self, rank: int) -> range:
        return range(*self.line.program.offsets[rank : rank + 2])

    def _steps(self, change: Change) -> Iterable[int]:
        """The steps of a measured timeline that a change is about."""
        if change.rank is not None:
            return self._of_rank(change.rank)
        found = []
        for stage in change.stages:
            for step in self._steps_of_stage[stage]:
                code, mate = self.halves[step]
                kind = code & KIND_MASK if mate == NO_MATE else PAIR
                if kind == change.kind and code >> STAGE_SHIFT & STAGE_MASK == stage:
                    found.append(step)
        return found

    def _lags(self, work: Work, change: Change) -> dict[int, int]:
        ways = {*change.links, *((b, a) for a, b in change.links)}
        times = None
        if not self.measured:
            costs = with_change(self.line.costs, self.line.program, change)
            times = costs.times(self.line.program)
        found = {}
        for target in range(len(self.rank_of)):
            for at in range(work.first_wait[target], work.first_wait[target + 1]):
                source = work.wait_on[at]
                if source >= len(self.rank_of):
                    continue
                way = (self.rank_of[source], self.rank_of[target])
                if way in ways and work.lag[at] > 0:
                    ns = int(work.lag[at] * FASTER) if times is None else times.latency(way)
                    found[at] = ns
        return found

    def gains(self) -> list[Gain]:
        """What each change buys, most first; less what is in `left_out`."""
        whole, left = self.makespan_ns, {bound.change for bound in self.left_out}
        changes = [change for change in self.changes() if change not in left]
        found = [Gain(change, whole - self.makespan(change)) for change in changes]
        found.sort(key=lambda gain: -gain.saves_ns)
        return found

    @cached_property
    def left_out(self) -> list[Gain]:
        """Changes too many to work out, each with the most that it can buy, most first."""
        changes, size = self.changes(), len(self.line.program)
        if self.graph is None or size * len(changes) <= MOST_FROM_SLACK:
            return []
        bounds = [Gain(c, self.graph.at_most(*self.shorter(c))) for c in changes]
        bounds.sort(key=lambda bound: -bound.saves_ns)
        return [bound for bound in bounds[max(1, MOST_FROM_SLACK // size) :] if bound.saves_ns]

    @property
    def makespan_ns(self) -> int:
        return self.line.makespan_ns if self.graph is None else self.graph.makespan
