"""Measuring: an event before and after each action, read once after the step.

A device gives events with the interface of torch.cuda.Event; on a CPU they note
the host's clock, so that what reads them is one piece of code. Event times become
times of the host's monotonic clock through an anchor: an event recorded between
two readings of that clock. On Linux the clock is one for all processes of a host.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from tracegen.execute.outcome import NO_WAIT, Offset, StepTimes
from tracegen.ir import NO_MATE

NS_PER_MS = 1_000_000
# How often the anchor is taken; the narrowest counts.
ANCHOR_TRIES = 5


class Event(Protocol):
    """What torch.cuda.Event does."""

    def record(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


class HostEvent:
    """The moment the host came by, in ns of its monotonic clock."""

    __slots__ = ("ns",)

    def record(self) -> None:
        self.ns = time.monotonic_ns()

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Milliseconds from this to the other, as torch.cuda.Event has it."""
        return (end_event.ns - self.ns) / NS_PER_MS


class Device(Protocol):
    """Where a rank computes: its torch device, its events and its stream."""

    torch_device: torch.device

    def event(self) -> Event: ...
    def synchronize(self) -> None: ...
    def stream(self) -> AbstractContextManager[Any]: ...
    def waits_for(self, event: Any) -> None: ...
    def peak_bytes(self) -> int | None: ...


class Cpu:
    """The host itself: whatever was called is done."""

    torch_device = torch.device("cpu")

    def event(self) -> Event:
        return HostEvent()

    def synchronize(self) -> None:
        """Nothing runs beside the host."""

    def stream(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def waits_for(self, event: Any) -> None:
        """What came before the event is done already."""

    def peak_bytes(self) -> int | None:
        return None


class Cuda:
    """One GPU, and a stream of it that this rank has to itself."""

    def __init__(self, index: int, own_stream: bool = False) -> None:
        self.torch_device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self.torch_device) if own_stream else None

    def event(self) -> Event:
        event: Event = torch.cuda.Event(enable_timing=True)
        return event

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def waits_for(self, event: Any) -> None:
        """What the current stream does from now on comes after the event."""
        torch.cuda.current_stream(self.torch_device).wait_event(event)

    def peak_bytes(self) -> int | None:
        return torch.cuda.max_memory_allocated(self.torch_device)


@dataclass
class Recorder:
    """Notes what a rank does, with an event on its stream at each boundary.

    `start_step` ties the events to the host's clock; `read` waits for the device and gives
    the times. Events are used again in the next step.
    """

    device: Device
    codes: array[int] = field(default_factory=lambda: array("q"))
    mates: array[int] = field(default_factory=lambda: array("q"))
    waits: list[Event | None] = field(default_factory=list)
    starts: list[Event] = field(default_factory=list)
    ends: list[Event] = field(default_factory=list)
    pool: list[Event] = field(default_factory=list)
    used: int = 0

    def start_step(self) -> None:
        for log in (self.waits, self.starts, self.ends):
            log.clear()
        self.codes, self.mates, self.used = array("q"), array("q"), 0
        self.anchor, self.anchor_ns, self.uncertainty_ns = anchor(self.device)

    def mark(self) -> Event:
        """An event, recorded now on the current stream."""
        if self.used == len(self.pool):
            self.pool.append(self.device.event())
        event = self.pool[self.used]
        self.used += 1
        event.record()
        return event

    def note(self, code: int, mate: int, wait: Event | None, start: Event, end: Event) -> None:
        self.codes.append(code)
        self.mates.append(mate)
        self.waits.append(wait)
        self.starts.append(start)
        self.ends.append(end)

    def read(self) -> StepTimes:
        self.device.synchronize()
        at = self._at
        return StepTimes(
            self.codes,
            self.mates,
            array("q", [NO_WAIT if event is None else at(event) for event in self.waits]),
            array("q", map(at, self.starts)),
            array("q", map(at, self.ends)),
            self.uncertainty_ns,
        )

    def _at(self, event: Event) -> int:
        return self.anchor_ns + round(self.anchor.elapsed_time(event) * NS_PER_MS)


def anchor(device: Device) -> tuple[Event, int, int]:
    """An event, its ns on the host's monotonic clock, and how far that may be off."""
    best: tuple[Event, int, int] | None = None
    for _ in range(ANCHOR_TRIES):
        event = device.event()
        device.synchronize()
        before = time.monotonic_ns()
        event.record()
        device.synchronize()
        after = time.monotonic_ns()
        if best is None or after - before < 2 * best[2]:
            best = (event, (before + after) // 2, -(-(after - before) // 2))
    assert best is not None
    return best


def cost_of_measuring_ns(device: Device, actions: int = 500) -> int:
    """What the events around one action take of the device's time, or the host's if that is more.

    Measured here and now, over many actions that do nothing.
    """
    recorder = Recorder(device)
    recorder.start_step()
    began = time.monotonic_ns()
    for _ in range(actions):
        wait, start, end = recorder.mark(), recorder.mark(), recorder.mark()
        recorder.note(0, NO_MATE, wait, start, end)
    host = time.monotonic_ns() - began
    times = recorder.read()
    on_device = times.end_ns[-1] - times.wait_ns[0]
    return max(host, on_device) // actions


def offset(exchange: Callable[[], int], tries: int = 50) -> Offset:
    """The offset to a process that answers `exchange` with its monotonic ns.

    As in NTP: its reading is taken to be from the middle of the shortest round trip.
    """
    best: Offset | None = None
    for _ in range(tries):
        before = time.monotonic_ns()
        theirs = exchange()
        after = time.monotonic_ns()
        half = -(-(after - before) // 2)
        if best is None or half < best.uncertainty_ns:
            best = Offset((before + after) // 2 - theirs, half)
    assert best is not None
    return best
