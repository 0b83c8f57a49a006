"""Kernels that say which action they are of -> the windows of the actions.

The replay of a step that was captured in a CUDA graph calls nothing but the graph's launch: no
range of the host is around its kernels. What a kernel was captured under is noted by its node of
the graph (torch's `mark_kernels`, which the pipelining runtime opens around each action as
`PP:1F0`, pytorch pull request 195072), and put into the trace as the arg `name` of each kernel,
memcpy and memset (`torch.cuda._annotate_cuda_graph_trace`), beside Kineto's `graph node id`.

Without either, the profiler's ranges on the device's streams are read (`gpu_user_annotation`,
one on each stream that a range of the host launched something on), with the waits inside them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tracegen.errors import FileError
from tracegen.ir import KIND_MASK, MICROBATCH_SHIFT, RECV_B, RECV_F, STAGE_MASK, STAGE_SHIFT
from tracegen.ir import F as FORWARD
from tracegen.ir import W as WEIGHT
from tracegen.profiles.model import NO_WAIT, Recorded, Window
from tracegen.profiles.process import UNKNOWN, Device, Key, Labelled, Process
from tracegen.profiles.processes import AS_THEY_WERE, owner_of
from tracegen.readers.warn import Warnings

RANGES = (
    "neither a range of the host nor an annotated kernel says its actions: tiles are the "
    "profiler's ranges on the device, with whatever wait is inside them"
)
UNNAMED = (
    "its kernels are replayed from CUDA graphs, and no annotation says what they are of: capture "
    "with torch.cuda.graph(..., enable_annotations=True), and put the annotations into the trace "
    "with torch.cuda._annotate_cuda_graph_trace"
)
# Actions of one rank that run at the same time for more than this share of all are of several.
_CROWDED = 0.25
_LONG_AGO = -(1 << 62)


@dataclass(slots=True)
class _Run:
    """One time that an action ran.

    Attributes:
        starts: of what ran, in order.
        start: of these the first that did not begin before its input was there.
        call: what launched the first of them.
        wait: since when the rank waited for its input, NO_WAIT if it did not.
        place: of the last among all that ran.
    """

    code: int
    mate: int
    call: int
    starts: array[int]
    start: int
    end: int
    wait: int = NO_WAIT
    place: int = 0

    @property
    def computes(self) -> bool:
        return self.code & KIND_MASK <= WEIGHT


def actors(
    path: str, processes: Mapping[Key, Process], devices: Mapping[Key, Device], warnings: Warnings
) -> dict[Key, Process]:
    """The devices that say their own actions, each as a process; none where the host's ranges do.

    Args:
        path: the file, for messages.
        processes: what the host did.
        devices: what ran.
        warnings: where what is odd is noted.

    Raises:
        FileError: if what runs at the same time is of several ranks.
    """
    marked = [one for one in processes.values() if one.found.windows]
    labelled = {key: one.labelled for key, one in devices.items() if _computes(one.labelled)}
    if marked and (not labelled or _launch_any(marked, devices.values())):
        return {}
    ranges = {key: _computing(one) for key, one in devices.items() if one.ranges.code}
    named = labelled or {key: one for key, one in ranges.items() if _computes(one)}
    found: dict[Key, Process] = {}
    for key, of in named.items():
        device, runs = devices[key], _runs(of)
        _after_input(runs)
        hosts = [one for at, one in processes.items() if owner_of(at, list(named)) == key]
        recorded = Recorded(path, exact=True, on_device=bool(labelled))
        recorded.windows = [
            Window(one.start, one.end, one.code, one.mate, wait_ns=one.wait) for one in runs
        ]
        recorded.marks = _marks(runs, hosts, device)
        recorded.notes += [] if labelled else [RANGES]
        found[key] = Process(recorded, said=device.said)
        _check(recorded, device, warnings)
    return found


def _computes(of: Labelled) -> bool:
    return any(code & KIND_MASK <= WEIGHT for code in of.code)


def _launch_any(processes: Iterable[Process], devices: Collection[Device]) -> bool:
    """Whether ranges of the host launched what ran: not those that captured a graph."""
    if any(device.loose for device in devices):
        return True
    for process in processes:
        windows = sorted((one.start_ns, one.end_ns) for one in process.found.windows)
        when, starts = process.launches(), [start for start, _ in windows]
        for number in (number for device in devices for number in device.of):
            at = bisect_right(starts, when.get(number, _LONG_AGO)) - 1
            if at >= 0 and when[number] <= windows[at][1]:
                return True
    return False


def _computing(device: Device) -> Labelled:
    """The ranges of a device, less those of actions on streams where nothing computes."""
    idle = {lane for stream, lane in device.lanes.items() if not device.streams.get(stream, True)}
    of, kept = device.ranges, Labelled()
    for at, code in enumerate(of.code):
        if code & KIND_MASK > WEIGHT or of.node[at] not in idle:
            span = of.spans.start[at], of.spans.end[at]
            kept.add((code, of.mate[at]), span, of.node[at], of.call[at])
    return kept


def _runs(of: Labelled) -> list[_Run]:
    """Each time that each action ran, by start.

    An action runs again with a node that was there already. Where nodes are not known, it does
    if something else ran from beginning to end between the last of it and this.
    """
    start, end = of.spans.start, of.spans.end
    runs: list[_Run] = []
    latest: dict[tuple[int, int], _Run] = {}
    nodes: dict[tuple[int, int], set[int]] = {}
    order = sorted(range(len(start)), key=start.__getitem__)
    for place, at in enumerate(order):
        action, node = (of.code[at], of.mate[at]), of.node[at]
        run = latest.get(action)
        if run is None:
            again = True
        elif node != UNKNOWN:
            again = node in nodes[action]
        else:
            since = (order[between] for between in range(run.place + 1, place))
            again = any(run.end <= start[other] and end[other] <= start[at] for other in since)
        if run is None or again:
            run = latest[action] = _Run(*action, of.call[at], array("q"), start[at], end[at])
            runs.append(run)
            nodes[action] = set()
        run.starts.append(start[at])
        run.end, run.place = max(run.end, end[at]), place
        nodes[action].add(node)
    return runs


def _after_input(runs: list[_Run]) -> None:
    """Let what computes start after its receive, note since when it waited, and sort by that."""
    receives: dict[int, list[_Run]] = {}
    for run in runs:
        if run.code & KIND_MASK in (RECV_F, RECV_B):
            receives.setdefault(run.code, []).append(run)
    inputs: dict[int, _Run] = {}
    for at, run in enumerate(runs):
        if (received := _input(run, receives)) is not None:
            inputs[at] = received
            first = bisect_left(run.starts, received.end)
            run.start = run.starts[first if first < len(run.starts) else 0]
    free = _LONG_AGO
    for at in sorted(range(len(runs)), key=lambda at: runs[at].start):
        run = runs[at]
        if not run.computes:
            continue
        if at in inputs and free < inputs[at].end <= run.start:
            run.wait = max(free, inputs[at].starts[0])
        free = max(free, run.end)
    runs.sort(key=lambda run: (run.start, -run.end))


def _input(run: _Run, receives: Mapping[int, Sequence[_Run]]) -> _Run | None:
    """The last receive of an action's input that began before what ran last of it."""
    kind = run.code & KIND_MASK
    if kind >= WEIGHT:
        return None
    of_it = receives.get(run.code - kind + (RECV_F if kind == FORWARD else RECV_B), ())
    at = bisect_right(of_it, run.starts[-1], key=lambda one: one.starts[0])
    return of_it[at - 1] if at else None


def _marks(runs: Sequence[_Run], hosts: Sequence[Process], device: Device) -> list[int]:
    """Where the profiler's steps begin on the device: by launch, for the host runs ahead.

    Where no launch is known, where the profiler's own ranges on the device begin.
    """
    marks = sorted(mark for host in hosts for mark in host.found.marks)
    launches: dict[int, int] = {}
    for host in hosts:
        launches |= host.launches()
    begin: dict[int, int] = {}
    for run in runs:
        if run.call in launches:
            begin.setdefault(bisect_right(marks, launches[run.call]), run.start)
    return sorted(begin.values() if begin else device.steps.values())


def _check(found: Recorded, device: Device, warnings: Warnings) -> None:
    """Say what cannot be known.

    Raises:
        FileError: if what runs at the same time is of several ranks.
    """
    computes = [one for one in found.windows if one.code & KIND_MASK <= WEIGHT]
    until, both = _LONG_AGO, 0
    for one in computes:
        both += max(0, min(until, one.end_ns) - one.start_ns)
        until = max(until, one.end_ns)
    if both > _CROWDED * sum(one.end_ns - one.start_ns for one in computes):
        raise FileError(
            f"{found.path}: actions of one device run at the same time: files of several ranks "
            f"were merged under one pid; {AS_THEY_WERE}"
        )
    if device.unnamed and found.on_device:
        warnings.add(
            "files with kernels without an annotation",
            f"{found.path}: {device.unnamed} of {device.replayed} kernels of CUDA graphs are "
            "annotated with no action, and belong to none",
        )
    if not found.marks:
        return
    ran = Counter((bisect_right(found.marks, one.start_ns), one.code, one.mate) for one in computes)
    (_, code, _), most = max(ran.items(), key=lambda item: item[1], default=((0, 0, 0), 0))
    if most > 1:
        stage, microbatch = code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
        warnings.add(
            "steps with an action twice",
            f"{found.path}: the action of microbatch {microbatch} on stage {stage} ran {most} "
            "times in one step of the profiler's, and counts as of so many steps; a graph that is "
            "captured for one microbatch and replayed for others names them alike",
        )
