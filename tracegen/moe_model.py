"""Kernel times of a mixture-of-experts layer from the size of a model and the speed of a device."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from tracegen.checks import is_number
from tracegen.errors import CostError
from tracegen.rates import check_rate

# What may be left out: a plain transformer that sends bf16 both ways.
OPTIONAL = ("expert_hidden", "sequence", "expert_ranks", "dispatch_bytes", "combine_bytes")


@dataclass(frozen=True, slots=True)
class Model:
    """One MoE layer, the tokens of a microbatch and the device that runs it.

    Counting two FLOPs for a multiply-add, t tokens, hidden size h, k = top_k, SwiGLU
    experts of inner size e (three h x e matrices), attention with four h x h
    projections, causal over sequences of s tokens, and a router of h x experts:

        projections  = 8 t h^2 + 2 t h experts
        scores       = 2 t s h                  (QK^T and AV, half of each by causality)
        experts      = 6 t k h e
        attn_f       = (projections + scores) / FLOP/s
        attn_b       = (projections + 2 scores) / FLOP/s   (each of the two products has two
                                                            inputs; recomputing is not counted)
        attn_wgrad   = projections / FLOP/s
        mlp_f = mlp_b = mlp_wgrad = experts / FLOP/s

    A token's vector goes to k experts, on `expert_ranks` ranks with equal load, of
    which one is its own:

        sent         = t k h (1 - 1 / expert_ranks)        elements that leave the rank
        disp_f = comb_b = sent dispatch_bytes / bandwidth
        comb_f = disp_b = sent combine_bytes / bandwidth

    The gradient of a combine is a dispatch, and that of a dispatch a combine. That
    is why comb_b has the bytes of the dispatch (DeepSeek-V3, arXiv:2412.19437,
    section 3.3.3: dispatch in fp8, combine in bf16).

    Attributes:
        hidden: h.
        experts: routed experts of a layer.
        top_k: experts per token.
        tokens: t, of one microbatch on one rank.
        bandwidth_GBps: what a rank's all-to-all sends, in 10**9 bytes/s.
        tflops: what the device reaches, in 10**12 FLOP/s.
        expert_hidden: e; 4 h unless given.
        sequence: s; t unless given.
        expert_ranks: ranks that share the experts; one expert each unless given.
        dispatch_bytes, combine_bytes: of one element; 2 unless given.

    Raises:
        CostError: for a size that is no number above 0, or a top_k above experts.
    """

    hidden: float
    experts: float
    top_k: float
    tokens: float
    bandwidth_GBps: float
    tflops: float
    expert_hidden: float | None = None
    sequence: float | None = None
    expert_ranks: float | None = None
    dispatch_bytes: float = 2
    combine_bytes: float = 2

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            value = getattr(self, name)
            if value is None and name in OPTIONAL:
                continue
            if not is_number(value) or not math.isfinite(value) or value <= 0:
                raise CostError(f"{name} = {value!r} is no size; use a finite number above 0")
        for name in ("tflops", "bandwidth_GBps"):
            check_rate(name, getattr(self, name))
        if self.top_k > self.experts:
            raise CostError(f"top_k = {self.top_k} is more than experts = {self.experts}")
        if self.expert_ranks is not None and self.expert_ranks < 1:
            raise CostError(f"expert_ranks = {self.expert_ranks}; use 1 or more")

    def flops(self) -> dict[str, float]:
        """FLOPs of each compute kernel, by the name of its cost."""
        t, h = self.tokens, self.hidden
        inner = 4 * h if self.expert_hidden is None else self.expert_hidden
        length = t if self.sequence is None else self.sequence
        projections = 8 * t * h * h + 2 * t * h * self.experts
        scores = 2 * t * length * h
        experts = 6 * t * self.top_k * h * inner
        return {
            "attn_f": projections + scores,
            "mlp_f": experts,
            "mlp_b": experts,
            "attn_b": projections + 2 * scores,
            "mlp_wgrad": experts,
            "attn_wgrad": projections,
        }

    def bytes(self) -> dict[str, float]:
        """Bytes that each communication kernel sends from the rank, by the name of its cost."""
        ranks = self.experts if self.expert_ranks is None else self.expert_ranks
        sent = self.tokens * self.top_k * self.hidden * (1 - 1 / ranks)
        dispatch, combine = sent * self.dispatch_bytes, sent * self.combine_bytes
        return {"disp_f": dispatch, "comb_f": combine, "comb_b": dispatch, "disp_b": combine}

    def times(self) -> dict[str, float]:
        """µs of each kernel of one layer, by the name of its cost."""
        compute = {name: flops / (self.tflops * 1e6) for name, flops in self.flops().items()}
        moved = {name: size / (self.bandwidth_GBps * 1e3) for name, size in self.bytes().items()}
        return compute | moved

    def table(self) -> list[tuple[str, str, float]]:
        """(cost, the arithmetic in numbers, µs) of each kernel: how its time comes about."""
        times = self.times()
        rows = [
            (name, f"{flops:.4g} FLOP / {self.tflops:g} TFLOP/s", times[name])
            for name, flops in self.flops().items()
        ]
        return rows + [
            (name, f"{size:.4g} B / {self.bandwidth_GBps:g} GB/s", times[name])
            for name, size in self.bytes().items()
        ]
