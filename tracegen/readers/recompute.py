"""Recomputation in tracegen's own traces: a tile in front of a backward's, one action with it."""

from __future__ import annotations

from array import array

from tracegen.ir import KIND_MASK, MICROBATCH_SHIFT, NO_MATE, STAGE_MASK, STAGE_SHIFT
from tracegen.ir import B as FULL
from tracegen.ir import I as INPUT
from tracegen.readers.actions import identity
from tracegen.readers.events import Gather
from tracegen.readers.rows import PIPELINE, RankRow
from tracegen.readers.threads import Thread
from tracegen.tiles import RECOMPUTE


def join(gather: Gather) -> None:
    """Make one slice of each recomputation and the backward right behind it.

    A recomputation without one stays what it is: a slice that is no action.
    """
    for thread in gather.threads.values():
        if gather.process_names.get(thread.pid) == PIPELINE:
            last = f"op {RECOMPUTE}"
            found = [at for at, about in enumerate(thread.about) if about.endswith(last)]
            if joined := [at for at in found if _is_of_next(thread, at)]:
                _join(thread, joined)


def _is_of_next(thread: Thread, at: int) -> bool:
    if at + 1 == len(thread.start) or thread.start[at + 1] != thread.end[at]:
        return False
    code, mate = thread.code[at + 1], thread.mate[at + 1]
    half = code if mate == NO_MATE else mate
    about = {
        "stage": half >> STAGE_SHIFT & STAGE_MASK,
        "microbatch": half >> MICROBATCH_SHIFT,
        "op": RECOMPUTE,
    }
    return half >= 0 and half & KIND_MASK in (FULL, INPUT) and identity(about) == thread.about[at]


def _join(thread: Thread, joined: list[int]) -> None:
    until = {}
    for at in joined:
        until[at + 1] = thread.start[at + 1]
        thread.start[at + 1], thread.waited[at + 1] = thread.start[at], thread.waited[at]
    gone = set(joined)
    kept = [at for at in range(len(thread.start)) if at not in gone]
    thread.keep(kept)
    thread.resumed = {until[at]: place for place, at in enumerate(kept) if at in until}


def recomputed_ns(gather: Gather, rows: list[RankRow], base_ns: int) -> array[int] | None:
    """By step, as `Timeline.recomputed_ns`; times are counted from `base_ns`."""
    until = {
        number << 32 | place: ns
        for number, thread in enumerate(gather.threads.values())
        for ns, place in thread.resumed.items()
    }
    if not until:
        return None
    return array(
        "q",
        [
            until.get(source, start) - base_ns
            for row in rows
            for source, start in zip(row.source, row.start, strict=True)
        ],
    )
