"""What held the ranks of a trace of tracegen's, and its kernels, from its slices alone.

For traces that no replay gives again, as where one was edited: what a message waited for follows
from when the rank at its other end came to it. What a kernel waited for is not known then, so
that these kernels are for pictures only.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, replace

from tracegen.deps import NOTHING
from tracegen.drawn import rank_name
from tracegen.found import Row
from tracegen.held import Hang, Held
from tracegen.ir import (
    KIND_MASK,
    NO_MATE,
    NUMBER,
    RECV_F,
    SEND_F,
    SUM_REPLICAS,
    B,
    F,
    I,
    W,
    encode,
)
from tracegen.kernel_line import Kernels
from tracegen.kernel_work import Parts
from tracegen.layout import KERNELS, PIPELINE, WAITING
from tracegen.layout_kernels import STREAM_NAMES, kernel_name
from tracegen.layout_more import STUCK
from tracegen.moe import FORWARD, Kernel
from tracegen.passes.messages import SENDS, is_message, other_end
from tracegen.timeline import Timeline

_SAID = re.compile(r"stage (\d+)(?:, microbatch (\d+))?, op ([A-Z_]+)")
_KERNEL = re.compile(r"stage (\d+), microbatch (\d+), layer (\d+)")
_KERNELS = {kernel_name(kernel): kernel for kernel in Kernel}
_NUMBERS = {kind.value: number for kind, number in NUMBER.items()}
_STUCK = re.compile(r"action (\S+), waits_for (.+)")
_WAITING = re.compile(r"action (\S+)")
_HALF = re.compile(r"(\d+)(SEND_F|SEND_B|RECV_F|RECV_B)(\d+)")


def hangs(line: Timeline, rows: list[Row]) -> list[Hang]:
    """Where each rank hangs, of a trace that ends so."""
    named, p = {row.name: row for row in rows}, line.program.num_ranks
    found = []
    for rank in range(p):
        row = named.get(f"{PIPELINE} / {rank_name(rank, p)}", Row(""))
        columns = (row.start_ns, row.end_ns, row.labels, row.about)
        for start, end, label, about in zip(*columns, strict=True):
            if label == STUCK and (said := _STUCK.fullmatch(about)):
                found.append(Hang(rank, start, end, said[1], said[2]))
    return found


def waiting(line: Timeline, rows: list[Row]) -> array[int] | None:
    """When the rank of each step began to stand in a receive; None if no row says so."""
    program, named = line.program, {row.name: row for row in rows}
    found = array("q", [NOTHING]) * len(program)
    for rank, stream in enumerate(program.ranks):
        row = named.get(f"{WAITING} / {rank_name(rank, program.num_ranks)}")
        if row is None:
            continue
        steps = {str(one): step for step, one in enumerate(stream, program.offsets[rank])}
        for start, end, about in zip(row.start_ns, row.end_ns, row.about, strict=False):
            said = _WAITING.fullmatch(about)
            step = NOTHING if said is None else steps.get(said[1], NOTHING)
            if step != NOTHING and end == line.start_ns[step]:
                found[step] = start
    return found if any(ns != NOTHING for ns in found) else None


def held(line: Timeline, rows: list[Row]) -> list[list[Held]]:
    """By rank, what held it, by time; nothing where a slice does not say what it is."""
    named, p = {row.name: row for row in rows}, line.program.num_ranks
    found: list[list[_Slice]] = []
    for rank in range(p):
        row = named.get(f"{PIPELINE} / {rank_name(rank, p)}")
        slices = [] if row is None else [_slice(rank, row, at) for at in range(len(row.labels))]
        found.append([one for one in slices if one is not None])
    if not any(found):
        return []
    ends = _Ends(line, found)
    return [[ends.held(one) for one in of_rank] for of_rank in found]


@dataclass(frozen=True, slots=True)
class _Slice:
    rank: int
    code: int
    mate: int
    start_ns: int
    end_ns: int


def _slice(rank: int, row: Row, at: int) -> _Slice | None:
    said = _SAID.match(row.about[at]) if row.about else None
    if said is None or said[3] not in _NUMBERS:
        return None
    halves = [encode(int(s), _NUMBERS[op], int(mb)) for s, op, mb in _HALF.findall(row.about[at])]
    code = encode(int(said[1]), _NUMBERS[said[3]], int(said[2] or 0))
    first, second = [*halves, NO_MATE, NO_MATE][:2] if halves else (code, NO_MATE)
    return _Slice(rank, first, second, row.start_ns[at], row.end_ns[at])


class _Ends:
    """The other ends of messages, and the sums that go together."""

    def __init__(self, line: Timeline, found: list[list[_Slice]]) -> None:
        self.line, self.times = line, line.costs.times(line.program)
        self.of: dict[int, _Slice] = {}
        self.sums: defaultdict[int, list[_Slice]] = defaultdict(list)
        for one in (one for of_rank in found for one in of_rank):
            for code in (one.code, one.mate):
                if code != NO_MATE and is_message(code):
                    self.of[code] = one
            if one.code & KIND_MASK == SUM_REPLICAS:
                self.sums[one.end_ns].append(one)

    def held(self, one: _Slice) -> Held:
        """One of them with what it waited for, as far as the slices say it."""
        base, last = self.line.program.offsets[one.rank : one.rank + 2]
        before = bisect_right(self.line.end_ns, one.start_ns, base, last) - base
        alone = Held(
            one.code, one.mate, 0, before, one.start_ns, one.start_ns, one.end_ns,
            NOTHING, one.rank, one.rank, 0,
        )  # fmt: skip
        if one.code & KIND_MASK == SUM_REPLICAS:
            late = max(self.sums[one.end_ns], key=lambda other: other.start_ns)
            rank = late.rank if late.start_ns > one.start_ns else one.rank
            return replace(alone, met_ns=late.start_ns, other_rank=rank)
        codes = sorted((one.code, one.mate), key=_is_forward)
        ways = [self._met(one, code) for code in codes if code != NO_MATE]
        known = [way for way in ways if way is not None]
        # Of an exchange the message that was over last; of equal ones the forward, as in replay.
        return replace(alone, **max(reversed(known), key=_when)) if known else alone

    def _met(self, one: _Slice, code: int) -> dict[str, int] | None:
        """When both ends of a message had come, and which was last."""
        if not is_message(code):
            return None
        end = other_end(self.line.program, code)
        if (other := self.of.get(end)) is None:
            return None
        late = other.rank if other.start_ns > one.start_ns else one.rank
        met = max(one.start_ns, other.start_ns)
        link = (one.rank, other.rank) if code & KIND_MASK in SENDS else (other.rank, one.rank)
        bytes_ns = max(0, one.end_ns - met - self.times.latency(link))
        return {
            "met_ns": met,
            "other": end,
            "other_rank": late,
            "peer": other.rank,
            "bandwidth_ns": bytes_ns,
        }


def _is_forward(code: int) -> bool:
    return code & KIND_MASK in (SEND_F, RECV_F)


def _when(way: dict[str, int]) -> int:
    return way["met_ns"]


def with_kernels(line: Timeline) -> Timeline:
    """The timeline with the kernels that its trace shows, to be drawn; itself if it has them."""
    found = None if line.found is None or not line.found.own else line.found.rows
    if line.kernels is not None or found is None:
        return line
    named, p = {row.name: row for row in found}, line.program.num_ranks
    codes = {code for stream in line.program.ranks for _, code in stream.halves()}
    columns = [array("q") for _ in range(5)]
    rows = []
    for rank in range(p):
        for stream in STREAM_NAMES:
            row = named.get(f"{KERNELS} / {rank_name(rank, p)} {STREAM_NAMES[stream]}")
            first = len(columns[0])
            for at in range(len(row.labels) if row is not None else 0):
                assert row is not None
                if (what := _kernel(row, at, codes)) is not None:
                    times = row.start_ns[at], row.end_ns[at]
                    for column, value in zip(columns, (*what, *times), strict=True):
                        column.append(value)
            rows.append(range(first, len(columns[0])))
    code, kernel, layer, start_ns, end_ns = columns
    if not code:
        return line
    unknown = array("q", [NOTHING]) * len(code)
    parts = Parts(rows, unknown, code, kernel, layer)
    made = array("q", [NOTHING]) * len(line.program)
    return replace(line, kernels=Kernels(parts, start_ns, end_ns, unknown, (made, made)))


def _kernel(row: Row, at: int, codes: set[int]) -> tuple[int, int, int] | None:
    """The code of its action, which kernel it is, and of which layer; None if it is none."""
    label, about = row.labels[at], row.about[at] if row.about else ""
    name, said = label.rstrip("0123456789"), _KERNEL.match(about)
    if said is None or name not in _KERNELS:
        return None
    stage, microbatch, layer = map(int, said.groups())
    kernel = _KERNELS[name]
    ops = (F,) if kernel in FORWARD else (B, W) if kernel.of_weight else (B, I)
    whose = (encode(stage, op, microbatch) for op in ops)
    code = next((code for code in whose if code in codes), None)
    return None if code is None else (code, kernel, layer)
