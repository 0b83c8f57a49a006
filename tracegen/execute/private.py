"""torch's private names that execution leans on, in one place.

The split of a backward in two is torch's own: `stage_backward_input` runs the
graph down to the inputs and keeps the gradients that reach the weights' ops,
`stage_backward_weight` goes on from those. Neither is public. The order that a
schedule of torch.distributed.pipelining runs is private too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tracegen.errors import ExecuteError
from tracegen.ir import Action, parse

# Versions of torch with which the tests have passed. Others are tried, and refused by
# name if what is used here is not there.
TESTED = ("2.13",)

try:
    from torch.distributed.pipelining._backward import (
        stage_backward,
        stage_backward_input,
        stage_backward_weight,
    )
except ImportError as error:  # pragma: no cover
    raise ExecuteError(
        f"torch {torch.__version__} has no {error.name}: it moved; tested with {', '.join(TESTED)}"
    ) from None


def backward_full(outputs: Tensor, grad: Tensor | None, given: Tensor) -> Tensor | None:
    """Add the gradients of all parameters; return that of the input, None if it takes none."""
    (of_input,) = stage_backward(outputs, grad, [given])
    return of_input


def backward_input(
    outputs: Tensor, grad: Tensor | None, given: Tensor, parameters: Iterator[nn.Parameter]
) -> tuple[Tensor | None, list[dict[str, Any]]]:
    """The gradient of the input, and what `backward_weight` goes on from."""
    grads = None if grad is None else [grad]
    (of_input,), rest = stage_backward_input([outputs], grads, [given], parameters)
    given.grad = None
    return of_input, rest


def backward_weight(parameters: Iterator[nn.Parameter], rest: list[dict[str, Any]]) -> None:
    """Add the gradients of the parameters."""
    stage_backward_weight(parameters, rest)


def stages_of(schedule: Any) -> Sequence[Any]:
    """The rank's stages of a torch schedule.

    Raises:
        ExecuteError: if it is none.
    """
    if hasattr(schedule, "_stage"):
        return [schedule._stage]
    if not hasattr(schedule, "_stages"):
        what = f"{type(schedule).__name__} is no schedule of torch.distributed.pipelining"
        raise ExecuteError(f"schedule: {what}; give the object whose step() trains")
    return list(schedule._stages)


def pairs_of(schedule: Any) -> set[tuple[int, int]]:
    """The codes of the (forward, backward) that the rank runs as overlapped pairs."""
    orders = getattr(schedule, "pipeline_order_with_comms", None) or {}
    return {
        (_code(action.sub_actions[0]), _code(action.sub_actions[1]))
        for action in orders.get(getattr(schedule, "rank", -1), ())
        if action is not None and action.sub_actions
    }


def _code(action: Any) -> int:
    found = parse(str(action))
    assert isinstance(found, Action)
    return found.code
