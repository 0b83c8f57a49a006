"""Threads -> the rows of ranks and the others, each in order of time."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import le, lt

from tracegen.errors import FileError
from tracegen.found import Row
from tracegen.ir import MAX_STAGES, STAGE_SHIFT
from tracegen.readers.actions import identity_of
from tracegen.readers.events import Gather, label
from tracegen.readers.threads import Id, Thread

PIPELINE = "pipeline"
NO_SLICE = -1
_RANK = re.compile(r"rank[ _-]?(\d{1,9})", re.IGNORECASE)


@dataclass(slots=True)
class RankRow:
    """The steps of one rank, in order: columns as of Thread, and where each came from.

    Attributes:
        source: (thread, slice) of each step, as `thread number << 32 | slice`; NO_SLICE for a
            step without one.
    """

    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    code: array[int] = field(default_factory=lambda: array("q"))
    mate: array[int] = field(default_factory=lambda: array("q"))
    waited: list[str] = field(default_factory=list)
    source: array[int] = field(default_factory=lambda: array("q"))

    def extend(self, thread: Thread, places: Sequence[int], first: int) -> None:
        """Take slices of a thread; `first` is the source of its slice 0."""
        if len(places) == len(thread.start):
            for name in ("start", "end", "code", "mate", "waited"):
                getattr(self, name).extend(getattr(thread, name))
        else:
            for name in ("start", "end", "code", "mate", "waited"):
                column = getattr(thread, name)
                getattr(self, name).extend([column[at] for at in places])
        self.source.extend([first + at for at in places])


def sort(gather: Gather) -> None:
    """Put the slices of every thread in order: by start, of equal ones the longer first."""
    for thread in gather.threads.values():
        if _disjoint(thread.start, thread.end):
            continue
        start, end = thread.start, thread.end
        thread.keep(sorted(range(len(start)), key=lambda at: (start[at], -end[at])))
        _report_crossings(gather, thread)


def _disjoint(start: array[int], end: array[int]) -> bool:
    """Whether each slice ends before the next starts, and none is empty."""
    return all(map(le, end, islice(start, 1, None))) and all(map(lt, start, end))


def _report_crossings(gather: Gather, thread: Thread) -> None:
    """Slices that begin inside another and end outside it: Perfetto drops one of the two."""
    open_: list[int] = []
    for at, (start, end) in enumerate(zip(thread.start, thread.end, strict=True)):
        while open_ and thread.end[open_[-1]] <= start:
            open_.pop()
        if open_ and end > thread.end[open_[-1]]:
            other = open_[-1]
            gather.warnings.add(
                "crossing slices",
                f"{label(gather, thread)}: {thread.names[other]!r} "
                f"({_span(thread, other)}) and {thread.names[at]!r} ({_span(thread, at)}) cross: "
                "one begins inside the other and ends outside; both are kept",
            )
        open_.append(at)


def _span(thread: Thread, at: int) -> str:
    return f"{thread.start[at] / 1000:.3f} to {thread.end[at] / 1000:.3f} us"


def split(gather: Gather, own: bool) -> tuple[dict[int, RankRow], list[Row]]:
    """The steps of each rank, and the rows of every slice that is none.

    Slices are steps if they say an action; in tracegen's own traces only those
    of the process `pipeline`. The rank is what the name of the thread or process
    says (rank 3), or else the args, or else the ids.

    Raises:
        FileError: if a slice says a rank beyond what there can be.
    """
    pids = {pid for pid, name in gather.process_names.items() if own and name == PIPELINE}
    tiled = {
        key
        for key, thread in gather.threads.items()
        if (not pids or thread.pid in pids) and max(thread.code, default=-1) >= 0
    }
    by_id = _ranks_by_id(gather, [gather.threads[key] for key in gather.threads if key in tiled])
    ranks: dict[int, RankRow] = {}
    others = []
    for number, (key, thread) in enumerate(gather.threads.items()):
        named = _named(gather, thread)
        if key in tiled:
            _place(gather, thread, number, named, by_id[key], ranks)
        elif thread.pid in pids and named is not None:
            ranks.setdefault(named, RankRow())
        if (other := _other(gather, thread, key in tiled)) is not None:
            others.append(other)
    if ranks and (beyond := max(ranks)) >= MAX_STAGES:
        raise FileError(f"{gather.path}: a slice is of rank {beyond}; ranks are below {MAX_STAGES}")
    for rank, row in ranks.items():
        in_order(row)
        if gather.namer.needs_rank:
            row.code = array("q", [code + (rank << STAGE_SHIFT) for code in row.code])
    return ranks, others


def _named(gather: Gather, thread: Thread) -> int | None:
    """The rank that the name of the thread says, or that of its process."""
    for name in (
        gather.thread_names.get((thread.pid, thread.tid), ""),
        gather.process_names.get(thread.pid, ""),
    ):
        if match := _RANK.search(name):
            return int(match[1])
    return None


def _ranks_by_id(gather: Gather, tiled: list[Thread]) -> dict[tuple[Id, Id], int]:
    """The rank of each thread as far as its ids say it: a process a rank, or a thread a rank."""
    by_process = len({thread.pid for thread in tiled}) > 1
    ids = {(t.pid, t.tid): t.pid if by_process else t.tid for t in tiled}
    distinct = sorted(set(ids.values()), key=lambda i: (isinstance(i, str), i))
    as_torch = all(t.pid == t.tid for t in tiled)  # its _dump_chrometrace
    numbers = [i for i in distinct if isinstance(i, int) and 0 <= i < 4 * len(distinct) + 16]
    if len(numbers) == len(distinct) and (as_torch or 0 in numbers):
        return {key: int(i) for key, i in ids.items()}
    place = {i: rank for rank, i in enumerate(distinct)}
    return {key: place[i] for key, i in ids.items()}


def _place(
    gather: Gather,
    thread: Thread,
    number: int,
    named: int | None,
    by_id: int,
    ranks: dict[int, RankRow],
) -> None:
    """Hand the actions of a thread to the rows of their ranks."""
    said = set(thread.rank)
    if named is not None and said - {named, -1}:
        at = next(at for at, rank in enumerate(thread.rank) if rank not in (named, -1))
        gather.warnings.add(
            "slices of another rank's thread",
            f"{label(gather, thread)}: {thread.names[at]!r} ({_span(thread, at)}) has args of "
            f"rank {thread.rank[at]}; the thread it is on counts",
        )
    whole = named is not None or len(said) == 1
    first = number << 32
    if whole and min(thread.code) >= 0:
        rank = next(iter(said)) if named is None else named
        row = ranks.setdefault(by_id if rank < 0 else rank, RankRow())
        row.extend(thread, range(len(thread.start)), first)
        return
    of_rank: defaultdict[int, list[int]] = defaultdict(list)
    for at, code in enumerate(thread.code):
        if code >= 0:
            rank = thread.rank[at] if named is None else named
            of_rank[by_id if rank < 0 else rank].append(at)
    for rank, places in of_rank.items():
        ranks.setdefault(rank, RankRow()).extend(thread, places, first)


def in_order(row: RankRow) -> None:
    """Sort by start; an empty step comes before the one that starts as it does."""
    start, end = row.start, row.end
    if _disjoint(start, end):
        return
    order = sorted(range(len(start)), key=lambda at: (start[at], end[at]))
    for name in ("start", "end", "code", "mate", "source"):
        column = getattr(row, name)
        setattr(row, name, array("q", [column[at] for at in order]))
    row.waited = [row.waited[at] for at in order]


def _other(gather: Gather, thread: Thread, tiled: bool) -> Row | None:
    """The slices of a thread that are no steps."""
    if not thread.start or (tiled and min(thread.code) >= 0):
        return None
    kept = [at for at, code in enumerate(thread.code) if code < 0 or not tiled]
    return Row(
        label(gather, thread),
        array("q", [thread.start[at] for at in kept]),
        array("q", [thread.end[at] for at in kept]),
        [thread.names[at] for at in kept],
        [
            (identity_of(code) if (code := thread.code[at]) >= 0 else thread.about[at])
            for at in kept
        ],
    )
