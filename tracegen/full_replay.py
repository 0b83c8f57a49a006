"""The replay in every other mode than the plain one: DESIGN's rules 7 to 9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracegen import deadlock, dynamic, full_line, full_work
from tracegen.clock import Run
from tracegen.costs import Costs
from tracegen.errors import CostError, DeadlockError
from tracegen.ir import (
    KIND_MASK,
    REDUCE_GRAD,
    RESHARD,
    UNSHARD,
    Program,
    Stream,
)
from tracegen.memory import peaks
from tracegen.mode import Mode
from tracegen.passes.communication import add_communication
from tracegen.passes.messages import (
    add_fused,
    add_naive,
    check_messages,
    has_messages,
    without_messages,
)
from tracegen.passes.whole_stage import add_zero
from tracegen.recompute import marked
from tracegen.repeat import repeat
from tracegen.tail import tails
from tracegen.timeline import Timeline
from tracegen.times import Times
from tracegen.work import Work

PLACED = {"torch": add_communication, "naive": add_naive, "fused": add_fused}


def replay(
    program: Program, costs: Costs, times: Times, mode: Mode, run: Callable[[Work], Run]
) -> Timeline:
    """`engine.replay` of a validated program.

    Raises:
        ProgramError: if the program's own SEND and RECV are not those it needs.
        DeadlockError: with the timeline up to where it hangs.
    """
    line, cycle = until_it_hangs(program, costs, times, mode, run)
    if cycle:
        raise DeadlockError(program.name, cycle, line)
    if mode.steps > 1:
        alone = replay(program, costs, times, replace(mode, steps=1), run)
        line = replace(line, first_step_ns=alone.makespan_ns)
    return line


def until_it_hangs(
    program: Program, costs: Costs, times: Times, mode: Mode, run: Callable[[Work], Run]
) -> tuple[Timeline, list[str]]:
    """The timeline, of a program that cannot finish up to where it hangs, and what hangs it."""
    lowered = prepare(program, times, mode)
    full = full_work.lower(lowered, times, mode.blocking, mode.sync)
    done = run(full.work)
    found = full_line.columns(full, done, times, mode.steps)
    line = Timeline(
        found.program,
        costs,
        found.start,
        found.end,
        found.blocker,
        found.busy,
        peaks(found.program, costs),
        found.spans,
        {"replay": mode.given()} if mode != Mode() else {},
        held=found.held,
        collectives=found.collectives,
        source=program,
        hangs=deadlock.hangs(full, done, found.stuck),
    )
    line = marked(line, times)
    return line, deadlock.problems(full, done, found.stuck) if line.hangs else []


def prepare(program: Program, times: Times, mode: Mode) -> Program:
    """All that the ranks do, in every step: what the mode adds to the program.

    Raises:
        ProgramError: if the program's own SEND and RECV are not those it needs.
        CostError: if the mode and the costs contradict each other.
    """
    if times.zero is not None:
        return _with_zero(program, times, times.zero, mode)
    if mode.dynamic:
        compute = program.compute_only()
        after = tails(compute, times)
        return dynamic.dispatch(compute, times, mode.steps, after, mode.sync)
    program = program.with_ranks(_what_lasts(stream, times) for stream in program.ranks)
    if not mode.blocking:
        program = without_messages(program)
    elif mode.p2p_order is None and has_messages(program):
        check_messages(program)
    else:
        program = PLACED[mode.p2p_order or "torch"](program)
    return repeat(program, mode.steps, tails(program, times))


def _with_zero(program: Program, times: Times, zero: int, mode: Mode) -> Program:
    """With what runs on the ranks' communication streams."""
    for asked, text, why in (
        (mode.blocking, "p2p = blocking", "messages and collectives would have no common order"),
        (mode.dynamic, "dispatch = dynamic", "collectives stand in the order of the program"),
        (mode.sync, "sync", "its barriers wait for the compute streams alone"),
    ):
        if asked:
            raise CostError(f"zero = {zero} with {text}: {why}; leave one out")
    program = add_zero(without_messages(program), zero)
    program = program.with_ranks(_what_lasts(stream, times) for stream in program.ranks)
    return repeat(program, mode.steps, tails(program, times))


def _what_lasts(stream: Stream, times: Times) -> Stream:
    """The stream without RESHARD, and without UNSHARD and REDUCE_GRAD that cost nothing."""
    whole = (UNSHARD, RESHARD, REDUCE_GRAD)
    return stream.kept(
        [
            at
            for at, code in enumerate(stream.codes)
            if code & KIND_MASK not in whole or times.whole_stage(code)
        ]
    )
