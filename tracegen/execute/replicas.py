"""The sum of gradients over the copies of a slice, and over expert shards.

All processes go through the slices in one order, so that no two wait for each
other in different all-reduces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from tracegen.execute.experts import Expert
from tracegen.execute.options import slices
from tracegen.execute.session import Place
from tracegen.ir import Program


def copies(program: Program) -> list[list[int]]:
    """The stages that are copies of each slice, where there are several."""
    of = slices(program)
    every = [[s for s in range(program.num_stages) if of[s] == k] for k in range(max(of) + 1)]
    return [stages for stages in every if len(stages) > 1]


def sum_over_processes(
    program: Program, modules: Mapping[int, nn.Module], place: Place
) -> Callable[[], None]:
    """Make the groups; what comes back sums the gradients when called, on all processes."""
    ranks = program.placement.ranks
    work: list[tuple[list[int], Any]] = []
    for stages in copies(program):
        among = tuple(sorted({ranks[s] for s in stages}))
        group = place.group("copies", among) if len(among) > 1 else None
        if mine := [s for s in stages if s in modules]:
            work.append((mine, group))

    def total() -> None:
        for mine, group in work:
            sum_copies([modules[s] for s in mine], group)
        if place.ep > 1:
            for stage in sorted(modules):
                _sum_dense(modules[stage], place.shard.group)

    return total


def sum_copies(modules: list[nn.Module], group: Any = None) -> None:
    """Give all copies, here and on the processes of the group, the sum of their gradients."""
    for parameters in zip(*(module.parameters() for module in modules), strict=True):
        total = sum((_grad(p) for p in parameters[1:]), start=_grad(parameters[0]).clone())
        if group is not None:
            dist.all_reduce(total, group=group)
        for parameter in parameters:
            parameter.grad = total.clone()


def _sum_dense(module: nn.Module, group: Any) -> None:
    """Sum what all shards hold alike; an expert's gradients come from all shards already."""
    experts = {
        id(parameter)
        for part in module.modules()
        if isinstance(part, Expert)
        for parameter in part.parameters()
    }
    for parameter in module.parameters():
        if id(parameter) not in experts:
            grad = _grad(parameter).clone()
            dist.all_reduce(grad, group=group)
            parameter.grad = grad


def _grad(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
