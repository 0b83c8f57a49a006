"""What a trace shows: its rows and their slices, arrows and counters, before any file format.

The emitters write this down; colours, names and the order of rows are decided
here, so that JSON and protobuf say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Any

from tracegen import __version__, metrics
from tracegen.deps import NOTHING
from tracegen.drawn import ACTIVATION, arrows, counters, rank_name
from tracegen.ir import MICROBATCH_SHIFT
from tracegen.recompute import begins
from tracegen.shape import KERNELS as KERNELS
from tracegen.shape import Row as Row
from tracegen.shape import Series
from tracegen.shape import Shape as Shape
from tracegen.shape import Slice as Slice
from tracegen.tiles import LETTERS as LETTERS
from tracegen.tiles import PAIR_LETTERS as PAIR_LETTERS
from tracegen.tiles import tiles
from tracegen.timeline import Timeline

PIPELINE = "pipeline"
# Of a measured step: the tiling that replay predicts of it, and waits inside a communication.
PREDICTED, WAITING = "predicted", "waiting"


# row and start of the slice it leaves, row and start of the slice it reaches, name, category
Arrow = tuple[int, int, int, int, str, str]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Layout:
    """A whole trace.

    Attributes:
        about: what it says of itself.
        rows: in order; a process's rows stand together.
        counters: in order.
        arrows: for every transfer both of whose tiles are there, and between kernels.
    """

    about: dict[str, Any]
    rows: list[Row]
    counters: Callable[[], list[Series]]
    arrows: Callable[[], Iterator[Arrow]]


def layout(line: Timeline) -> Layout:
    """What the trace of a timeline shows."""
    p = line.program.num_ranks
    rows = [
        Row(PIPELINE, rank_name(rank, p), lambda rank=rank: _rank(line, rank))  # type: ignore[misc]
        for rank in range(p)
    ]
    if line.kernels is not None:
        from tracegen import layout_kernels

        rows += layout_kernels.rows(line)
    asked = line.config.get("rows", ())
    if line.collectives or asked:
        from tracegen import layout_more

        rows += layout_more.collectives(line) if line.collectives else ()
        rows += _rows_beside(line)
        rows += layout_more.links(line) if "links" in asked else ()
        rows += layout_more.bubbles(line) if "bubble" in asked else ()
    else:
        rows += _rows_beside(line)
    return Layout(metadata(line), rows, lambda: counters(line), lambda: _arrows(line))


def _rows_beside(line: Timeline) -> list[Row]:
    """Of a measured step: the predicted tiling, and where a rank waited in a communication."""
    p, predicted, rows = line.program.num_ranks, line.beside, list[Row]()
    for rank in range(p):
        if predicted is not None:
            slices = lambda rank=rank: tiles(predicted, rank)  # noqa: E731
            rows.append(Row(PREDICTED, rank_name(rank, p), slices))
    for rank in range(p):
        if line.waiting_ns is not None and any(at != NOTHING for at in line.waiting_ns):
            rows.append(Row(WAITING, rank_name(rank, p), lambda rank=rank: _waits_of(line, rank)))  # type: ignore[misc]
    return rows


_WAITING_SHAPE = Shape("waiting", ("rank", "action"))


def _waits_of(line: Timeline, rank: int) -> Iterator[Slice]:
    assert line.waiting_ns is not None
    base, stream = line.program.offsets[rank], line.program.ranks[rank]
    for at, code in enumerate(stream.codes):
        began, start = line.waiting_ns[base + at], line.start_ns[base + at]
        if began != NOTHING and began < start:
            name = f"recv{code >> MICROBATCH_SHIFT}"
            yield began, start, name, _WAITING_SHAPE, (rank, str(stream[at]))


def metadata(line: Timeline) -> dict[str, Any]:
    """What the trace says of itself: the request, the costs in force and the figures."""
    said, source = {**about(line), **line.config}, line.source or line.program
    if not source.recipe:
        said["program"] = [" ".join(map(str, stream)) for stream in source.ranks]
    return said


def about(line: Timeline) -> dict[str, Any]:
    """The metadata less the timeline's config and a program that no schedule makes."""
    program, empty = line.program, _zero_length(line)
    source = line.source or program  # one that hangs may have come to no backward
    return {
        **metrics.summary(line),
        "tool": "tracegen",
        "tool_version": __version__,
        "placement": program.placement.name,
        "stage_ranks": list(program.placement.ranks),
        "chains": [list(chain) for chain in program.placement.chains],
        "forward_only": source.forward_only,
        "costs": line.costs.in_force(),
        "zero_length_actions": sum(map(len, empty)),
        **({"zero_length": empty} if any(empty) else {}),
    }


def _zero_length(line: Timeline) -> list[list[list[Any]]]:
    """By rank, [action, start in µs, what it waited for] of every action without a tile."""
    start, program = line.start_ns, line.program
    rows: list[list[list[Any]]] = [[] for _ in program.ranks]
    if not line.empty:
        return rows
    for rank, (stream, base) in enumerate(zip(program.ranks, program.offsets, strict=False)):
        for step in range(base, base + len(stream)):
            if step in line.empty:
                row = [str(stream[step - base]), start[step] / 1000]
                waited = metrics.waited_for(line, rank, step)
                rows[rank].append([*row, waited] if waited else row)
    return rows


def _rank(line: Timeline, rank: int) -> Iterator[Slice]:
    """A rank's steps, and what else holds it, by time."""
    if not line.held and not line.hangs:
        return tiles(line, rank)
    from tracegen import layout_more

    return merge(tiles(line, rank), layout_more.held(line, rank), key=itemgetter(0, 1))


def _arrows(line: Timeline) -> Iterator[Arrow]:
    """From tile to tile, then what kernels wait for."""
    start, begin = line.start_ns, begins(line)
    for from_rank, source, rank, target, name in arrows(line):
        category = "forward" if name == ACTIVATION else "backward"
        yield from_rank, begin[source], rank, start[target], name, category
    if line.kernels is not None:
        from tracegen import layout_kernels

        yield from layout_kernels.arrows(line)
