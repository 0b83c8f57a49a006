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
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracegen.errors import FileError, ScheduleError
from tracegen.ir import MAX_MICROBATCHES, NO_MATE, Action, encode, parse
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.profiles.inferred import Unmarked, infer
from tracegen.profiles.model import Columns, Message, Recorded, Window, column
from tracegen.profiles.stream import Stream
from tracegen.readers.actions import NO_ACTION, Namer
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
    '"process_labels"',
)
_GPIPE = re.compile(r"(Forward|Backward) (\d{1,9})")
_STEP = "ProfilerStep#"
_AUTOGRAD = "autograd::engine::evaluate_function"
# Kernels that move data between ranks.
_BETWEEN_RANKS = re.compile(r"nccl|nvshmem|deep_ep", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
_RECEIVE = re.compile(r"(gloo|nccl|ucc|mpi):recv\b")
_SEND = re.compile(r"c10d::(i?send)$")
_OTHER_COMMUNICATION = ("c10d::", "gloo:", "nccl:", "ucc:", "mpi:", "record_param_comms")
# Operators that compute nothing; torch's runtime calls them around its sends.
_NO_WORK = ("detach", "detach_")
# Beyond this many us a float has lost some ns.
_EXACT_US = float(1 << 43)

_IGNORED, _OP, _BACKWARD_OP, _SEND_OP, _RECEIVE_RANGE, _COMMUNICATION, _ACTION, _MARK = range(8)


def read(path: str | Path, warnings: Warnings, pattern: str | None = None) -> Recorded:
    """Read the profile of one process.

    Args:
        path: plain or gzipped.
        warnings: where what is odd is noted.
        pattern: what the ranges of actions are called, as `Namer` has it; without it as torch
            names them.

    Raises:
        FileError: if it is no trace, is of several processes, or nothing in it is an action.
    """
    gather = _Gather(path, Namer(pattern), warnings)
    stream = Stream(path, warnings)
    for events in stream.events():
        gather.feed(events)
    return gather.recorded(stream.about)


@dataclass(slots=True)
class _Launches:
    """Calls that launched something on a device, and what they launched, by correlation id."""

    ids: array[int] = field(default_factory=column)
    called: array[int] = field(default_factory=column)
    of: array[int] = field(default_factory=column)
    spans: Columns = field(default_factory=Columns)
    between: bytearray = field(default_factory=bytearray)

    def joined(self) -> tuple[Columns, Columns, int]:
        """Kernels that compute and those between ranks, by launch, and how many have no launch."""
        when: dict[int, int] = {}
        for number, called in zip(self.ids, self.called, strict=True):
            known = when.get(number)
            if known is None or called < known:
                when[number] = called
        compute, between, lost = Columns(), Columns(), 0
        for at, number in enumerate(self.of):
            launched = when.get(number)
            if launched is None:
                lost += 1
                continue
            to = between if self.between[at] else compute
            to.add(self.spans.start[at], self.spans.end[at])
            to.launched.append(launched)
        compute.sort("launched")
        between.sort("launched")
        return compute, between, lost


class _Gather:
    """Takes the events of a file, and keeps what tiles are made of, as columns."""

    def __init__(self, path: str | Path, namer: Namer, warnings: Warnings) -> None:
        self.path, self.namer, self.warnings = path, namer, warnings
        self.found = Recorded(str(path))
        self.unmarked = Unmarked()
        self.launches = _Launches()
        self.base: int | None = None
        self.pids: set[Any] = set()
        self.flow_calls: dict[Any, int] = {}
        self.flow_kernels: dict[Any, tuple[Any, int]] = {}
        self.loose_kernels: list[tuple[Any, int, int, bool]] = []
        self.coarse = False
        self.names: dict[str, tuple[int, int, int]] = {}
        self.handlers: dict[Any, Callable[[dict[str, Any], int, int], None]] = {}
        for handler, categories in (
            (self._of_host, ("cpu_op", "user_annotation", "Operator", "", None)),
            (self._call, ("cuda_runtime", "cuda_driver", "xpu_runtime", "Runtime")),
            (self._kernel, ("kernel", "gpu_memcpy", "gpu_memset", "Kernel")),
        ):
            self.handlers.update(dict.fromkeys(categories, handler))

    def feed(self, events: list[Any]) -> None:
        """Take events.

        Raises:
            FileError: if a time is none.
        """
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
                    start = self._ns(event["ts"])
                    handler(event, start, start + round(float(event.get("dur", 0)) * 1000))
                elif phase in ("s", "f"):
                    self._flow(event, phase)
            except (TypeError, ValueError, KeyError, OverflowError):
                self.warnings.add(
                    "events without a time",
                    f"{self.path}: {event.get('name')!r:.60}: ts or dur is no number; left out",
                )

    def _ns(self, ts: Any) -> int:
        value = float(ts)
        if self.base is None:
            self.base = int(value)
        self.coarse = self.coarse or abs(value) >= _EXACT_US
        return round((value - self.base) * 1000)

    def _of_host(self, event: dict[str, Any], start: int, end: int) -> None:
        name = event.get("name")
        known = self.names.get(name)  # type: ignore[arg-type]
        if known is None:
            known = self.names[str(name)] = self._kind(str(name), event.get("cat"))
        kind = known[0]
        if kind == _OP:
            self.found.ops.add(start, end)
        elif kind == _BACKWARD_OP:
            self.found.ops.add(start, end)
            self.unmarked.backward.add(start, end)
        elif kind == _ACTION:
            self.found.windows.append(Window(start, end, known[1], known[2]))
            self.pids.add(event.get("pid"))
        elif kind == _SEND_OP:
            self.found.sends.append(Message(start, end))
            self.unmarked.between.add(start, end)
        elif kind == _RECEIVE_RANGE:
            self.found.receives.append(Message(start, end))
            self.unmarked.between.add(start, end)
        elif kind == _COMMUNICATION:
            self.unmarked.receives_posted(str(name), start, end)
        elif kind == _MARK:
            self.found.marks.append(start)

    def _kind(self, name: str, category: object) -> tuple[int, int, int]:
        """What an event of this name is, and which action."""
        if (codes := self._action(name)) is not None:
            return (_ACTION, *codes)
        if name.startswith(_STEP):
            return _MARK, 0, 0
        if _SEND.match(name):
            return _SEND_OP, 0, 0
        if _RECEIVE.match(name):
            return _RECEIVE_RANGE, 0, 0
        if name.startswith(_OTHER_COMMUNICATION):
            return _COMMUNICATION, 0, 0
        if category == "user_annotation" or name.removeprefix("aten::") in _NO_WORK:
            return _IGNORED, 0, 0
        return (_BACKWARD_OP if name.startswith(_AUTOGRAD) else _OP), 0, 0

    def _action(self, name: str) -> tuple[int, int] | None:
        if (codes := self.namer.by_name(name)) != NO_ACTION:
            self.found.one_stage = self.namer.needs_rank
            return codes
        if name.startswith("PP:"):
            try:
                step = parse(name[3:])
            except ScheduleError:
                return None
            return (step.code, NO_MATE) if isinstance(step, Action) else None
        if (match := _GPIPE.fullmatch(name)) and int(match[2]) < MAX_MICROBATCHES:
            self.found.one_stage = True
            kind = FORWARD if match[1] == "Forward" else FULL
            return encode(0, kind, int(match[2])), NO_MATE
        return None

    def _call(self, event: dict[str, Any], start: int, end: int) -> None:
        number = _correlation(event)
        if number is not None:
            self.launches.ids.append(number)
            self.launches.called.append(start)

    def _kernel(self, event: dict[str, Any], start: int, end: int) -> None:
        number, between = _correlation(event), bool(_BETWEEN_RANKS.search(str(event.get("name"))))
        if number is None:
            place = event.get("pid"), event.get("tid"), start
            self.loose_kernels.append((place, start, end, between))
            return
        self.launches.of.append(number)
        self.launches.spans.add(start, end)
        self.launches.between.append(between)

    def _flow(self, event: dict[str, Any], phase: str) -> None:
        category = event.get("cat")
        if category == "fwdbwd":
            if phase == "s":
                self.unmarked.forward.append(self._ns(event["ts"]))
        elif category == "ac2g" or event.get("name") == "ac2g":
            ns, number = self._ns(event["ts"]), event.get("id")
            if phase == "s":
                self.flow_calls[number] = ns
            else:
                self.flow_kernels[event.get("pid"), event.get("tid"), ns] = (number, ns)

    def recorded(self, about: dict[str, Any]) -> Recorded:
        """What was gathered, in order.

        Raises:
            FileError: if it is of several processes, or nothing in it is an action.
        """
        found = self.found
        self._described(about)
        if len(self.pids) > 1:
            raise FileError(
                f"{self.path}: the ranges of its actions are of {len(self.pids)} processes "
                f"({', '.join(sorted(map(str, self.pids))[:4])}); give the files of the ranks as "
                "they were before they were merged"
            )
        self._join_by_flows()
        found.kernels, found.copies, lost = self.launches.joined()
        if lost:
            self.warnings.add(
                "files with kernels without a launch",
                f"{self.path}: {lost} kernels whose launch it does not hold belong to no action",
            )
        found.on_device = bool(found.kernels.start)
        found.ops.sort()
        found.windows.sort(key=lambda window: (window.start_ns, -window.end_ns))
        found.sends.sort(key=lambda one: one.start_ns)
        found.receives.sort(key=lambda one: one.start_ns)
        found.marks.sort()
        if not found.windows:
            infer(found, self.unmarked)
        elif found.one_stage and not self.namer.needs_rank:
            for window in found.windows:
                window.loose = window.talks = (
                    True  # torch's GPipe computes the loss after the range
                )
        if self.coarse:
            self.warnings.add("times", f"{self.path}: its times are exact to 0.25 us only")
        return found

    def _join_by_flows(self) -> None:
        """Give kernels without a correlation id that of their flow."""
        for place, start, end, between in self.loose_kernels:
            flow = self.flow_kernels.get(place)
            called = None if flow is None else self.flow_calls.get(flow[0])
            number = -2 - len(self.launches.ids)
            if called is not None:
                self.launches.ids.append(number)
                self.launches.called.append(called)
            self.launches.of.append(number)
            self.launches.spans.add(start, end)
            self.launches.between.append(between)

    def _described(self, about: dict[str, Any]) -> None:
        """Rank, pipeline, host and base, as far as the file or its name say them."""
        found, said = self.found, about.get("distributedInfo")
        said = said if isinstance(said, dict) else {}
        rank = said.get("rank")
        if type(rank) is int:
            found.rank = rank
        elif match := _RANK_IN_NAME.search(Path(self.path).name):
            found.rank = int(match[1])
        found.peers, found.only_group = pipeline_of(said)
        host = about.get("host_name")
        found.host = host if isinstance(host, str) else ""
        base = about.get("baseTimeNanoseconds", 0)
        found.shift_ns = (self.base or 0) * 1000 + (base if type(base) is int else 0)


def pipeline_of(said: dict[str, Any]) -> tuple[tuple[int, ...], bool]:
    """The ranks of the pipeline's process group, as `distributedInfo` has it; () if it does not.

    And whether nothing says that the group is the pipeline's.

    A group is the pipeline's if its description says pp or pipeline (a DeviceMesh's `mesh_pp`,
    Megatron's PIPELINE_MODEL_PARALLEL_GROUP); where there is one group only, it is that.
    """
    config = said.get("pg_config")
    groups = [g for g in config if isinstance(g, dict)] if isinstance(config, list) else []
    named = {}
    for group in groups:
        ranks = group.get("ranks")
        if isinstance(ranks, str):
            ranks = [int(one) for one in re.findall(r"\d+", ranks)]
        if isinstance(ranks, list) and ranks and all(type(one) is int for one in ranks):
            named[str(group.get("pg_desc", group.get("pg_name"))).lower()] = tuple(ranks)
    for name, ranks in sorted(named.items(), key=lambda item: len(item[0])):
        if re.search(r"(^|[^a-z])pp([^a-z]|$)|pipeline_(model_)?parallel(_group)?$", name):
            return ranks, False
    return (next(iter(named.values())), True) if len(named) == 1 else ((), False)


def _correlation(event: dict[str, Any]) -> int | None:
    args = event.get("args")
    number = args.get("correlation") if type(args) is dict else None
    return number if type(number) is int else None
