"""`tracegen check`: is it sound?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import progress
from tracegen.cli.common import (
    SIZES,
    cost_options,
    costs_of,
    is_trace,
    mode_of,
    program_of,
    read_trace,
    refuse,
    replay_options,
    size_options,
)
from tracegen.cli.replaying import limit_of, memory_options
from tracegen.cli.sections import Sectioned
from tracegen.errors import DeadlockError, ProgramError

if TYPE_CHECKING:
    from tracegen.costs import Costs
    from tracegen.ir import Program


@click.command("check", cls=Sectioned)
@click.argument("schedule_or_file")
@size_options
@memory_options
@replay_options
@cost_options
@click.option("--json", "as_json", is_flag=True, help="The verdict as one JSON object.")
def command(schedule_or_file: str, as_json: bool, **options: Any) -> None:
    r"""Is a schedule, CSV or trace complete, in order and free of deadlock?

    \b
        tracegen check 1f1b -p 4 -m 8 --p2p blocking --p2p-order naive
        tracegen check zb-h2 -p 4 -m 8 --memory-limit 6
        tracegen check trace.json --memory-limit 80GiB --memory-at input

    With --p2p blocking: does it finish on such a transport? With --memory-limit: which action
    takes more? Exit code 0 if all is well, 1 if it was read and is not, 2 if it could not be read.
    """
    problems: list[str] = []
    if options["p2p"] != "blocking":
        refuse(("p2p_order", "dispatch", "steps", "sync"), "only --p2p blocking is replayed here")
    limit = limit_of(options)
    try:
        with progress.at(f"checking {schedule_or_file}"):
            program, costs = _read(schedule_or_file, options)
        if options["p2p"] == "blocking":
            from tracegen.engine import replay

            replay(program, costs, **mode_of(options).given())
    except ProgramError as error:
        problems, message = error.problems, str(error)
    else:
        message = (
            f"{schedule_or_file}: sound: p={program.num_ranks} m={program.num_microbatches} "
            f"v={program.stages_per_rank}, {program.placement.name} placement"
        )
        if limit is not None:
            from tracegen import memory

            most = memory.limit(*limit, costs)
            problems = list(memory.over_limit(program, costs, most))
            if problems:
                message = "\n".join(f"{schedule_or_file}: {text}" for text in problems)
    if as_json:
        verdict = {"schema_version": 1, "sound": not problems, "problems": problems}
        click.echo(json.dumps(verdict))
    else:
        click.echo(message)
    if problems:
        raise SystemExit(1)


def _read(name: str, options: dict[str, Any]) -> tuple[Program, Costs]:
    """The program, sound, and its costs: a trace's own where no file gives others."""
    if not is_trace(name):
        program = program_of(name, options)
        return program, costs_of(options, program)
    from tracegen.passes.validate import validate

    refuse(SIZES, f"{name} has sizes of its own")
    line = read_trace(name)
    if line.hangs:
        raise DeadlockError(line.program.name, ["deadlock", *map(str, line.hangs)])
    return validate(line.program), costs_of(options, line.program, line.costs)
