"""The user's own stages: a function in a Python file that returns modules and an example."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tracegen.errors import ExecuteError
from tracegen.execute.options import Options
from tracegen.execute.stages import Model

EXAMPLE = (
    "expected FILE.py:FUNCTION, where FUNCTION() returns (stages, example) or (stages, example, "
    "loss): a list of torch modules, the input of one microbatch, and loss(output, microbatch)"
)


def own_model(
    options: Options, num_slices: int, num_microbatches: int, device: torch.device
) -> Model:
    """The model of `options.model`.

    The function is called once a process, under one seed, so that all have the
    same. Microbatch k is the example rolled by k along its elements. Without a
    loss of its own a microbatch's is the mean square of its output; the step's
    is the mean over microbatches.

    Raises:
        ExecuteError: if the file or the function is not there, or returns something else.
    """
    modules, example, loss = _made(options, num_slices)
    example = example.to(device)

    def build(number: int) -> nn.Module:
        return deepcopy(modules[number]).to(device)

    def microbatch(number: int, of: int) -> Tensor:
        return example.flatten().roll(number).view_as(example)

    def of_step(output: Tensor, number: int, of: int) -> Tensor:
        return loss(output, number) / num_microbatches

    return Model(num_slices, build, microbatch, of_step)


def _made(
    options: Options, num_slices: int
) -> tuple[list[nn.Module], Tensor, Callable[[Tensor, int], Tensor]]:
    where = str(options.model)
    torch.manual_seed(options.seed)
    made = _function(where)()
    if not isinstance(made, Sequence) or len(made) not in (2, 3):
        raise ExecuteError(f"{where} returned {type(made).__name__}; {EXAMPLE}")
    modules, example, *rest = made
    modules = list(modules)
    if not isinstance(example, Tensor) or not all(isinstance(m, nn.Module) for m in modules):
        raise ExecuteError(
            f"{where}: its stages are no modules, or its example no tensor; {EXAMPLE}"
        )
    if len(modules) != num_slices:
        raise ExecuteError(f"{where} has {len(modules)} stages; the schedule has {num_slices}")
    return modules, example, rest[0] if rest else _mean_square


def _function(where: str) -> Callable[[], Any]:
    file, colon, name = where.rpartition(":")
    if not colon or not file.endswith(".py"):
        raise ExecuteError(f"model {where!r}: {EXAMPLE}")
    if not Path(file).is_file():
        raise ExecuteError(f"model {where!r}: there is no file {file}")
    function = runpy.run_path(file).get(name)
    if not callable(function):
        raise ExecuteError(f"model {where!r}: {file} has no function {name}")
    return function  # type: ignore[no-any-return]


def _mean_square(output: Tensor, microbatch: int) -> Tensor:
    return output.square().mean()
