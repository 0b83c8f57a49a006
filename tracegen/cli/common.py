"""Options that several commands share, and what they make."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import sections
from tracegen.cli.counts import COUNT
from tracegen.cli.pairs import moe_of, slowdowns
from tracegen.cli.sections import Command, with_options
from tracegen.errors import FileError
from tracegen.files import with_endings

if TYPE_CHECKING:
    from rich.console import Console

    from tracegen.costs import Costs
    from tracegen.ir import Program
    from tracegen.mode import Mode
    from tracegen.timeline import Timeline


SIZE = (
    click.option(
        "-p",
        "--ranks",
        type=COUNT,
        metavar="P",
        help="Pipeline ranks; 4, or as in the paper's figure.",
    ),
    click.option(
        "-m", "--microbatches", type=COUNT, metavar="M", help="Microbatches of a step; about 2p."
    ),
    click.option(
        "-v",
        "--stages-per-rank",
        type=COUNT,
        metavar="V",
        help="Stages (model chunks) per rank, where it is a choice.",
    ),
    click.option("--pipes", type=int, metavar="N", help="Chimera's pipes: 2, 4, ..."),
    click.option("--forward-only", is_flag=True, help="No backward: evaluation, inference."),
)

_GRAD_SYNC = "A stage's gradient all-reduce at the end of a step."
_ZERO = (
    "What data-parallel peers shard (ZeRO, FSDP): 0 nothing, 1 the optimizer's state, 2 gradients "
    "too, 3 weights too. Their sums and gathers then run beside compute."
)
_UNSHARD = "All-gather of a stage's weights; with --zero 1, 2 or 3."
_REPLICA = "Sum of gradients over a stage's replicas (chimera, dualpipe), at the end of a step."

COSTS = (
    click.option("--f", "f_us", type=float, metavar="US", help="Forward of one stage; 1000 us."),
    click.option("--b", "b_us", type=float, metavar="US", help="Its full backward; b = i + w."),
    click.option(
        "--i", "i_us", type=float, metavar="US", help="Its backward for the input; 1000 us."
    ),
    click.option(
        "--w", "w_us", type=float, metavar="US", help="Its backward for the weight; 1000 us."
    ),
    click.option(
        "--fb", "fb_us", type=float, metavar="US", help="An overlapped pair; the sum of its halves."
    ),
    click.option(
        "--r",
        "r_us",
        type=float,
        metavar="US",
        help="What B and I recompute first (activation checkpointing), on top of theirs; 0.",
    ),
    click.option(
        "--alpha",
        "alpha_us",
        type=float,
        metavar="US",
        help="Latency of a transfer between ranks; 0.",
    ),
    click.option(
        "--bandwidth",
        "bandwidth_GBps",
        type=float,
        metavar="GB/s",
        help="Of each link between two ranks; unlimited unless given.",
    ),
    click.option(
        "--bytes", "boundary_bytes", type=float, metavar="N", help="What a transfer carries; 0."
    ),
    click.option(
        "--activation-bytes",
        type=float,
        metavar="N",
        help="A stage's activations of one microbatch; peaks are in bytes then.",
    ),
    click.option(
        "--w-share",
        type=float,
        metavar="X",
        help="Share of the activations that I leaves for W: 0 to 1; 0.",
    ),
    click.option(
        "--slow",
        "slow_ranks",
        multiple=True,
        metavar="RANK=X",
        help="A rank's times are X times as long: 3=1.5. Repeatable.",
    ),
    click.option(
        "--jitter",
        type=float,
        metavar="SIGMA",
        help="Noise on every time: the sigma of a lognormal factor.",
    ),
    click.option("--seed", type=int, metavar="N", help="Of the noise; 0."),
    click.option("--grad-sync", "grad_sync_us", type=float, metavar="US", help=_GRAD_SYNC),
    click.option("--zero", type=click.IntRange(0, 3), metavar="N", help=_ZERO),
    click.option("--unshard", "unshard_us", type=float, metavar="US", help=_UNSHARD),
    click.option("--replica-sync", "replica_sync_us", type=float, metavar="US", help=_REPLICA),
    click.option(
        "--optimizer",
        "optimizer_us",
        type=float,
        metavar="US",
        help="A stage's optimizer, at the end of a step.",
    ),
    click.option(
        "--moe",
        "moe_pairs",
        multiple=True,
        metavar="KEY=VALUE",
        help="Kernels of MoE stages: block=dualpipe, layers=2, attn_f=400, ... Repeatable.",
    ),
    click.option(
        "--costs",
        "costs_file",
        type=click.Path(path_type=Path),
        metavar="TOML",
        help="Costs per stage, microbatch and link; options here override it.",
    ),
)


REPLAY = (
    click.option(
        "--p2p",
        type=click.Choice(["async", "blocking"]),
        help="Transfers run beside compute (the default), or SEND and RECV hold the rank.",
    ),
    click.option(
        "--p2p-order",
        type=click.Choice(["torch", "naive", "fused"]),
        help="Of blocking SEND and RECV: torch's (unless a CSV has its own), naive: beside their "
        "compute, or fused: as naive, a send and a receive of one neighbour at once.",
    ),
    click.option(
        "--dispatch",
        type=click.Choice(["static", "dynamic"]),
        help="Ranks run their order (the default), or any ready action: B first, then F, then W.",
    ),
    click.option("--steps", type=int, metavar="N", help="Training steps in a row; 1."),
    click.option(
        "--sync", is_flag=True, help="With --steps: ranks wait for each other between them."
    ),
)


def size_options(command: Command) -> Command:
    """-p -m -v --pipes --forward-only."""
    return with_options(sections.SIZE, SIZE, command)


def cost_options(command: Command) -> Command:
    """--f --b --i --w --fb --alpha ... --costs."""
    return with_options(sections.COSTS, COSTS, command)


def replay_options(command: Command) -> Command:
    """--p2p --p2p-order --dispatch --steps --sync."""
    return with_options(sections.REPLAY, REPLAY, command)


def program_of(schedule: str, options: dict[str, Any]) -> Program:
    """The program that the size options ask for, compute only."""
    from tracegen.compiler import compile

    v, pipes = options["stages_per_rank"], options["pipes"]
    if None not in (v, pipes) and v != pipes:
        raise click.UsageError("-v and --pipes say the same of a schedule; give one of them")
    if pipes is not None:
        _check_crossing(schedule, options["ranks"], pipes)
    return compile(
        schedule,
        options["ranks"],
        options["microbatches"],
        pipes if v is None else v,
        forward_only=options["forward_only"],
        communication=False,
    )


def _check_crossing(schedule: str, ranks: int | None, pipes: int) -> None:
    from tracegen import registry

    found = None if schedule.endswith(".csv") else registry.find(schedule)
    if found is None or not found.crosses(ranks or found.example[0], pipes):
        raise click.UsageError(f"--pipes: {schedule} has no pipes that cross, as chimera has")


SIZES = ("ranks", "microbatches", "stages_per_rank", "pipes", "forward_only")
MODE = ("p2p", "p2p_order", "dispatch", "steps", "sync")
PLAIN = ("f_us", "b_us", "i_us", "w_us", "fb_us", "r_us")
OTHERS = (
    "alpha_us",
    "bandwidth_GBps",
    "boundary_bytes",
    "activation_bytes",
    "w_share",
    "jitter",
    "seed",
    "grad_sync_us",
    "replica_sync_us",
    "optimizer_us",
    "zero",
    "unshard_us",
)


def costs_of(
    options: dict[str, Any], program: Program | None = None, base: Costs | None = None
) -> Costs:
    """The costs that the options ask for, over those of the file, of `base` or of the schedule.

    A schedule of mixture-of-experts stages has MoE costs where none are given.
    """
    from tracegen.costs import Costs

    file, pairs = options["costs_file"], options["moe_pairs"]
    costs = (base or Costs()) if file is None else Costs.from_toml(file)
    block = _block_of(program) if base is None and file is None else ""
    if pairs or (block and all(options[name] is None for name in PLAIN)):
        costs = replace(costs, moe=moe_of(pairs, costs.moe, block))
    if slow := slowdowns(options["slow_ranks"]):
        ranks: dict[str | int, Any] = {int(rank): entry for rank, entry in costs.rank.items()}
        costs = replace(costs, rank={**ranks, **slow})
    return costs.override(**{name: options[name] for name in (*PLAIN, *OTHERS)})


def mode_of(options: dict[str, Any], base: Mode | None = None) -> Mode:
    """How to replay, as the options say, over `base`."""
    from tracegen.mode import Mode

    given = {name: options[name] for name in ("p2p", "p2p_order", "dispatch", "steps")}
    given = {name: value for name, value in given.items() if value is not None}
    if options["sync"]:
        given["sync"] = True
    return replace(base or Mode(), **given)


def _block_of(program: Program | None) -> str:
    """The order in which the schedule's paper runs the kernels of MoE stages, if it has one."""
    if program is None or "schedule" not in program.recipe:
        return ""
    from tracegen import registry

    return registry.find(program.recipe["schedule"]).block


TRACES = (".json", ".json.gz", ".pftrace", ".sqlite", ".sqlite3", ".db")
SCHEDULES = (".py", ".csv")


def is_trace(name: str) -> bool:
    """Whether a name is a trace's, "-" too, or of the profiles of a run: a folder, a pattern.

    Raises:
        FileError: for a file, or a path where none is, of which the name says no format.
    """
    if name == "-" or name.endswith(TRACES):
        return True
    if name.endswith(SCHEDULES) or is_schedule(name):
        return False
    if os.path.isdir(name):
        return True
    if not os.path.exists(name) and (files := with_endings(name, (*SCHEDULES, *TRACES))):
        raise FileError(f"{name}: no such file; give the whole name: {files}")
    like_a_path = os.sep in name or Path(name).suffix
    if os.path.exists(name) or (like_a_path and not _is_pattern(name)):
        what = "its name says no format" if os.path.exists(name) else "no such file"
        raise FileError(
            f"{name}: {what}; a schedule's file ends in {' or '.join(SCHEDULES)}, a trace's in "
            f"{', '.join(TRACES[:3])}, an nsys export's in {', '.join(TRACES[3:])}"
        )
    return _is_pattern(name)


def _is_pattern(name: str) -> bool:
    """Whether it stands for the names of several files."""
    return any(letter in name for letter in "*?[")


def is_schedule(name: str) -> bool:
    """Whether a schedule has that name; a folder's or a file's of the same name is `./NAME`."""
    from tracegen import registry
    from tracegen.errors import UnknownSchedule

    if os.sep in name:
        return False
    try:
        registry.find(name)
    except UnknownSchedule:
        return False
    return True


def read_trace(name: str, name_pattern: str | None = None) -> Timeline:
    """A trace, or the profiles of a run; what is odd about profiles is said on stderr."""
    from tracegen.profiles.door import is_profile, read

    line = read(name, name_pattern)
    if is_profile(name):
        warn(name, line)
    for hang in line.hangs:
        say(f"{name} ends in a deadlock: {hang}")
    return line


def warn(name: str, line: Timeline, quiet: bool = False) -> None:
    """Say what is odd about what was read."""
    for text in line.found.warnings if line.found else ():
        say(text if text.startswith(name) else f"{name}: {text}", quiet)


def refuse(names: tuple[str, ...], why: str) -> None:
    """Refuse options of the command that runs, if they were given."""
    context = click.get_current_context()
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if param.name in names and source is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]}: {why}; leave it out")


def timeline_of(schedule_or_trace: str, options: dict[str, Any]) -> Timeline:
    """A trace as it was read, or a schedule replayed."""
    if is_trace(schedule_or_trace):
        refuse(SIZES, f"{schedule_or_trace} has sizes of its own")
        times = (*PLAIN, *OTHERS, "slow_ranks", "moe_pairs", "costs_file", *MODE)
        refuse(times, f"{schedule_or_trace} has times of its own")
        return read_trace(schedule_or_trace)
    from tracegen.engine import replay

    program = program_of(schedule_or_trace, options)
    return replay(program, costs_of(options, program), **mode_of(options).given())


def console(stderr: bool = False) -> Console:
    """A console as wide as the terminal."""
    from rich.console import Console

    class Screen(Console):
        def on_broken_pipe(self) -> None:
            """The command line ends as for any other reader that has seen enough."""
            raise BrokenPipeError

    return Screen(stderr=stderr, highlight=False, soft_wrap=False, emoji=False, markup=False)


def not_itself(source: str, target: str) -> None:
    """Refuse to write over what is being read: a file, or one of a folder's or a pattern's."""
    read = [Path(source)]
    if (os.path.isdir(source) or _is_pattern(source)) and is_trace(source):
        from tracegen.profiles.inputs import given

        read = given([source]).paths
    if target != "-" and Path(target).resolve() in [p.resolve() for p in read if p.is_file()]:
        raise click.UsageError(f"{target} is what is being read; give another file to write")


def check_ending(target: str, what: str, ending: str) -> None:
    """Refuse to write what the target's name says is another format; gzipped it is the same."""
    if Path(target.removesuffix(".gz")).suffix.lower() not in ("", ending):
        raise click.UsageError(f"{target}: {what} writes {ending[1:].upper()}; name it {ending}")


def say(message: str, quiet: bool = False) -> None:
    """A word on stderr about what was done."""
    if not quiet:
        click.echo(message, err=True)
