"""A mixture-of-experts layer whose tokens really travel: all-to-all over an expert group.

Tensor names as in stages.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional


def seeded(shape: tuple[int, int], seed: int, name: str) -> Tensor:
    """A matrix that every process draws alike, whichever others it draws: uniform, 1/sqrt(fan)."""
    draw = torch.Generator().manual_seed(seed << 32 | crc32(name.encode()))
    uniform: Tensor = torch.rand(shape, generator=draw, dtype=torch.float64) * 2 - 1
    return uniform.div(shape[1] ** 0.5)


@dataclass(frozen=True)
class Shard:
    """This process's place in its expert group.

    Attributes:
        index, count: which share of each layer's experts it holds, of how many.
        group: the torch.distributed group of the count processes; None for one.
    """

    index: int = 0
    count: int = 1
    group: Any = None


class MoE(nn.Module):
    """Each token goes to the one expert its router likes best, wherever that expert lives.

    No token is dropped: the counts are exchanged first, then the tokens, and
    what the experts make of them comes back the same way. The names of
    parameters hold the expert's number among all, so that a process with all
    experts has the same names.
    """

    def __init__(self, hidden: int, experts: int, seed: int, layer: int, shard: Shard) -> None:
        super().__init__()
        self.shard, self.num_experts = shard, experts
        here = experts // shard.count
        self.first = shard.index * here
        self.router = nn.Parameter(seeded((experts, hidden), seed, f"{layer}.router"))
        self.experts = nn.ModuleDict(
            {
                str(number): Expert(hidden, seed, f"{layer}.expert{number}")
                for number in range(self.first, self.first + here)
            }
        )

    def forward(self, x_BSH: Tensor) -> Tensor:
        x_TH = x_BSH.flatten(0, 1)
        share_T, choice_T = functional.softmax(functional.linear(x_TH, self.router), -1).max(-1)
        order_T = choice_T.argsort(stable=True)
        counts_E = torch.bincount(choice_T, minlength=self.num_experts)
        arriving_E = self._exchange_counts(counts_E)
        sent = counts_E.view(self.shard.count, -1).sum(1).tolist()
        received = arriving_E.view(self.shard.count, -1).sum(1).tolist()
        tokens_RH = all_to_all(x_TH[order_T], sent, received, self.shard.group)
        made_RH = self._run_experts(tokens_RH, arriving_E.view(self.shard.count, -1).tolist())
        back_TH = all_to_all(made_RH, received, sent, self.shard.group)
        out_TH = torch.zeros_like(x_TH).index_copy(0, order_T, back_TH)
        return (out_TH * share_T.unsqueeze(-1)).view_as(x_BSH)

    def _exchange_counts(self, counts_E: Tensor) -> Tensor:
        if self.shard.group is None:
            return counts_E
        arriving_E = torch.empty_like(counts_E)
        dist.all_to_all_single(arriving_E, counts_E, group=self.shard.group)
        return arriving_E

    def _run_experts(self, tokens_RH: Tensor, counts: list[list[int]]) -> Tensor:
        """What arrived, by source and then by expert, through its experts; in the same order."""
        pieces = tokens_RH.split([count for source in counts for count in source])
        here = len(self.experts)
        made: list[Tensor] = [tokens_RH] * len(pieces)
        for place, expert in enumerate(self.experts.values()):
            mine = pieces[place::here]
            out = expert(torch.cat(mine)).split([len(piece) for piece in mine])
            made[place::here] = out
        return torch.cat(made)


class Expert(nn.Module):
    """An MLP of one expert."""

    def __init__(self, hidden: int, seed: int, name: str) -> None:
        super().__init__()
        self.up = nn.Parameter(seeded((2 * hidden, hidden), seed, f"{name}.up"))
        self.down = nn.Parameter(seeded((hidden, 2 * hidden), seed, f"{name}.down"))

    def forward(self, x_TH: Tensor) -> Tensor:
        return functional.linear(functional.gelu(functional.linear(x_TH, self.up)), self.down)


def all_to_all(x_TH: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    """Rows to the processes of the group, `sent[k]` to the k-th; `received[k]` come from it."""
    if group is None:
        return x_TH
    out: Tensor = _AllToAll.apply(x_TH, sent, received, group)
    return out


class _AllToAll(torch.autograd.Function):
    """Its gradient travels back the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        out = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        out = grad.new_empty((sum(ctx.sent), *grad.shape[1:]))
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return out, None, None, None
