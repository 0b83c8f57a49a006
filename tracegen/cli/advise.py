"""`tracegen advise`: which schedule, for so much memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli.choosing import (
    base_of,
    choosing_options,
    footnote,
    in_bytes,
    knows_weights,
    layers_of,
    print_layers,
)
from tracegen.cli.common import console
from tracegen.cli.counts import COUNT
from tracegen.cli.sections import Sectioned

if TYPE_CHECKING:
    from rich.console import Console

    from tracegen.analysis.advise import Advice, Step
    from tracegen.analysis.grid import Base, Point
    from tracegen.analysis.measure import Figures
    from tracegen.memory import Limit

RUNNERS_UP = 4
STEPS = 4


@click.command("advise", cls=Sectioned)
@click.option(
    "--memory-limit",
    "limit_text",
    required=True,
    metavar="SIZE",
    help="What no rank may hold more than: 6 (1F1B stages), or 80GiB.",
)
@click.option(
    "--memory-at",
    type=click.Choice(["input", "weight"]),
    default="weight",
    help="Activations count until I ends, or until W does (the default).",
)
@click.option(
    "-s", "--schedule", "names", multiple=True, metavar="A,B,..", help="Of which; all unless given."
)
@click.option("-p", "--ranks", type=COUNT, metavar="P", help="Ranks; 4 unless given.")
@click.option("-m", "--microbatches", type=COUNT, metavar="M", help="Chosen unless given.")
@click.option("-v", "--stages-per-rank", type=COUNT, metavar="V", help="1 to 4 are tried.")
@click.option("--replicas", is_flag=True, help="Those too that hold the weights several times.")
@choosing_options
@click.option("--json", "as_json", is_flag=True, help="The advice as one JSON object.")
def command(
    limit_text: str, memory_at: str, names: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    r"""The fastest schedule within a memory limit, the runners-up, and what more would buy.

    Every schedule is tried with 1 to 4 stages per rank. Unless -m is given, the least m is
    chosen at which the bubble costs no more than it costs 1F1B with m = 4p. Without bytes in
    the costs the limit is on activations alone, in 1F1B stages, and schedules that hold the
    weights more than once are left out; with them it is on all that a rank holds.

    \b
        tracegen advise --memory-limit 6 -p 8
        tracegen advise --memory-limit 80GiB -p 8 -m 64 --model-layers 32 --hidden 4096
            --seq 4096 --vocab 128000 --flops 400 --split best --recompute selective
    """
    from tracegen import memory
    from tracegen.analysis import advise, sweep, tables
    from tracegen.analysis.compare import schedules
    from tracegen.costs import Costs
    from tracegen.errors import ScheduleError

    base = base_of(options, None)
    costs = Costs(activation_bytes=1) if in_bytes(base) else Costs()
    limit = memory.limit(limit_text, memory_at, costs)
    p = options["ranks"] or 4
    unit = memory.UNITS["GiB"] if in_bytes(base) else 1.0
    wanted = advise.Wanted(
        limit.size, limit.at, unit, once=not knows_weights(base) and not options["replicas"]
    )
    m, seen = options["microbatches"], list[Any]()

    def measure(m: int) -> Any:
        chosen = schedules(",".join(names) if names else None)
        found = sweep.sweep(_points(chosen, p, m, options), base)
        seen.extend(found)
        return found

    each = [times * p for times in advise.MICROBATCHES] if m is None else [m]
    advice = advise.choose(each, measure, wanted)
    if advice is None:
        raise ScheduleError(next(tables.reasons(seen), "no schedule is asked for"))
    if as_json:
        click.echo(json.dumps(_report(advice, limit, p, base), allow_nan=False))
    else:
        _print(advice, limit, p, base, chosen=options["microbatches"] is None)


def _points(names: list[str], p: int, m: int, options: dict[str, Any]) -> list[Point]:
    from tracegen.analysis import advise, grid
    from tracegen.analysis.measure import Size

    v = options["stages_per_rank"]
    each = advise.STAGES_PER_RANK if v is None else (v,)
    return grid.points(names, [grid.Axis("v", tuple(map(float, each)))], Size("", p, m))


def _report(advice: Advice, limit: Limit, p: int, base: Base) -> dict[str, Any]:
    from tracegen.analysis import advise
    from tracegen.metrics import SCHEMA_VERSION

    def step(one: Step) -> dict[str, Any]:
        row = {"memory": one.limit, "saves_us": one.saves_us if advice.fits else None}
        return row | one.figures.as_dict()

    return {
        "schema_version": SCHEMA_VERSION,
        "p": p,
        "m": advice.m,
        "rule_of_thumb_m": advise.THUMB * p,
        "memory_limit": limit.size,
        "memory_at": limit.at,
        "unit": "bytes" if in_bytes(base) else "1F1B stages",
        "fits": [row.as_dict() for row in advice.fits],
        "one_more": None if advice.one_more is None else step(advice.one_more),
        "with_more": [step(one) for one in advice.steps],
        "least_memory": advice.least[0],
        "with_replicas": None if advice.replicas is None else advice.replicas.as_dict(),
        **_microbatch(base),
        **layers_of(base, advice.fits),
    }


def _microbatch(base: Base) -> dict[str, Any]:
    from tracegen.analysis.model import Model

    if not isinstance(base.given, Model):
        return {}
    return {"least_microbatch_size": base.given.least_microbatch()}


def _print(advice: Advice, limit: Limit, p: int, base: Base, chosen: bool) -> None:
    from tracegen.analysis import tables
    from tracegen.analysis.compare import Comparison

    out = console()
    size = _memory(limit.size, base)
    if not advice.fits:
        held, row = advice.least
        out.print(
            f"p={p} m={advice.m}: nothing fits {size}; the least that does is "
            f"{_memory(held, base)}, {_named(row)}",
            soft_wrap=True,
        )
        return
    row = advice.fits[0]
    out.print(f"p={p} m={advice.m}, at most {size} a rank: {_named(row)}")
    out.print(_why(advice, p, chosen), soft_wrap=True)
    rows = advice.fits[: RUNNERS_UP + 1]
    out.print(tables.table(Comparison(rows, []), in_bytes(base), out.width, None))
    out.print(footnote(base))
    others = len(advice.fits) - len(rows)
    if others:
        out.print(f"and {others} slower that fit")
    _print_more(out, advice, limit, base)
    _print_model(out, row, base)
    if (other := advice.replicas) is not None:
        out.print(f"--replicas: {_named(other)}, but with {other.weights:g} times the weights")


def _why(advice: Advice, p: int, chosen: bool) -> str:
    from tracegen.analysis import advise

    rule = f"the rule of thumb m >= {advise.THUMB}p is {advise.THUMB * p}"
    overhead = advice.fits[0].bubble_overhead
    thumb = advise.thumb(p)
    if not chosen:
        return f"{rule}; the bubble costs {overhead:.1%} of the work"
    if overhead <= thumb + 1e-9:
        return (
            f"{rule}, with which 1F1B's bubble costs {thumb:.1%} of the work; here it is "
            f"{overhead:.1%}"
        )
    return f"{rule}; the bubble costs {overhead:.1%} of the work, no m that was tried less"


def _print_more(out: Console, advice: Advice, limit: Limit, base: Base) -> None:
    unit = "GiB" if in_bytes(base) else "1F1B stage"
    time = advice.fits[0].makespan_us
    if (more := advice.one_more) is None:
        out.print(f"one more {unit} would buy nothing")
    else:
        out.print(f"one more {unit} would buy {more.saves_us / time:.1%}: {_named(more.figures)}")
    for step in [one for one in advice.steps if one is not more][:STEPS]:
        out.print(
            f"{_memory(step.limit, base)} would buy {step.saves_us / time:.1%}: "
            f"{_named(step.figures)}"
        )
    if not advice.steps:
        out.print("no schedule is faster, however much memory there is")


def _print_model(out: Console, row: Figures, base: Base) -> None:
    """The least microbatch, and what the links carry: which of them are to be the widest."""
    from tracegen.analysis.measure import Size, placement_of
    from tracegen.analysis.model import Model

    model = base.given
    if not isinstance(model, Model):
        return
    least = model.least_microbatch()
    print_layers(out, base, [row])
    at = f"{model.tflops:g} TFLOP/s and {model.memory_GBps:g} GB/s of device memory"
    if least is None:
        text = f"at {at} no microbatch keeps products with {model.hidden} hidden units busy"
    else:
        text = f"at {at} a microbatch needs {least} or more sequences to keep the device computing"
        text += f"; it has {model.microbatch_size}" if model.microbatch_size < least else ""
    out.print(text, soft_wrap=True)
    placement = placement_of(Size(row.schedule, row.p, row.m, row.v))
    moved = model.traffic(placement, row.m)
    parts = [f"{name} {size / 1e9:.2f} GB" for name, size in moved.items() if size]
    if len(parts) > 1:
        out.print(
            f"a device sends in a step: {', '.join(parts)}; the most goes to the widest links"
        )


def _memory(size: float, base: Base) -> str:
    from tracegen.memory import UNITS

    if not in_bytes(base):
        return f"{size:g} 1F1B stages"
    gib = size / UNITS["GiB"]
    return f"{gib:.2f} GiB" if gib >= 0.01 else f"{size:.15g} bytes"


def _named(row: Figures) -> str:
    return f"{row.schedule} (v={row.v}), {row.makespan_us / 1000:.3f} ms"
