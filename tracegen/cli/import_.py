"""`tracegen import`: PyTorch's schedule CSV in, a trace out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tracegen.cli.common import cost_options, costs_of, say


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@cost_options
@click.option("-o", "--output", metavar="FILE", help="FILE.json unless given; - is stdout.")
def command(file: Path, output: str | None, **options: Any) -> None:
    """Read PyTorch's schedule CSV, say what it is, and write its trace.

    Where the stages are is inferred from the rows.
    """
    from tracegen import compiler, emit
    from tracegen.engine import replay

    if file.suffix != ".csv":
        raise click.UsageError(
            f"{file}: only a schedule CSV can be imported; its name ends in .csv"
        )
    program = compiler.compile(file, communication=False)
    target = output or str(file.with_suffix(".json"))
    emit.write(replay(program, costs_of(options, program)), target)
    known = " or ".join(compiler.recognise(program))
    click.echo(
        f"{file}: p={program.num_ranks} m={program.num_microbatches} "
        f"v={program.stages_per_rank}, {program.placement.name} placement; "
        f"{f'this is {known}' if known else 'no schedule known by name'}",
        err=target == "-",
    )
    if target != "-":
        say(f"wrote {target}")
