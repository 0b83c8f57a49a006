"""Add SEND and RECV where a result crosses ranks, in the order of PyTorch's lowering."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from tracegen.deps import NOTHING, Waits, neighbours, waits
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
    Program,
    Stream,
    encode,
)
from tracegen.ir import F as FORWARD
from tracegen.ir import W as WEIGHT
from tracegen.passes.messages import without_messages


def add_communication(program: Program) -> Program:
    """The program with a SEND right after each result that another rank waits for, and its RECV.

    The ranks take turns, one step each when what it waits for is there. A RECV
    stands on the receiving rank where that rank had come to when the SEND was
    placed, so both sides of every link see their messages in one order (as
    torch.distributed.pipelining's `_add_send_recv`). Whole-stage actions stay
    where they are; SEND and RECV that are there already are placed anew.

    The program must be able to finish (see `passes.validate`).
    """
    program = without_messages(program)
    streams = [(array("q"), array("q")) for _ in program.ranks]
    for rank, at in _turns(program, waits(program)):
        code, mate = program.ranks[rank].codes[at], program.ranks[rank].mates[at]
        streams[rank][0].append(code)
        streams[rank][1].append(mate)
        for half in (code, mate):
            if half != NO_MATE:
                for to, message in _messages(program, half):
                    streams[to][0].append(message)
                    streams[to][1].append(NO_MATE)
    lowered = program.with_ranks(Stream(codes, mates) for codes, mates in streams)
    lowered.memo["compute_only"] = program.compute_only()
    return lowered


def _turns(program: Program, needs: Waits) -> Iterator[tuple[int, int]]:
    """(rank, position) of every step, the ranks taking turns as far as each can go."""
    done = bytearray(len(program) + 1)
    done[NOTHING] = 1
    at, offsets = [0] * program.num_ranks, program.offsets
    unfinished = [rank for rank, stream in enumerate(program.ranks) if len(stream)]
    while unfinished:
        for rank in unfinished:
            step = offsets[rank] + at[rank]
            if done[needs.forward[step]] and done[needs.backward[step]]:
                done[step] = 1
                yield rank, at[rank]
                at[rank] += 1
        unfinished = [r for r in unfinished if at[r] < len(program.ranks[r])]


def _messages(program: Program, code: int) -> Iterator[tuple[int, int]]:
    """(rank, SEND or RECV) for a result that crosses ranks; nothing for one that does not."""
    kind, stage = code & KIND_MASK, code >> STAGE_SHIFT & STAGE_MASK
    if kind >= WEIGHT:
        return
    previous, following = neighbours(program)
    to = following[stage] if kind == FORWARD else previous[stage]
    ranks, microbatch = program.placement.ranks, code >> MICROBATCH_SHIFT
    if to < 0 or ranks[to] == ranks[stage]:
        return
    send, receive = (SEND_F, RECV_F) if kind == FORWARD else (SEND_B, RECV_B)
    yield ranks[stage], encode(stage, send, microbatch)
    yield ranks[to], encode(to, receive, microbatch)
