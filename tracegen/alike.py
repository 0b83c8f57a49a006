"""Steps of a rank that are alike: that differ in their microbatches and in nothing else.

A rank of a long run does tens of thousands of steps of a handful of sorts. How long
a step lasts, what it holds, how its tile is called: that is found once a sort, and
the loops over steps look it up by the number of each step's sort. The numbers are
kept with the stream, a byte a step.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count, repeat
from operator import and_
from typing import NamedTuple

from tracegen.ir import ALL_BUT_MICROBATCH, KIND_MASK, NO_MATE, Program, Stream

_NO_MATE = NO_MATE & ALL_BUT_MICROBATCH


class Alike(NamedTuple):
    """The sorts of steps that a rank does.

    Attributes:
        sorts: (code, code of the mate or NO_MATE) with microbatch 0, in the order they come.
        numbers: the sort of each step: where it stands in `sorts`.
    """

    sorts: list[tuple[int, int]]
    numbers: bytes | array[int]

    def counts(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Each sort, and how many steps are of it."""
        of = self.numbers.count if isinstance(self.numbers, bytes) else Counter(self.numbers).get
        return ((sort, of(number) or 0) for number, sort in enumerate(self.sorts))


def alike(stream: Stream) -> Alike:
    """The sorts of a rank's steps."""
    if stream.alike is None:
        stream.alike = _alike(stream)
    found: Alike = stream.alike
    return found


def kinds(program: Program) -> Counter[int]:
    """How many actions there are of each kind, both halves of a pair counted."""
    found: Counter[int] = Counter()
    for stream in program.ranks:
        for halves, times in alike(stream).counts():
            for code in halves:
                found[code & KIND_MASK] += times
    del found[NO_MATE & KIND_MASK]
    return found


def _alike(stream: Stream) -> Alike:
    known: defaultdict[int, int] = defaultdict(count().__next__)
    codes = map(and_, stream.codes, repeat(ALL_BUT_MICROBATCH))
    if not stream.has_mates:
        numbers = _column(list(map(known.__getitem__, codes)))
        return Alike([(code, NO_MATE) for code in known], numbers)
    pairs: defaultdict[tuple[int, int], int] = defaultdict(count().__next__)
    mates = map(and_, stream.mates, repeat(ALL_BUT_MICROBATCH))
    numbers = _column(list(map(pairs.__getitem__, zip(codes, mates, strict=True))))
    return Alike([(code, NO_MATE if mate == _NO_MATE else mate) for code, mate in pairs], numbers)


def _column(numbers: list[int]) -> bytes | array[int]:
    try:
        return bytes(numbers)
    except ValueError:  # a rank of more than 256 sorts
        return array("l", numbers)
