"""Stages for `--model` that take their time asleep, so that a busy machine measures them too."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

F_S, I_S, W_S = 0.012, 0.016, 0.010


class Nap(torch.autograd.Function):
    """Its input, with a nap on the way there and one on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, there: float, back: float) -> Tensor:
        ctx.back = back
        time.sleep(there)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.back)
        return grad, None, None


class Stage(nn.Module):
    """F, I and W of a given length."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        x = Nap.apply(x, F_S, I_S)
        return x * Nap.apply(self.weight, 0.0, W_S)


def two() -> object:
    return [Stage() for _ in range(2)], torch.rand(3, 4)


def four() -> object:
    return [Stage() for _ in range(4)], torch.rand(3, 4)
