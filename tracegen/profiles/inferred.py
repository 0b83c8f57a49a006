"""The actions of a run that marks none, as torch's Schedule1F1B: from what its operators do.

A forward is a run of operators from which autograd goes backward later, a backward a run of
autograd's own; two of one kind are told apart by the send or receive between them. The numbers
of the microbatches follow from torch's order: both kinds run theirs from 0 on, in every step.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tracegen.errors import FileError
from tracegen.ir import KIND_MASK, MICROBATCH_SHIFT, NO_MATE, encode
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
            "; profile the steps with torch.profiler on torch's runtime, or give tracegen import a "
            f"--name-pattern for its own ranges{_such(found.ranges)}"
        )
    blocks = _blocks(found, unmarked)
    found.windows = _numbered(found, blocks)
    found.step_sizes = _step_sizes(found)
    _number(found)
    found.one_stage = True
    found.notes.append(HOW)


def _such(ranges: list[str]) -> str:
    return f", such as {', '.join(map(repr, ranges))}" if ranges else ", if it has any"


def agree(files: Sequence[Recorded]) -> None:
    """Let a last rank's steps be as long as the others', where it alone does not show them.

    In 1F1B it goes backward after every forward, so each could be a step.
    """
    known = next((one.step_sizes for one in files if len(one.step_sizes) > 0), [])
    for one in files:
        if not one.step_sizes and 2 * sum(known) == len(one.windows):
            one.step_sizes = known
            _number(one)


def _step_sizes(found: Recorded) -> list[int]:
    """How many microbatches each step has: a step ends where no backward is missing.

    Of a rank whose forwards send nothing, as the last one's, that is after each; where the
    profiler, or an optimizer, marks the steps they are as marked, or else [].
    """
    ends: list[int] = []
    sizes, missing, number = [], 0, 0
    for window in found.windows:
        forward = window.code & KIND_MASK == FORWARD
        missing += 1 if forward else -1
        number += forward
        if not missing:
            ends.append(window.end_ns)
            sizes.append(number)
            number = 0
    sends = [one.start_ns for one in found.sends]
    for window in found.windows:
        if window.code & KIND_MASK == FORWARD:
            first, last = (bisect_left(sends, ns) for ns in (window.start_ns, window.end_ns + 1))
            if first < last:
                return sizes
    marks = sorted(found.marks + found.updates)
    whole: list[int] = []
    before = -1
    for end, size in zip(ends, sizes, strict=True):
        if (mark := bisect_right(marks, end - 1)) != before:
            whole.append(0)
            before = mark
        whole[-1] += size
    return whole if len(whole) > 1 else []


def _number(found: Recorded) -> None:
    """Number the microbatches of each step from 0."""
    starts = [0, *accumulate(found.step_sizes)]
    for window in found.windows:
        number = window.code >> MICROBATCH_SHIFT
        first = starts[bisect_right(starts, number) - 1]
        window.code = encode(0, window.code & KIND_MASK, number - first)


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
