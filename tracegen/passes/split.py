"""Split each full backward into I and W."""

from __future__ import annotations

from array import array

from tracegen.ir import KIND_MASK, NO_MATE, Program, Stream
from tracegen.ir import B as FULL
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT


def split_backward(program: Program) -> Program:
    """Every B becomes I then W, a pair's too (its W follows the pair)."""
    return program.with_ranks(_split(stream) for stream in program.ranks)


def _split(stream: Stream) -> Stream:
    codes, mates = array("q"), array("q")
    for code, mate in zip(stream.codes, stream.mates, strict=True):
        whole = code if mate == NO_MATE else mate
        if whole & KIND_MASK != FULL:
            codes.append(code)
            mates.append(mate)
            continue
        as_input, as_weight = whole - FULL + INPUT, whole - FULL + WEIGHT
        codes.extend((as_input if mate == NO_MATE else code, as_weight))
        mates.extend((NO_MATE if mate == NO_MATE else as_input, NO_MATE))
    return Stream(codes, mates)
