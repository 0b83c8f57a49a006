"""What the stages compute: a transformer, dense or MoE, or the user's own modules.

A tensor's name ends in a capital a dimension: B sequences, S positions, H hidden,
N heads, D head width, V vocabulary, T tokens (B * S), E experts, R tokens that a
process received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tracegen.execute.experts import MoE, Shard, seeded
from tracegen.execute.options import Options

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True)
class Model:
    """A model cut into slices, its data and its loss, the same in every process that builds it.

    Attributes:
        build: the module of a slice.
        example: the input of a microbatch of a shard of the data (0 unless ep > 1).
        loss: (output, microbatch, shard) -> its part of the step's loss, which is the sum.
    """

    num_slices: int
    build: Callable[[int], nn.Module]
    example: Callable[[int, int], Tensor]
    loss: Callable[[Tensor, int, int], Tensor]


def transformer(
    options: Options, num_slices: int, num_microbatches: int, shard: Shard, device: torch.device
) -> Model:
    """A decoder-only transformer on random tokens, with a target drawn for each microbatch.

    Args:
        options: its sizes.
        num_slices: the embedding goes with the first, the head with the last.
        num_microbatches: m; the step's loss is the mean over all tokens.
        shard: which experts are held here; `Shard()` holds all.
        device: where its parameters and data live.
    """
    layers = options.layers_of(num_slices)
    dtype = DTYPES[options.dtype]
    parts = num_microbatches * options.ep

    def build(number: int) -> nn.Module:
        blocks: list[nn.Module] = [Block(options, layer, shard) for layer in layers[number]]
        if number == 0:
            blocks.insert(0, Embedding(options))
        if number == num_slices - 1:
            blocks.append(Head(options))
        return nn.Sequential(*blocks).to(device=device, dtype=dtype)

    def tokens(microbatch: int, of: int, salt: int) -> Tensor:
        draw = torch.Generator().manual_seed(_mix(options.seed, salt, microbatch, of))
        shape = (options.microbatch_size, options.sequence)
        return torch.randint(options.vocab, shape, generator=draw).to(device)

    def loss(logits_BSV: Tensor, microbatch: int, of: int) -> Tensor:
        target_BS = tokens(microbatch, of, salt=1)
        mean = functional.cross_entropy(logits_BSV.flatten(0, 1), target_BS.flatten())
        return mean / parts

    return Model(num_slices, build, lambda microbatch, of: tokens(microbatch, of, salt=0), loss)


def _mix(*numbers: int) -> int:
    """One seed of several numbers, different for different ones."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 1_000_003 + number + 1) % (1 << 62)
    return mixed


class Embedding(nn.Module):
    """Tokens and their positions to hidden states."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.token = nn.Parameter(seeded((options.vocab, options.hidden), options.seed, "token"))
        self.place = nn.Parameter(seeded((options.sequence, options.hidden), options.seed, "place"))

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return functional.embedding(tokens_BS, self.token) + self.place


class Head(nn.Module):
    """Hidden states to logits."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(options.hidden, bias=False)
        self.out = nn.Parameter(seeded((options.vocab, options.hidden), options.seed, "out"))

    def forward(self, x_BSH: Tensor) -> Tensor:
        return functional.linear(self.norm(x_BSH), self.out)


class Block(nn.Module):
    """A layer: causal attention, then an MLP or experts, each on a residual."""

    def __init__(self, options: Options, layer: int, shard: Shard) -> None:
        super().__init__()
        hidden, seed = options.hidden, options.seed
        self.heads = options.heads
        self.norm1 = nn.LayerNorm(hidden, bias=False)
        self.norm2 = nn.LayerNorm(hidden, bias=False)
        self.qkv = nn.Parameter(seeded((3 * hidden, hidden), seed, f"{layer}.qkv"))
        self.proj = nn.Parameter(seeded((hidden, hidden), seed, f"{layer}.proj"))
        self.mlp: nn.Module = (
            MoE(hidden, options.num_experts, seed, layer, shard)
            if options.num_experts
            else Mlp(hidden, seed, layer)
        )

    def forward(self, x_BSH: Tensor) -> Tensor:
        x_BSH = x_BSH + self.attend(self.norm1(x_BSH))
        out_BSH: Tensor = x_BSH + self.mlp(self.norm2(x_BSH))
        return out_BSH

    def attend(self, x_BSH: Tensor) -> Tensor:
        qkv_BSH = functional.linear(x_BSH, self.qkv).chunk(3, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in qkv_BSH)
        y_BNSD = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return functional.linear(y_BNSD.transpose(1, 2).flatten(2), self.proj)


class Mlp(nn.Module):
    """Two matrices with a GELU between."""

    def __init__(self, hidden: int, seed: int, layer: int) -> None:
        super().__init__()
        self.up = nn.Parameter(seeded((4 * hidden, hidden), seed, f"{layer}.up"))
        self.down = nn.Parameter(seeded((hidden, 4 * hidden), seed, f"{layer}.down"))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(functional.gelu(functional.linear(x, self.up)), self.down)
