"""`tracegen export`: a schedule as PyTorch's schedule CSV."""

from __future__ import annotations

from typing import Any

import click

from tracegen.cli.common import check_ending, not_itself, program_of, say, size_options


@click.command("export")
@click.argument("schedule")
@size_options
@click.option("--comms", is_flag=True, help="With SEND and RECV, UNSHARD, RESHARD and REDUCE_GRAD.")
@click.option("-o", "--output", default="-", metavar="FILE", help="stdout unless given.")
def command(schedule: str, comms: bool, output: str, **options: Any) -> None:
    """Write a schedule as PyTorch's schedule CSV: one row a rank.

    Without --comms it is what torch reads as `compute_only` (and torchtitan as
    pipeline_parallel_schedule_csv), with it as `compute_comms`.
    """
    from tracegen import torch_csv
    from tracegen.files import write_text
    from tracegen.passes.communication import add_communication
    from tracegen.passes.whole_stage import add_whole_stage

    check_ending(output, "export", ".csv")
    not_itself(schedule, output)
    program = program_of(schedule, options).compute_only()
    if comms:
        program = add_communication(add_whole_stage(program))
    write_text(output, [torch_csv.write(program)])
    if output != "-":
        say(f"wrote {output}")
