"""Schedule -> Program: find it, number it, lower it, prove that it is sound."""

from __future__ import annotations

from dataclasses import replace
from operator import index
from pathlib import Path

from tracegen import registry
from tracegen.errors import ScheduleError
from tracegen.ir import Program
from tracegen.passes.validate import validate
from tracegen.schedule import Schedule


def compile(
    schedule: str | Path,
    num_ranks: int | None = None,
    num_microbatches: int | None = None,
    stages_per_rank: int | None = None,
    *,
    forward_only: bool = False,
    communication: bool = True,
) -> Program:
    """Compile a schedule to one action stream per rank.

    Args:
        schedule: a name, or the path of a .py file with a @schedule or of a .csv
            in torch's form (whose sizes are its own).
        num_ranks: p; that of the schedule's example, mostly 4, unless given.
        num_microbatches: m; unless given the example's, in proportion to p.
        stages_per_rank: v, where it is the user's choice (for chimera, the number of pipes).
        forward_only: leave the backward out, as in evaluation and inference.
        communication: add SEND and RECV. A replay with `p2p async` needs none.

    Raises:
        ScheduleError: if the schedule is unknown or not defined for this size.
        ProgramError: if the program is incomplete or out of order, or a CSV's messages or
            whole-stage actions are.
        DeadlockError: if it cannot finish.
        FileError: if the file cannot be read.
    """
    num_ranks, num_microbatches, stages_per_rank = (
        _whole(name, value)
        for name, value in (
            ("num_ranks", num_ranks),
            ("num_microbatches", num_microbatches),
            ("stages_per_rank", stages_per_rank),
        )
    )
    if from_csv := str(schedule).endswith(".csv"):
        from tracegen import torch_csv

        program, ours = torch_csv.read(Path(schedule)), False
        _same_size(program, p=num_ranks, m=num_microbatches, v=stages_per_rank)
    else:
        found = registry.find(str(schedule))
        ours = found.order.__module__.startswith(f"{registry.SHIPPED}.")
        program = _from_schedule(found, str(schedule), num_ranks, num_microbatches, stages_per_rank)
    if forward_only:
        from tracegen.passes.forward_only import keep_forward

        recipe = program.recipe and {**program.recipe, "forward_only": True}
        program = replace(keep_forward(program), recipe=recipe)
    # Of a schedule of our own it is known that its ranks never wait for each other in a cycle.
    validate(program, finishes=not ours)
    if from_csv:
        from tracegen.passes.whole_stage import check_whole_stage

        check_whole_stage(program)
    if program.has_communication:
        from tracegen.passes.messages import check_links, check_messages, has_messages

        if has_messages(program):
            check_links(check_messages(program))
    if not communication:
        return program
    from tracegen.passes.communication import add_communication

    return add_communication(program)


def _whole(name: str, value: int | None) -> int | None:
    try:
        return None if value is None else index(value)
    except TypeError:
        raise ScheduleError(f"{name} = {value!r} is no whole number; use one, such as 4") from None


def _from_schedule(
    found: Schedule, name: str, p: int | None, m: int | None, v: int | None
) -> Program:
    p = found.example[0] if p is None else p
    m = found.default_microbatches(p, v) if m is None else m
    pipe = found.pipe(p, m, v)
    recipe = {} if name.endswith(".py") else {"schedule": found.name}
    return Program(found.name, m, pipe.placement, tuple(found.streams(pipe)), recipe)


def _same_size(program: Program, **asked: int | None) -> None:
    has = {
        "p": program.num_ranks,
        "m": program.num_microbatches,
        "v": program.stages_per_rank,
    }
    for symbol, value in asked.items():
        if value not in (None, has[symbol]):
            raise ScheduleError(
                f"{program.name} has {symbol} = {has[symbol]}, not {value}; leave {symbol} out"
            )


def recognise(program: Program) -> list[str]:
    """The names of the schedules whose program this is, action for action, the shortest first.

    At a small size several are one.
    """
    named, _ = registry.available()
    names = []
    size = (program.num_ranks, program.num_microbatches, program.stages_per_rank)
    for found in named.values():
        try:
            pipe = found.pipe(*size)
            if pipe.placement.ranks == program.placement.ranks and (
                tuple(found.streams(pipe)) == program.compute_only().ranks
            ):
                names.append(found.name)
        except ScheduleError:
            continue
    return sorted(names, key=lambda name: (len(name), name))
