"""What a step of MoE stages is made of: its kernels, in order, on two streams of its rank.

A *shape* is a step without its numbers: which kernels it runs on the compute and
on the communication stream, in which order, and which of them wait for one of
the other stream. All steps of one kind have one shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tracegen.ir import NO_MATE
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD_ACTION
from tracegen.ir import I as INPUT_ACTION
from tracegen.ir import W as WEIGHT_ACTION
from tracegen.moe import FORWARD, INPUT, WEIGHT, BlockOrder, Kernel, MoE

COMPUTE, COMMUNICATION = 0, 1

# A kernel of a layer; and a place: the stream and the position there, in the step.
Part = tuple[Kernel, int]
Place = tuple[int, int]

ATTN_F, DISP_F, MLP_F, COMB_F = FORWARD
COMB_B, MLP_B, DISP_B, ATTN_B = INPUT
MLP_W, ATTN_W = WEIGHT

# Which kernel of its own layer a kernel waits for. Across layers attnF waits for
# the combF before, combB for the attnB behind; see `_source`.
AFTER = {
    DISP_F: ATTN_F,
    MLP_F: DISP_F,
    COMB_F: MLP_F,
    MLP_B: COMB_B,
    DISP_B: MLP_B,
    ATTN_B: DISP_B,
    MLP_W: MLP_B,
    ATTN_W: ATTN_B,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The kernels of a step.

    Attributes:
        rows: the parts on the compute and on the communication stream, in order.
        waits: of each part, the positions on the other stream that it waits for.
        alone: the first and the last place of a step that runs one kernel at a time, and begins
            only when its rank's kernel before it has ended.
        closed: whether it begins and ends as one: nothing of its rank runs beside it,
            and its results leave at its end.
        takes: where the input of its forward and the gradient for its backward are waited for.
        makes: where the result of its forward and the gradient of its backward are made;
            of a closed shape, at its end.
    """

    rows: tuple[tuple[Part, ...], tuple[Part, ...]]
    waits: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    alone: tuple[Place, Place] | None
    closed: bool
    takes: tuple[Place | None, Place | None]
    makes: tuple[Place | None, Place | None]


class Shapes:
    """The shape of every kind of step under one block order."""

    def __init__(self, moe: MoE) -> None:
        self.moe = moe
        self._known: dict[tuple[int, int], Shape] = {}

    def of(self, kind: int, mate_kind: int = NO_MATE) -> Shape:
        """The shape of an action, or of a pair of a forward and a backward of `mate_kind`."""
        key = (kind, mate_kind)
        if key not in self._known:
            self._known[key] = self._make(kind, mate_kind)
        return self._known[key]

    def _make(self, kind: int, mate_kind: int) -> Shape:
        layers = self.moe.layers
        if self.moe.block == BlockOrder.NONE:
            kinds = [kind] if mate_kind == NO_MATE else [kind, mate_kind]
            return _one_by_one([part for each in kinds for part in in_order(each, layers)])
        if mate_kind == NO_MATE:
            return _open(in_order(kind, layers))
        full = mate_kind == FULL
        if self.moe.block == BlockOrder.LOCKSTEP:
            return _lockstep(list(_steps(layers, full)))
        rows = _woven(layers, full, self.moe.mlp_w == "after")
        return _open(rows) if self.moe.block == BlockOrder.DUALPIPE else _closed(rows)


def in_order(kind: int, layers: int) -> Iterator[Part]:
    """The kernels of an action as they run one by one: layers upwards in F, else downwards."""
    kernels: dict[int, tuple[Kernel, ...]] = {
        FORWARD_ACTION: FORWARD,
        FULL: (COMB_B, MLP_B, MLP_W, DISP_B, ATTN_B, ATTN_W),
        INPUT_ACTION: INPUT,
        WEIGHT_ACTION: WEIGHT,
    }
    for layer in range(layers) if kind == FORWARD_ACTION else reversed(range(layers)):
        for kernel in kernels[kind]:
            yield kernel, layer


def _steps(layers: int, full: bool) -> Iterator[tuple[list[Part], Part]]:
    """A pair in lockstep: (computes, the communication beside them) of each step."""
    for f, b in zip(range(layers), reversed(range(layers)), strict=True):
        yield [(ATTN_F, f)], (COMB_B, b)
        yield [(MLP_B, b)], (DISP_F, f)
        yield [*_if(full, MLP_W, b), (MLP_F, f)], (DISP_B, b)
        yield [(ATTN_B, b), *_if(full, ATTN_W, b)], (COMB_F, f)


def _woven(layers: int, full: bool, mlp_w_after: bool) -> Iterable[Part]:
    """A pair's kernels, each stream's in its order."""
    for f, b in zip(range(layers), reversed(range(layers)), strict=True):
        weight, forward = _if(full, MLP_W, b), [(MLP_F, f)]
        middle = forward + weight if mlp_w_after else weight + forward
        yield from [(ATTN_F, f), (MLP_B, b), *middle, (ATTN_B, b), *_if(full, ATTN_W, b)]
        yield from [(COMB_B, b), (DISP_F, f), (DISP_B, b), (COMB_F, f)]


def _if(there: bool, kernel: Kernel, layer: int) -> list[Part]:
    return [(kernel, layer)] if there else []


Rows = tuple[tuple[Part, ...], tuple[Part, ...]]
Waits = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]


def _on_streams(parts: Iterable[Part]) -> Rows:
    parts = list(parts)
    compute = tuple(part for part in parts if not part[0].is_communication)
    return compute, tuple(part for part in parts if part[0].is_communication)


def _places(rows: Rows) -> dict[Part, Place]:
    return {part: (row, at) for row in (0, 1) for at, part in enumerate(rows[row])}


def _source(part: Part) -> Part:
    """The kernel whose result a kernel needs; none of the stage's if its layer is past the end."""
    kernel, layer = part
    if kernel == ATTN_F:
        return COMB_F, layer - 1
    if kernel == COMB_B:
        return ATTN_B, layer + 1
    return AFTER[kernel], layer


def _needs(rows: Rows) -> Waits:
    """Waits for what a kernel needs of the other stream; its own stream's order is enough."""
    place = _places(rows)

    def of(row: int, part: Part) -> tuple[int, ...]:
        source = place.get(_source(part), (row, 0))
        return () if source[0] == row else (source[1],)

    compute, communication = (tuple(of(row, part) for part in rows[row]) for row in (0, 1))
    return compute, communication


def _ends(rows: Rows, of: tuple[Part | None, Part | None]) -> tuple[Place | None, Place | None]:
    place = _places(rows)
    forward, backward = (None if part is None else place.get(part) for part in of)
    return forward, backward


def _open(parts: Iterable[Part]) -> Shape:
    """A step whose kernels wait for their streams and inputs only."""
    rows = _on_streams(parts)
    last = max((layer for row in rows for _, layer in row), default=0)
    takes = _ends(rows, ((ATTN_F, 0), (COMB_B, last)))
    makes = _ends(rows, ((COMB_F, last), (ATTN_B, 0)))
    return Shape(rows, _needs(rows), None, False, takes, makes)


def _closed(parts: Iterable[Part]) -> Shape:
    rows = _on_streams(parts)
    return Shape(rows, _needs(rows), None, True, (None, None), (None, None))


def _lockstep(steps: list[tuple[list[Part], Part]]) -> Shape:
    """A closed step whose streams wait for each other between its parts."""
    rows = (
        tuple(part for computes, _ in steps for part in computes),
        tuple(communication for _, communication in steps),
    )
    compute: list[tuple[int, ...]] = []
    communication: list[tuple[int, ...]] = []
    for at, (computes, _) in enumerate(steps):
        before = len(compute) - 1
        communication.append((before,) if at else ())
        compute += [(at - 1,) if at else ()] + [()] * (len(computes) - 1)
    waits = (tuple(compute), tuple(communication))
    return Shape(rows, waits, None, True, (None, None), (None, None))


def _one_by_one(parts: list[Part]) -> Shape:
    """A step in which one kernel runs at a time, as on a single stream."""
    rows = _on_streams(parts)
    place = _places(rows)
    waits: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = ([], [])
    waits[place[parts[0]][0]].append(())
    for before, part in pairwise(parts):
        row, (other, at) = place[part][0], place[before]
        waits[row].append(() if other == row else (at,))
    first, last = place[parts[0]], place[parts[-1]]
    kernels = {kernel for kernel, _ in parts}
    forward, backward = ATTN_F in kernels, ATTN_B in kernels
    return Shape(
        rows,
        (tuple(waits[0]), tuple(waits[1])),
        (first, last),
        False,
        (first if forward else None, first if backward else None),
        (last if forward else None, last if backward else None),
    )
