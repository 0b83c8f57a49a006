"""Costs of a transformer from its sizes: FLOPs, bytes that cross a boundary, bytes held.

b sequences of s tokens a microbatch, hidden size h, a heads, V words, D bytes a
number; matrix products count 2 FLOPs a multiply-add and nothing else counts.

FLOPs of a layer (Narayanan et al., Efficient Large-Scale Language Model Training on
GPU Clusters Using Megatron-LM, arXiv:2104.04473, appendix, and split into I and W as
Qi et al., arXiv:2401.10241, table 1): its matrices have 12 h^2 weights, and the scores
and their product with the values take 4 b s^2 h more, which have no weights:

    F = 24 b s h^2 + 4 b s^2 h      I = 24 b s h^2 + 8 b s^2 h      W = 24 b s h^2

The head's logits take 2 b s h V in each of F, I and W; looking up embeddings takes no
FLOPs worth counting.

Bytes of a layer's activations (Korthikanti et al., Reducing Activation Recomputation in
Large Transformer Models, arXiv:2205.05198, equation 1, there for D = 2): sixteen numbers
and two bytes of dropout masks a token and hidden unit, two numbers and a byte of mask a
pair of tokens and head:

    (16 D + 2) s b h + (2 D + 1) a s^2 b        34 s b h + 5 a s^2 b at D = 2

`selective` recomputation keeps the first term and repeats the 4 b s^2 h of attention's
core; `full` keeps D s b h, a layer's input, and repeats F. The head keeps 2 D s b h and
its logits, 4 s b V in 32 bits; the embedding a mask of s b h (section 4.3).

Recomputation stands before I (and B), as r of Costs: it runs when the gradient has come, not
before. What a layer holds while it is recomputed is not counted.

After I and until W, 16 D s b h are kept: inputs and gradients of the matrix products.

Weights: 12 h^2 + 13 h a layer, (V + s) h the embedding and h V the head, which has a
copy of its own. A weight takes D bytes, its gradient D, and Adam's state with the weight
in 32 bits 12 (Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3.1).

Tensor parallelism over t devices, with sequence parallelism (arXiv:2205.05198, section
4.2.2), divides FLOPs, activations, weights and what crosses a boundary by t. A layer's F
has two all-gathers and two reduce-scatters of D s b h bytes, as its I has, each of which
moves (t - 1)/t of that over a device's link; they stand in F and I, exposed. Data parallelism
over d devices sums gradients by a ring, 2 (d - 1)/d of their bytes over a device's link,
after a rank's last action.

With `zero` (Rajbhandari et al.) they run beside computation: 0 sums as above; from 1 on the sum is
a reduce-scatter, (d - 1)/d of the gradients' bytes, the optimizer's state a d-th, and the weights
are gathered, (d - 1)/d of their bytes; with 3 they are held only where PyTorch's FSDP holds them
whole, the shards being the optimizer's. Gradients are whole until REDUCE_GRAD, which ends their
accumulation over the microbatches, so that at the peak 2 holds what 1 does.

Where chains cross, each has the whole model: a stage's gradients are summed over the chains by a
ring too, over a device's link to other ranks, 2 (c - 1)/c of their bytes with c chains (Li and
Hoefler, Chimera, arXiv:2107.06925, section 3.2), once all have come to it.

So in a step tensor parallelism moves most and the pipeline
least: the widest links go to the first, then to data, then to the pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracegen.analysis import split
from tracegen.analysis.normalise import chain_length, parts_of_ranks
from tracegen.cost_checks import check_zero
from tracegen.costs import Costs
from tracegen.errors import CostError
from tracegen.ir import Placement
from tracegen.rates import check_rate

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
RECOMPUTE = ("none", "selective", "full")
OPTIMIZER_BYTES = 12  # Adam: the weight, its mean and its variance in 32 bits
LOGIT_BYTES = 4
# An H100's HBM3, for the least microbatch; nothing else depends on it.
MEMORY_BANDWIDTH_GBPS = 3350.0


@dataclass(frozen=True, slots=True)
class Model:
    """A transformer of equal layers, and the device that runs it.

    Attributes:
        layers, hidden, seq, vocab: its sizes; no embedding and no head with vocab = 0.
        tflops: what a device does, in 10**12 FLOP/s; achieved, not the data sheet's.
        microbatch_size: sequences of a microbatch.
        heads: of attention; one for 128 of hidden unless given.
        dtype: fp32, bf16, fp16 or fp8: of weights, activations and hand-overs.
        recompute: none, selective or full.
        split: layers by stage, as 8,9,9,6; even; or best.
        alpha_us, bandwidth_GBps: of a hand-over between ranks, as in Costs.
        memory_GBps: of a device's memory, for `least_microbatch`.
        tensor, data: devices over which a stage's layers, and its batch, are spread.
        tensor_GBps, data_GBps: of a device's links among those; without, that takes no time.
        zero: what the data-parallel devices shard, as in Costs.

    Raises:
        CostError: for a size that is none.
    """

    layers: int
    hidden: int
    seq: int
    tflops: float
    microbatch_size: int = 1
    vocab: int = 0
    heads: int | None = None
    dtype: str = "bf16"
    recompute: str = "none"
    split: str = split.EVEN
    alpha_us: float = 0.0
    bandwidth_GBps: float | None = None
    memory_GBps: float = MEMORY_BANDWIDTH_GBPS
    tensor: int = 1
    data: int = 1
    tensor_GBps: float | None = None
    data_GBps: float | None = None
    zero: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "seq", "microbatch_size", "tensor", "data"):
            if getattr(self, name) < 1:
                raise CostError(f"model: {name} = {getattr(self, name)}; use 1 or more")
        if self.vocab < 0 or (self.heads is not None and self.heads < 1):
            raise CostError("model: vocab is 0 or more, heads 1 or more")
        for name in ("tflops", "memory_GBps", "tensor_GBps", "data_GBps"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < math.inf:
                raise CostError(f"model: {name} = {getattr(self, name)}; use more than 0")
            check_rate(f"model: {name}", getattr(self, name) or 0)
        for name, known in (("dtype", tuple(BYTES)), ("recompute", RECOMPUTE)):
            if getattr(self, name) not in known:
                raise CostError(f"model: {name} = {getattr(self, name)!r}; use {', '.join(known)}")

        check_zero(self.zero, None, False)
        if self.zero is not None and self.data == 1:
            raise CostError(f"model: zero = {self.zero} is among data-parallel devices; give data")

    def unit(self, placement: Placement) -> float:
        return 1.0  # activations and weights are in bytes

    @property
    def tokens(self) -> int:
        """Of a microbatch: b s."""
        return self.microbatch_size * self.seq

    @property
    def _heads(self) -> int:
        return self.heads or max(1, self.hidden // 128)

    def layer_flops(self) -> tuple[int, int, int, int]:
        """F, I and W of a layer, and what is recomputed before I."""
        matrices = 24 * self.tokens * self.hidden**2
        scores = 4 * self.tokens * self.seq * self.hidden
        forward = matrices + scores
        again = {"none": 0, "selective": scores, "full": forward}[self.recompute]
        return forward, matrices + 2 * scores, matrices, again

    def head_flops(self) -> int:
        """Of the head's F, of its I and of its W."""
        return 2 * self.tokens * self.hidden * self.vocab

    def layer_activations(self) -> int:
        """Bytes that a layer keeps of a microbatch."""
        size, units = BYTES[self.dtype], self.tokens * self.hidden
        pairs = self._heads * self.seq * self.tokens
        return {
            "none": (16 * size + 2) * units + (2 * size + 1) * pairs,
            "selective": (16 * size + 2) * units,
            "full": size * units,
        }[self.recompute]

    def kept_for_weights(self) -> int:
        """Bytes that a layer keeps of a microbatch from I to W."""
        return 16 * BYTES[self.dtype] * self.tokens * self.hidden

    def ends_activations(self) -> tuple[int, int]:
        """Bytes that the embedding and the head keep of a microbatch."""
        if not self.vocab:
            return 0, 0
        units = self.tokens * self.hidden
        return units, 2 * BYTES[self.dtype] * units + LOGIT_BYTES * self.tokens * self.vocab

    def parameters(self) -> tuple[int, int, int]:
        """Of a layer, of the embedding and of the head."""
        h, ends = self.hidden, 1 if self.vocab else 0
        return 12 * h * h + 13 * h, ends * (self.vocab + self.seq) * h, self.vocab * h

    def stages(self, placement: Placement) -> tuple[int, ...]:
        """The layers of each stage of a chain.

        Raises:
            CostError: if the split is for another number of stages, or there are too few layers.
        """
        layer, head = sum(self.layer_us()), 3 * self._us(self.head_flops())
        count, parts = chain_length(placement), parts_of_ranks(placement)
        return split.split(self.split, self.layers, count, layer, 0.0, head, parts)

    def layer_us(self) -> tuple[float, float, float, float]:
        """F, I, W and the recomputation of a layer in us, with tensor parallelism's communication.

        Full recomputation repeats that of F too.
        """
        f, i, w, r = map(self._us, self.layer_flops())
        moved = self._layer_bytes() / 4
        alone = 0.0 if self.tensor_GBps is None else moved / (self.tensor_GBps * 1e3)
        again = 0.0 if self.recompute != "full" else alone
        return f + 2 * alone, i + 2 * alone, w, r + 2 * again

    def _layer_bytes(self) -> float:
        """What tensor parallelism moves over a device's link in a layer's F and I."""
        whole = BYTES[self.dtype] * self.tokens * self.hidden
        return 8 * whole * (self.tensor - 1) / self.tensor

    def traffic(self, placement: Placement, num_microbatches: int) -> dict[str, float]:
        """The bytes that the busiest device moves in a step, by what they are for: out alone."""
        counts = self.stages(placement)
        every = list(counts) * len(placement.chains)
        weights = self._by_stage(counts, *self.parameters()) * len(placement.chains)
        chains = len(placement.chains)
        m = num_microbatches / chains
        size, ranks = BYTES[self.dtype], range(max(placement.ranks) + 1)
        again = 1.5 if self.recompute == "full" else 1.0
        previous, following = placement.neighbours()
        tensor, data, pipeline = ([0.0 for _ in ranks] for _ in range(3))
        for stage, rank in enumerate(placement.ranks):
            tensor[rank] += m * every[stage] * again * self._layer_bytes()
            gradients = size * weights[stage] / self.tensor
            data[rank] += 2 * (self.data - 1) / self.data * gradients
            pipeline[rank] += 2 * (chains - 1) / chains * gradients
            for other in (previous[stage], following[stage]):
                if other >= 0 and placement.ranks[other] != rank:
                    pipeline[rank] += m * size * self.tokens * self.hidden / self.tensor
        return {"tensor": max(tensor), "data": max(data), "pipeline": max(pipeline)}

    def costs(self, placement: Placement) -> Costs:
        """The costs of the stages of a placement; every chain has the whole model.

        Raises:
            CostError: if the model cannot be cut into so many stages.
        """
        counts, chains = self.stages(placement), len(placement.chains)
        ends = [0.0] * (len(counts) - 1) + [self._us(self.head_flops())]
        times: dict[str, Any] = {
            name: [count * us + end for count, end in zip(counts, ends, strict=True)] * chains
            for name, us in zip(("f_us", "i_us", "w_us"), self.layer_us()[:3], strict=True)
        }
        if (again := self.layer_us()[3]) > 0:
            times["r_us"] = [count * again for count in counts] * chains
        held = self._by_stage(counts, self.layer_activations(), *self.ends_activations())
        size, t = BYTES[self.dtype], self.tensor
        weights = [count / t for count in self._by_stage(counts, *self.parameters())]
        shards = self.data if self.zero else 1
        share = self.kept_for_weights() / self.layer_activations()
        memory: dict[str, list[float]] = {
            "weight_bytes": [size * count for count in weights] * chains,
            "gradient_bytes": [size * count for count in weights] * chains,
            "optimizer_bytes": [OPTIMIZER_BYTES / shards * count for count in weights] * chains,
        }
        if share > 1:  # what was recomputed for I is more than what was kept before
            more = (self.kept_for_weights() - self.layer_activations()) / t
            memory["w_stash_bytes"] = [float(count * more) for count in counts] * chains
        if self.data > 1 and self.data_GBps is not None:
            ring = (self.data - 1) / self.data * size / (self.data_GBps * 1e3)
            passes = 1 if self.zero else 2
            times["grad_sync_us"] = [passes * ring * count for count in weights] * chains
            if self.zero:
                times["unshard_us"] = [ring * count for count in weights] * chains
        if chains > 1 and self.bandwidth_GBps is not None:
            ring = 2 * (chains - 1) / chains * size / (self.bandwidth_GBps * 1e3)
            times["replica_sync_us"] = [ring * count for count in weights] * chains
        return Costs(
            **times,
            activation_bytes=[amount / t for amount in held] * chains,
            w_share=min(1.0, share),
            boundary_bytes=size * self.tokens * self.hidden / t,
            alpha_us=self.alpha_us,
            bandwidth_GBps=self.bandwidth_GBps,
            memory=memory,
            zero=self.zero,
        )

    def _by_stage(self, counts: Sequence[int], layer: int, first: int, last: int) -> list[float]:
        amounts = [float(count * layer) for count in counts]
        amounts[0] += first
        amounts[-1] += last
        return amounts

    def _us(self, flops: int) -> float:
        return flops / self.tensor / (self.tflops * 1e6)

    def least_microbatch(self) -> int | None:
        """The fewest sequences with which a layer's matrix products keep the device computing.

        A product of n tokens with an h x h matrix, a layer's smallest, does 2 n h^2 FLOPs and
        moves D (2 n h + h^2) bytes: below tflops / memory_GBps FLOPs a byte the memory sets
        the pace. None where no number of tokens is enough.
        """
        wanted = self.tflops * 1e12 / (self.memory_GBps * 1e9) * BYTES[self.dtype]
        room = 2 * self.hidden - 2 * wanted
        if room <= 0:
            return None
        return max(1, math.ceil(math.ceil(wanted * self.hidden / room) / self.seq))
