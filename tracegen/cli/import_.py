"""`tracegen import`: PyTorch's schedule CSV, or the profiles of a run, in; a trace out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import progress
from tracegen.cli.common import console, cost_options, costs_of, not_itself, say, warn
from tracegen.cli.sections import Sectioned

if TYPE_CHECKING:
    from tracegen.timeline import Timeline

SHOWN = 10


@click.command("import", cls=Sectioned)
@click.argument("files", nargs=-1, required=True, metavar="CSV | DIR | FILE...")
@click.option(
    "--rank-map",
    metavar="RANKS",
    help="The run's ranks that are the pipeline's, in order: 0,4,8,12; or dp=2,pp=4,tp=2.",
)
@click.option(
    "--name-pattern",
    metavar="REGEX",
    help="What ranges of actions are called: with named groups stage, op and mb.",
)
@click.option("--replay", is_flag=True, help="Show what replay predicts beside what was measured.")
@cost_options
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="FILE.json of a CSV, NAME.tiling.json of a profile, unless given; - is stdout.",
)
def command(
    files: tuple[str, ...],
    rank_map: str | None,
    name_pattern: str | None,
    replay: bool,
    output: str | None,
    **options: Any,
) -> None:
    r"""Read PyTorch's schedule CSV, or profiles of a run, say what it is, and write its trace.

    \b
        tracegen import zbv.csv
        tracegen import profiles/
        tracegen import 'profiles/*.json.gz' --replay -o run.json
        tracegen import run.sqlite --name-pattern 's(?P<stage>\d+) (?P<op>\w+) mb(?P<mb>\d+)'

    Of a CSV, where the stages are is inferred from the rows.

    Of profiles, one a rank: torch.profiler's traces, nsys exports (SQLite) with NVTX ranges, or
    the event_times_*.json that Megatron-LM writes with the timers of PP-Schedule-Visualization.
    Ranks are put on one time axis by their messages. What is measured is how large the bubble
    is, why ranks wait, and which schedule it is. Kernels of a GPU are read as the formats
    document them; that has not been tried on a GPU's profile yet.
    """
    if len(files) == 1 and files[0].endswith(".csv"):
        if rank_map is not None or name_pattern is not None or replay:
            raise click.UsageError("--rank-map, --name-pattern and --replay are about profiles")
        _csv(Path(files[0]), output, options)
        return
    given = [name for name, value in options.items() if value not in (None, ())]
    if given:
        name = given[0].removesuffix("_us").replace("_", "-")
        raise click.UsageError(f"--{name} is about a CSV; the costs of a profile are measured")
    _profile(files, rank_map, name_pattern, replay, output)


def _csv(file: Path, output: str | None, options: dict[str, Any]) -> None:
    from tracegen import compiler, emit
    from tracegen.engine import replay

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


def _profile(
    files: tuple[str, ...],
    rank_map: str | None,
    name_pattern: str | None,
    replay: bool,
    output: str | None,
) -> None:
    from tracegen import emit
    from tracegen.profiles.reading import read

    target = output or f"{_stem(files[0])}.tiling.json"
    for file in files:
        not_itself(file, target)
    with progress.at("reading"):
        line = read(files, rank_map, name_pattern)
    what = files[0] if len(files) == 1 else f"{len(files)} files"
    warn(what, line)
    emit.write(line if replay else replace(line, beside=None), target)
    _print(what, line, replay, to_stderr=target == "-")
    if target != "-":
        say(f"wrote {target}")


def _stem(name: str) -> str:
    """The name of a folder or file, less its endings: of `a/run.pt.trace.json.gz` a `run`."""
    return Path(name).resolve().name.split(".")[0].replace("*", "") or "profile"


def _print(what: str, line: Timeline, replay: bool, to_stderr: bool) -> None:
    """What it is, how it was put together, the figures, and why ranks wait."""
    from tracegen import metrics, view, view_idle
    from tracegen.profiles.nearest import known

    program, said = line.program, line.config.get("executed", {})
    count = said.get("files", 1)
    files = "1 file" if count == 1 else f"{count} files"
    of = f"{said.get('profile', 'chrome trace')}, {files}: "
    found = known(line)
    click.echo(
        f"{what}: {of}p={program.num_ranks} m={program.num_microbatches} "
        f"v={program.stages_per_rank}, {program.placement.name} placement; {found}",
        err=to_stderr,
    )
    for text in found.differences[:SHOWN]:
        click.echo(f"  {text}", err=to_stderr)
    if (more := len(found.differences) - SHOWN) > 0:
        click.echo(f"  and {more} more", err=to_stderr)
    for text in _how(said):
        click.echo(text, err=to_stderr)
    out = console(stderr=to_stderr)
    out.print(view.Tiling(line))
    for figure in view.figures(line, out.width):
        out.print(figure)
    view_idle.explain(line, out)
    if replay:
        from tracegen.profiles.reading import replayed

        predicted = replayed(line)
        click.echo(
            f"\nreplay of its own costs: makespan {view.duration(predicted.makespan_ns)}, "
            f"bubble ratio {metrics.bubble_ratio(predicted):.2%}; measured "
            f"{view.duration(line.makespan_ns)}, {metrics.bubble_ratio(line):.2%}",
            err=to_stderr,
        )


def _how(said: dict[str, Any]) -> list[str]:
    """What tiles are made of, how many steps there are, and how far clocks may be off."""
    lines = list(said.get("clocks", ()))
    if "tiles_of" in said:
        lines.append(f"tiles: {said['tiles_of']}")
    if (steps := said.get("steps_measured", 1)) > 1:
        shown = [f"{us / 1000:.3f}" for us in said["makespans_us"][:SHOWN]]
        spread = ", ".join(shown + (["..."] if steps > SHOWN else []))
        lines.append(f"steps: {steps}, of which this is the median; makespans in ms: {spread}")
    return lines
