"""Windows -> tiles: what an action computed, without the wait for its input.

On the host a tile goes from the first operation in its window after its receive to the end of
the last, of any thread. On a device it is made of the kernels that were launched during the
window by any thread of the process, from the first's start to the last's end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import replace

from tracegen.errors import FileError
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    NO_MATE,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    STAGE_MASK,
    STAGE_SHIFT,
)
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.profiles.model import (
    NO_WAIT,
    Columns,
    Key,
    Message,
    RankProfile,
    Recorded,
    Tile,
    Window,
)
from tracegen.readers.warn import Warnings


def profile_of(found: Recorded, stage: int, warnings: Warnings) -> RankProfile:
    """The tiles and messages of a rank.

    Args:
        found: what its file holds.
        stage: its place in the pipeline, for actions that say no stage.
        warnings: where tiles that would overlap are noted.

    Raises:
        FileError: if no window computes.
    """
    if found.one_stage:
        shift = stage << STAGE_SHIFT
        found.windows = [
            replace(one, code=one.code | shift, mate=one.mate if one.mate < 0 else one.mate | shift)
            for one in found.windows
        ]
    if not any(one.code & KIND_MASK <= WEIGHT for one in found.windows):
        raise FileError(f"{found.path}: none of its ranges is a forward or a backward")
    profile = RankProfile(found.path, found.host, [])
    arrivals = sorted(one.end_ns for one in found.receives)
    for number, windows in enumerate(_steps(found)):
        tiles: list[Tile] = []
        for window in windows:
            if window.code & KIND_MASK <= WEIGHT:
                tiles.append(_tile(found, window, arrivals))
                _posted_inside(found, window, number, profile)
            else:
                _message(found, window, number, profile)
        profile.waits_inside_ns.append(sum(_wait_inside(found, one, arrivals) for one in tiles))
        _apart(tiles, found, warnings)
        profile.steps.append(tiles)
        _by_tiles(tiles, number, profile)
    _shift(profile, found.shift_ns)
    return profile


def _steps(found: Recorded) -> Iterator[list[Window]]:
    """The windows of each step: up to the profiler's next mark, or to an action seen before."""
    marks, windows = found.marks, found.windows
    for at, window in enumerate(windows[:-1]):
        if window.loose and window.code & KIND_MASK == FORWARD:
            window.end_ns = max(window.end_ns, windows[at + 1].start_ns)
    seen: set[tuple[int, int]] = set()
    step: list[Window] = []
    mark = 0
    for window in windows:
        now = bisect_right(marks, window.start_ns)
        if step and ((window.code, window.mate) in seen or now != mark):
            yield step
            step, seen = [], set()
        seen.add((window.code, window.mate))
        step.append(window)
        mark = now
    if step:
        yield step


def _tile(found: Recorded, window: Window, arrivals: list[int]) -> Tile:
    if found.exact:
        return Tile(window.code, window.mate, window.wait_ns, window.start_ns, window.end_ns)
    if found.on_device:
        span = _of_kernels(found.kernels, window)
        start, end = span or (window.end_ns, window.end_ns)
        return Tile(window.code, window.mate, NO_WAIT, start, end)
    # The first receive that ended in the window is what its first half waited for.
    at = bisect_right(arrivals, window.start_ns)
    arrived = arrivals[at] if at < len(arrivals) and arrivals[at] <= window.end_ns else None
    start, end = _of_operations(found.ops, window, arrived)
    wait = NO_WAIT if arrived is None or arrived > start else window.start_ns
    return Tile(window.code, window.mate, wait, start, end)


def _wait_inside(found: Recorded, tile: Tile, arrivals: list[int]) -> int:
    """From a pair's last operation before an input that came during it, to that; ns."""
    if tile.mate == NO_MATE or found.on_device or found.exact:
        return 0
    at = bisect_right(arrivals, tile.start_ns)
    if at == len(arrivals) or arrivals[at] >= tile.end_ns:
        return 0
    ops, arrived = found.ops, arrivals[at]
    first, last = bisect_left(ops.start, tile.start_ns), bisect_left(ops.start, arrived)
    return max(0, arrived - max(ops.end[first:last], default=arrived))


def _of_kernels(kernels: Columns, window: Window) -> tuple[int, int] | None:
    first = bisect_left(kernels.launched, window.start_ns)
    last = bisect_right(kernels.launched, window.end_ns)
    if first == last:
        return None
    return min(kernels.start[first:last]), max(kernels.end[first:last])


def _of_operations(ops: Columns, window: Window, arrived: int | None) -> tuple[int, int]:
    """First start and last end in the window; of a window without any, its end twice."""
    after = window.start_ns if arrived is None else max(arrived, window.start_ns)
    first, last = bisect_left(ops.start, after), bisect_right(ops.start, window.end_ns)
    if first >= last:
        return window.end_ns, window.end_ns
    ends = [end for end in ops.end[first:last] if end <= window.end_ns]
    return ops.start[first], max(ends, default=window.end_ns)


def _apart(tiles: list[Tile], found: Recorded, warnings: Warnings) -> None:
    """Tiles of one rank follow each other; kernels of two actions may run beside each other."""
    until = None
    for tile in tiles:
        if until is not None and tile.start_ns < until:
            if tile.end_ns > tile.start_ns:
                warnings.add(
                    "actions that overlap",
                    f"{found.path}: two actions overlap by {until - tile.start_ns} ns on the "
                    "device; the later one is drawn from where the earlier ends",
                )
            tile.start_ns, tile.end_ns = until, max(until, tile.end_ns)
        until = tile.end_ns


def _message(found: Recorded, window: Window, step: int, profile: RankProfile) -> None:
    """When what a SEND sends left at the earliest, and what a RECV receives was there."""
    kind = window.code & KIND_MASK
    stage, microbatch = window.code >> STAGE_SHIFT & STAGE_MASK, window.code >> MICROBATCH_SHIFT
    if kind in (SEND_F, SEND_B):
        posted = _inside(found.sends, window)
        if found.exact:
            start: int | None = window.start_ns
        elif found.on_device:
            kernels = _of_kernels(found.copies, window)
            start = None if kernels is None else kernels[0]
        else:
            start = min((one.start_ns for one in posted), default=None)
        if start is not None:
            profile.sent[step, kind == SEND_F, stage, microbatch] = start
    elif kind in (RECV_F, RECV_B):
        if found.exact:
            end: int | None = window.end_ns
        elif found.on_device:
            kernels = _of_kernels(found.copies, window)
            end = None if kernels is None else kernels[1]
        else:
            end = max((one.end_ns for one in _inside(found.receives, window)), default=None)
        if end is not None:
            made_by = stage - 1 if kind == RECV_F else stage + 1
            profile.received[step, kind == RECV_F, made_by, microbatch] = end


def _posted_inside(found: Recorded, window: Window, step: int, profile: RankProfile) -> None:
    """The messages of a range that holds its own: receive, compute, send, as torch's GPipe."""
    if found.on_device or not window.talks or window.mate != NO_MATE:
        return
    kind = window.code & KIND_MASK
    stage, microbatch = window.code >> STAGE_SHIFT & STAGE_MASK, window.code >> MICROBATCH_SHIFT
    forward = kind == FORWARD
    if sends := _inside(found.sends, window):
        profile.sent[step, forward, stage, microbatch] = min(one.start_ns for one in sends)
    if receives := _inside(found.receives, window):
        made_by = stage - 1 if forward else stage + 1
        end = max(one.end_ns for one in receives)
        profile.received[step, forward, made_by, microbatch] = end


def _inside(messages: list[Message], window: Window) -> list[Message]:
    first = bisect_left(messages, window.start_ns, key=lambda one: one.start_ns)
    last = bisect_right(messages, window.end_ns, key=lambda one: one.start_ns)
    return messages[first:last]


def halves(tile: Tile) -> Iterator[tuple[bool, int, int]]:
    """(whether forward, stage, microbatch) of what a tile makes for, or takes from, other ranks."""
    for code in (tile.code, tile.mate):
        kind = code & KIND_MASK
        if code != NO_MATE and kind <= INPUT:
            yield kind == FORWARD, code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT


def _by_tiles(tiles: list[Tile], step: int, profile: RankProfile) -> None:
    """What the tiles say of messages; of a message that was seen too, the later and the earlier.

    A result leaves when its tile has ended, and is there when the tile that takes it starts;
    for a pair's backward, which may wait inside the pair, when the pair ends.
    """
    for tile in tiles:
        for forward, stage, microbatch in halves(tile):
            made: Key = (step, forward, stage, microbatch)
            profile.sent[made] = max(tile.end_ns, profile.sent.get(made, tile.end_ns))
            inside = tile.mate != NO_MATE and not forward
            taken = (step, forward, stage - 1 if forward else stage + 1, microbatch)
            at = tile.end_ns if inside else tile.start_ns
            profile.received[taken] = min(at, profile.received.get(taken, at))


def _shift(profile: RankProfile, ns: int) -> None:
    """Put all on the file's own clock."""
    for tiles in profile.steps:
        for tile in tiles:
            tile.start_ns += ns
            tile.end_ns += ns
            if tile.wait_ns != NO_WAIT:
                tile.wait_ns += ns
    for of in (profile.sent, profile.received):
        for key in of:
            of[key] += ns
