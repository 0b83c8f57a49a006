"""torch.profiler's trace of one process (Kineto's JSON) -> Recorded.

What is read, as torch 2.1 to 2.13 and Kineto write it: `X` events with `cat` cpu_op,
user_annotation, cuda_runtime, cuda_driver, kernel, gpu_memcpy and gpu_memset; the arg
`correlation` of a launch and of what it launched, or else the flows `ac2g` between them; flows
`fwdbwd`, from a forward operation to its backward; beside the events `distributedInfo`,
`host_name` and `baseTimeNanoseconds`, which `ts` (in us) counts from.

torch's multi-stage runtime marks each action as `PP:2F0` or `PP:2RECV_F0`, GPipe as `Forward 0`
and `Backward 0`; its 1F1B marks nothing, which is for inferred.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracegen.errors import FileError, ScheduleError
from tracegen.ir import MAX_MICROBATCHES, NO_MATE, Action, encode, parse
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.profiles.inferred import infer
from tracegen.profiles.model import Message, Recorded, Window
from tracegen.profiles.process import Device, Key, Process, correlation, join, rank_said
from tracegen.profiles.processes import (
    AS_THEY_WERE,
    actors,
    devices_of,
    mixed,
    names,
    number_ranks,
    owner_of,
    pipeline_of,
)
from tracegen.profiles.stream import Stream
from tracegen.readers.actions import NO_ACTION, Namer
from tracegen.readers.chrome import without_collection
from tracegen.readers.warn import Warnings

# What the beginning of a file shows that is torch's.
MARKS = (
    '"schemaVersion"',
    '"deviceProperties"',
    '"distributedInfo"',
    '"baseTimeNanoseconds"',
    '"cpu_op"',
    '"cuda_runtime"',
    '"user_annotation"',
)
# Old files that were cut, or sorted, show this of it: what Kineto calls its processes.
LABELS = re.compile(r'"labels":\s*"(CPU|GPU \d+)"')
_GPIPE = re.compile(r"(Forward|Backward) (\d{1,9})")
_STEP, _OPTIMIZER = "ProfilerStep#", "Optimizer.step#"
_AUTOGRAD = "autograd::engine::evaluate_function"
# Kernels that move data between ranks.
_BETWEEN_RANKS = re.compile(r"[a-z]ccl|oneccl|nvshmem|rocshmem|deep_ep", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
_RECEIVE = re.compile(r"(gloo|[a-z]{1,6}ccl|ucc|mpi):recv\b")
_SEND = re.compile(r"c10d::(i?send)$")
_OTHER = re.compile(r"c10d::|(gloo|[a-z]{1,6}ccl|ucc|mpi):|record_param_comms")
# Operators that compute nothing; torch's runtime calls them around its sends.
_NO_WORK = ("detach", "detach_")
# Beyond this many us a float has lost some ns.
_EXACT_US = float(1 << 43)
# No time is further from 1970, in us, than the year 2112.
_MAX_US = float(1 << 52)

# How many ranges that are no action are named where none is one.
_SHOWN = 3
# What Kineto writes at the end of a file.
_END = "Record Window End"

HOST = ("cpu_op", "user_annotation", "Operator", "", None)
CALLS = (
    *("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "musa_runtime", "Runtime"),
    *("xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver"),
)
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "Kernel", "Memcpy", "Memset")

_IGNORED, _OP, _BACKWARD_OP, _SEND_OP, _RECEIVE_RANGE, _COMMUNICATION, _ACTION, _MARK, _UPDATE = (
    range(9)
)


def read(path: str | Path, warnings: Warnings, pattern: str | None = None) -> list[Recorded]:
    """Read the profile of one process, or of several whose files were merged.

    Args:
        path: plain or gzipped.
        warnings: where what is odd is noted.
        pattern: what the ranges of actions are called, as `Namer` has it; without it as torch
            names them.

    Raises:
        FileError: if it is no trace, nothing in it is an action, or what its processes did
            cannot be told apart.
    """
    with without_collection():
        noted = Warnings()
        gather, about = _gathered(path, pattern, noted, with_flows=False)
        if gather.lacks_flows():
            noted = Warnings()
            gather, about = _gathered(path, pattern, noted, with_flows=True)
        try:
            return gather.recorded(about)
        finally:
            warnings.take(noted)


def _gathered(
    path: str | Path, pattern: str | None, warnings: Warnings, with_flows: bool
) -> tuple[_Gather, dict[str, Any]]:
    gather = _Gather(path, Namer(pattern), warnings, with_flows)
    stream = Stream(path, warnings)
    for events in stream.events():
        gather.feed(events)
    return gather, stream.about


class _Gather:
    """Takes the events of a file, and keeps what tiles are made of, as columns.

    Flows to a device, two for each kernel, are kept only if they are asked for: most files tie
    kernels to their launches by correlation ids too.
    """

    def __init__(
        self, path: str | Path, namer: Namer, warnings: Warnings, with_flows: bool
    ) -> None:
        self.with_flows, self.flows_left = with_flows, False
        self.path, self.namer, self.warnings = path, namer, warnings
        self.base: int | None = None
        self.processes: dict[Key, Process] = {}
        self.devices: dict[Key, Device] = {}
        self.called: dict[Any, str] = {}
        self.ranges: list[str] = []
        self.file = 0  # of those that were put one after the other
        self.one_stage = self.coarse = self.whole_us = False
        self.names: dict[str, tuple[int, int, int]] = {}
        self.handlers: dict[Any, Callable[[dict[str, Any], int, int], None]] = {}
        for handler, categories in (
            (self._of_host, HOST),
            (self._call, CALLS),
            (self._kernel, KERNELS),
        ):
            self.handlers.update(dict.fromkeys(categories, handler))

    def feed(self, events: list[Any]) -> None:
        """Take events; what has no time is left out, with a warning."""
        handlers = self.handlers
        for event in events:
            if type(event) is not dict:
                continue
            phase = event.get("ph")
            try:
                if phase == "X":
                    handler = handlers.get(event.get("cat"))
                    if handler is None:
                        continue
                    start, took = self._ns(event["ts"]), float(event.get("dur", 0))
                    if took > _MAX_US:
                        raise OverflowError
                    handler(event, start, start + max(0, round(took * 1000)))
                elif phase in ("s", "f"):
                    self._flow(event, phase)
                elif phase == "M":
                    self._name(event)
                elif event.get("name") == _END:
                    self.file += 1
            except (TypeError, ValueError, KeyError, OverflowError):
                self.warnings.add(
                    "events without a time",
                    f"{self.path}: {event.get('name')!r:.60}: ts or dur is no time; left out",
                )

    def _ns(self, ts: Any) -> int:
        value = float(ts)
        if not -_MAX_US < value < _MAX_US:
            raise OverflowError
        if self.base is None:
            self.base = int(value)
        if abs(value) >= _EXACT_US:
            self.whole_us = self.whole_us or type(ts) is int
            self.coarse = self.coarse or type(ts) is not int
        return round((value - self.base) * 1000)

    def _process(self, event: dict[str, Any]) -> Process:
        key = self.file, event.get("pid")
        process = self.processes.get(key)
        if process is None:
            process = self.processes[key] = Process(Recorded(str(self.path)))
        return process

    def _device(self, event: dict[str, Any]) -> Device:
        key = self.file, event.get("pid")
        device = self.devices.get(key)
        if device is None:
            device = self.devices[key] = Device()
        return device

    def _name(self, event: dict[str, Any]) -> None:
        args = event.get("args")
        if event.get("name") in ("process_name", "process_labels") and isinstance(args, dict):
            said = str(args.get("name", args.get("labels", "")))
            pid = event.get("pid")
            self.called[pid] = f"{self.called.get(pid, '')} {said}".strip()[:200]

    def _of_host(self, event: dict[str, Any], start: int, end: int) -> None:
        name = event.get("name")
        known = self.names.get(name)  # type: ignore[arg-type]
        if known is None:
            known = self.names[str(name)] = self._kind(str(name), event.get("cat"))
        kind = known[0]
        if kind == _IGNORED:
            return
        process = self._process(event)
        found, unmarked = process.found, process.unmarked
        if kind == _OP:
            found.ops.add(start, end)
        elif kind == _BACKWARD_OP:
            found.ops.add(start, end)
            unmarked.backward.add(start, end)
        elif kind == _ACTION:
            window = Window(start, end, known[1], known[2], thread=str(event.get("tid")))
            found.windows.append(window)
            process.said |= rank_said(event.get("args"))
        elif kind in (_SEND_OP, _RECEIVE_RANGE):
            to = found.sends if kind == _SEND_OP else found.receives
            to.append(Message(start, end))
            unmarked.between.add(start, end)
        elif kind == _COMMUNICATION:
            unmarked.receives_posted(str(name), start, end)
        elif kind in (_MARK, _UPDATE):
            (found.marks if kind == _MARK else found.updates).append(start)

    def _kind(self, name: str, category: object) -> tuple[int, int, int]:
        """What an event of this name is, and which action."""
        if (codes := self._action(name)) is not None:
            return (_ACTION, *codes)
        if name.startswith((_STEP, _OPTIMIZER)):
            return _MARK if name.startswith(_STEP) else _UPDATE, 0, 0
        if _SEND.match(name):
            return _SEND_OP, 0, 0
        if _RECEIVE.match(name):
            return _RECEIVE_RANGE, 0, 0
        if _OTHER.match(name):
            return _COMMUNICATION, 0, 0
        if category == "user_annotation" and len(self.ranges) < _SHOWN:
            self.ranges.append(name[:60])
        if category == "user_annotation" or name.removeprefix("aten::") in _NO_WORK:
            return _IGNORED, 0, 0
        return (_BACKWARD_OP if name.startswith(_AUTOGRAD) else _OP), 0, 0

    def _action(self, name: str) -> tuple[int, int] | None:
        if (codes := self.namer.by_name(name)) != NO_ACTION:
            self.one_stage = self.namer.needs_rank
            return codes
        if name.startswith("PP:"):
            try:
                step = parse(name[3:])
            except ScheduleError:
                return None
            return (step.code, NO_MATE) if isinstance(step, Action) else None
        if (match := _GPIPE.fullmatch(name)) and int(match[2]) < MAX_MICROBATCHES:
            self.one_stage = True
            kind = FORWARD if match[1] == "Forward" else FULL
            return encode(0, kind, int(match[2])), NO_MATE
        return None

    def _call(self, event: dict[str, Any], start: int, end: int) -> None:
        number = correlation(event)
        if number is not None:
            process = self._process(event)
            process.ids.append(number)
            process.called.append(start)

    def _kernel(self, event: dict[str, Any], start: int, end: int) -> None:
        number, between = correlation(event), bool(_BETWEEN_RANKS.search(str(event.get("name"))))
        device = self._device(event)
        if number is None:
            device.loose.append((event.get("tid"), start, end, between))
            return
        device.of.append(number)
        device.spans.add(start, end)
        device.between.append(between)

    def _flow(self, event: dict[str, Any], phase: str) -> None:
        category = event.get("cat")
        if category == "fwdbwd":
            if phase == "s":
                self._process(event).unmarked.forward.append(self._ns(event["ts"]))
        elif not self.with_flows:
            self.flows_left = True
        elif category == "ac2g" or event.get("name") == "ac2g":
            ns, number = self._ns(event["ts"]), event.get("id")
            if phase == "s":
                self._process(event).flows[number] = ns
            else:
                self._device(event).flows[event.get("tid"), ns] = number

    def lacks_flows(self) -> bool:
        """Whether only the flows that were left say what launched some kernels."""
        return self.flows_left and any(device.loose for device in self.devices.values())

    def recorded(self, about: dict[str, Any]) -> list[Recorded]:
        """What was gathered, in order, by rank.

        Raises:
            FileError: if nothing in it is an action, or what its processes did cannot be told
                apart.
        """
        ranks = actors(self.processes)
        several = len(ranks) > 1
        found = self._of_several(ranks, about) if several else [self._of_one(about)]
        if self.coarse:
            self.warnings.add("times", f"{self.path}: its times are exact to 0.25 us only")
        elif self.whole_us:
            self.warnings.add("times", f"{self.path}: its times are whole microseconds")
        return found

    def _of_one(self, about: dict[str, Any]) -> Recorded:
        whole = Process(Recorded(str(self.path)))
        for process in self.processes.values():
            whole.take(process)
        said = about.get("distributedInfo")
        rank = said.get("rank") if isinstance(said, dict) else None
        if type(rank) is int:
            whole.found.rank = rank
        elif match := _RANK_IN_NAME.search(Path(self.path).name):
            whole.found.rank = int(match[1])
        whole.found.peers, whole.found.only_group = pipeline_of(said)
        host = about.get("host_name")
        whole.found.host = host if isinstance(host, str) else ""
        return self._whole(whole, list(self.devices.values()), about)

    def _of_several(self, ranks: list[Key], about: dict[str, Any]) -> list[Recorded]:
        """The ranks of a merged file; what stands beside the events is of one of them only."""
        path = str(self.path)
        owners = {key: owner_of(key, ranks) for key in self.processes if key not in ranks}
        for key, owner in owners.items():
            if owner is not None:
                self.processes[owner].take(self.processes[key])
        devices = devices_of(path, ranks, self.processes, self.devices)
        how = number_ranks(self.processes, ranks, self.called)
        one_stage = self.one_stage or not self.processes[ranks[0]].found.windows
        if one_stage and not how:
            raise FileError(
                f"{path}: {len(ranks)} of its processes run actions ({names(ranks)}), and neither "
                f"the actions nor the names of the processes say which is which rank; "
                f"{AS_THEY_WERE}, or name the processes rank 0, rank 1, ..."
            )
        self.warnings.add(
            "merged files",
            f"{path}: {len(ranks)} of its processes run actions and are read as ranks, told apart "
            f"by {how or 'the stages of their actions'}",
        )
        peers, only_group = pipeline_of(about.get("distributedInfo"))
        found = []
        for key in ranks:
            process = self.processes[key]
            process.found.path = f"{path}, process {key[1]}"
            if process.found.rank in peers and not process.found.peers:
                process.found.peers, process.found.only_group = peers, only_group
            found.append(self._whole(process, devices[key], about))
        return found

    def _whole(self, process: Process, devices: list[Device], about: dict[str, Any]) -> Recorded:
        """All of one rank, in order."""
        found = process.found
        base = about.get("baseTimeNanoseconds", 0)
        counted = type(base) is int and 0 <= base < 1 << 62
        found.shift_ns = (self.base or 0) * 1000 + (base if counted else 0)
        found.one_stage, found.ranges = self.one_stage, self.ranges
        if lost := join(process, devices):
            self.warnings.add(
                "files with kernels without a launch",
                f"{found.path}: {lost} kernels whose launch it does not hold belong to no action",
            )
        found.on_device = bool(found.kernels.start)
        found.ops.sort()
        found.windows.sort(key=lambda window: (window.start_ns, -window.end_ns))
        found.sends.sort(key=lambda one: one.start_ns)
        found.receives.sort(key=lambda one: one.start_ns)
        found.marks.sort()
        if mixed(found.windows):
            raise FileError(
                f"{found.path}: actions of one thread run at the same time: files of several ranks "
                f"were merged under one pid; {AS_THEY_WERE}"
            )
        if not found.windows:
            infer(found, process.unmarked)
        elif found.one_stage and not self.namer.needs_rank:
            for window in found.windows:
                window.loose = window.talks = (
                    True  # torch's GPipe computes the loss after the range
                )
        return found
