"""torch.profiler's trace of one process (Kineto's JSON) -> Recorded.

What is read, as torch 2.1 to 2.13 and Kineto write it: `X` events with `cat` cpu_op,
user_annotation, gpu_user_annotation, cuda_runtime, cuda_driver, kernel, gpu_memcpy and
gpu_memset; the arg `correlation` of a launch and of what it launched, or else the flows `ac2g`
between them; the args `name` and `graph node id` of a kernel; flows `fwdbwd`, from a forward
operation to its backward; beside the events `distributedInfo`, `host_name` and
`baseTimeNanoseconds`, which `ts` (in us) counts from.

Which ranges of the host are actions is for kinds.py. torch's 1F1B marks nothing, which is for
inferred.py; the replay of a CUDA graph has no ranges of the host, which is for annotated.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracegen.errors import FileError
from tracegen.profiles import annotated, kinds
from tracegen.profiles.inferred import infer
from tracegen.profiles.model import Message, Recorded, Window
from tracegen.profiles.process import (
    UNKNOWN,
    Device,
    Key,
    Process,
    correlation,
    join,
    rank_said,
)
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
from tracegen.readers.actions import Namer
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
    '"gpu_user_annotation"',
    '"gpu_memcpy"',
)
# Old files that were cut, or sorted, show this of it: what Kineto calls its processes.
LABELS = re.compile(r'"labels":\s*"(CPU|GPU \d+)"')
# Kernels that move data between ranks.
_BETWEEN_RANKS = re.compile(r"[a-z]ccl|oneccl|nvshmem|rocshmem|deep_ep", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
# Beyond this many us a float has lost some ns.
_EXACT_US = float(1 << 43)
# No time is further from 1970, in us, than the year 2112.
_MAX_US = float(1 << 52)

# What Kineto writes at the end of a file.
_END = "Record Window End"


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
        self.path, self.kinds, self.warnings = path, kinds.Kinds(namer), warnings
        self.base: int | None = None
        self.processes: dict[Key, Process] = {}
        self.devices: dict[Key, Device] = {}
        self.called: dict[Any, str] = {}
        self.file = 0  # of those that were put one after the other
        self.coarse = self.whole_us = False
        self.handlers: dict[Any, Callable[[dict[str, Any], int, int], None]] = {}
        for handler, categories in (
            (self._of_host, kinds.HOST),
            (self._call, kinds.CALLS),
            (self._kernel, kinds.KERNELS),
            (self._range_on_device, ("gpu_user_annotation",)),
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
        known = self.kinds.known.get(name)  # type: ignore[arg-type]
        if known is None:
            known = self.kinds.of(str(name), event.get("cat"))
        kind = known[0]
        if kind == kinds.IGNORED:
            return
        process = self._process(event)
        found, unmarked = process.found, process.unmarked
        if kind == kinds.OP:
            found.ops.add(start, end)
        elif kind == kinds.BACKWARD_OP:
            found.ops.add(start, end)
            unmarked.backward.add(start, end)
        elif kind == kinds.ACTION:
            window = Window(start, end, known[1], known[2], thread=str(event.get("tid")))
            found.windows.append(window)
            process.said |= rank_said(event.get("args"))
        elif kind in (kinds.SEND, kinds.RECEIVE):
            to = found.sends if kind == kinds.SEND else found.receives
            to.append(Message(start, end))
            unmarked.between.add(start, end)
        elif kind == kinds.COMMUNICATION:
            unmarked.receives_posted(str(name), start, end)
        elif kind in (kinds.MARK, kinds.UPDATE):
            (found.marks if kind == kinds.MARK else found.updates).append(start)

    def _call(self, event: dict[str, Any], start: int, end: int) -> None:
        number = correlation(event)
        if number is not None:
            process = self._process(event)
            process.ids.append(number)
            process.called.append(start)

    def _kernel(self, event: dict[str, Any], start: int, end: int) -> None:
        number, between = correlation(event), bool(_BETWEEN_RANKS.search(str(event.get("name"))))
        device = self._device(event)
        stream = str(event.get("tid"))
        if not device.streams.get(stream):
            device.streams[stream] = not between
        args = event.get("args")
        if type(args) is dict and ("name" in args or args.get("graph node id")):
            name = args.get("name")
            codes = self.kinds.action(name) if type(name) is str else None
            device.label(codes, args, (start, end), between)
        if number is None:
            device.loose.append((event.get("tid"), start, end, between))
            return
        device.of.append(number)
        device.spans.add(start, end)
        device.between.append(between)

    def _range_on_device(self, event: dict[str, Any], start: int, end: int) -> None:
        name = str(event.get("name"))
        if name.startswith(kinds.STEP):
            steps = self._device(event).steps
            steps[name] = min(start, steps.get(name, start))
        elif (codes := self.kinds.action(name)) is not None:
            device = self._device(event)
            lane = device.lanes.setdefault(str(event.get("tid")), len(device.lanes))
            device.ranges.add(codes, (start, end), lane, UNKNOWN)
            device.said |= rank_said(event.get("args"))

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
        marked = any(process.found.windows for process in self.processes.values())
        return self.flows_left and any(
            device.loose and (marked or not device.labelled.code)
            for device in self.devices.values()
        )

    def recorded(self, about: dict[str, Any]) -> list[Recorded]:
        """What was gathered, in order, by rank.

        Raises:
            FileError: if nothing in it is an action, or what its processes did cannot be told
                apart.
        """
        path = str(self.path)
        itself = annotated.actors(path, self.processes, self.devices, self.warnings)
        self.processes = itself or self.processes
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
        one_stage = self.kinds.one_stage or not self.processes[ranks[0]].found.windows
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
        found.one_stage, found.ranges = self.kinds.one_stage, self.kinds.ranges
        found.windows.sort(key=lambda window: (window.start_ns, -window.end_ns))
        found.marks.sort()
        if not found.exact:
            self._join(process, devices)
        if not found.windows:
            self._infer(process)
        elif found.one_stage and not self.kinds.namer.needs_rank and not found.exact:
            for window in found.windows:
                window.loose = window.talks = (
                    True  # torch's GPipe computes the loss after the range
                )
        return found

    def _join(self, process: Process, devices: list[Device]) -> None:
        """Give the ranges of the host what happened in them."""
        found = process.found
        if lost := join(process, devices):
            self.warnings.add(
                "files with kernels without a launch",
                f"{found.path}: {lost} kernels whose launch it does not hold belong to no action",
            )
        found.on_device = bool(found.kernels.start)
        found.ops.sort()
        found.sends.sort(key=lambda one: one.start_ns)
        found.receives.sort(key=lambda one: one.start_ns)
        if mixed(found.windows):
            raise FileError(
                f"{found.path}: actions of one thread run at the same time: files of several ranks "
                f"were merged under one pid; {AS_THEY_WERE}"
            )

    def _infer(self, process: Process) -> None:
        try:
            infer(process.found, process.unmarked)
        except FileError as error:
            if any(device.replayed for device in self.devices.values()):
                raise FileError(f"{error}; {annotated.UNNAMED}") from None
            raise
