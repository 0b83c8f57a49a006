"""Loss and gradients against those of the same model run whole on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tracegen.errors import ExecuteError
from tracegen.execute.options import slices
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


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far the executed step is from the whole model's.

    Attributes:
        loss, whole_loss: of the step.
        gradient_error: the largest `difference` of any parameter of any stage.
        worst: that parameter, as `stage 3: 0.qkv`.
        bound: what the error may be.
    """

    loss: float
    whole_loss: float
    gradient_error: float
    worst: str
    bound: float

    @property
    def loss_error(self) -> float:
        return abs(self.loss - self.whole_loss) / max(abs(self.whole_loss), 1e-30)

    @property
    def good(self) -> bool:
        return self.gradient_error <= self.bound and self.loss_error <= self.bound

    def insist(self) -> None:
        """Raises ExecuteError unless loss and gradients are right."""
        if self.good:
            return
        raise ExecuteError(
            f"not what the whole model gives: loss {self.loss:.9g} against {self.whole_loss:.9g}, "
            f"gradients off by {self.gradient_error:.2g} at {self.worst}; the bound is "
            f"{self.bound:g} (stages with dropout or batch statistics need --no-check)"
        )

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.6g} and all gradients as the whole model's: off by "
            f"{self.loss_error:.1e} and {self.gradient_error:.1e}, bound {self.bound:g}"
        )


def gradients(module: nn.Module) -> Grads:
    """By name, on the CPU; zeros where there is none."""
    return {
        name: (torch.zeros_like(p) if p.grad is None else p.grad).detach().cpu()
        for name, p in module.named_parameters()
    }


def whole(
    model: Model, num_microbatches: int, shards: int, backward: bool
) -> tuple[float, list[Grads], torch.dtype]:
    """The step's loss and the gradients of each slice, of the model run whole, right here."""
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
    dtype = next((p.dtype for part in parts for p in part.parameters()), torch.float32)
    return total, [gradients(part) for part in parts], dtype


def compare(
    program: Program,
    model: Model,
    losses: Sequence[Mapping[int, float]],
    found: Sequence[Mapping[int, Grads]],
) -> Verdict:
    """Hold what every process has against the whole model.

    Args:
        program: whose stages they are.
        model: with all experts.
        losses: by process, of the microbatches whose last stage it has.
        found: by process, the gradients of its stages.
    """
    backward = not program.forward_only
    shards = len(found) // program.num_ranks
    expected_loss, expected, dtype = whole(model, program.num_microbatches, shards, backward)
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
