"""`tracegen calibrate`: measure the costs of a model's stages, for replays to come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli.common import console, program_of, say, size_options
from tracegen.cli.execute import model_options, options_of, take, warn_of_turns
from tracegen.cli.sections import Sectioned

if TYPE_CHECKING:
    from rich.table import Table

    from tracegen.costs import Costs
    from tracegen.execute.calibrate import Calibration
    from tracegen.ir import Program


@click.command("calibrate", cls=Sectioned)
@click.option("-s", "--schedule", required=True, metavar="NAME|FILE", help="Whose stages.")
@size_options
@model_options
@click.option("--alone", is_flag=True, help="Each distinct stage alone, on one device.")
@click.option("-o", "--output", metavar="FILE", help="costs.toml unless given; - is stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Neither table nor messages.")
def command(schedule: str, alone: bool, output: str | None, quiet: bool, **options: Any) -> None:
    r"""Measure the costs of a model's stages and write them for `tracegen run --costs`.

    The schedule is executed, once as it is and once with its backwards split or joined, so
    that B is known beside I and W. The table has each op's mean over the microbatches, its
    median over the steps; the file adds to each what a rank spends after it. With --alone each
    distinct stage runs by itself: one device then predicts a pipeline of many ranks, less what
    goes between them.

    \b
        tracegen calibrate -s 1f1b -p 2 --layers 8 --hidden 256
        tracegen calibrate -s dualpipev -p 64 --alone -o costs.toml
        tracegen run -s dualpipev -p 64 --costs costs.toml
    \b
    --device cuda has not been run on a GPU yet.
    """
    from tracegen.execute import calibrate
    from tracegen.files import check_target, write_text

    asked = options_of(take(options))
    program = program_of(schedule, options)
    target = output or "costs.toml"
    check_target(target)
    say(f"calibrating on {asked.device}", quiet)
    warn_of_turns(1 if alone else program.num_ranks, asked, quiet)
    found = (calibrate.alone if alone else calibrate.in_place)(program, asked)
    costs = found.for_program(program)
    write_text(target, [text(found, costs, program)])
    if target != "-":
        say(f"wrote {target}", quiet)
    if not quiet:
        console(stderr=target == "-").print(table(found, program))


def text(found: Calibration, costs: Costs, program: Program) -> str:
    """The costs as TOML."""
    how = "each stage alone" if found.alone else f"while executing {program.name}"
    lines = [
        f"# Measured on {found.device}, {how}, in us: means over microbatches, medians over steps.",
        f"# {program.num_stages} stages of {program.name}, p = {program.num_ranks}.",
    ]
    if found.costs.gap_ns:
        lines.append("# Each with what a rank spends after it before its next action.")
    if any("split_us" in entry for entry in costs.stage.values()):
        lines.append("# B lasts b, I lasts i, W lasts b - i + split.")
    given = costs.given()
    stages = given.pop("stage", {})
    if found.boundary_bytes:
        given["boundary_bytes"] = [
            found.boundary_bytes[stage] for stage in range(program.num_stages)
        ]
    lines += [f"{name} = {value}" for name, value in given.items()]
    for stage, entry in stages.items():
        lines += ["", f"[stage.{stage}]", *(f"{name} = {value}" for name, value in entry.items())]
        if ratio := found.costs.split_ratio(int(stage)):
            lines.append(f"# (I + W) / B = {ratio:.3f}")
    return "\n".join(lines) + "\n"


def table(found: Calibration, program: Program) -> Table:
    """Every op of every stage, alike ones in one row, and what splitting its backward costs."""
    from rich.table import Table

    from tracegen.execute.op_costs import NAMES

    kinds = [kind for kind in NAMES if any(k == kind for k, _ in found.costs.ns)]
    shown = Table(box=None, pad_edge=False, header_style="")
    for name in ("stage", *(NAMES[kind] for kind in kinds), "(I+W)/B", "activations"):
        shown.add_column(name, justify="right", no_wrap=True)
    for cells, run in groupby(
        range(program.num_stages), key=lambda stage: tuple(_cells(found, stage, kinds))
    ):
        first, *rest = run
        shown.add_row(f"{first}-{rest[-1]}" if rest else str(first), *cells)
    return shown


def _cells(found: Calibration, stage: int, kinds: list[int]) -> Iterator[str]:
    for kind in kinds:
        ns = found.costs.ns.get((kind, stage))
        yield "" if ns is None else f"{ns / 1e6:.3f} ms"
    ratio = found.costs.split_ratio(stage)
    yield "" if ratio is None else f"{ratio:.2f}"
    held = found.costs.activation_bytes.get(stage)
    yield "" if held is None else f"{held / 1e6:.2f} MB"
