"""What happened when: the steps of a program with their times, predicted or measured."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, count
from operator import eq
from typing import TYPE_CHECKING, Any, NamedTuple

from tracegen.collective import Span, common, length
from tracegen.costs import Costs
from tracegen.deps import NOTHING, neighbours, waits
from tracegen.ir import KIND_MASK, STAGE_MASK, STAGE_SHIFT, Program
from tracegen.ir import F as FORWARD
from tracegen.ir import W as WEIGHT

if TYPE_CHECKING:
    from tracegen.found import Found
    from tracegen.held import Hang, Held
    from tracegen.kernel_line import Kernels

# The two conventions for when an activation is given back; see `peak_activations`.
FREED_AT = ("freed_at_input", "freed_at_weight")


def as_number(value: float) -> float:
    """A sum of sizes as people write it: whole where it is whole."""
    return int(value) if value == int(value) else round(value, 9)


class Transfer(NamedTuple):
    """A result on its way from one rank to another.

    Attributes:
        source, target: the step that made it and the one that waited for it.
        forward: whether it is an activation; else a gradient.
        start_ns, end_ns: when it began to move (after what queued before it) and arrived.
    """

    source: int
    target: int
    forward: bool
    start_ns: int
    end_ns: int


@dataclass(frozen=True, repr=False)  # it has its own
class Timeline:
    """The steps of a program (Program.offsets numbers them) with their times.

    Attributes:
        program: what ran, compute only.
        costs: what it was predicted from.
        start_ns, end_ns: of each step, in ns from the start of the first.
        blocker: the step whose result each step had to wait for, NOTHING where it
            started as soon as its rank was free.
            With kernels, the waits inside its own kernels are looked through.
        busy_ns: by rank, the time its compute stream ran.
        peak_activations: {"freed_at_input": [...], "freed_at_weight": [...]} by rank, in units of
            one stage's activations of one microbatch, or in bytes where the costs give them.
            An activation is taken when F starts and given back when B ends, or I, or W.
        queued: of the transfers that took turns on a link, (source, target, forward) -> when
            each left and arrived, in ns; of the others that is when the source has made the
            result, and the latency later.
        kernels: with MoE costs, the kernels of all steps; a step then starts with its first
            compute kernel and ends with its last (under `block=none` it spans all of them).
        config: how it was made, beyond the costs: what the trace's metadata says.
        held: by rank, what held it beside compute: messages that block, sums of gradients,
            optimizer steps (which are busy time); empty where there is none of these.
        collectives: by rank, what its communication stream did for data parallelism; empty where
            the costs have no `zero`. Not part of `held`.
        source: the program that was replayed, where the steps follow from it and the config:
            without its repetitions, in its own order and with its own messages.
        first_step_ns: of several training steps, the makespan of one alone.
        hangs: where each rank hangs, if the program cannot finish.
        found: of a timeline that was read, the arrows, counters and other rows as the trace
            has them; of any other they follow from the steps (see `drawn`).
        waiting_ns: of a measured timeline, when the rank of each step began to wait for its
            input inside a communication operator; NOTHING where it did not.
        recomputed_ns: by step, until when it recomputed what its forward had not kept, before its
            backward proper; its start where it did not. None if no step does.
        beside: of a measured timeline, the prediction that its trace shows below it.
    """

    program: Program
    costs: Costs
    start_ns: array[int]
    end_ns: array[int]
    blocker: array[int]
    busy_ns: list[int]
    peak_activations: dict[str, list[float]]
    queued: dict[tuple[int, int, bool], tuple[int, int]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    kernels: Kernels | None = None
    held: list[list[Held]] = field(default_factory=list)
    source: Program | None = None
    first_step_ns: int | None = None
    hangs: list[Hang] = field(default_factory=list)
    found: Found | None = field(default=None, compare=False)
    waiting_ns: array[int] | None = field(default=None, compare=False)
    beside: Timeline | None = field(default=None, compare=False)
    recomputed_ns: array[int] | None = None
    collectives: list[list[Held]] = field(default_factory=list)

    @cached_property
    def makespan_ns(self) -> int:
        """The end of the last step, of the last kernel, of the last that held a rank."""
        ends = max(self.end_ns, default=0)
        if self.found is not None:
            ends = max(ends, self.found.until_ns)
        for held in (*self.held, *self.collectives):
            ends = max(ends, max((one.end_ns for one in held), default=0))
        return ends if self.kernels is None else max(ends, self.kernels.end_of_all_ns)

    @cached_property
    def empty(self) -> frozenset[int]:
        """The steps that take no time, and so have no tile."""
        if not any(map(eq, self.start_ns, self.end_ns)):  # as in most timelines
            return frozenset()
        return frozenset(compress(count(), map(eq, self.start_ns, self.end_ns)))

    @cached_property
    def idle_ns(self) -> list[int]:
        """By rank, makespan less busy."""
        return [self.makespan_ns - busy for busy in self.busy_ns]

    @property
    def steady_step_ns(self) -> float | None:
        """What each further training step takes: (T_N - T_1) / (N - 1); None for a single step."""
        if self.first_step_ns is None:
            return None
        return (self.makespan_ns - self.first_step_ns) / (self.program.num_steps - 1)

    @property
    def comm_busy_ns(self) -> list[int]:
        """By rank, the time its communication stream runs; 0 without one."""
        if self.kernels is not None:
            return self.kernels.comm_busy_ns
        return [length(self.beside_compute(rank)) for rank in range(self.program.num_ranks)]

    @property
    def exposed_ns(self) -> list[int]:
        """By rank, the time its communication stream runs and its compute stream does not."""
        if self.kernels is not None:
            return self.kernels.exposed_ns
        hidden = [
            length(common(self.beside_compute(rank), self._computes(rank)))
            for rank in range(self.program.num_ranks)
        ]
        return [busy - beside for busy, beside in zip(self.comm_busy_ns, hidden, strict=True)]

    @property
    def overlap_ratio(self) -> float | None:
        """The share of all ranks' communication that computation of its rank runs beside.

        None where there is no communication to hide.
        """
        whole = sum(self.comm_busy_ns)
        return 1 - sum(self.exposed_ns) / whole if whole else None

    def beside_compute(self, rank: int) -> list[Span]:
        """When the rank's communication stream ran, as `collectives` has it."""
        ran = self.collectives[rank] if self.collectives else []
        return [(one.start_ns, one.end_ns) for one in ran if one.end_ns > one.start_ns]

    def _computes(self, rank: int) -> list[Span]:
        if not self.collectives:
            return []
        steps = range(self.program.offsets[rank], self.program.offsets[rank + 1])
        held = self.held[rank] if self.held else []
        spans = [(self.start_ns[step], self.end_ns[step]) for step in steps]
        return sorted(spans + [(h.start_ns, h.end_ns) for h in held if h.is_optimizer])

    def made_ns(self, step: int, forward: bool) -> int:
        """When a step's forward result, or its gradient, was there."""
        if self.kernels is None:
            return self.end_ns[step]
        return self.kernels.made_ns[not forward][step]

    def __repr__(self) -> str:
        program = self.program
        return (
            f"<Timeline of {program.name} p={program.num_ranks} m={program.num_microbatches}: "
            f"{len(program)} steps in {self.makespan_ns / 1000:.3f} us>"
        )

    def _repr_html_(self) -> str:
        """The picture that a notebook shows."""
        from tracegen.ui.svg import html

        return html(self)

    def transfers(self) -> Iterator[Transfer]:
        """Every hand-over between two ranks, in the order of its target."""
        program, needs = self.program, waits(self.program)
        times = self.costs.times(program)
        ranks = program.placement.ranks
        previous, following = neighbours(program)
        for rank, stream in enumerate(program.ranks):
            base = program.offsets[rank]
            for at, code in stream.halves():
                target = base + at
                forward = code & KIND_MASK == FORWARD
                source = (needs.forward if forward else needs.backward)[target]
                if source == NOTHING or code & KIND_MASK == WEIGHT:
                    continue
                stage = code >> STAGE_SHIFT & STAGE_MASK
                other = ranks[previous[stage] if forward else following[stage]]
                if other == rank:
                    continue
                start = self.made_ns(source, forward)
                span = self.queued.get((source, target, forward))
                if span is None:
                    span = (start, start + times.latency((other, rank)))
                yield Transfer(source, target, forward, *span)
