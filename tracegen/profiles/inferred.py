"""The actions of a run that marks none, as torch's Schedule1F1B: from what its operators do.

A forward is a run of operators from which autograd goes backward later, a backward a run of
autograd's own; two of one kind are told apart by the send or receive between them. The numbers
of the microbatches follow from torch's order: both kinds run theirs from 0 on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from tracegen.errors import FileError
from tracegen.ir import NO_MATE, encode
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.profiles.model import Columns, Message, Recorded, Window, column

NEVER = 1 << 62
HOW = (
    "no range marks its actions, as in torch's 1F1B: they are inferred from autograd's operators "
    "and the sends and receives between them, and microbatches are numbered in the order they ran"
)


@dataclass(slots=True)
class Unmarked:
    """What there is to infer actions from.

    Attributes:
        forward: when the operators ran that have a backward.
        backward: the operators of autograd's engine.
        between: sends and receives, as they were posted.
    """

    forward: array[int] = field(default_factory=column)
    backward: Columns = field(default_factory=Columns)
    between: Columns = field(default_factory=Columns)

    def receives_posted(self, name: str, start: int, end: int) -> None:
        """Note an operator that receives."""
        if "recv" in name:
            self.between.add(start, end)


def infer(found: Recorded, unmarked: Unmarked) -> None:
    """Give a profile without marked ranges the windows of its actions.

    Raises:
        FileError: if it does not show what they are.
    """
    missing = [
        what
        for what, there in (
            ("ranges named PP:<action> or Forward <i>", False),
            ("forward operators tied to their backward (fwdbwd flows)", bool(unmarked.forward)),
            ("operators of autograd's engine", bool(unmarked.backward.start)),
            ("sends or receives", bool(unmarked.between.start)),
        )
        if not there
    ]
    if len(missing) > 1:
        raise FileError(
            f"{found.path}: nothing says which action runs when: it has no {', no '.join(missing)}"
            "; profile the steps with torch.profiler on torch's runtime, or give --name-pattern"
        )
    blocks = _blocks(found, unmarked)
    found.windows = _numbered(found, blocks)
    found.one_stage = True
    found.notes.append(HOW)


def _blocks(found: Recorded, unmarked: Unmarked) -> list[tuple[int, int, int]]:
    """(kind, start, end) of each run of one kind without a send or receive in it."""
    unmarked.between.sort()
    unmarked.backward.sort()
    cuts = unmarked.between.start
    backward = unmarked.backward
    events = [(ns, FORWARD, ns) for ns in unmarked.forward]
    events += [(a, FULL, b) for a, b in zip(backward.start, backward.end, strict=True)]
    events.sort()
    blocks: list[tuple[int, int, int]] = []
    inside_backward = -1
    for start, kind, end in events:
        if kind == FORWARD and start < inside_backward:
            continue  # what is computed again, or differentiated twice, is of the backward
        if kind == FULL:
            inside_backward = max(inside_backward, end)
        last = blocks[-1] if blocks else None
        if last and last[0] == kind and bisect_left(cuts, last[1]) == bisect_left(cuts, start):
            blocks[-1] = (kind, last[1], max(last[2], end))
        else:
            blocks.append((kind, start, end))
    return blocks


def _numbered(found: Recorded, blocks: list[tuple[int, int, int]]) -> list[Window]:
    """Windows that begin with the block's receive or first operator, and end before the next.

    Raises:
        FileError: if there are not as many backwards as forwards.
    """
    count = {FORWARD: 0, FULL: 0}
    outer, receives = found.ops.outermost(), [one.start_ns for one in found.receives]
    windows: list[Window] = []
    for at, (kind, start, end) in enumerate(blocks):
        begin, _ = _outermost(outer, start)
        until = windows[-1].end_ns if windows else 0
        waits = bisect_left(receives, until)
        if waits < len(receives):
            begin = min(begin, receives[waits])
        following = blocks[at + 1][1] if at + 1 < len(blocks) else NEVER
        if kind == FORWARD:
            _, end = _outermost(outer, end)
        last = _end_of_run(found, kind, end, following)
        code = encode(0, kind, count[kind])
        windows.append(Window(begin, last, code, NO_MATE, talks=True))
        count[kind] += 1
    if count[FORWARD] != count[FULL]:
        raise FileError(
            f"{found.path}: no range marks its actions, and its operators show {count[FORWARD]} "
            f"forwards and {count[FULL]} backwards; profile whole steps, or mark the actions: "
            "torch's multi-stage runtime does (a schedule of one stage a rank loaded from CSV)"
        )
    return windows


def _outermost(outer: Columns, ns: int) -> tuple[int, int]:
    """The outermost operator that runs then, or else that moment."""
    at = bisect_right(outer.start, ns) - 1
    return (outer.start[at], outer.end[at]) if at >= 0 and outer.end[at] > ns else (ns, ns)


def _end_of_run(found: Recorded, kind: int, end: int, following: int) -> int:
    """Where the send of a block's result is posted; without one, where what computes it ends.

    A forward that is sent goes on after its last differentiable operator; what follows one that
    is not, as the last stage's, may be of the backward already.
    """
    sends = _next(found.sends, end)
    if sends >= following or (kind == FORWARD and _next(found.receives, end) < sends):
        return end
    return sends


def _next(messages: list[Message], ns: int) -> int:
    """When the first message from then on was posted."""
    at = bisect_left(messages, ns, key=lambda one: one.start_ns)
    return messages[at].start_ns if at < len(messages) else NEVER
