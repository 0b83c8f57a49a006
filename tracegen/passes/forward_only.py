"""Keep the forwards alone: evaluation, or pipelined inference."""

from __future__ import annotations

from array import array

from tracegen.ir import KIND_MASK, NO_MATE, Program, Stream
from tracegen.ir import F as FORWARD


def keep_forward(program: Program) -> Program:
    """The same program without backward and communication; a pair leaves its forward."""
    return program.with_ranks(_keep(stream) for stream in program.ranks)


def _keep(stream: Stream) -> Stream:
    codes = array("q", [code for code in stream.codes if code & KIND_MASK == FORWARD])
    return Stream(codes, array("q", [NO_MATE]) * len(codes))
