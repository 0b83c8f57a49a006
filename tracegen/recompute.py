"""Where a backward's recomputation ends and its own work begins.

A backward with recomputation first runs the forward again, of what was not kept
of it (activation checkpointing), and then itself; the two are one action. It
waits for its gradient as a whole: Megatron and torch.utils.checkpoint recompute
inside the backward, when the gradient has come, though what they recompute from
was there before. So nothing else changes than that the action is longer.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from tracegen.repeat import flat
from tracegen.timeline import Timeline
from tracegen.times import Times


def marked(line: Timeline, times: Times) -> Timeline:
    """The timeline with `recomputed_ns`, as the costs say it.

    A step that would be nothing but recomputation is not divided.
    """
    if not times.recomputes:
        return line
    program, found = flat(line.program), line.start_ns[:]
    for stream, base in zip(program.ranks, program.offsets, strict=False):
        for step, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True), base):
            until = found[step] + times.recomputation(code, mate)
            if until < line.end_ns[step]:
                found[step] = until
    return replace(line, recomputed_ns=found)


def begins(line: Timeline) -> array[int]:
    """By step, when its own tile begins: behind its recomputation."""
    return line.start_ns if line.recomputed_ns is None else line.recomputed_ns
