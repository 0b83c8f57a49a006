"""A grid of points on all cores, in the same order whatever their number."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import groupby
from multiprocessing import active_children, get_context, parent_process
from typing import Any

from tracegen.analysis.grid import Axis, Base, Point
from tracegen.analysis.measure import Figures, Impossible, compiled, measured, reason
from tracegen.errors import TracegenError
from tracegen.ir import Program

# Fewer actions than this are done before another process has started.
ALONE = 40_000
# Points that one process takes at a time: some, so that the pieces end at about the same time.
PIECE = 8

Row = dict[str, Any]


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def sweep(
    points: Sequence[Point],
    base: Base,
    jobs: int | None = None,
    done: Callable[[int], None] = lambda count: None,
) -> list[Figures | Impossible]:
    """The figures of every point, in the order of the points.

    Args:
        points: what to measure.
        base: where costs come from.
        jobs: processes at most; one for each core unless given.
        done: told how many points are finished whenever some are.
    """
    jobs = min(jobs or cores(), -(-len(points) // PIECE) or 1)
    pieces = [(list(piece), base) for piece in _pieces(points)]
    found: list[Figures | Impossible] = []
    if jobs == 1 or sum(map(_actions, points)) < ALONE:
        for piece in pieces:
            found += _measure(piece)
            done(len(found))
        return found
    # Started afresh: a copy of this process would copy its threads' locks too.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _end_with_parent) as pool:
        try:
            with _deaf():
                futures = [pool.submit(_measure, piece) for piece in pieces]
            for future in futures:
                found += future.result()
                done(len(found))
        except BaseException:
            # Not cancelled: a pool whose processes end is at odds with what is cancelled.
            for process in active_children():
                process.terminate()
            raise
    return found


def _end_with_parent() -> None:
    """As a process of the pool: end when the one that started it has, however it did."""

    def wait() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes started within the block hear nothing of Ctrl-C: their parent ends them.

    One that heard it while it was starting could leave the pool waiting for ever.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _actions(point: Point) -> int:
    """About how many actions its program has."""
    return 2 * point.size.p * point.size.m * (point.size.v or 2)


def _pieces(points: Sequence[Point]) -> Iterator[Sequence[Point]]:
    """Neighbouring points, those of one program together, which is then compiled once."""
    piece: list[Point] = []
    for _, same in groupby(points, key=lambda point: point.size):
        piece += same
        if len(piece) >= PIECE:
            yield piece
            piece = []
    if piece:
        yield piece


def _measure(task: tuple[Sequence[Point], Base]) -> list[Figures | Impossible]:
    points, base = task
    found: list[Figures | Impossible] = []
    for size, same in groupby(points, key=lambda point: point.size):
        program: Program | None = None
        try:
            program = compiled(size)
        except TracegenError as error:
            found += [Impossible(size, reason(error, size)) for _ in same]
            continue
        for point in same:
            try:
                source = base.source(size.p, point.changes)
            except TracegenError as error:
                found.append(Impossible(size, str(error)))
            else:
                found.append(measured(size, source, program))
    return found


def table(
    points: Sequence[Point], axes: Sequence[Axis], found: Sequence[Figures | Impossible]
) -> list[Row]:
    """A row for each point that has figures: what was swept, then the figures."""
    extra = [axis.name for axis in axes if axis.name not in ("p", "m", "v")]
    rows = []
    for point, figures in zip(points, found, strict=True):
        if isinstance(figures, Figures):
            changes = dict(point.changes)
            row = figures.as_dict()
            head = {name: row.pop(name) for name in ("schedule", "p", "m", "v")}
            rows.append(head | {name: changes[name] for name in extra} | row)
    return rows
