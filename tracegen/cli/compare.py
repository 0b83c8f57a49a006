"""`tracegen compare`: schedules of one model side by side, or over a grid of sizes and costs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import progress
from tracegen.cli.choosing import (
    base_of,
    choosing_options,
    footnote,
    in_bytes,
    layers_of,
    print_layers,
)
from tracegen.cli.common import check_ending, console, say
from tracegen.cli.counts import COUNT
from tracegen.cli.sections import Sectioned

if TYPE_CHECKING:
    from rich.console import Console

    from tracegen.analysis.compare import Comparison
    from tracegen.analysis.grid import Axis, Base
    from tracegen.analysis.measure import Figures, Impossible, Size
    from tracegen.analysis.sweep import Row

SWEPT = {"p": "ranks", "m": "microbatches", "v": "stages_per_rank"}
SORTS = (
    "makespan",
    "ratio",
    "overhead",
    "span-rate",
    "input",
    "weight",
    "weights",
    "transfers",
    "exposed",
)


@click.command("compare", cls=Sectioned)
@click.option(
    "-s", "--schedule", "names", multiple=True, metavar="A,B,..", help="Which; all unless given."
)
@click.option("-p", "--ranks", type=COUNT, metavar="P", help="Ranks; 4 unless given.")
@click.option(
    "-m", "--microbatches", type=COUNT, metavar="M", help="Microbatches; 2p unless given."
)
@click.option("-v", "--stages-per-rank", type=COUNT, metavar="V", help="Where it is a choice.")
@click.option(
    "--pipes",
    type=click.IntRange(min=1),
    metavar="N",
    help="The same for pipes that cross (chimera).",
)
@choosing_options
@click.option("--sort", "by", type=click.Choice(SORTS), help="By makespan unless given.")
@click.option("--json", "as_json", is_flag=True, help="The figures as one JSON object.")
@click.option(
    "--save-costs",
    metavar="TOML",
    help="Write the costs of the one schedule's stages, for --costs.",
)
@click.option("--sweep", "swept", multiple=True, metavar="NAME=VALUES", help="See above.")
@click.argument("more", nargs=-1, metavar="[NAME=VALUES]...")
@click.option("-o", "--output", metavar="FILE", help="A sweep's rows: .csv, .json or .parquet.")
@click.option("--bubble-svg", metavar="FILE", help="Draw a sweep's bubbles against m.")
@click.option("--frontier-svg", metavar="FILE", help="Draw its time against its memory.")
@click.option("--theme", type=click.Choice(["paper", "dark"]), help="Of those pictures; paper.")
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), metavar="N", help="Processes; one a core."
)
def command(
    names: tuple[str, ...],
    swept: tuple[str, ...],
    more: tuple[str, ...],
    by: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    r"""Hold schedules of one model against each other.

    Costs are those of a 1F1B stage, a p-th of the model: a schedule that cuts the model into
    n stages gets p/n of each, so that all do the same work. Activations and weights are in
    1F1B stages, or in GiB where the costs give bytes.

    With --sweep every combination of values is measured, on all cores: p, m, v, f, b, i, w,
    fb, r, alpha, bandwidth, bytes, w-share; ratios of times (f/b=0.5 makes f half of b); of a
    model seq, microbatch-size, data and zero. Values are 4,8 or 4..64 or 4..64*2 or 4..64+4.

    \b
        tracegen compare -p 8 -m 32
        tracegen compare --schedule 1f1b,zb-h1,zbv -p 8 -m 32 --f 900 --b 1900 --alpha 15
        tracegen compare --schedule gpipe,1f1b --sweep m=4..64 p=4,8 -o rows.csv
        tracegen compare --schedule 1f1b --model-layers 32 --hidden 4096 --seq 4096 --flops 400
            --recompute full --save-costs costs.toml
        tracegen run --schedule 1f1b --costs costs.toml
    """
    from tracegen.analysis.compare import schedules

    chosen = schedules(",".join(names) if names else None)
    texts = (*swept, *more)
    drawn = options["bubble_svg"] or options["frontier_svg"]
    if options["theme"] is not None and not drawn:
        raise click.UsageError("--theme is about a picture; add --bubble-svg or --frontier-svg")
    if texts:
        if not swept:
            takes = "what is swept follows --sweep" if "=" in more[0] else "schedules follow -s"
            example = "--sweep m=8,16 p=4,8" if "=" in more[0] else "-s 1f1b,zb-h1"
            raise click.UsageError(f"{more[0]!r}: {takes}, as in {example}")
        if options["save_costs"] is not None:
            raise click.UsageError("--save-costs is of one size; leave --sweep out")
        _check_stdout(as_json, options, ("output", "bubble_svg", "frontier_svg"))
        _sweep(chosen, texts, by, as_json, options)
        return
    _check_stdout(True, options, ("save_costs",))
    for name in ("output", "bubble_svg", "frontier_svg", "jobs"):
        if options[name] is not None:
            raise click.UsageError(f"--{name.replace('_', '-')} is about a sweep; add --sweep")
    _compare(chosen, by or "makespan", as_json, options)


def _check_stdout(taken: bool, options: dict[str, Any], names: tuple[str, ...]) -> None:
    """Refuse what would come one into the other on stdout.

    Args:
        taken: whether figures go there anyhow.
        options: of the command.
        names: those that name what is written.
    """
    there = ["the figures"] * taken
    there += [f"--{name.replace('_', '-')} -" for name in names if options[name] == "-"]
    if len(there) > 1:
        raise click.UsageError(
            f"{' and '.join(there)} both want stdout; give {there[1].removesuffix(' -')} a file"
        )


def _size(options: dict[str, Any]) -> Size:
    from tracegen.analysis.measure import Size

    p = options["ranks"] or 4
    m = options["microbatches"] or 2 * p
    return Size("", p, m, options["stages_per_rank"], options["pipes"])


def _compare(chosen: list[str], by: str, as_json: bool, options: dict[str, Any]) -> None:
    from dataclasses import replace

    from tracegen.analysis import tables
    from tracegen.analysis.compare import compare

    size = _size(options)
    base = base_of(options, None)
    sizes = [replace(size, schedule=name) for name in chosen]
    if (target := options["save_costs"]) is not None:
        _save_costs(sizes, base, target)
    with progress.at("comparing"):
        found = compare(sizes, lambda one: base.source(one.p), by)
    if as_json:
        request = {"p": size.p, "m": size.m, "unit": _unit(base), **layers_of(base, found.rows)}
        click.echo(json.dumps(tables.comparison_json(found, request, by), allow_nan=False))
    else:
        _show(console(), found, f"p={size.p} m={size.m}", by, base)
    if not found.rows:
        raise SystemExit(2)


def _show(out: Console, found: Comparison, size: str, by: str, base: Base) -> None:
    from tracegen.analysis import tables

    if found.rows:
        out.print(f"{size}, sorted by {by}; * the best")
        out.print(tables.table(found, in_bytes(base), out.width, by))
        out.print(footnote(base))
        print_layers(out, base, found.rows)
    if found.impossible:
        out.print("not possible:")
        out.print(tables.impossible(found.impossible))


def _save_costs(sizes: list[Size], base: Base, target: str) -> None:
    from tracegen.analysis import cost_file

    if len(sizes) != 1:
        raise click.UsageError(f"--save-costs is of one schedule, not {len(sizes)}; give one by -s")
    check_ending(target, "--save-costs", ".toml")
    cost_file.write(sizes[0], base.source(sizes[0].p), target)
    if target != "-":
        say(f"wrote {target}")


def _unit(base: Base) -> str:
    if in_bytes(base):
        return "bytes"
    return "stages" if base.per_stage else "1F1B stages"


def _sweep(
    chosen: list[str],
    texts: tuple[str, ...],
    by: str | None,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    from tracegen.analysis import grid, sweep, tables

    axes = list(grid.axes(texts))
    for axis in axes:
        if (one := SWEPT.get(axis.name)) and options[one] is not None:
            raise click.UsageError(f"-{axis.name} and --sweep {axis.name}=: leave one of them out")
    target = options["output"]
    _check_targets(options)
    size = _size(options)
    ranks = [axis.values for axis in axes if axis.name == "p"]
    base = base_of(options, int(min(ranks[0])) if ranks else None)
    sized = options["microbatches"] is not None or any(axis.name == "m" for axis in axes)
    if ranks and not sized:
        raise click.UsageError("p is swept and m is not said; give -m, or sweep it too")
    points = grid.points(chosen, axes, size)
    grid.check(axes, base, size.p)
    found = _measured(points, base, options["jobs"])
    rows = sweep.table(points, axes, found)
    count = f"{len(points)} point{'s' * (len(points) != 1)}"
    say(f"{count}, {len(points) - len(rows)} of them not possible")
    if rows:
        _write(rows, axes, base, options)
    if as_json:
        click.echo(json.dumps({"schema_version": 1, "rows": rows}, allow_nan=False))
    elif target is None and not (options["bubble_svg"] or options["frontier_svg"]):
        _print(rows, axes, found, by, base)
    else:
        for reason in tables.reasons(found):
            say(reason)
    if not rows:
        raise SystemExit(2)


def _check_targets(options: dict[str, Any]) -> None:
    """Refuse names that say another format than is written, before the work is done."""
    from tracegen.analysis import tables

    if options["output"] is not None:
        tables.check_target(options["output"])
    for name in ("bubble_svg", "frontier_svg"):
        if options[name] is not None:
            check_ending(options[name], f"--{name.replace('_', '-')}", ".svg")


def _measured(points: Any, base: Base, jobs: int | None) -> list[Figures | Impossible]:
    """The figures, with a bar on stderr while somebody looks."""
    from rich.progress import Progress

    from tracegen.analysis.sweep import sweep

    screen = console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("sweep", total=len(points))
        return sweep(points, base, jobs, lambda done: progress.update(task, completed=done))


def _write(rows: list[Row], axes: list[Axis], base: Base, options: dict[str, Any]) -> None:
    from tracegen.analysis import curves, tables
    from tracegen.ui import plot

    names = [axis.name for axis in axes]
    written = []
    if (target := options["output"]) is not None:
        tables.write(rows, target)
        written.append(target)
    if (target := options["bubble_svg"]) is not None:
        plot.write(curves.bubble(rows, names), target, options["theme"] or "paper")
        written.append(target)
    if (target := options["frontier_svg"]) is not None:
        plot.write(
            curves.frontier(rows, names, in_bytes(base)), target, options["theme"] or "paper"
        )
        written.append(target)
    for target in written:
        if target != "-":
            say(f"wrote {target}")


def _print(
    rows: list[Row],
    axes: list[Axis],
    found: list[Figures | Impossible],
    by: str | None,
    base: Base,
) -> None:
    from tracegen.analysis import tables
    from tracegen.analysis.compare import KEYS

    out = console()
    if rows:
        ordered = rows if by is None else sorted(rows, key=lambda row: row[KEYS[by]])
        out.print(tables.sweep_table(ordered, axes, in_bytes(base), out.width, by))
        out.print(footnote(base))
    for reason in tables.reasons(found):
        out.print(reason)
