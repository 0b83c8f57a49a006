"""One overlapped block by itself: how long it takes, what it hides, and the plain model of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tracegen import kernel_line, kernel_work
from tracegen.costs import Costs
from tracegen.engine import replay, run
from tracegen.ir import Action, Kind, Overlap, Placement, Program, Step, Stream
from tracegen.kernel_line import Kernels
from tracegen.moe import BlockOrder, Kernel, MoE

# Blocks in a row from which the time per block is taken; the first few differ.
WARMUP, MEASURED = 4, 8

RATIOS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True, slots=True)
class Block:
    """What blocks of one kind take, in ns.

    Attributes:
        alone_ns: one block with nothing before and behind it, from its first kernel's
            start to its last kernel's end.
        alone_exposed_ns: its communication that no computation runs beside.
        each_ns: from one block to the next in a long row of them. An open block's
            first kernels run beside the end of the block before, so it may be less.
        each_exposed_ns: communication that no computation runs beside, per block of the row.
        compute_ns, communication_ns: the sums of its kernels.
    """

    alone_ns: int
    alone_exposed_ns: int
    each_ns: float
    each_exposed_ns: float
    compute_ns: int
    communication_ns: int


def block(moe: MoE, full: bool = True, then_w: bool = False) -> Block:
    """Measure the block of a forward with a full backward, or with its input half.

    With `then_w` the weight half follows each block as an action of its own.
    """
    one, start, row = (in_a_row(moe, n, full, then_w) for n in (1, WARMUP, WARMUP + MEASURED))
    return Block(
        one.end_of_all_ns,
        one.exposed_ns[0],
        (row.end_of_all_ns - start.end_of_all_ns) / MEASURED,
        (row.exposed_ns[0] - start.exposed_ns[0]) / MEASURED,
        one.busy_ns[0],
        one.comm_busy_ns[0],
    )


def in_a_row(moe: MoE, count: int, full: bool = True, then_w: bool = False) -> Kernels:
    """`count` blocks of one rank, each a forward with the backward of the microbatch before."""
    kind = Kind.FULL_BACKWARD if full else Kind.BACKWARD_INPUT
    steps: list[Step] = []
    for at in range(count):
        steps.append(Overlap(Action(0, Kind.FORWARD, at + 1), Action(0, kind, at)))
        if then_w:
            steps.append(Action(0, Kind.BACKWARD_WEIGHT, at))
    return _kernels(moe, steps, count + 1)


def lone_ns(moe: MoE, kind: Kind) -> int:
    """From the first kernel's start to the last one's end of an action by itself."""
    return _kernels(moe, [Action(0, kind, 0)], 1).end_of_all_ns


def _kernels(moe: MoE, steps: Sequence[Step], num_microbatches: int) -> Kernels:
    """The kernels of a rank that has the only stage; what came before the steps is there."""
    placement = Placement("loop", (0,), ((0,),))
    program = Program("block", num_microbatches, placement, (Stream.of(steps),))
    lowered = kernel_work.lower(program, moe, Costs(moe=moe).times(program))
    return kernel_line.kernels(lowered, run(lowered.work))


def plain(moe: MoE, costs: Costs | None = None, in_a_row: bool = False) -> Costs:
    """The costs of whole actions that stand for kernels: f, i and w alone, fb from a block.

    Args:
        moe: the kernels.
        costs: for what else a replay needs, such as the latency.
        in_a_row: take fb from a long row of blocks in the place of one by itself.
    """
    found = block(moe)
    f, i, w = (
        lone_ns(moe, kind) / 1000
        for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)
    )
    fb = found.each_ns if in_a_row else found.alone_ns
    return replace(costs or Costs(), moe=None, f_us=f, i_us=i, w_us=w, fb_us=fb / 1000)


def with_ratio(moe: MoE, ratio: float) -> MoE:
    """The same with all-to-all scaled so that a block's is `ratio` times its computation.

    The four keep their proportions, and the layers theirs. Needs some all-to-all to scale.
    """
    of = {kernel: moe.us(kernel) for kernel in Kernel}
    communication = {kernel: us for kernel, us in of.items() if kernel.is_communication}
    compute = sum(sum(us) for kernel, us in of.items() if not kernel.is_communication)
    factor = ratio * compute / sum(map(sum, communication.values()))
    scaled = {f"{kernel.cost}_us": [x * factor for x in us] for kernel, us in communication.items()}
    return replace(moe, **scaled)  # type: ignore[arg-type]


def hides_up_to(moe: MoE, most: float = 8.0) -> float:
    """The largest ratio, in steps of 1/1000, at which a row of blocks exposes nothing."""
    low, high = 0, round(most * 1000)
    while low < high:
        middle = (low + high + 1) // 2
        if block(with_ratio(moe, middle / 1000)).each_exposed_ns > 0:
            high = middle - 1
        else:
            low = middle
    return low / 1000


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the sweep.

    Attributes:
        layers, order, ratio: which point.
        block: what its block takes.
        makespan_ns: of the program, kernel by kernel.
        alone_error, row_error: of the plain model, whose fb is a block by itself or one of a
            row: its makespan over the kernels' less 1.
    """

    layers: int
    order: str
    ratio: float
    block: Block
    makespan_ns: int
    alone_error: float
    row_error: float


def sweep(
    program: Program,
    moe: MoE,
    ratios: Sequence[float] = RATIOS,
    layers: Sequence[int] = (1, 2, 4),
    orders: Sequence[str] = tuple(BlockOrder),
) -> Iterator[Point]:
    """All-to-all against compute, from little to more than can hide, by layers and block order."""
    for count in layers:
        for order in orders:
            for ratio in ratios:
                here = with_ratio(replace(moe, layers=count, block=order), ratio)
                makespan = replay(program, Costs(moe=here)).makespan_ns
                alone, row = (
                    replay(program, plain(here, in_a_row=many)).makespan_ns / makespan - 1
                    for many in (False, True)
                )
                yield Point(count, order, ratio, block(here), makespan, alone, row)
