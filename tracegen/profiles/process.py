"""What torch's profiler says of one process, or of one device, as its events come (data)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tracegen.ir import KIND_MASK
from tracegen.ir import W as WEIGHT
from tracegen.profiles.inferred import Unmarked
from tracegen.profiles.model import Columns, Recorded, column

# Ids are of 64 bits, with a sign or without.
_WORD = 1 << 63
# No id: what an event that has none is noted with.
UNKNOWN = -_WORD

# Which of the files that were put one after the other, and the pid.
Key = tuple[int, Any]


@dataclass(slots=True)
class Process:
    """A process that calls.

    Attributes:
        ids, called: its calls that launched something, by correlation id.
        flows: when its calls began from which a flow goes to a device, by the flow's id.
        said: the ranks that the args of its actions say.
    """

    found: Recorded
    unmarked: Unmarked = field(default_factory=Unmarked)
    ids: array[int] = field(default_factory=column)
    called: array[int] = field(default_factory=column)
    flows: dict[Any, int] = field(default_factory=dict)
    said: set[int] = field(default_factory=set)

    def take(self, other: Process) -> None:
        """Add what another process did."""
        self.found.exact, self.found.on_device = (
            self.found.exact or other.found.exact,
            self.found.on_device or other.found.on_device,
        )
        self.found.notes += other.found.notes
        self.found.windows += other.found.windows
        self.found.marks += other.found.marks
        self.found.updates += other.found.updates
        self.found.sends += other.found.sends
        self.found.receives += other.found.receives
        for mine, more in (
            (self.found.ops, other.found.ops),
            (self.unmarked.backward, other.unmarked.backward),
            (self.unmarked.between, other.unmarked.between),
        ):
            mine.start += more.start
            mine.end += more.end
        self.unmarked.forward += other.unmarked.forward
        self.ids += other.ids
        self.called += other.called
        self.flows |= other.flows

    def launches(self) -> dict[int, int]:
        """When what has a correlation id was launched first."""
        when: dict[int, int] = {}
        for number, called in zip(self.ids, self.called, strict=True):
            known = when.get(number)
            if known is None or called < known:
                when[number] = called
        return when


@dataclass(slots=True)
class Labelled:
    """What ran on a device and says itself which action it is of, as columns.

    Attributes:
        code, mate: the action, as a Stream has it.
        node: what is there once in each run of the action: of a kernel its node of the CUDA
            graph, of a range its stream; UNKNOWN if nothing is.
        call: the correlation id of its launch, or UNKNOWN.
    """

    code: array[int] = field(default_factory=column)
    mate: array[int] = field(default_factory=column)
    spans: Columns = field(default_factory=Columns)
    node: array[int] = field(default_factory=column)
    call: array[int] = field(default_factory=column)

    def add(self, codes: tuple[int, int], span: tuple[int, int], node: int, call: int) -> None:
        """Note one; `span` is from when to when it ran, in ns."""
        self.code.append(codes[0])
        self.mate.append(codes[1])
        self.spans.add(*span)
        self.node.append(node)
        self.call.append(call)


@dataclass(slots=True)
class Device:
    """A device that runs what was launched.

    Attributes:
        of: what ran, by correlation id.
        between: whether it moves data between ranks.
        loose: (thread, start, end, between) of what has no correlation id.
        flows: where a flow ends: (thread, start) -> its id.
        labelled: the kernels that say their action; those between ranks of a SEND or RECV only.
        ranges: the profiler's ranges on its streams that say their action.
        lanes: the streams that such ranges are on, numbered.
        streams: by stream, whether anything computes on it.
        steps: where the profiler's own steps begin on it, by name.
        said: the ranks that the args of what is labelled say.
        replayed, unnamed: how many kernels of CUDA graphs compute, and how many of them say no
            action.
    """

    of: array[int] = field(default_factory=column)
    spans: Columns = field(default_factory=Columns)
    between: bytearray = field(default_factory=bytearray)
    loose: list[tuple[Any, int, int, bool]] = field(default_factory=list)
    flows: dict[tuple[Any, int], Any] = field(default_factory=dict)
    labelled: Labelled = field(default_factory=Labelled)
    ranges: Labelled = field(default_factory=Labelled)
    lanes: dict[str, int] = field(default_factory=dict)
    streams: dict[str, bool] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    said: set[int] = field(default_factory=set)
    replayed: int = 0
    unnamed: int = 0

    def label(
        self,
        codes: tuple[int, int] | None,
        args: dict[str, Any],
        span: tuple[int, int],
        between: bool,
    ) -> None:
        """Note a kernel that is of a CUDA graph, or is annotated.

        Args:
            codes: its action, None if the annotation says none.
            args: of its event.
            span: from when to when it ran, in ns.
            between: whether it moves data between ranks.
        """
        node, call = args.get("graph node id"), args.get("correlation")
        replayed = type(node) is int and node != 0
        self.replayed += replayed and not between
        if codes is None:
            of_stage = str(args.get("name")).startswith("PP:")  # UNSHARD and its like
            self.unnamed += replayed and not between and not of_stage
        elif not between or codes[0] & KIND_MASK > WEIGHT:
            ids = (word(one) if type(one) is int else UNKNOWN for one in (node or None, call))
            self.labelled.add(codes, span, *ids)
            self.said |= rank_said(args)


def join(process: Process, devices: Iterable[Device]) -> int:
    """Give a process its kernels, by launch; how many of them it did not launch."""
    when = process.launches()
    compute, between = process.found.kernels, process.found.copies
    lost = 0
    for device in devices:
        for at, number in enumerate(device.of):
            launched = when.get(number)
            if launched is None:
                lost += 1
                continue
            to = between if device.between[at] else compute
            to.add(device.spans.start[at], device.spans.end[at])
            to.launched.append(launched)
        for thread, start, end, moves in device.loose:
            launched = process.flows.get(device.flows.get((thread, start)))
            if launched is None:
                lost += 1
                continue
            to = between if moves else compute
            to.add(start, end)
            to.launched.append(launched)
    compute.sort("launched")
    between.sort("launched")
    return lost


def rank_said(args: Any) -> set[int]:
    """The rank that AMD's TraceFuse writes into every event."""
    rank = args.get("rank") if type(args) is dict else None
    return {rank} if type(rank) is int else set()


def correlation(event: dict[str, Any]) -> int | None:
    """The id that ties a kernel to the call that launched it."""
    args = event.get("args")
    number = args.get("correlation") if type(args) is dict else None
    return word(number) if type(number) is int else None


def word(number: int) -> int:
    """An id as 64 bits with a sign."""
    return number if -_WORD <= number < _WORD else (number + _WORD) % (2 * _WORD) - _WORD
