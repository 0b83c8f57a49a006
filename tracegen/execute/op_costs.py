"""What each op of each stage takes, and the costs a program has by them.

A makespan is a sum of actions, so an op's figure must add up: it is the mean over
the microbatches of a step, which a median over skewed times lies below, and of
those means the median over the steps, which one slow step does not move.

A full backward, and a pair, are ops of their own here: splitting a backward
costs something, so B is not I + W: `split_us` is the difference.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import fmean, median
from typing import Any

from tracegen.costs import Costs
from tracegen.deps import NOTHING, waits
from tracegen.ir import (
    KIND_MASK,
    KINDS,
    MICROBATCH_SHIFT,
    NO_MATE,
    STAGE_MASK,
    STAGE_SHIFT,
    Program,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT

# Of an op alone: its kind, its stage. Of a pair: its backward's kind as PAIR has it, F's stage.
Op = tuple[int, int]
PAIR = {FULL: -1, INPUT: -2}
NAMES = {kind: str(KINDS[kind]) for kind in (FORWARD, FULL, INPUT, WEIGHT)} | {
    PAIR[FULL]: "F+B",
    PAIR[INPUT]: "F+I",
}


def op_of(code: int, mate: int) -> Op:
    """The op of a step."""
    kind = code & KIND_MASK if mate == NO_MATE else PAIR[mate & KIND_MASK]
    return kind, code >> STAGE_SHIFT & STAGE_MASK


@dataclass(frozen=True)
class OpCosts:
    """What each op takes.

    Attributes:
        ns: by op, the median over the steps of the mean over a step's microbatches; so the
            next two.
        gap_ns: by op, what a rank spends after it before its next action, without waiting.
        alpha_ns: from the end of what made a result to the start of what stood waiting for
            it, of a hand-over between ranks, beyond the maker's `gap_ns`.
        activation_bytes: of one microbatch, by stage, where known.
    """

    ns: Mapping[Op, int]
    gap_ns: Mapping[Op, int] = field(default_factory=dict)
    alpha_ns: int = 0
    activation_bytes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of_steps(cls, program: Program, steps: Sequence[tuple[array[int], array[int]]]) -> OpCosts:
        """The figures of the steps measured (start, end of each of the program's)."""
        ops = [op for _, op in _ops(program)]
        took, gaps, late = [], [], []
        for start, end in steps:
            took.append(_means((op, end[step] - start[step]) for step, op in enumerate(ops)))
            waited, free = _hand_overs(program, start, end)
            gaps.append(_means((ops[step], ns) for step, ns in free))
            late.append([(ops[step], ns) for step, ns in waited])
        gap_ns = _medians(gaps)
        # A predicted action lasts as long as its gap longer, which the wait then is shorter.
        waits_ns = [
            fmean(ns - gap_ns.get(op, 0) for op, ns in of_step) for of_step in late if of_step
        ]
        alpha = max(0, round(median(waits_ns))) if waits_ns else 0
        return cls(_medians(took), gap_ns, alpha)

    @classmethod
    def merged(cls, several: Sequence[OpCosts]) -> OpCosts:
        """Every op that any of them has; what several have is that of the first."""
        ns, gap_ns = (
            {op: of_op for costs in reversed(several) for op, of_op in each(costs).items()}
            for each in (attrgetter("ns"), attrgetter("gap_ns"))
        )
        return replace(several[0], ns=ns, gap_ns=gap_ns)

    def of(self, kind: int, stage: int) -> int | None:
        """The ns of an op of a stage; of one that was not measured, what the others say of it."""
        known = self.ns.get((kind, stage))
        if known is not None:
            return known
        f, b = self.ns.get((FORWARD, stage)), self.ns.get((FULL, stage))
        i, w = self.ns.get((INPUT, stage)), self.ns.get((WEIGHT, stage))
        if kind == FULL and i is not None and w is not None:
            return i + w
        if kind in (INPUT, WEIGHT) and b is not None:
            other = w if kind == INPUT else i
            return b // 2 if other is None else max(0, b - other)
        pair = self.ns.get((PAIR[FULL], stage))
        if pair is not None:
            if kind == FORWARD:
                return pair // 3 if b is None else max(0, pair - b)
            if kind == FULL:
                return pair * 2 // 3 if f is None else max(0, pair - f)
        return None

    def for_program(self, program: Program, singles: bool = True) -> Costs:
        """Costs that give each action of the program its op's figure and the gap after it.

        Args:
            program: whose stages they are for.
            singles: whether microbatches that pair otherwise than most have costs of their own.
        """
        table: dict[str | int, dict[str, Any]] = {
            stage: self._of_stage(program, stage, singles) for stage in range(program.num_stages)
        }
        return Costs(
            stage=table,
            alpha_us=self.alpha_ns / 1000,
            activation_bytes=[float(self.activation_bytes[s]) for s in range(program.num_stages)]
            if len(self.activation_bytes) == program.num_stages
            else None,
        )

    def _of_stage(self, program: Program, stage: int, singles: bool) -> dict[str, Any]:
        """A stage's own costs, and those of the microbatches that pair otherwise than most."""
        pairs = {
            code >> MICROBATCH_SHIFT: PAIR[mate & KIND_MASK]
            for code, mate in _of_stage(program, stage)
            if mate != NO_MATE
        }
        entry: dict[str, Any] = self._backward(stage)
        single: dict[int, dict[str, Any]] = defaultdict(dict)
        self._put(entry, "f_us", FORWARD, stage)
        usual = Counter(pairs.values()).most_common(1)
        for microbatch, pair in pairs.items():
            of = entry if pair == usual[0][0] else single[microbatch]
            self._put(of, "fb_us", pair, stage)
        if singles and any(single.values()):
            entry["microbatch"] = {str(mb): own for mb, own in sorted(single.items()) if own}
        return entry

    def _backward(self, stage: int) -> dict[str, Any]:
        """What B, I and W of a stage take: all three where all were measured."""
        entry: dict[str, Any] = {}
        full, halves = (FULL, stage) in self.ns, {(INPUT, stage), (WEIGHT, stage)} <= self.ns.keys()
        if full or not halves:
            self._put(entry, "b_us", FULL, stage)
        if halves or "b_us" not in entry:
            self._put(entry, "i_us", INPUT, stage)
            self._put(entry, "w_us", WEIGHT, stage)
        if full and halves:
            b, both = entry["b_us"], entry["i_us"] + entry.pop("w_us")
            entry |= {"i_us": min(entry["i_us"], b), "split_us": round(both - b, 3)}
        return entry

    def _put(self, entry: dict[str, Any], name: str, kind: int, stage: int) -> None:
        if (ns := self.of(kind, stage)) is not None:
            entry[name] = (ns + self.gap(kind, stage)) / 1000

    def gap(self, kind: int, stage: int) -> int:
        """The ns that a rank spends after an op; after one that never went on at once, the mean."""
        own = self.gap_ns.get((kind, stage))
        return round(fmean(self.gap_ns.values())) if own is None and self.gap_ns else own or 0

    def split_ratio(self, stage: int) -> float | None:
        """(I + W) / B of a stage, where all three were measured."""
        b, i, w = (self.ns.get((kind, stage)) for kind in (FULL, INPUT, WEIGHT))
        return None if not b or i is None or w is None else (i + w) / b


def _ops(program: Program) -> Iterator[tuple[int, Op]]:
    for stream, base in zip(program.ranks, program.offsets, strict=False):
        for at, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True)):
            yield base + at, op_of(code, mate)


def _of_stage(program: Program, stage: int) -> Iterator[tuple[int, int]]:
    """(code, mate) of every action of a stage; a pair's backward half has no mate of its own."""
    stream = program.ranks[program.placement.ranks[stage]]
    for code, mate in zip(stream.codes, stream.mates, strict=True):
        if code >> STAGE_SHIFT & STAGE_MASK == stage:
            yield code, mate
        if mate != NO_MATE and mate >> STAGE_SHIFT & STAGE_MASK == stage:
            yield mate, NO_MATE


def _means(found: Iterable[tuple[Op, int]]) -> dict[Op, float]:
    of: dict[Op, list[int]] = defaultdict(list)
    for op, ns in found:
        of[op].append(ns)
    return {op: fmean(values) for op, values in of.items()}


def _medians(steps: Iterable[Mapping[Op, float]]) -> dict[Op, int]:
    of: dict[Op, list[float]] = defaultdict(list)
    for step in steps:
        for op, ns in step.items():
            of[op].append(ns)
    return {op: round(median(values)) for op, values in of.items()}


def _hand_overs(
    program: Program, start: array[int], end: array[int]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """What ranks stood waiting for, and what they went on from at once: (step, ns until then).

    The first from the end of the other rank's step that made what was waited for, the
    second from the end of the rank's own step before.
    """
    needs, offsets = waits(program), program.offsets
    late, between = [], []
    for rank in range(program.num_ranks):
        for step in range(offsets[rank], offsets[rank + 1]):
            others = [w for w in (needs.forward[step], needs.backward[step]) if w != NOTHING]
            made, source = max(
                ((end[w], w) for w in others if program.rank_of_step(w) != rank),
                default=(0, NOTHING),
            )
            free = end[step - 1] if step > offsets[rank] else 0
            if made > free:
                late.append((source, start[step] - made))
            elif free:
                between.append((step - 1, start[step] - free))
    return late, between
