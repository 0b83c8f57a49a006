"""The kernels of a trace of MoE stages: two rows a rank, and what waits for what between them."""

from __future__ import annotations

from collections.abc import Iterator

from tracegen.deps import NOTHING
from tracegen.drawn import rank_name
from tracegen.kernels import COMMUNICATION, COMPUTE
from tracegen.moe import Kernel
from tracegen.shape import KERNELS, Row, Shape, Slice
from tracegen.timeline import Timeline

_KERNEL_SHAPES = {
    (kernel, waited): Shape(
        "communication" if kernel.is_communication else "compute",
        ("rank", "stage", "microbatch", "layer", "kernel", *["wait_us"] * waited),
    )
    for kernel in Kernel
    for waited in (False, True)
}
STREAM_NAMES = {COMPUTE: "compute", COMMUNICATION: "communication"}


def rows(line: Timeline) -> list[Row]:
    """Two rows a rank: its compute and its communication stream."""
    p = line.program.num_ranks
    return [
        Row(
            KERNELS,
            f"{rank_name(rank, p)} {STREAM_NAMES[stream]}",
            lambda rank=rank, stream=stream: _kernels(line, rank, stream),  # type: ignore[misc]
        )
        for rank in range(p)
        for stream in (COMPUTE, COMMUNICATION)
    ]


def kernel_name(kernel: Kernel) -> str:
    """As `attn_F`: with the underscore Perfetto gives every kind on a stream its own colour."""
    name, _, half = kernel.name.partition("_")
    return f"{name.lower()}_{half}"


_KERNEL_NAMES = {kernel: kernel_name(kernel) for kernel in Kernel}


def _kernels(line: Timeline, rank: int, stream: int) -> Iterator[Slice]:
    assert line.kernels is not None
    free = 0
    for span in line.kernels.of_stream(rank, stream):
        waited, free = span.start_ns - free, span.end_ns
        if span.start_ns == span.end_ns:
            continue
        name = _KERNEL_NAMES[span.kernel]
        about = (rank, span.stage, span.microbatch, span.layer, name)
        shape = _KERNEL_SHAPES[span.kernel, waited != 0]
        yield (
            span.start_ns,
            span.end_ns,
            f"{name}{span.microbatch}",
            shape,
            about + ((waited,) if waited else ()),
        )


def arrows(line: Timeline) -> Iterator[tuple[int, int, int, int, str, str]]:
    """Where a kernel stood still for one of the other stream or another rank."""
    kernels, p = line.kernels, line.program.num_ranks
    assert kernels is not None
    for rank in range(p):
        for stream in (COMPUTE, COMMUNICATION):
            for span in kernels.of_stream(rank, stream):
                if span.blocker == NOTHING or span.start_ns == span.end_ns:
                    continue
                source = kernels[span.blocker]
                if source.start_ns == source.end_ns:
                    continue
                rows = [p + 2 * k.rank + k.stream for k in (source, span)]
                yield (rows[0], source.start_ns, rows[1], span.start_ns, "result", "kernel")
