"""What a rank's communication stream does for data parallelism: UNSHARD and REDUCE_GRAD.

They run in the order of the program, one at a time, beside what the rank computes. Each begins
when the rank has done what stands before it, as in PyTorch, whose runtime puts the all-gather
behind what is on the compute stream. A stage's actions wait for its UNSHARD before them; for
REDUCE_GRAD only what ends a step waits, sums over replicas and the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracegen.ir import KIND_MASK, REDUCE_GRAD, UNSHARD

# start and end in ns
Span = tuple[int, int]


def is_collective(code: int) -> bool:
    """Whether an action runs on the communication stream, where there is one."""
    return code & KIND_MASK in (UNSHARD, REDUCE_GRAD)


def length(spans: Iterable[Span]) -> int:
    """The ns of spans that do not overlap."""
    return sum(end - start for start, end in spans)


def common(some: list[Span], others: list[Span]) -> list[Span]:
    """Where spans of both lists run at once; each list by time and without overlaps."""
    found, at = [], 0
    for start, end in some:
        while at < len(others) and others[at][1] <= start:
            at += 1
        here = at
        while here < len(others) and others[here][0] < end:
            both = max(start, others[here][0]), min(end, others[here][1])
            if both[1] > both[0]:
                found.append(both)
            here += 1
    return found
