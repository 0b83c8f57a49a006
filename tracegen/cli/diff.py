"""`tracegen diff`: what changed between two traces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracegen.cli import progress
from tracegen.cli.common import TRACES, check_ending, is_schedule, not_itself, say, warn

if TYPE_CHECKING:
    from collections.abc import Iterable

FORMATS = ("text", "json", "github")


@click.command("diff")
@click.argument("golden")
@click.argument("new")
@click.option(
    "--times",
    default="exact",
    metavar="exact|5%|order-only",
    help="How far times may be apart: not at all (exact, the default), a duration by a share of "
    "its golden duration and a start by a share of the golden makespan, or however far.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", help="Of the report; text."
)
@click.option("--overlay", metavar="FILE", help="Write both tilings, with every difference marked.")
@click.option(
    "--name-pattern",
    metavar="REGEX",
    help="What slices of another tool are called: with named groups op, mb and perhaps stage.",
)
@click.option("-q", "--quiet", is_flag=True, help="No warnings; the report and the exit code.")
def command(
    golden: str,
    new: str,
    times: str,
    form: str,
    overlay: str | None,
    name_pattern: str | None,
    quiet: bool,
) -> None:
    """What changed between the traces GOLDEN and NEW, in the terms of the subject.

    Actions missing, added, moved or out of order; then times, and which of them only follow;
    arrows, counters, figures. Exit code 0 if they mean the same, 1 if not, 2 if they could not
    be compared.
    """
    from tracegen.comparison.model import Tolerance
    from tracegen.differ import diff
    from tracegen.profiles.door import read_any

    Tolerance.parse(times)
    if golden == new == "-":
        raise click.UsageError("- and - are one standard input; give one of the traces as a file")
    _refuse_schedules(golden, new)
    if overlay == "-":
        raise click.UsageError("the report and --overlay - both want stdout; give --overlay a file")
    if overlay is not None:
        check_ending(overlay, "--overlay", ".json")
        for path in (golden, new):
            not_itself(path, overlay)
    sides = []
    for path in (golden, new):
        with progress.at(f"reading {path}"):
            line = read_any(path, name_pattern)
        sides.append(line)
        warn(path, line, quiet)
    with progress.at("comparing"):
        found = diff(sides[0], sides[1], times)
    if overlay is not None:
        from tracegen.comparison.overlay import write

        write(found, overlay)
        say(f"wrote {overlay}", quiet)
    _echo(_report(found, form, golden))
    if not found.same:
        raise SystemExit(1)


def _refuse_schedules(golden: str, new: str) -> None:
    """Refuse the names of schedules, and say which command takes them.

    Raises:
        FileError: if one is a schedule's and no file's.
    """
    from tracegen.errors import FileError

    named = [name for name in (golden, new) if _is_schedule(name)]
    if len(named) == 2:
        raise FileError(
            f"{golden} and {new} are schedules, no traces; two schedules are held against each "
            f"other by `tracegen compare -s {golden},{new}`"
        )
    if named:
        raise FileError(
            f"{named[0]} is a schedule, no trace; `tracegen run -s {named[0]} -o "
            f"{Path(named[0]).stem}.json` writes one"
        )


def _is_schedule(name: str) -> bool:
    if name.endswith(TRACES) or os.path.exists(name):
        return name.endswith(".py")
    return is_schedule(name)


def _report(found: object, form: str, golden: str) -> Iterable[str]:
    from tracegen.comparison import report
    from tracegen.comparison.model import Difference

    assert isinstance(found, Difference)
    if form == "json":
        return [report.as_json(found)]
    return report.github(found, golden) if form == "github" else report.text(found)


def _echo(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
