"""Record a training run that is not ours: any schedule of torch.distributed.pipelining.

Every schedule of torch computes through three methods of its stages, whichever
way it finds its order; those are what is measured. So the order recorded is the
one that ran. Where torch's own list says that a forward and a backward are one
overlapped pair, the two become one tile; torch waits for the backward's input
inside it, between the two.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import distributed as dist

from tracegen import compiler, torch_csv
from tracegen.errors import ExecuteError
from tracegen.execute import private
from tracegen.execute.axis import offsets
from tracegen.execute.clock import Cpu, Cuda, Device, Event, anchor, cost_of_measuring_ns
from tracegen.execute.job import about
from tracegen.execute.measure import Measurement, measured
from tracegen.execute.outcome import NO_WAIT, Offset, Outcome, StepTimes
from tracegen.ir import NO_MATE, Program, Stream, encode
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.timeline import Timeline


@dataclass(slots=True)
class _Call:
    """One call of a stage: what it did, from when to when, on the device."""

    code: int
    start: Event
    end: Event


class _StepLog:
    """The calls of one step, in the order in which they began; a pair's may overlap in threads."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.calls: list[_Call] = []
        self.lock = threading.Lock()
        self.anchor, self.anchor_ns, self.uncertainty_ns = anchor(device)

    def begin(self, code: int) -> _Call:
        with self.lock:
            mark = self.mark()
            self.calls.append(_Call(code, mark, mark))
            return self.calls[-1]

    def mark(self) -> Event:
        event = self.device.event()
        event.record()
        return event

    def read(self) -> tuple[list[int], list[int], list[int], int]:
        """Codes, starts and ends on the host's clock, and how far that may be off."""
        self.device.synchronize()
        ns = 1_000_000

        def at(event: Event) -> int:
            return self.anchor_ns + round(self.anchor.elapsed_time(event) * ns)

        starts, ends = ([at(getattr(c, end)) for c in self.calls] for end in ("start", "end"))
        return [c.code for c in self.calls], starts, ends, self.uncertainty_ns


class Recording:
    """What `record` gives: a context, and after it the result.

    Attributes:
        line: on the first rank of the pipeline, the Timeline; None elsewhere and before the end.
        measurement: likewise, with the prediction and the spread over steps.
    """

    line: Timeline | None = None
    measurement: Measurement | None = None

    def __init__(self, schedule: Any, path: str | Path | None = None) -> None:
        self.schedule, self.path = schedule, path
        self.stages = private.stages_of(schedule)
        first = self.stages[0]
        self.group = first.group
        of = torch.device(first.device)
        self.device: Device = Cpu() if of.type == "cpu" else Cuda(of.index or 0)
        self.steps: list[_StepLog] = []
        self._undo = ExitStack()

    def __enter__(self) -> Recording:
        self._wrap(self.schedule, "_step_microbatches", self._step)
        self._wrap(self.schedule, "_maybe_compute_loss", self._loss)
        for stage in self.stages:
            for name, kind in (
                ("forward_one_chunk", FORWARD),
                ("backward_one_chunk", FULL),
                ("backward_weight_one_chunk", WEIGHT),
            ):
                self._wrap(stage, name, self._call(stage, kind))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._undo.close()
        if error is None:
            self._merge()

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        """Put `around(original, *args)` in the place of a method, until the end."""
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: around(original, *args, **kwargs))
        self._undo.callback(delattr, owner, name)

    def _step(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.steps.append(_StepLog(self.device))
        return original(*args, **kwargs)

    def _call(self, stage: Any, kind: int) -> Callable[..., Any]:
        def around(original: Callable[..., Any], number: int, *args: Any, **kwargs: Any) -> Any:
            # Without a loss, and in eval(), torch calls the backwards too, and they do nothing.
            nothing = kind != FORWARD and not stage.has_backward
            if not self.steps or nothing:
                return original(number, *args, **kwargs)
            half = kind == FULL and not kwargs.get("full_backward", True)
            call = self.steps[-1].begin(encode(stage.stage_index, INPUT if half else kind, number))
            found = original(number, *args, **kwargs)
            call.end = self.steps[-1].mark()
            return found

        return around

    def _loss(self, original: Callable[..., Any], stage: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss belongs to the last stage's forward, whose tile it makes longer."""
        found = original(stage, *args, **kwargs)
        if stage.is_last and self.steps and self.steps[-1].calls:
            self.steps[-1].calls[-1].end = self.steps[-1].mark()
        return found

    def _merge(self) -> None:
        first = dist.get_rank(self.group) == 0
        mine = (
            [log.read() for log in self.steps],
            private.pairs_of(self.schedule),
            self.device.peak_bytes(),
        )
        found: list[Any] | None = [None] * dist.get_world_size(self.group) if first else None
        target = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.gather_object(mine, found, dst=target, group=self.group)
        clocks = offsets(self.group, self.device.torch_device)
        if found is None or clocks is None:
            return
        self.measurement = _measurement(found, clocks, self.device, _name(self.schedule))
        self.line = self.measurement.line
        if self.path is not None and dist.get_rank() == 0:
            from tracegen.emit import write

            write(self.line, self.path)


def _measurement(found: list[Any], clocks: list[Offset], device: Device, name: str) -> Measurement:
    """Of what every rank saw.

    Raises:
        ExecuteError: if no step ran in the block.
    """
    counts = {len(steps) for steps, _, _ in found}
    if counts == {0} or len(counts) > 1:
        raise ExecuteError(
            f"{name}: the ranks recorded {', '.join(str(len(f[0])) for f in found)} steps; "
            "call schedule.step inside the block, the same number of times on every rank"
        )
    steps = [[_times(of_rank[0][k], of_rank[1]) for of_rank in found] for k in range(counts.pop())]
    last = [(times.codes, times.mates) for times in steps[-1]]
    alike = [step for step in steps if [(t.codes, t.mates) for t in step] == last]
    program = _program([Stream(codes, mates) for codes, mates in last], name)
    peaks = [peak for _, _, peak in found]
    outcome = Outcome(
        alike,
        clocks,
        None,
        cost_of_measuring_ns(device),
        None if None in peaks else peaks,
        {**about(device, len(found)), "recorded": name},
    )
    return measured(program, outcome)


def _times(
    read: tuple[list[int], list[int], list[int], int], pairs: set[tuple[int, int]]
) -> StepTimes:
    """A rank's calls in order, those that torch runs as a pair as one."""
    codes, starts, ends, uncertainty = read
    times = StepTimes(array("q"), array("q"), array("q"), array("q"), array("q"), uncertainty)
    at = 0
    while at < len(codes):
        pair = at + 1 < len(codes) and (codes[at], codes[at + 1]) in pairs
        swapped = at + 1 < len(codes) and (codes[at + 1], codes[at]) in pairs
        span = slice(at, at + 2 if pair or swapped else at + 1)
        both = codes[span][::-1] if swapped else codes[span]
        times.codes.append(both[0])
        times.mates.append(both[1] if len(both) == 2 else NO_MATE)
        times.wait_ns.append(NO_WAIT)
        times.start_ns.append(min(starts[span]))
        times.end_ns.append(max(ends[span]))
        at = span.stop
    return times


def _program(streams: list[Stream], name: str) -> Program:
    """The program that ran, under the name of the shipped schedule that it is, if it is one."""
    text = "".join(",".join(map(str, stream)) + "\n" for stream in streams)
    program = torch_csv.from_text(text, name)
    known = compiler.recognise(program)
    if not known:
        return program
    return replace(program, name=known[0], recipe={"schedule": known[0]})


def _name(schedule: Any) -> str:
    return type(schedule).__name__.removeprefix("Schedule")
