"""Steps that are alike are of one sort: held against a loop over the steps."""

from __future__ import annotations

from array import array
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tracegen.alike import alike, kinds
from tracegen.ir import KIND_MASK, NO_MATE, Placement, Program, Stream, encode

codes = st.builds(encode, st.integers(0, 300), st.integers(0, 12), st.integers(0, 1 << 30))
steps = st.lists(st.tuples(codes, st.just(NO_MATE) | codes), max_size=400)


def without_microbatch(code: int) -> int:
    return code if code == NO_MATE else code & 0xFFFFFF


@given(steps | st.lists(st.tuples(codes, st.just(NO_MATE))))
def test_each_step_is_of_the_sort_that_it_is_without_its_microbatch(pairs):
    stream = Stream(array("q", [c for c, _ in pairs]), array("q", [m for _, m in pairs]))
    expected = [(without_microbatch(c), without_microbatch(m)) for c, m in pairs]
    sorts, numbers = alike(stream)
    assert [sorts[number] for number in numbers] == expected
    assert len(set(sorts)) == len(sorts)
    assert dict(alike(stream).counts()) == Counter(expected)
    program = Program("drawn", 1, Placement("loop", (0,), ((0,),)), (stream, stream))
    halves = [code for pair in pairs for code in pair if code != NO_MATE]
    assert kinds(program) == Counter(code & KIND_MASK for code in halves + halves)


def test_a_rank_of_many_sorts():
    stream = Stream(array("q", [encode(s, 0, s) for s in range(300)] * 2), array("q", [-1] * 600))
    assert list(alike(stream).numbers) == [*range(300)] * 2
    assert {times for _, times in alike(stream).counts()} == {2}
