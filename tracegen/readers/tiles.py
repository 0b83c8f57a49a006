"""Rows of ranks -> Timeline."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import le

from tracegen import blame, torch_csv
from tracegen.deps import NOTHING, index
from tracegen.errors import FileError, ScheduleError
from tracegen.ir import (
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    Placement,
    Program,
    Stream,
)
from tracegen.memory import peaks
from tracegen.order import loop, v_shape
from tracegen.readers.about import About
from tracegen.readers.events import Gather
from tracegen.readers.recompute import recomputed_ns
from tracegen.readers.rows import NO_SLICE, RankRow, in_order
from tracegen.timeline import Timeline

_WAITED = re.compile(r"([0-9]{1,9})([FBIW])([0-9]{1,12})")


@dataclass
class Tiles:
    """The rows of a trace's ranks and what its metadata says, on their way to a Timeline."""

    gather: Gather
    about: About
    ranks: dict[int, RankRow]
    name: str

    def program(self) -> Program:
        """The program whose actions the tiles are.

        Raises:
            FileError: if a microbatch's number shows that they are not counted from 0.
        """
        p = max(self.ranks, default=-1) + 1
        if self.about.own:
            p = max(p, self.about.num_ranks)
        rows = [self.ranks.get(rank) or RankRow() for rank in range(p)]
        streams = tuple(Stream(row.code, row.mate) for row in rows)
        m, stages = self._sizes(streams)
        placement = self.about.placement(stages, p) or self._placement(streams, stages, m)
        for rank, stream in enumerate(streams):
            if not stream and (not self.about.own or rank in placement.ranks):
                self.gather.warnings.add("ranks without slices", f"rank {rank} has no slices")
        steps = self.about.num_steps if m == self.about.num_microbatches else 1
        if any(len(stream) % steps for stream in streams):
            self.gather.warnings.add(
                "steps", f"the metadata says {steps} steps; the ranks' actions do not divide so"
            )
            steps = 1
        return Program(self.name, m, placement, streams, recipe=self.about.recipe, num_steps=steps)

    def _sizes(self, streams: tuple[Stream, ...]) -> tuple[int, int]:
        """M and the number of stages: as stated, if no tile is beyond."""
        highest = max(
            (max(max(s.codes), max(s.mates)) for s in streams if len(s)),
            default=-1,
        )
        m = max(highest >> MICROBATCH_SHIFT, -1) + 1
        stages = 1 + max(
            (c >> STAGE_SHIFT & STAGE_MASK for s in streams for _, c in s.halves()), default=-1
        )
        actions = sum(map(len, streams))
        if m * stages > 100 * actions + 1_000_000:
            raise FileError(
                f"{self.gather.path}: a slice is of microbatch {m - 1}, in a trace of {actions} "
                "actions; microbatches are numbered from 0 in each step"
            )
        for what, seen, said in (
            ("m", m, self.about.num_microbatches),
            ("stages", stages, self.about.num_stages),
        ):
            if self.about.own and seen > said:
                self.gather.warnings.add(
                    "sizes", f"the metadata says {what} = {said}; the slices have {seen}"
                )
        return max(m, self.about.num_microbatches), max(stages, self.about.num_stages)

    def _placement(self, streams: tuple[Stream, ...], stages: int, m: int) -> Placement:
        """Where the stages are, as the tiles show it."""
        owner: dict[int, int] = {}
        batches: dict[int, set[int]] = {stage: set() for stage in range(stages)}
        for rank, stream in enumerate(streams):
            for at, code in stream.halves():
                stage = code >> STAGE_SHIFT & STAGE_MASK
                batches[stage].add(code >> MICROBATCH_SHIFT)
                if owner.setdefault(stage, rank) != rank:
                    self.gather.warnings.add(
                        "actions of a stage of another rank",
                        f"rank {rank}, action {at}: {stream[at]}: stage {stage} is on rank "
                        f"{owner[stage]} too, which counts as its place",
                    )
        if not streams:
            return Placement("custom", (), ())
        ranks = _owners(owner, stages, len(streams))
        return torch_csv.placement_of(ranks, batches, m, len(streams))

    def timeline(self, program: Program) -> Timeline:
        """The timeline, its base moved to 0 where the trace's is not near it."""
        rows = [self.ranks.get(rank) or RankRow() for rank in range(program.num_ranks)]
        start, end = array("q"), array("q")
        for row in rows:
            start.extend(row.start)
            end.extend(row.end)
        base = self.base_ns
        if base:
            start = array("q", [ns - base for ns in start])
            end = array("q", [ns - base for ns in end])
        return Timeline(
            program,
            self.about.costs,
            start,
            end,
            self._blockers(program, rows, start, end),
            (self.about.costs.moe and self.about.stated_ns("busy_us", len(rows)))
            or [_busy(row) for row in rows],
            peaks(program, self.about.costs),
            recomputed_ns=recomputed_ns(self.gather, rows, base),
        )

    @cached_property
    def base_ns(self) -> int:
        """What the trace's times are counted from: the first step, or else the first slice.

        Tracegen's own begin at 0, and a first tile that is late must stay late.
        """
        firsts = [row.start[0] for row in self.ranks.values() if row.start]
        firsts = firsts or [t.start[0] for t in self.gather.threads.values() if t.start]
        first = min(firsts, default=0)
        if first < 0:
            self.gather.warnings.add(
                "bases", f"its times begin at {first / 1000:.3f} us; they are counted from there"
            )
        return first if first < 0 or (self.ranks and not self.about.own) else 0

    def _blockers(
        self, program: Program, rows: list[RankRow], start: array[int], end: array[int]
    ) -> array[int]:
        """The step of each action that a tile says it waited for.

        Other tools' tiles do not say it; there it follows from the times.
        """
        blocker = array("q", [NOTHING]) * len(program)
        if not any(any(row.waited) for row in rows):
            return blocker if self.about.own else blame.blockers(program, start, end)
        made, M = index(program), program.num_microbatches
        of_kind = {"F": made.forward, "B": made.gradient, "I": made.gradient, "W": made.weight}
        for base, row in zip(program.offsets, rows, strict=False):
            for at, text in enumerate(row.waited):
                if text and (match := _WAITED.fullmatch(str(text))):
                    stage, microbatch = int(match[1]), int(match[3])
                    if stage < program.num_stages and microbatch < M:
                        blocker[base + at] = of_kind[match[2]][stage * M + microbatch]
        return blocker


def add_zero_length(ranks: dict[int, RankRow], about: About) -> None:
    """Put the actions without a tile where they belong: at their time, before what starts then.

    Raises:
        FileError: if the metadata does not say them in its form.
    """
    touched = {}
    # A rank without a tile has no track in a .pftrace; the metadata counts it.
    p = max(max(ranks, default=-1) + 1, (about.num_ranks or 0) if about.own else 0)
    for rank, step, ns, waited in about.zero_length(p):
        row = touched[rank] = ranks.setdefault(rank, RankRow())
        one = Stream.of([step])
        row.start.append(ns)
        row.end.append(ns)
        row.code.append(one.codes[0])
        row.mate.append(one.mates[0])
        row.waited.append(waited)
        row.source.append(NO_SLICE)
    for row in touched.values():
        in_order(row)


def _owners(owner: dict[int, int], stages: int, p: int) -> tuple[int, ...]:
    """The rank of each stage; of one that no slice is of, where the others would have it."""
    for place in (loop, v_shape):
        try:
            usual = place(p, max(1, -(-stages // p))).ranks
        except ScheduleError:
            continue
        if all(usual[stage] == rank for stage, rank in owner.items()):
            return usual[:stages]
    return tuple(owner.get(stage, 0) for stage in range(stages))


def _busy(row: RankRow) -> int:
    """The time in which any of the rank's slices runs."""
    if all(map(le, row.end, islice(row.start, 1, None))):
        return sum(row.end) - sum(row.start)
    busy, until = 0, row.start[0]
    for start, end in zip(row.start, row.end, strict=True):
        busy += max(0, end - max(start, until))
        until = max(until, end)
    return busy
