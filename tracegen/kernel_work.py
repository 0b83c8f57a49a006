"""Program + kernel costs -> jobs on the two streams of every rank: MoE stages for the engine.

Kernels are numbered by rank, then compute before communication, then in order,
so that each stream is a range. After them come the fences of closed blocks, two
a block, which last 0 ns: one waits until both streams are free and both halves
are ready, one for the block's last kernels. After these come the transfers on
links that have a bandwidth.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, pairwise

from tracegen.deps import NOTHING, neighbours, waits
from tracegen.ir import KIND_MASK, MICROBATCH_SHIFT, NO_MATE, STAGE_MASK, STAGE_SHIFT, Program
from tracegen.kernels import COMMUNICATION, COMPUTE, Place, Shape, Shapes
from tracegen.moe import Kernel, MoE
from tracegen.times import Times
from tracegen.work import Jobs, Queued, Sharing, Wait, Work


def _column() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True)
class Parts:
    """What each kernel is, as columns by its number.

    Attributes:
        rows: the kernels of rank r's compute stream at 2r, of its communication stream at 2r + 1.
        step: its step of the program.
        code: the code of its action.
        kernel: the number of its Kernel.
        layer: its layer, from 0.
    """

    rows: list[range]
    step: array[int] = field(default_factory=_column)
    code: array[int] = field(default_factory=_column)
    kernel: array[int] = field(default_factory=_column)
    layer: array[int] = field(default_factory=_column)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """Work whose first jobs are kernels.

    Attributes:
        work: for the engine.
        parts: what each kernel is.
        fences: the fences of each rank.
        makes: the job at whose end the forward result of each step is there, and that of its
            gradient, NOTHING where it makes none.
        closed: the step of each pair of fences, in the order of their numbers.
    """

    work: Work
    parts: Parts
    fences: list[range]
    makes: tuple[array[int], array[int]]
    closed: list[int]

    def step_of(self, job: int) -> int:
        """The step of a kernel or a fence."""
        kernels = len(self.parts.step)
        return self.parts.step[job] if job < kernels else self.closed[(job - kernels) // 2]


def lower(program: Program, moe: MoE, times: Times) -> KernelWork:
    """Every kernel of the program a job, each rank two streams, by DESIGN's section 6."""
    return _Lowering(program, moe, times).lower()


class _Numbers:
    """The number of every kernel and fence, so that a wait can name a job not yet made."""

    def __init__(self, program: Program, shapes: list[Shape]) -> None:
        self.shapes = shapes
        steps = array("q", [NOTHING]) * len(program)
        # Each step's first kernel on each stream, and its first fence.
        self.base, self.fence = (steps[:], steps[:]), steps[:]
        self.rows: list[range] = []
        job, closed = 0, []
        for start, stop in pairwise(program.offsets):
            for row in (COMPUTE, COMMUNICATION):
                first = job
                for step in range(start, stop):
                    self.base[row][step] = job
                    job += len(shapes[step].rows[row])
                self.rows.append(range(first, job))
            closed.append([step for step in range(start, stop) if shapes[step].closed])
        self.closed = [step for steps in closed for step in steps]
        for at, step in enumerate(self.closed):
            self.fence[step] = job + 2 * at
        ends = list(accumulate((2 * len(steps) for steps in closed), initial=job))
        self.fences = [range(a, b) for a, b in pairwise(ends)]
        self.first_transfer = ends[-1]

    def job(self, step: int, place: Place) -> int:
        row, at = place
        return self.base[row][step] + at

    def before(self, step: int, rank: int) -> list[Wait]:
        """The last kernel of each of the rank's streams before the step."""
        return [
            (self.base[row][step] - 1, 0)
            for row in (COMPUTE, COMMUNICATION)
            if self.base[row][step] > self.rows[2 * rank + row].start
        ]

    def lasts(self, step: int) -> list[Wait]:
        """The step's last kernel on each stream."""
        rows = enumerate(self.shapes[step].rows)
        return [(self.base[row][step] + len(parts) - 1, 0) for row, parts in rows if parts]

    def made(self, step: int, half: int) -> int:
        """The job at whose end the step's forward result (half 0) or gradient (1) is there."""
        if self.shapes[step].closed:
            return self.fence[step] + 1
        place = self.shapes[step].makes[half]
        return NOTHING if place is None else self.job(step, place)


class _Lowering:
    def __init__(self, program: Program, moe: MoE, times: Times) -> None:
        assert times.kernels is not None
        self.program, self.moe, self.times, self.tables = program, moe, times, times.kernels
        self.needs, self.ranks = waits(program), program.placement.ranks
        self.previous, self.following = neighbours(program)
        self.numbers = _Numbers(program, _shapes(program, moe))
        self.parts = Parts(self.numbers.rows)
        self.transfers, self.queued = Jobs(), Queued(self.numbers.first_transfer)
        self.links: dict[tuple[int, int], int] = {}

    def lower(self) -> KernelWork:
        jobs, fences = Jobs(), Jobs()
        for rank in range(self.program.num_ranks):
            for row, stream in enumerate(self.streams(rank, fences)):
                jobs.extend(stream)
                self.describe(rank, row)
        jobs.extend(fences)
        jobs.extend(self.transfers)
        numbers, steps = self.numbers, range(len(self.program))
        forward, gradient = (array("q", [numbers.made(s, half) for s in steps]) for half in (0, 1))
        work = jobs.work([*numbers.rows, *numbers.fences], self.queued, self.sharing())
        return KernelWork(work, self.parts, numbers.fences, (forward, gradient), numbers.closed)

    def streams(self, rank: int, fences: Jobs) -> tuple[Jobs, Jobs]:
        """The jobs of a rank's two streams; those of its fences are added to `fences`."""
        numbers, rows = self.numbers, (Jobs(), Jobs())
        # What the next kernel of each stream waits for beyond its own step's kernels.
        held: list[list[Wait]] = [[], []]
        last = NOTHING  # the rank's last kernel where they run one at a time
        for step, code, mate in self.steps(rank):
            shape, arrivals = numbers.shapes[step], self.arrivals(step, code, mate)
            extra: dict[Place, list[Wait]] = {}
            if shape.closed:
                fences.add(0, numbers.before(step, rank), *arrivals)
                held = [[(numbers.fence[step], 0)], [(numbers.fence[step], 0)]]
            if shape.alone is not None:
                first, final = shape.alone
                extra[first] = [(last, 0)] if last != NOTHING else []
                last = numbers.job(step, final)
            for place, arrived in zip(shape.takes, arrivals, strict=True):
                if place is not None:
                    extra[place] = extra.get(place, []) + arrived
            self.kernels(step, (code, mate), held, extra, rows)
            if shape.closed:
                fences.add(0, numbers.lasts(step))
                held = [[(numbers.fence[step] + 1, 0)], [(numbers.fence[step] + 1, 0)]]
        return rows

    def kernels(
        self,
        step: int,
        halves: tuple[int, ...],
        held: list[list[Wait]],
        extra: dict[Place, list[Wait]],
        rows: tuple[Jobs, Jobs],
    ) -> None:
        """The jobs of one step, added to both streams; what was held is let go."""
        shape, tables, m = self.numbers.shapes[step], self.tables, self.times.num_microbatches
        halves = halves[:1] if halves[1] == NO_MATE else halves
        time = [tables.table(stage, mb % m) for stage, mb in map(_stage_and_microbatch, halves)]
        for row, parts in enumerate(shape.rows):
            other = self.numbers.base[1 - row][step]
            waits_of = shape.waits[row]
            for at, (kernel, layer) in enumerate(parts):
                half = _half_of(kernel) if len(halves) == 2 else 0
                ns = time[half][kernel][layer]
                if row == COMPUTE:
                    ns = self.times.kernel(ns, halves[half])
                inside = [(other + position, 0) for position in waits_of[at]]
                rows[row].add(ns, held[row], inside, extra.get((row, at), []))
                held[row] = []

    def steps(self, rank: int) -> list[tuple[int, int, int]]:
        """(step, code, mate) of every step of a rank."""
        stream, offset = self.program.ranks[rank], self.program.offsets[rank]
        pairs = zip(stream.codes, stream.mates, strict=True)
        return [(step, code, mate) for step, (code, mate) in enumerate(pairs, offset)]

    def describe(self, rank: int, row: int) -> None:
        """Say of each kernel of a stream what it is."""
        columns = self.parts
        for step, code, mate in self.steps(rank):
            for kernel, layer in self.numbers.shapes[step].rows[row]:
                columns.step.append(step)
                columns.code.append(mate if mate != NO_MATE and _half_of(kernel) else code)
                columns.kernel.append(kernel)
                columns.layer.append(layer)

    def arrivals(self, step: int, code: int, mate: int) -> tuple[list[Wait], list[Wait]]:
        """What the step waits for from other stages: its input, and the gradient of its output."""
        backward = code if mate == NO_MATE else mate
        return (
            self.arrival(self.needs.forward[step], code, 0),
            self.arrival(self.needs.backward[step], backward, 1),
        )

    def arrival(self, source: int, action: int, half: int) -> list[Wait]:
        if source == NOTHING:
            return []
        stage = action >> STAGE_SHIFT & STAGE_MASK
        other = (self.following if half else self.previous)[stage]
        made, link = self.numbers.made(source, half), (self.ranks[other], self.ranks[stage])
        if link[0] == link[1]:
            return [(made, 0)]
        if not self.times.links_queue:
            return [(made, self.times.latency(link))]
        transfer = self.numbers.first_transfer + len(self.queued.link)
        self.transfers.add(self.times.occupancy(link, min(stage, other)), [(made, 0)])
        self.queued.link.append(self.links.setdefault(link, len(self.links)))
        self.queued.tie.append((half, other))
        return [(transfer, self.times.latency(link))]

    def sharing(self) -> Sharing | None:
        """Who slows whom. The share is the decimal that was written, not the nearest binary."""
        if not self.moe.comm_sm_share:
            return None
        rate = 1 - Fraction(str(self.moe.comm_sm_share))
        return Sharing(rate, [(2 * r, 2 * r + 1) for r in range(self.program.num_ranks)])


def _shapes(program: Program, moe: MoE) -> list[Shape]:
    """The shape of every step."""
    shapes = Shapes(moe)
    return [
        shapes.of(code & KIND_MASK, NO_MATE if mate == NO_MATE else mate & KIND_MASK)
        for stream in program.ranks
        for code, mate in zip(stream.codes, stream.mates, strict=True)
    ]


def _half_of(kernel: int) -> int:
    """0 for a kernel of a forward, 1 for one of a backward."""
    return int(kernel > Kernel.COMB_F)


def _stage_and_microbatch(code: int) -> tuple[int, int]:
    return code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
