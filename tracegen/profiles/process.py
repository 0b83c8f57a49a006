"""What torch's profiler says of one process, or of one device, as its events come (data)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tracegen.profiles.inferred import Unmarked
from tracegen.profiles.model import Columns, Recorded, column

# Ids are of 64 bits, with a sign or without.
_WORD = 1 << 63

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
class Device:
    """A device that runs what was launched.

    Attributes:
        of: what ran, by correlation id.
        between: whether it moves data between ranks.
        loose: (thread, start, end, between) of what has no correlation id.
        flows: where a flow ends: (thread, start) -> its id.
    """

    of: array[int] = field(default_factory=column)
    spans: Columns = field(default_factory=Columns)
    between: bytearray = field(default_factory=bytearray)
    loose: list[tuple[Any, int, int, bool]] = field(default_factory=list)
    flows: dict[tuple[Any, int], Any] = field(default_factory=dict)


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
    if type(number) is not int:
        return None
    return number if -_WORD <= number < _WORD else (number + _WORD) % (2 * _WORD) - _WORD
