"""Loss and gradients against those of the same model run whole on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from tracegen.execute.options import slices
from tracegen.execute.outcome import Verdict
from tracegen.execute.stages import Model
from tracegen.ir import Program

# The largest difference from the whole model that rounding explains, by dtype: of a gradient
# as `difference` has it, of a loss relative to it. A pipeline sums microbatches in another
# order, and an expert's tokens in another batch. In float64 the largest seen is below 1e-13,
# in float32 below 1e-5, each over all schedules of the test suite.
BOUND = {
    torch.float64: 1e-10,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}

# A parameter's gradient counts as at least this share of the largest in its slice, so that
# one which is nothing but rounding is not held against itself.
FLOOR = 1e-3

Grads = Mapping[str, Tensor]


def gradients(module: nn.Module) -> Grads:
    """By name, on the CPU; zeros where there is none."""
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).detach().cpu()
        for name, p in module.named_parameters()
    }


def whole(
    model: Model, num_microbatches: int, shards: int, backward: bool, tick: Callable[[], None]
) -> tuple[float, list[Grads], torch.dtype]:
    """The step's loss and the gradients of each slice, of the model run whole, here."""
    parts = [model.build(k) for k in range(model.num_slices)]
    total = 0.0
    with torch.set_grad_enabled(backward):
        for shard in range(shards):
            for microbatch in range(num_microbatches):
                x = model.example(microbatch, shard)
                for part in parts:
                    x = part(x)
                loss = model.loss(x, microbatch, shard)
                if backward:
                    loss.backward()
                total += float(loss.detach())
                tick()
    dtype = next((p.dtype for part in parts for p in part.parameters()), torch.float32)
    return total, [gradients(part) for part in parts], dtype


def compare(
    program: Program,
    model: Model,
    losses: Sequence[Mapping[int, float]],
    found: Sequence[Mapping[int, Grads]],
    shards: int = 1,
    tick: Callable[[], None] = lambda: None,
) -> Verdict:
    """Hold what every process has against the whole model.

    Args:
        program: whose stages they are.
        model: with all experts.
        losses: by process, of the microbatches whose last stage it has.
        found: by process, the gradients of its stages.
        shards: of the data, one an expert shard.
        tick: called after each microbatch, as a sign of life.
    """
    backward = not program.forward_only
    m = program.num_microbatches
    expected_loss, expected, dtype = whole(model, m, shards, backward, tick)
    of_slice = slices(program)
    worst, where = 0.0, "none"
    if backward:
        for stages in found:
            for stage, grads in stages.items():
                for name, error in difference(grads, expected[of_slice[stage]]):
                    if not error <= worst:  # NaN too
                        worst, where = error, f"stage {stage}: {name}"
    loss = sum(value for of_process in losses for value in of_process.values())
    return Verdict(loss, expected_loss, worst, where, BOUND[dtype])


def difference(found: Grads, expected: Grads) -> list[tuple[str, float]]:
    """By parameter, max |found - expected| over max |expected|, that at least FLOOR of all."""
    floor = FLOOR * max((float(g.abs().max()) for g in expected.values()), default=0.0) or 1e-30
    return [
        (
            name,
            float((grad - expected[name]).abs().max())
            / max(float(expected[name].abs().max()), floor),
        )
        for name, grad in found.items()
    ]
