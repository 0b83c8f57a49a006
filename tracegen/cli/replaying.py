"""The part of `tracegen run` that replays: the mode, what is asked of it beside, a deadlock."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import sections
from tracegen.cli.common import check_ending, mode_of, say
from tracegen.cli.sections import Command, with_options

if TYPE_CHECKING:
    from tracegen.costs import Costs
    from tracegen.ir import Program
    from tracegen.readers.request import Request
    from tracegen.timeline import Timeline


MEMORY = (
    click.option(
        "--memory-limit",
        metavar="SIZE",
        help="What no rank may hold more than: 6 (stage activations), or 80GiB.",
    ),
    click.option(
        "--memory-at",
        type=click.Choice(["input", "weight"]),
        help="Activations count until I ends, or until W does (the default).",
    ),
)

OPTIONS = (
    *MEMORY,
    click.option("--explain", is_flag=True, help="Why each rank waits: the parts of its idle."),
    click.option("--bubble-row", is_flag=True, help="Rows in the trace that name each wait."),
    click.option("--links", "link_rows", is_flag=True, help="Rows in the trace for the links."),
    click.option("--save-order", metavar="CSV", help="Write the order that was run."),
)


def replaying_options(command: Command) -> Command:
    """--memory-limit --memory-at --explain --bubble-row --links --save-order."""
    return with_options(sections.MEMORY, OPTIONS, command)


def memory_options(command: Command) -> Command:
    """--memory-limit --memory-at."""
    return with_options(sections.MEMORY, MEMORY, command)


def replayed(
    program: Program,
    costs: Costs,
    options: dict[str, Any],
    like: Request | None,
    output: str | None,
) -> Timeline:
    """The timeline as the options ask for it, over those of the trace that it shall be like.

    Raises:
        DeadlockError: when the trace up to there is written, if an output is named.
    """
    from tracegen.engine import replay, until_it_hangs
    from tracegen.errors import DeadlockError
    from tracegen.mode import Mode

    if options["save_order"]:
        check_ending(options["save_order"], "--save-order", ".csv")
    mode = mode_of(options, like.mode if like else None)
    looks = _looks(options, like)
    try:
        line = replay(program, costs, **mode.given())
    except DeadlockError as error:
        if output is not None:
            # A cycle of compute is one in every mode, and no order of messages can be found for it.
            hung = error.line or until_it_hangs(error.program, costs, Mode())
            asked = {"replay": mode.given()} if mode.given() else {}
            _write(replace(hung, config=hung.config | asked | looks), output)
        raise
    if options["save_order"]:
        _save_order(line, options["save_order"])
    return replace(line, config=line.config | looks)


def warn_of_idle(program: Program, costs: Costs, options: dict[str, Any], quiet: bool) -> None:
    """Say of options that were given and change nothing why that is."""
    bandwidth = costs.bandwidth_GBps or any("bandwidth_GBps" in e for e in costs.link.values())
    idle = {
        "fb_us": ("--fb", "no action is an overlapped pair", not _has_pairs(program)),
        "boundary_bytes": ("--bytes", "no --bandwidth is given", not bandwidth),
        "bandwidth_GBps": ("--bandwidth", "no --bytes are given", costs.boundary_bytes == 0),
        "zero": ("--zero", "no --unshard or --grad-sync is given", not _has_collectives(costs)),
        "seed": ("--seed", "no --jitter is given", not costs.jitter),
        "sync": ("--sync", "there is one step; add --steps", not (options["steps"] or 1) > 1),
        "replica_sync_us": (
            "--replica-sync",
            "no stage has a replica, as crossing chains have",
            len(program.placement.chains) == 1,
        ),
    }
    for name, (flag, why, useless) in idle.items():
        if options[name] and useless:
            say(f"warning: {flag} changes nothing: {why}", quiet)
    _warn_of_other_stages(program, costs, quiet)


def _warn_of_other_stages(program: Program, costs: Costs, quiet: bool) -> None:
    """Say so where costs seem to be of a program of fewer stages, as `calibrate` writes them."""
    from tracegen.times import of_number

    known, count = len(costs.stage), program.num_stages
    every = all("f_us" in of_number(costs.stage, stage) for stage in range(known))
    if costs.f_us is None and 1 < known < count and every:
        several = f"stages {known} to {count - 1} take"
        others = several if count - known > 1 else f"stage {known} takes"
        say(
            f"warning: the costs are of {known} stages, the program has {count}: "
            f"{others} the default, 1 ms an F, I or W",
            quiet,
        )


def _has_collectives(costs: Costs) -> bool:
    names = ("unshard_us", "grad_sync_us")
    of_stages = any(entry.get(name) for entry in costs.stage.values() for name in names)
    return of_stages or any(getattr(costs, name) for name in names)


def _has_pairs(program: Program) -> bool:
    return any(stream.has_mates for stream in program.ranks)


def _write(line: Timeline, output: str) -> None:
    from tracegen.emit import write

    write(line, output)
    if output != "-":
        say(f"wrote {output}, which ends where it hangs")


def _looks(options: dict[str, Any], like: Request | None) -> dict[str, Any]:
    """What the trace shows beside the usual, as its metadata has it."""
    looks = dict(like.looks) if like else {}
    before = looks.pop("rows", ())
    rows = [
        name
        for name, given in (("bubble", options["bubble_row"]), ("links", options["link_rows"]))
        if given or name in before
    ]
    if (limit := limit_of(options)) is not None:
        looks["memory_limit"] = list(limit)
    return looks | ({"rows": rows} if rows else {})


def limit_of(options: dict[str, Any]) -> tuple[str, str] | None:
    """The memory limit as it was given, and whether it is at I or at W."""
    if options["memory_limit"] is None:
        if options["memory_at"] is not None:
            raise click.UsageError("--memory-at is about a limit; add --memory-limit")
        return None
    return options["memory_limit"], options["memory_at"] or "weight"


def over_limit(line: Timeline) -> list[str]:
    """What breaks the limit that the timeline is held against; nothing where there is none."""
    from tracegen import memory

    if (said := line.config.get("memory_limit")) is None:
        return []
    text, at = said
    most = memory.limit(text, at, line.costs)
    return list(memory.over_limit(line.program, line.costs, most))


def _save_order(line: Timeline, target: str) -> None:
    from tracegen import torch_csv
    from tracegen.files import write_text

    if line.program.num_steps > 1:
        raise click.UsageError("--save-order is of one step; leave --steps out")
    write_text(target, [torch_csv.write(line.program)])
    say(f"wrote {target}")
