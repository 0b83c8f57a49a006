"""What a trace shows beside tiles where there is more to say: messages, sums, waits, links."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from tracegen import attribution
from tracegen.drawn import rank_name
from tracegen.held import Held
from tracegen.ir import (
    KIND_MASK,
    KINDS,
    MICROBATCH_SHIFT,
    NO_MATE,
    OPTIMIZER,
    RECV_B,
    RECV_F,
    REDUCE_GRAD,
    SEND_B,
    SEND_F,
    STAGE_MASK,
    STAGE_SHIFT,
    SUM_REPLICAS,
    UNSHARD,
)
from tracegen.shape import KERNELS, Row, Shape, Slice
from tracegen.timeline import Timeline, Transfer

# Colours as of layout.LETTERS: sends lime, receives cyan, both in one orange, sums of
# gradients pink, the optimizer dark green.
LETTERS = {
    SEND_F: "XF",
    SEND_B: "XB",
    RECV_F: "RF",
    RECV_B: "RB",
    REDUCE_GRAD: "RDG",
    SUM_REPLICAS: "SUM",
    OPTIMIZER: "Opt",
}
# On the communication stream, before the stage: bright green and pink.
COLLECTIVE_LETTERS = {UNSHARD: "Uns", REDUCE_GRAD: "RDG"}
EXCHANGE = "SR"

LINKS, BUBBLES = "links", "bubbles"

# The category of what is no compute.
MESSAGE, GRADIENTS, STUCK = "message", "gradients", "stuck"

_MESSAGE = Shape(
    MESSAGE, ("rank", "stage", "microbatch", "op", "action", "peer", "step", "wait_us")
)
_SUM = Shape(GRADIENTS, ("rank", "stage", "op", "step", "wait_us"))
_COLLECTIVE = Shape("collective", ("rank", "stage", "op", "step"))
_OPTIMIZER = Shape("optimizer", ("rank", "stage", "op", "step"))
_STUCK = Shape(STUCK, ("rank", "action", "waits_for"))
_MOVED = Shape("transfer", ("from", "to", "stage", "microbatch", "queued_us", "latency_us"))


def held(line: Timeline, rank: int) -> list[Slice]:
    """What holds a rank beside compute; of a program that hangs, at its end what it hangs at."""
    found = [_held(one, rank) for one in (line.held[rank] if line.held else ()) if one.over]
    slices = [one for one in found if one[1] > one[0]]
    for hang in line.hangs:
        if hang.rank == rank:
            about = (rank, hang.action, hang.waits_for)
            slices.append((hang.start_ns, hang.end_ns, "stuck", _STUCK, about))
    return slices


def _held(one: Held, rank: int) -> Slice:
    kind, stage = one.code & KIND_MASK, one.code >> STAGE_SHIFT & STAGE_MASK
    op, waited = KINDS[kind].value, one.met_ns - one.start_ns
    name = LETTERS[kind]
    if one.is_optimizer:
        return one.start_ns, one.end_ns, name, _OPTIMIZER, (rank, stage, op, one.step)
    if not one.is_message:
        return one.start_ns, one.end_ns, name, _SUM, (rank, stage, op, one.step, waited)
    microbatch = one.code >> MICROBATCH_SHIFT
    name = f"{name if one.mate == NO_MATE else EXCHANGE}{microbatch}"
    about = (rank, stage, microbatch, op, str(one), one.peer, one.step, waited)
    return one.start_ns, one.end_ns, name, _MESSAGE, about


def collectives(line: Timeline) -> list[Row]:
    """A row a rank for its communication stream, where it gathers weights and reduces gradients."""
    p = line.program.num_ranks
    return [
        Row(
            KERNELS,
            f"{rank_name(rank, p)} communication",
            lambda rank=rank: _collectives(line, rank),  # type: ignore[misc]
        )
        for rank in range(p)
    ]


def _collectives(line: Timeline, rank: int) -> Iterator[Slice]:
    for one in line.collectives[rank]:
        if one.end_ns > one.start_ns:
            kind, stage = one.code & KIND_MASK, one.code >> STAGE_SHIFT & STAGE_MASK
            about = (rank, stage, KINDS[kind].value, one.step)
            yield one.start_ns, one.end_ns, f"{COLLECTIVE_LETTERS[kind]}{stage}", _COLLECTIVE, about


def bubbles(line: Timeline) -> list[Row]:
    """A row a rank, whose slices are its idle time, named by their cause."""
    p = line.program.num_ranks
    return [
        Row(BUBBLES, rank_name(rank, p), lambda rank=rank: _bubbles(line, rank))  # type: ignore[misc]
        for rank in range(p)
    ]


_PARTS = {
    (at, on): Shape("bubble", ("rank", "cause", *("at",) * at, *("waits_for", "of_rank") * on))
    for at in (False, True)
    for on in (False, True)
}


def _bubbles(line: Timeline, rank: int) -> Iterator[Slice]:
    for part in attribution.idle(line, rank):
        about = (part.at,) if part.at else ()
        whom = (part.on, part.rank) if part.on else ()
        shape = _PARTS[part.at != "", part.on != ""]
        values = (rank, part.cause.value, *about, *whom)
        yield part.start_ns, part.end_ns, part.cause.value, shape, values


def links(line: Timeline) -> list[Row]:
    """A row a directed link for the transfers that take time; more where they are on their way
    at once.
    """
    p = line.program.num_ranks
    by_link: dict[tuple[int, int], list[Transfer]] = {}
    of = line.program.rank_of_step
    for move in line.transfers():
        if move.end_ns > move.start_ns:
            by_link.setdefault((of(move.source), of(move.target)), []).append(move)
    rows = []
    for link in sorted(by_link):
        name = f"{rank_name(link[0], p)} to {rank_name(link[1], p).removeprefix('rank ')}"
        for number, lane in enumerate(_lanes(by_link[link])):
            shown = name if number == 0 else f"{name} ({number + 1})"
            rows.append(Row(LINKS, shown, lambda lane=lane, link=link: _moves(line, lane, link)))  # type: ignore[misc]
    return rows


def _lanes(moves: list[Transfer]) -> list[list[Transfer]]:
    """The transfers in as few rows as hold them without overlap."""
    lanes: list[list[Transfer]] = []
    free: list[tuple[int, int]] = []
    for move in sorted(moves, key=lambda move: (move.start_ns, move.end_ns, move.target)):
        if free and free[0][0] <= move.start_ns:
            _, lane = heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(move)
        heappush(free, (move.end_ns, lane))
    return lanes


def _moves(line: Timeline, moves: list[Transfer], link: tuple[int, int]) -> Iterator[Slice]:
    program = line.program
    latency = line.costs.times(program).latency(link)
    for move in moves:
        stream, base = program.ranks[link[1]], program.offsets[link[1]]
        at = move.target - base
        half = stream.codes[at] if move.forward or stream.mates[at] == NO_MATE else stream.mates[at]
        stage, microbatch = half >> STAGE_SHIFT & STAGE_MASK, half >> MICROBATCH_SHIFT
        queued = move.start_ns - line.made_ns(move.source, move.forward)
        about = (*link, stage, microbatch, queued, latency)
        name = f"{'F' if move.forward else 'BP'}{microbatch}"
        yield move.start_ns, move.end_ns, name, _MOVED, about
