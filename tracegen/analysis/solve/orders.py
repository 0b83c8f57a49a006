"""An order: when its actions run, what it holds, how good it is; from a Program and back."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate

from tracegen.analysis.solve.problem import KINDS, F, I, Objective, Order, Problem, W
from tracegen.analysis.solve.steady import period
from tracegen.ir import KIND_MASK, NO_MATE, STAGE_MASK, STAGE_SHIFT, Program, Stream, encode
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT

PENDING = -1


def ends(problem: Problem, order: Order) -> list[int] | None:
    """By action, when it ends in ns if each runs as early as it can; None if they deadlock.

    A rank's own F, I and W of a microbatch must be in this order already.
    """
    duration, source, lag = problem.duration, problem.source, problem.lag
    end = [PENDING] * len(duration)
    at, free = [0] * len(order), [0] * len(order)
    asleep: dict[int, int] = {}
    agenda = list(range(len(order) - 1, -1, -1))
    while agenda:
        rank = agenda.pop()
        actions, now = order[rank], free[rank]
        for position in range(at[rank], len(actions)):
            action = actions[position]
            wait = source[action]
            if wait >= 0:
                ready = end[wait]
                if ready < 0:
                    asleep[wait] = rank
                    at[rank] = position
                    break
                ready += lag[action]
                if ready > now:
                    now = ready
            end[action] = now = now + duration[action]
            if action in asleep:
                agenda.append(asleep.pop(action))
        else:
            at[rank] = len(actions)
        free[rank] = now
    return None if asleep else end


def value(problem: Problem, order: Order) -> int | None:
    """What the objective makes short, in ns; None for an order that deadlocks."""
    end = ends(problem, order)
    return None if end is None else value_of(problem, order, end)


def value_of(problem: Problem, order: Order, end: Sequence[int]) -> int:
    """As `value`, of an order whose actions end as given."""
    if problem.objective is Objective.MAKESPAN:
        return max(end[actions[-1]] for actions in order)
    if problem.objective is Objective.SPAN:
        duration = problem.duration
        return max(end[row[-1]] - end[row[0]] + duration[row[0]] for row in order)
    found = period(problem, order)
    assert found is not None
    return found


def peak(problem: Problem, row: Sequence[int]) -> int:
    """The most that a rank holds which does these actions."""
    return max(accumulate(problem.taken[action] for action in row))


def fits(problem: Problem, order: Order) -> bool:
    """Whether every rank has room for what it holds."""
    if problem.room is None:
        return True
    return all(fits_row(problem, row, rank) for rank, row in enumerate(order))


def fits_row(problem: Problem, row: Sequence[int], rank: int) -> bool:
    """Whether the rank has room for what it holds when it does these actions."""
    return problem.room is None or peak(problem, row) <= problem.room[rank]


def from_program(problem: Problem, program: Program) -> Order:
    """The program's order, each kind of each stage numbered anew in the order it has.

    A pair becomes its forward and then its backward; a full backward I and then W, or I and W
    one backward at the I, as the problem has it.
    """
    m, seen = problem.num_microbatches, [0] * (problem.num_stages * KINDS)
    order: Order = []
    for stream in program.compute_only().ranks:
        row: list[int] = []
        for _, code in stream.halves():
            stage, kind = code >> STAGE_SHIFT & STAGE_MASK, code & KIND_MASK
            for part in _PARTS[kind]:
                if part in problem.kinds:
                    slot = stage * KINDS + part
                    row.append(slot * m + seen[slot])
                    seen[slot] += 1
        order.append(row)
    return order


_PARTS = {FORWARD: (F,), FULL: (I, W), INPUT: (I,), WEIGHT: (W,)}


def to_program(problem: Problem, order: Order, name: str) -> Program:
    """The order as a program."""
    m, placement = problem.num_microbatches, problem.placement
    kinds = (FORWARD, INPUT, WEIGHT) if problem.split else (FORWARD, FULL)
    first = [placement.microbatches_of(c, m).start for c in placement.chain_of_stages()]
    streams = []
    for row in order:
        codes = array("q")
        for action in row:
            slot, n = divmod(action, m)
            stage, kind = divmod(slot, KINDS)
            codes.append(encode(stage, kinds[kind], first[stage] + n))
        streams.append(Stream(codes, array("q", [NO_MATE]) * len(codes)))
    return Program(name, m, placement, tuple(streams))
