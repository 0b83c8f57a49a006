"""`tracegen check`: is it sound?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tracegen.cli.common import is_trace, program_of, size_options
from tracegen.errors import ProgramError


@click.command("check")
@click.argument("schedule_or_file")
@size_options
@click.option("--json", "as_json", is_flag=True, help="The verdict as one JSON object.")
def command(schedule_or_file: str, as_json: bool, **options: Any) -> None:
    """Is a schedule, CSV or trace complete, in order and free of deadlock?

    Exit code 0 if it is, 1 if it was read and is not, 2 if it could not be read.
    """
    problems: list[str] = []
    try:
        if is_trace(schedule_or_file):
            from tracegen.passes.validate import validate
            from tracegen.readers.chrome import read

            program = validate(read(Path(schedule_or_file)).program)
        else:
            program = program_of(schedule_or_file, options)
    except ProgramError as error:
        problems, message = error.problems, str(error)
    else:
        message = (
            f"{schedule_or_file}: sound: p={program.num_ranks} m={program.num_microbatches} "
            f"v={program.stages_per_rank}, {program.placement.name} placement"
        )
    if as_json:
        verdict = {"schema_version": 1, "sound": not problems, "problems": problems}
        click.echo(json.dumps(verdict))
    else:
        click.echo(message)
    if problems:
        raise SystemExit(1)
