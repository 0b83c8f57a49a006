"""The timelines of ByteDance's StragglerAnalysis (arXiv 2505.05713) -> Recorded.

A Chrome trace of all ranks of a run that was recorded with timers: a slice each of
`forward-compute`, `backward-compute` and, where it is apart, `backward-wgrad-compute`, whose args
say step, model_chunk and mb_id; the process is the data-parallel rank, and the thread's name says
the place, `PP rank 2, TP rank 0, compute`. Times are in us. Chunk c of pipeline rank r of p is
stage c * p + r. The form is that which the project's to_timeline.py writes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tracegen.errors import FileError
from tracegen.ir import MAX_MICROBATCHES, MAX_STAGES, NO_MATE, encode
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.profiles.model import Recorded, Window
from tracegen.profiles.stream import Stream
from tracegen.readers.warn import Warnings

KEYS = (re.compile(r'"(forward|backward)-compute"'), re.compile(r'"mb_id"'))
_KINDS = {"forward-compute": FORWARD, "backward-compute": FULL, "backward-wgrad-compute": WEIGHT}
_PLACE = re.compile(r"PP rank (\d{1,5})(?:, TP rank (\d{1,5}))?, compute")
# No time is further from 0 than this, in us.
_MAX_US = float(1 << 52)

# The pid and tid of a rank's computation, and what each step of it ran: (kind, chunk,
# microbatch, start, end), times in ns.
_Thread = tuple[Any, Any]
_Steps = defaultdict[int, list[tuple[int, int, int, int, int]]]


def is_timeline(beginning: str) -> bool:
    """Whether a file that begins so is of this form."""
    return all(key.search(beginning) for key in KEYS)


def read(path: Path, warnings: Warnings) -> list[Recorded]:
    """The ranks of a run, pipeline by pipeline.

    Raises:
        FileError: if it cannot be read, or no thread that computes says its place.
    """
    ran: defaultdict[_Thread, _Steps] = defaultdict(lambda: defaultdict(list))
    places: dict[_Thread, tuple[int, int]] = {}
    for events in Stream(path, warnings).events():
        for event in events:
            if type(event) is not dict:
                continue
            try:
                _take(event, ran, places)
            except (TypeError, ValueError, KeyError, OverflowError):
                warnings.add(
                    "slices that do not say what they are",
                    f"{path}: {event.get('name')!r:.60}: its times, or its args step, model_chunk "
                    "and mb_id, are no numbers; left out",
                )
    if lost := [thread for thread in ran if thread not in places]:
        raise FileError(
            f"{path}: nothing says the place of process {lost[0][0]}, thread {lost[0][1]}; "
            "expected a thread_name such as 'PP rank 2, TP rank 0, compute'"
        )
    if not ran:
        raise FileError(f"{path}: none of its slices is a forward-compute or a backward-compute")
    return _ranks(path, ran, places, _shifts(ran))


def _take(
    event: dict[str, Any],
    ran: defaultdict[_Thread, _Steps],
    places: dict[_Thread, tuple[int, int]],
) -> None:
    name, thread = event.get("name"), (event.get("pid"), event.get("tid"))
    args = event.get("args")
    if name == "thread_name" and isinstance(args, dict):
        if match := _PLACE.fullmatch(str(args.get("name"))):
            places[thread] = int(match[1]), int(match[2] or 0)
        return
    kind = _KINDS.get(name)  # type: ignore[arg-type]
    if kind is None or event.get("ph") != "X" or not isinstance(args, dict):
        return
    ts, dur = float(event["ts"]), float(event["dur"])
    step, chunk, batch = args["step"], args.get("model_chunk"), args["mb_id"]
    chunk = 0 if chunk in (None, -1) else chunk
    if not (abs(ts) < _MAX_US and 0 <= dur < _MAX_US):
        raise ValueError
    if any(type(one) is not int or one < 0 for one in (step, chunk, batch)):
        raise TypeError
    if batch >= MAX_MICROBATCHES or chunk >= MAX_STAGES:
        raise OverflowError
    start = round(ts * 1000)
    ran[thread][step].append((kind, chunk, batch, start, start + round(dur * 1000)))


def _shifts(ran: Mapping[_Thread, _Steps]) -> dict[int, int]:
    """What to add to the times of each step, in ns: each may be counted from its own beginning."""
    spans: dict[int, tuple[int, int]] = {}
    for steps in ran.values():
        for number, slices in steps.items():
            first, last = spans.get(number, (slices[0][3], slices[0][4]))
            starts, ends = (one[3] for one in slices), (one[4] for one in slices)
            spans[number] = min(first, *starts), max(last, *ends)
    shifts: dict[int, int] = {}
    until: int | None = None
    for number, (first, last) in sorted(spans.items()):
        shifts[number] = 0 if until is None else max(0, until - first)
        until = last + shifts[number]
    return shifts


def _ranks(
    path: Path,
    ran: Mapping[_Thread, _Steps],
    places: Mapping[_Thread, tuple[int, int]],
    shifts: Mapping[int, int],
) -> list[Recorded]:
    """The pipelines are told apart by process and TP rank; those alike, by the threads' order."""
    p = 1 + max(places[thread][0] for thread in ran)
    split = any(one[0] == WEIGHT for steps in ran.values() for of in steps.values() for one in of)
    pipelines: defaultdict[tuple[str, int, int], dict[int, _Thread]] = defaultdict(dict)
    seen: defaultdict[tuple[str, int, int], int] = defaultdict(int)
    for thread in ran:
        place, tensor = places[thread]
        process = str(thread[0]).rjust(9)
        number = seen[process, tensor, place]
        seen[process, tensor, place] += 1
        pipelines[process, tensor, number][place] = thread
    found: list[Recorded] = []
    for _, threads in sorted(pipelines.items()):
        peers = tuple(range(len(found), len(found) + p))
        for place in range(p):
            one = Recorded(f"{path}, PP rank {place}", len(found), peers, host=str(path))
            one.exact = True
            found.append(one)
            for number, slices in sorted(ran[threads[place]].items() if place in threads else ()):
                _add(one, slices, place, p, shifts[number], split)
    return [one for one in found if one.windows]


def _add(
    one: Recorded,
    slices: list[tuple[int, int, int, int, int]],
    place: int,
    p: int,
    shift_ns: int,
    split: bool,
) -> None:
    """Add a step's windows, by start; a backward whose weight gradients are apart is an input's."""
    windows = []
    for kind, chunk, batch, start, end in slices:
        stage = chunk * p + place
        if stage >= MAX_STAGES:
            raise FileError(f"{one.path}: chunk {chunk} is stage {stage}; expected < {MAX_STAGES}")
        code = encode(stage, INPUT if split and kind == FULL else kind, batch)
        windows.append(Window(start + shift_ns, end + shift_ns, code, NO_MATE))
    windows.sort(key=lambda window: (window.start_ns, window.end_ns))
    one.marks.append(windows[0].start_ns)
    one.windows += windows
