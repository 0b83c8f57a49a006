"""Sound programs pass; a program with one fault is refused for exactly that fault.

What the validator should say of a fault is written down from the rows as text, before the
validator sees them, and the oracle decides what can finish.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from golden import SHIPPED, case
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import ACTION, Case, Stuck, parts, replay, waits_of
from strategies import programs

from tracegen.errors import DeadlockError, ProgramError
from tracegen.ir import Action, Kind, Overlap, Placement, Program, Stream, parse
from tracegen.order import both_ways, loop
from tracegen.passes.validate import validate

SETTINGS = settings(max_examples=120, deadline=None, derandomize=True)

Rows = list[list[str]]

every_schedule = pytest.mark.parametrize("name", SHIPPED)


def small(name: str) -> Case:
    """A schedule at two ranks and more microbatches than ranks."""
    schedule = SHIPPED[name]
    return case(name, 2, schedule.default_microbatches(2, None))


def built(case: Case, rows: Rows | None = None) -> Program:
    """A program of rows of text, on the placement of a case."""
    place = Placement("", tuple(case.rank_of), tuple(tuple(chain) for chain in case.chains))
    streams = (Stream.of(map(parse, row)) for row in rows or case.rows)
    return Program("mine", case.num_microbatches, place, tuple(streams))


def said(program: Program) -> list[str]:
    """What the validator finds wrong, nothing where it finds nothing."""
    try:
        validate(program)
    except ProgramError as error:
        return error.problems
    return []


@dataclass(frozen=True)
class Fault:
    """Rows with one fault, and what must be said of them."""

    what: str
    rows: Rows
    problems: list[str]


def edited(case: Case, rank: int, at: int, *, cut: int = 1, put: tuple[str, ...] = ()) -> Rows:
    """The rows with `cut` steps from a position on replaced."""
    rows = [list(row) for row in case.rows]
    rows[rank][at : at + cut] = put
    return rows


def place_of(rows: Rows, rank: int, wanted: str) -> int:
    """The position of an action on a rank, alone or in a pair."""
    own = parts(wanted)[0]
    return next(at for at, step in enumerate(rows[rank]) if own in parts(step))


def faults(case: Case) -> Iterator[Fault]:
    """Every fault of every kind at every step."""
    for rank, row in enumerate(case.rows):
        for at, step in enumerate(row):
            yield dropped(case, rank, at)
            yield doubled(case, rank, at)
            yield from beside(case, rank, at)
            yield from elsewhere(case, rank, at)
            if len(parts(step)) == 1:
                yield from halved(case, rank, at)


def absent(rows: Rows, rank: int, stage: int, microbatch: int) -> str:
    """What a stage lacks of a microbatch, one of F, B, I and W being gone."""
    has = {k for s in rows[rank] for q, k, mb in parts(s) if (q, mb) == (stage, microbatch)}
    if "F" not in has:
        return f"rank {rank}: {stage}F{microbatch} is missing"
    if not has & set("BIW"):
        return (
            f"rank {rank}: {stage}B{microbatch} is missing "
            f"(or {stage}I{microbatch} and {stage}W{microbatch})"
        )
    there, gone = ("W", "I") if "I" not in has else ("I", "W")
    at = place_of(rows, rank, f"{stage}{there}{microbatch}")
    return (
        f"rank {rank}, action {at}: {rows[rank][at]} has no "
        f"{stage}{gone}{microbatch}, which is missing"
    )


def dropped(case: Case, rank: int, at: int) -> Fault:
    rows = edited(case, rank, at)
    order = [stage for chain in case.chains for stage in chain]
    lost = sorted((order.index(stage), mb) for stage, _, mb in parts(case.rows[rank][at]))
    return Fault(
        f"{case.rows[rank][at]} dropped",
        rows,
        [absent(rows, rank, order[number], mb) for number, mb in lost],
    )


def doubled(case: Case, rank: int, at: int) -> Fault:
    step = case.rows[rank][at]
    problems = [
        f"rank {rank}, action {at + 1}: {part} again does what {part}, action {at}, has done"
        for part in ("{}{}{}".format(*p) for p in parts(step))
    ]
    return Fault(f"{step} doubled", edited(case, rank, at + 1, cut=0, put=(step,)), problems)


def beside(case: Case, rank: int, at: int) -> Iterator[Fault]:
    """A full backward and its halves, of one microbatch, at the end of the rank."""
    end = len(case.rows[rank])
    for stage, kind, mb in parts(case.rows[rank][at]):
        for other in {"B": "IW", "I": "B"}.get(kind, ""):
            extra = f"{stage}{other}{mb}"
            yield Fault(
                f"{extra} beside {case.rows[rank][at]}",
                edited(case, rank, end, cut=0, put=(extra,)),
                [
                    f"rank {rank}, action {end}: {extra} again does what "
                    f"{stage}{kind}{mb}, action {at}, has done"
                ],
            )


def elsewhere(case: Case, rank: int, at: int) -> Iterator[Fault]:
    """Of another rank, of no stage that there is, of a microbatch that is not of its chain."""
    step, stages = case.rows[rank][at], len(case.rank_of)
    share = case.num_microbatches // len(case.chains)
    other = (rank + 1) % len(case.rows)
    rows = edited(case, rank, at)
    rows[other].insert(0, step)
    owned = [f"belongs on rank {rank}, which holds stage {stage}" for stage, _, _ in parts(step)]
    texts = ["{}{}{}".format(*part) for part in parts(step)]
    if other != rank:
        yield Fault(
            f"{step} on rank {other}",
            rows,
            [f"rank {other}, action 0: {t} {o}" for t, o in zip(texts, owned, strict=True)],
        )
    if len(parts(step)) > 1:
        return
    ((stage, kind, mb),) = parts(step)
    chain = next(number for number, stages in enumerate(case.chains) if stage in stages)
    first = chain * share
    for wrong, why in (
        (f"{stages}{kind}{mb}", f"of stage {stages}; the last stage is {stages - 1}"),
        (
            f"{stage}{kind}{case.num_microbatches}",
            f"of microbatch {case.num_microbatches}; "
            f"stage {stage} does {first} to {first + share - 1}",
        ),
    ):
        yield Fault(
            f"{wrong} for {step}",
            edited(case, rank, at, put=(wrong,)),
            [f"rank {rank}, action {at}: {wrong} is {why}"],
        )


def halved(case: Case, rank: int, at: int) -> Iterator[Fault]:
    """A B that becomes an I or a W without the other half."""
    ((stage, kind, mb),) = parts(case.rows[rank][at])
    for half in "IW" if kind == "B" else "":
        rows = edited(case, rank, at, put=(f"{stage}{half}{mb}",))
        yield Fault(f"{half} for {case.rows[rank][at]}", rows, [absent(rows, rank, stage, mb)])


@every_schedule
def test_one_fault_is_refused_for_what_it_is(name: str) -> None:
    found = small(name)
    assert said(built(found)) == []
    tried = 0
    for fault in faults(found):
        assert said(built(found, fault.rows)) == fault.problems, fault.what
        tried += 1
    assert tried >= 5 * sum(map(len, found.rows))


@every_schedule
def test_two_steps_swapped_are_refused_where_the_order_matters(name: str) -> None:
    found = small(name)
    outcomes = set()
    for rank, row in enumerate(found.rows):
        for first in range(len(row)):
            for second in range(first + 1, len(row)):
                rows = edited(found, rank, first, put=(row[second],))
                rows[rank][second] = row[first]
                outcomes.add(judged(found, rows))
    assert outcomes >= {"sound", "order"}


def test_a_rank_may_run_ahead_but_not_ahead_of_what_it_waits_for() -> None:
    assert judged(LINE, [list(LINE.rows[0]), ["1F1", "1F0", "1B0", "1B1"]]) == "sound"
    assert judged(LINE, [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]) == "deadlock"


def own_order(rows: Rows) -> list[str]:
    """The steps that stand before what they need of their own stage and microbatch."""
    found = []
    for rank, row in enumerate(rows):
        where = {part: at for at, step in enumerate(row) for part in parts(step)}
        for at, step in enumerate(row):
            for stage, kind, mb in parts(step):
                need = where.get((stage, {"F": "", "W": "I"}.get(kind, "F"), mb), -1)
                if need > at:
                    found.append(
                        f"rank {rank}, action {at}: {step} comes before "
                        f"{row[need]}, which is action {need}"
                    )
    return found


def judged(case: Case, rows: Rows) -> str:
    """What the oracle says of complete rows, the validator agreeing."""
    expected = own_order(rows)
    if expected:
        assert said(built(case, rows)) == expected
        return "order"
    mine = Case(rows, case.rank_of, case.chains, case.num_microbatches)
    try:
        replay(mine)
    except Stuck:
        with pytest.raises(DeadlockError) as caught:
            validate(built(case, rows))
        check_cycle(mine, caught.value.problems)
        return "deadlock"
    assert said(built(case, rows)) == []
    return "sound"


WAIT = re.compile(r"rank (\d+), action (\d+): (\S+) waits for rank (\d+), action (\d+): (\S+)")


def check_cycle(case: Case, problems: list[str]) -> None:
    """Every wait that a deadlock report names is real, and they go round."""
    total = sum(map(len, case.rows))
    assert re.fullmatch(rf"deadlock after \d+ of {total} actions", problems[0])
    sources = waits_of(case)
    lines = [WAIT.fullmatch(line) for line in problems[1:]]
    assert lines
    for line, after in zip(lines, lines[1:] + lines[:1], strict=True):
        assert line is not None
        assert after is not None
        rank, at, step, other, where, waited = line.groups()
        assert case.rows[int(rank)][int(at)] == step
        assert case.rows[int(other)][int(where)] == waited
        needs = {part for own in parts(step) for need in sources(own) for part in need}
        assert needs & set(parts(waited)), f"{step} does not wait for {waited}"
        # The rank that would make it stands at or before it, and waits itself.
        assert after[1] == other
        assert int(after[2]) <= int(where)


# Any program, not only the shipped ones


def as_case(program: Program) -> Case:
    rows = [[str(step) for step in stream] for stream in program.ranks]
    place = program.placement
    return Case(rows, place.ranks, place.chains, program.num_microbatches)


@SETTINGS
@given(programs(max_ranks=4, max_microbatches=4))
def test_any_order_that_the_waits_allow_is_sound(program: Program) -> None:
    replay(as_case(program))
    assert validate(program) is program


@settings(SETTINGS, max_examples=400)
@given(programs(max_ranks=4, max_microbatches=3, sound=False))
def test_any_order_gets_the_oracles_verdict(program: Program) -> None:
    found = as_case(program)
    judged(found, [list(row) for row in found.rows])


def test_a_cycle_through_the_very_first_step() -> None:
    case = Case([["1F0", "1B0"], ["2F0", "2B0", "0F0", "0B0"]], (1, 0, 1), ((0, 1, 2),), 1)
    assert judged(case, [list(row) for row in case.rows]) == "deadlock"


@SETTINGS
@given(programs(max_ranks=3, max_microbatches=3), st.data())
def test_any_program_with_one_fault_is_refused_for_it(
    program: Program, data: st.DataObject
) -> None:
    found = as_case(program)
    fault = data.draw(st.sampled_from([*faults(found)]), label="fault")
    if all(kind == "F" for row in fault.rows for step in row for _, kind, _ in parts(step)):
        return  # without its only backward a program is a forward-only one
    assert said(built(found, fault.rows)) == fault.problems, fault.what


# What is said, in full

LINE = Case([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]], (0, 1), ((0, 1),), 2)


def refused(rows: Rows) -> str:
    with pytest.raises(ProgramError) as caught:
        validate(built(LINE, rows))
    return str(caught.value)


def test_one_problem_is_one_line() -> None:
    rows = [["0F0", "0F1", "0B0"], ["1F0", "1B0", "1F1", "1B1"]]
    assert refused(rows) == "mine: rank 0: 0B1 is missing (or 0I1 and 0W1)"


def test_several_problems_are_a_line_each_and_five_are_shown() -> None:
    assert refused([["0F0", "0B1"], ["1F0", "1B0", "1B1"]]) == (
        "mine:\n"
        "  rank 0: 0B0 is missing (or 0I0 and 0W0)\n"
        "  rank 0: 0F1 is missing\n"
        "  rank 1: 1F1 is missing"
    )
    assert refused([[], ["1B1"]]).splitlines()[5:] == ["  rank 1: 1F0 is missing", "  and 2 more"]


def test_a_deadlock_names_the_cycle() -> None:
    rows = [["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]]
    assert refused(rows) == (
        "mine:\n"
        "  deadlock after 1 of 8 actions\n"
        "  rank 0, action 1: 0B0 waits for rank 1, action 3: 1B0\n"
        "  rank 1, action 0: 1F1 waits for rank 0, action 2: 0F1"
    )


def test_a_rank_can_wait_for_itself() -> None:
    both = Program(
        "mine",
        1,
        Placement("", (0, 0), ((0, 1),)),
        (Stream.of(map(parse, ["1F0", "0F0", "1B0", "0B0"])),),
    )
    assert said(both) == [
        "deadlock after 0 of 4 actions",
        "rank 0, action 0: 1F0 waits for rank 0, action 1: 0F0",
    ]


@pytest.mark.parametrize(
    "kinds",
    [
        (Kind.FULL_BACKWARD, Kind.FORWARD),
        (Kind.FORWARD, Kind.BACKWARD_WEIGHT),
        (Kind.FORWARD, Kind.FORWARD),
        (Kind.FULL_BACKWARD, Kind.FULL_BACKWARD),
    ],
)
def test_a_pair_is_a_forward_and_a_backward(kinds: tuple[Kind, Kind]) -> None:
    pair = Overlap(Action(0, kinds[0], 1), Action(0, kinds[1], 0))
    program = Program(
        "mine", 2, loop(1, 1), (Stream.of([parse("0F0"), pair, *map(parse, ["0B1"])]),)
    )
    assert said(program) == [f"rank 0, action 1: {pair} is no pair of an F and a B or I"]


def test_a_chain_does_its_own_microbatches() -> None:
    rows = [["0F0", "3F1", "0B0", "3B1"], ["1F1", "2F1", "1B1", "2B1"]]
    streams = tuple(Stream.of(map(parse, row)) for row in rows)
    assert said(Program("mine", 2, both_ways(2, 2), streams)) == [
        "rank 1, action 0: 1F1 is of microbatch 1; stage 1 does 0 to 0",
        "rank 1, action 2: 1B1 is of microbatch 1; stage 1 does 0 to 0",
    ]


def test_forward_only_programs_need_no_backward() -> None:
    rows = [["0F0", "0F1"], ["1F0", "1F1"]]
    assert said(built(LINE, rows)) == []
    assert said(built(LINE, [["0F0", "0F1"], ["1F0"]])) == ["rank 1: 1F1 is missing"]


def test_the_validator_does_not_look_at_communication() -> None:
    rows = [["0F0", "0F1", "0SEND_F0", "0B0", "0B1"], list(LINE.rows[1])]
    assert said(built(LINE, rows)) == []


def test_text_and_parts_agree() -> None:
    """The oracle reads the text by itself; this is what ties the two."""
    assert ACTION.findall("(3F5;0B2)OVERLAP_F_B") == [("3", "F", "5"), ("0", "B", "2")]
