"""When the kernels of a replay ran: the rows below the tiles, and what overlapped."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tracegen.clock import Run
from tracegen.deps import NOTHING, waits
from tracegen.ir import MICROBATCH_SHIFT, STAGE_MASK, STAGE_SHIFT, Program
from tracegen.kernel_work import KernelWork, Parts
from tracegen.kernels import COMMUNICATION, COMPUTE
from tracegen.moe import Kernel


@dataclass(frozen=True, slots=True)
class KernelSpan:
    """One kernel with its times: a view of the columns.

    Attributes:
        index: its number in the columns.
        rank, stream: where it ran; stream is COMPUTE (0) or COMMUNICATION (1).
        kernel, layer, stage, microbatch: what it is.
        step: its step of the program.
        start_ns, end_ns: when it ran.
        blocker: the kernel whose result it waited for last, NOTHING if its stream was what
            it waited for.
    """

    index: int
    rank: int
    stream: int
    kernel: Kernel
    layer: int
    stage: int
    microbatch: int
    step: int
    start_ns: int
    end_ns: int
    blocker: int


@dataclass(frozen=True)
class Kernels:
    """Every kernel of a timeline, as columns: by rank, compute before communication, in order.

    Attributes:
        parts: what each kernel is: columns step, code, kernel, layer, and the rows.
        start_ns, end_ns: when each ran.
        blocker: the kernel whose result each waited for last, NOTHING if its stream was
            what it waited for. After a closed block, and at its start, that may be the last
            kernel of the rank's other stream.
        made_ns: by step, when its forward's result was there, and when its gradient was;
            NOTHING where it makes none.
    """

    parts: Parts
    start_ns: array[int]
    end_ns: array[int]
    blocker: array[int]
    made_ns: tuple[array[int], array[int]]

    def __len__(self) -> int:
        return len(self.start_ns)

    def row(self, rank: int, stream: int) -> range:
        """The kernels of one stream of a rank, in the order they ran."""
        return self.parts.rows[2 * rank + stream]

    def __getitem__(self, index: int) -> KernelSpan:
        rank = next(r for r in range(len(self.parts.rows) // 2) if index < self.row(r, 1).stop)
        return self._span(index, rank)

    def of_stream(self, rank: int, stream: int) -> Iterator[KernelSpan]:
        """The kernels of one stream of a rank, in the order they ran."""
        return (self._span(index, rank) for index in self.row(rank, stream))

    def of_rank(self, rank: int) -> Iterator[KernelSpan]:
        """The kernels of a rank, compute before communication."""
        for stream in (COMPUTE, COMMUNICATION):
            yield from self.of_stream(rank, stream)

    def __iter__(self) -> Iterator[KernelSpan]:
        for rank in range(len(self.parts.rows) // 2):
            yield from self.of_rank(rank)

    def _span(self, index: int, rank: int) -> KernelSpan:
        parts, code = self.parts, self.parts.code[index]
        return KernelSpan(
            index,
            rank,
            COMPUTE if index in self.row(rank, COMPUTE) else COMMUNICATION,
            Kernel(parts.kernel[index]),
            parts.layer[index],
            code >> STAGE_SHIFT & STAGE_MASK,
            code >> MICROBATCH_SHIFT,
            parts.step[index],
            self.start_ns[index],
            self.end_ns[index],
            self.blocker[index],
        )

    @cached_property
    def end_of_all_ns(self) -> int:
        """The end of the last kernel."""
        return max(self.end_ns, default=0)

    @cached_property
    def busy_ns(self) -> list[int]:
        """By rank, the time its compute stream runs."""
        return [self._running(row) for row in self.parts.rows[COMPUTE::2]]

    @cached_property
    def comm_busy_ns(self) -> list[int]:
        """By rank, the time its communication stream runs."""
        return [self._running(row) for row in self.parts.rows[COMMUNICATION::2]]

    @cached_property
    def exposed_ns(self) -> list[int]:
        """By rank, the time its communication stream runs and its compute stream does not."""
        ranks = range(len(self.parts.rows) // 2)
        return [self.comm_busy_ns[rank] - self._overlapped(rank) for rank in ranks]

    def _running(self, row: range) -> int:
        return sum(self.end_ns[row.start : row.stop]) - sum(self.start_ns[row.start : row.stop])

    def _overlapped(self, rank: int) -> int:
        """The time both streams of a rank run. On a stream no two kernels run at once."""
        compute, communication = self.row(rank, COMPUTE), self.row(rank, COMMUNICATION)
        both, a, b = 0, compute.start, communication.start
        while a < compute.stop and b < communication.stop:
            start = max(self.start_ns[a], self.start_ns[b])
            both += max(0, min(self.end_ns[a], self.end_ns[b]) - start)
            if self.end_ns[a] <= self.end_ns[b]:
                a += 1
            else:
                b += 1
        return both


def kernels(lowered: KernelWork, done: Run) -> Kernels:
    """The kernels of a run."""
    count = len(lowered.parts.step)
    made = tuple(
        array("q", [NOTHING if job == NOTHING else done.end[job] for job in made_by])
        for made_by in lowered.makes
    )
    return Kernels(
        lowered.parts,
        done.start[:count],
        done.end[:count],
        _blockers(lowered, done, count),
        (made[0], made[1]),
    )


def _blockers(lowered: KernelWork, done: Run, count: int) -> array[int]:
    """What each kernel waited for, in kernels: looks through fences and transfers."""
    work = lowered.work
    first_fences = {fences.start for fences in lowered.fences}
    known: dict[int, int] = {}

    def behind(job: int) -> int:
        path = []
        while job >= count and job not in known:
            path.append(job)
            if job >= work.queued.first:  # a transfer: what it carries
                job = work.wait_on[work.first_wait[job]]
            elif done.blocker[job] != NOTHING:
                job = done.blocker[job]
            elif job in first_fences:
                job = NOTHING
            else:  # the rank's fence before
                job -= 1
        found = known.get(job, job)
        known.update(dict.fromkeys(path, found))
        return found

    return array("q", [behind(job) for job in done.blocker[:count]])


def tiles(found: Kernels, steps: int, alone: bool) -> tuple[array[int], array[int]]:
    """When each step's tile starts and ends: that of its compute kernels, or of all it has.

    Args:
        found: the kernels.
        steps: how many steps the program has.
        alone: whether kernels ran one at a time, so that the tile spans all of them.
    """
    start, end = array("q", [NOTHING]) * steps, array("q", [0]) * steps
    for stream, row in enumerate(found.parts.rows):
        if stream % 2 == COMMUNICATION and not alone:
            continue
        for index in row:
            step = found.parts.step[index]
            if start[step] == NOTHING or found.start_ns[index] < start[step]:
                start[step] = found.start_ns[index]
            end[step] = max(end[step], found.end_ns[index])
    return start, end


def step_blockers(found: Kernels, program: Program, alone: bool) -> array[int]:
    """The step whose result each step's tile waited for, NOTHING if its rank's streams were.

    From the kernel the tile starts with, back through the step's own kernels: a
    backward's first mlpB waits for its combB, and that for the next stage. Where
    kernels run alone, nothing of its own rank holds a step but the rank's order.
    """
    needs, offsets = waits(program), program.offsets
    step_of = found.parts.step
    first: dict[int, int] = {}
    for stream, row in enumerate(found.parts.rows):
        if stream % 2 == COMMUNICATION and not alone:
            continue
        for index in row:
            known = first.get(step_of[index])
            if known is None or found.start_ns[index] < found.start_ns[known]:
                first[step_of[index]] = index
    blockers = array("q", [NOTHING]) * len(needs.own)
    for step, kernel in first.items():
        held_by = found.blocker[kernel]
        while held_by != NOTHING and step_of[held_by] == step:
            held_by = found.blocker[held_by]
        source = NOTHING if held_by == NOTHING else step_of[held_by]
        same_rank = bisect_right(offsets, source) == bisect_right(offsets, step)
        if source in (needs.forward[step], needs.backward[step]) and not (alone and same_rank):
            blockers[step] = source
    return blockers
