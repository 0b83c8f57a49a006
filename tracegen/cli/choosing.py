"""Options of the commands that hold schedules against each other, and what they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli import sections
from tracegen.cli.common import OTHERS, PLAIN, cost_options, costs_of
from tracegen.cli.sections import Command, with_options

if TYPE_CHECKING:
    from rich.console import Console

    from tracegen.analysis.grid import Base
    from tracegen.analysis.measure import Figures
    from tracegen.analysis.model import Model


MODEL = (
    click.option("--model-layers", type=int, metavar="L", help="Transformer layers; costs follow."),
    click.option("--hidden", type=int, metavar="H", help="Hidden size."),
    click.option("--seq", type=int, metavar="S", help="Tokens of a sequence."),
    click.option("--microbatch-size", type=int, metavar="B", help="Sequences in one; 1."),
    click.option(
        "--vocab", type=int, metavar="V", help="Vocabulary; without, no embedding and head."
    ),
    click.option("--heads", type=int, metavar="A", help="Attention heads; H/128."),
    click.option("--dtype", metavar="TYPE", help="bf16 (the default), fp16, fp32 or fp8."),
    click.option(
        "--flops",
        "tflops",
        type=float,
        metavar="TFLOP/s",
        help="What a device achieves, not its peak.",
    ),
    click.option(
        "--memory-bandwidth",
        "memory_GBps",
        type=float,
        metavar="GB/s",
        help="Of a device's memory; 3350 unless given.",
    ),
    click.option("--tensor", type=int, metavar="T", help="Tensor-parallel devices of a stage; 1."),
    click.option(
        "--tensor-bandwidth",
        "tensor_GBps",
        type=float,
        metavar="GB/s",
        help="Among them; without, what they send takes no time.",
    ),
    click.option("--data", type=int, metavar="D", help="Data-parallel replicas; 1."),
    click.option(
        "--data-bandwidth",
        "data_GBps",
        type=float,
        metavar="GB/s",
        help="Among them; without, what they send takes no time.",
    ),
    click.option("--split", metavar="HOW", help="Layers by stage: even, best or 8,9,9,6."),
    click.option("--recompute", metavar="HOW", help="Of activations: none, selective or full."),
)
NAMES = {
    "model_layers": "layers",
    "hidden": "hidden",
    "seq": "seq",
    "microbatch_size": "microbatch_size",
    "vocab": "vocab",
    "heads": "heads",
    "dtype": "dtype",
    "tflops": "tflops",
    "memory_GBps": "memory_GBps",
    "tensor": "tensor",
    "tensor_GBps": "tensor_GBps",
    "data": "data",
    "data_GBps": "data_GBps",
    "split": "split",
    "recompute": "recompute",
}
NEEDED = {"model_layers": "--model-layers", "hidden": "--hidden", "seq": "--seq"}
BESIDE_MODEL = ("alpha_us", "bandwidth_GBps", "zero")


def model_options(command: Command) -> Command:
    """--model-layers --hidden --seq ... --split --recompute."""
    return with_options(sections.MODEL, MODEL, command)


def choosing_options(command: Command) -> Command:
    """The costs of one model, given for its 1F1B stages or following from its sizes."""
    command = click.option(
        "--per-stage-costs", is_flag=True, help="Costs are of any schedule's stage, however long."
    )(command)
    command = click.option(
        "--base-ranks",
        type=click.IntRange(min=1),
        metavar="P",
        help="Costs are of a P-th of the model; unless given P is -p, of several the least.",
    )(command)
    return cost_options(model_options(command))


def model_of(options: dict[str, Any]) -> Model | None:
    """The model that the options describe, None if they do not."""
    given = {name: options[name] for name in NAMES if options[name] is not None}
    if not given:
        return None
    needed = NEEDED | {"tflops": "--flops"}
    if missing := [flag for name, flag in needed.items() if name not in given]:
        raise click.UsageError(f"a model needs {', '.join(missing)} too")
    others = [*PLAIN, *(name for name in OTHERS if name not in BESIDE_MODEL)]
    beside = [name for name in others if options[name] is not None]
    beside += [name for name in ("costs_file", "moe_pairs", "slow_ranks") if options[name]]
    if beside:
        name = beside[0].removesuffix("_us").replace("_", "-")
        raise click.UsageError(f"costs follow from the model; leave out --{name}, or the model")
    from tracegen.analysis.model import Model

    more = {name: options[name] for name in BESIDE_MODEL if options[name] is not None}
    return Model(**{NAMES[name]: value for name, value in given.items()}, **more)


def base_of(options: dict[str, Any], ranks: int | None) -> Base:
    """Where the costs of every schedule come from.

    Args:
        options: of `choosing_options`.
        ranks: of how many 1F1B stages costs are, unless told; None for each size's own p.
    """
    from tracegen.analysis.grid import Base

    model = model_of(options)
    per_stage = options["per_stage_costs"]
    if model is not None and per_stage:
        raise click.UsageError("--per-stage-costs is about costs that are given, not a model's")
    given = costs_of(options) if model is None else model
    return Base(given, options["base_ranks"] or ranks, per_stage)


def in_bytes(base: Base) -> bool:
    """Whether memory is counted in bytes, not in 1F1B stages."""
    from tracegen.costs import Costs

    return not isinstance(base.given, Costs) or base.given.in_bytes


def knows_weights(base: Base) -> bool:
    """Whether the bytes of weights are known too."""
    from tracegen.costs import Costs

    return in_bytes(base) and (not isinstance(base.given, Costs) or bool(base.given.memory))


def footnote(base: Base) -> str:
    """What memory is counted in, under a table; of a model also what was taken as free."""
    if knows_weights(base):
        of = "in GiB; weights with gradients and optimizer state; all held, freed at weight"
        return "\n".join((of, *_free(base)))
    unit = "stages of each schedule, which are not the same" if base.per_stage else "1F1B stages"
    of = "" if base.ranks is None or base.per_stage else f", {base.ranks} of which are the model"
    if in_bytes(base):
        return f"peaks are of activations in GiB, weights in {unit}{of}"
    return f"peaks (activations of a microbatch) and weights are in {unit}{of}"


def layers_of(base: Base, rows: Iterable[Figures]) -> dict[str, Any]:
    """A model's layers of each stage, by schedule and v; nothing without a model."""
    from tracegen.analysis.measure import Size, placement_of
    from tracegen.analysis.model import Model

    model = base.given
    if not isinstance(model, Model):
        return {}
    found: dict[str, dict[int, tuple[int, ...]]] = {}
    for row in rows:
        placement = placement_of(Size(row.schedule, row.p, row.m, row.v))
        found.setdefault(row.schedule, {})[row.v] = model.stages(placement)
    return {"layers": found}


def print_layers(out: Console, base: Base, rows: Iterable[Figures]) -> None:
    """A line for each split whose stages have not all the same layers."""
    splits: dict[tuple[int, ...], list[str]] = {}
    for name, of_v in layers_of(base, rows).get("layers", {}).items():
        for v, layers in of_v.items():
            if len(set(layers)) > 1:
                splits.setdefault(layers, []).append(f"{name} (v={v})")
    for layers, names in splits.items():
        text = f"layers of the stages of {', '.join(names)}: {','.join(map(str, layers))}"
        out.print(text, soft_wrap=True)


def _free(base: Base) -> Iterator[str]:
    """What takes no time since nothing says how fast it is, though a model's devices do it."""
    for name in ("tensor", "data"):
        if getattr(base.given, name, 1) > 1 and getattr(base.given, f"{name}_GBps") is None:
            yield f"no --{name}-bandwidth is given: what --{name} devices send takes no time"
    if getattr(base.given, "layers", 0) and base.given.bandwidth_GBps is None:
        yield "no --bandwidth is given: what ranks send takes no time, nor does replicas' sum"
