"""What the rows beside the steps of tracegen's own traces say: what held the ranks, kernels."""

from __future__ import annotations

from array import array
from itertools import compress
from operator import ne

from tracegen.drawn import rank_name
from tracegen.found import Row
from tracegen.ir import OPTIMIZER
from tracegen.kernels import COMMUNICATION, COMPUTE
from tracegen.layout import KERNELS, PIPELINE
from tracegen.layout_kernels import STREAM_NAMES
from tracegen.layout_more import LETTERS, STUCK
from tracegen.timeline import Timeline

_OF_REPLAY = (f"{PIPELINE} / ", f"{KERNELS} / ")


def until_ns(rows: list[Row]) -> int:
    """The end of the last slice that is part of the replay; what never ended has no end."""
    return max(
        (
            end
            for row in _of_replay(rows)
            for end, label in zip(row.end_ns, row.labels, strict=True)
            if label != STUCK
        ),
        default=0,
    )


def busy_ns(of_tiles: list[int], rows: list[Row]) -> list[int]:
    """By rank, the time its compute stream ran: its kernels, or its tiles and optimizer steps."""
    named, p = {row.name: row for row in rows}, len(of_tiles)
    if any(row.name.startswith(_OF_REPLAY[1]) and row.name.endswith("compute") for row in rows):
        kernels = (named.get(_kernels(rank, p, COMPUTE)) for rank in range(p))
        return [0 if row is None else sum(row.end_ns) - sum(row.start_ns) for row in kernels]
    busy = of_tiles[:]
    for rank in range(p):
        if (row := named.get(_held(rank, p))) is not None:
            busy[rank] += sum(
                end - start
                for start, end, label in zip(row.start_ns, row.end_ns, row.labels, strict=True)
                if label == LETTERS[OPTIMIZER]
            )
    return busy


def as_replayed(again: Timeline, rows: list[Row]) -> bool:
    """Whether a replay has the slices beside its steps that the rows have, as far as they say."""
    there = {row.name: (row.start_ns, row.end_ns) for row in _of_replay(rows)}
    unnamed = bool(rows) and not there
    return unnamed or _spans_of(again) == there


def _of_replay(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.name.startswith(_OF_REPLAY)]


def _spans_of(line: Timeline) -> dict[str, tuple[array[int], array[int]]]:
    spans: dict[str, tuple[array[int], array[int]]] = {}
    p = line.program.num_ranks
    for rank, held in enumerate(line.held):
        spans[_held(rank, p)] = (
            array("q", [one.start_ns for one in held if one.end_ns > one.start_ns]),
            array("q", [one.end_ns for one in held if one.end_ns > one.start_ns]),
        )
    for rank, ran in enumerate(line.collectives):
        lasting_ones = [one for one in ran if one.end_ns > one.start_ns]
        spans[_kernels(rank, p, COMMUNICATION)] = (
            array("q", [one.start_ns for one in lasting_ones]),
            array("q", [one.end_ns for one in lasting_ones]),
        )
    if (kernels := line.kernels) is not None:
        for rank in range(p):
            for stream in STREAM_NAMES:
                row = kernels.row(rank, stream)
                columns = (
                    kernels.start_ns[row.start : row.stop],
                    kernels.end_ns[row.start : row.stop],
                )
                lasting = list(map(ne, *columns))
                start, end = (array("q", compress(column, lasting)) for column in columns)
                spans[_kernels(rank, p, stream)] = (start, end)
    return {name: both for name, both in spans.items() if both[0]}


def _held(rank: int, p: int) -> str:
    return f"{PIPELINE} / {rank_name(rank, p)}"


def _kernels(rank: int, p: int, stream: int) -> str:
    return f"{KERNELS} / {rank_name(rank, p)} {STREAM_NAMES[stream]}"
