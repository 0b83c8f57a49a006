"""The kernels of a mixture-of-experts layer, and what they cost.

A layer's forward is attnF, dispF (the all-to-all that sends tokens to their
experts), mlpF and combF (the one that brings them back); its backward combB,
mlpB, dispB and attnB for the input, mlpW and attnW for the weights. Costs are
given in microseconds and kept as integer nanoseconds, each rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum
from typing import Any

from tracegen.checks import check_count, check_one_of, is_number
from tracegen.errors import CostError
from tracegen.ir import encode
from tracegen.moe_model import OPTIONAL, Model


class Kernel(IntEnum):
    """A kind of kernel; the number orders a forward's, then a backward's, then the weights'."""

    ATTN_F = 0
    DISP_F = 1
    MLP_F = 2
    COMB_F = 3
    COMB_B = 4
    MLP_B = 5
    DISP_B = 6
    ATTN_B = 7
    MLP_W = 8
    ATTN_W = 9

    @property
    def label(self) -> str:
        """As people write it: attnF, dispF, .. attnW."""
        name, _, half = self.name.partition("_")
        return name.lower() + half

    @property
    def cost(self) -> str:
        """The name of its cost: attn_f, .. attn_wgrad."""
        return self.name.lower() + ("grad" if self.of_weight else "")

    @property
    def is_communication(self) -> bool:
        return self in (Kernel.DISP_F, Kernel.COMB_F, Kernel.COMB_B, Kernel.DISP_B)

    @property
    def of_weight(self) -> bool:
        """Whether this belongs to W (and to a full backward)."""
        return self >= Kernel.MLP_W


class BlockOrder(StrEnum):
    """How the kernels of a pair run; DESIGN's table in `tracegen.kernels` says it in full."""

    NONE = "none"
    LOCKSTEP = "lockstep"
    PAIR = "pair"
    DUALPIPE = "dualpipe"


FORWARD = (Kernel.ATTN_F, Kernel.DISP_F, Kernel.MLP_F, Kernel.COMB_F)
INPUT = (Kernel.COMB_B, Kernel.MLP_B, Kernel.DISP_B, Kernel.ATTN_B)
WEIGHT = (Kernel.MLP_W, Kernel.ATTN_W)

COSTS = tuple(kernel.cost for kernel in Kernel)
MLP_W_WHEN = ("before", "after")
PLAIN = ("layers", "block", "mlp_w", "comm_sm_share")
KEYS = (*PLAIN, *COSTS)
MODEL_KEYS = tuple(f.name for f in fields(Model))

# What a cost is when it is not given: a factor of another, or a number of µs.
# A gradient of a combine is a dispatch. With nothing given these are all-to-all
# and kernel times that do not match: no order of one block hides all of them.
_UNLESS_GIVEN: dict[str, float | tuple[float, str]] = {
    "attn_f": 400.0,
    "disp_f": 800.0,
    "mlp_f": 400.0,
    "comb_f": 400.0,
    "comb_b": (1.0, "disp_f"),
    "mlp_b": (1.0, "mlp_f"),
    "disp_b": (1.0, "comb_f"),
    "attn_b": (1.5, "attn_f"),
    "mlp_wgrad": (1.0, "mlp_f"),
    "attn_wgrad": (0.5, "attn_f"),
}

# Of a stage: the kernels of one action are in memory at once.
MAX_LAYERS = 10_000
# Above this, us would be more than a float has.
MOST = 1e300

# One number for all layers, or one a layer.
Each = float | Sequence[float]


@dataclass(frozen=True)
class MoE:
    """Costs of the kernels of a stage, and how a pair of forward and backward runs them.

    Attributes:
        layers: of every stage, 1 or more.
        block: none, lockstep, pair or dualpipe.
        mlp_w: before or after: whether the weight gradient of the experts runs before or
            after the forward of the experts, in the blocks pair and dualpipe.
        comm_sm_share: the share of the device that a communication kernel takes from a
            compute kernel beside it, 0 (copy engines) up to but not 1.
        attn_f_us, .., attn_wgrad_us: of each kernel in µs: one number, or one a layer.
            Unless given: attn_f 400, disp_f 800, mlp_f 400, comb_f 400, and of the backward
            what follows from the forward: comb_b = disp_f, disp_b = comb_f,
            mlp_b = mlp_wgrad = mlp_f, attn_b = 1.5 attn_f, attn_wgrad = attn_f / 2.

    Raises:
        CostError: for a value that is none of these.
    """

    layers: int = 1
    block: str = BlockOrder.PAIR
    mlp_w: str = "before"
    comm_sm_share: float = 0.0
    attn_f_us: Each | None = None
    disp_f_us: Each | None = None
    mlp_f_us: Each | None = None
    comb_f_us: Each | None = None
    comb_b_us: Each | None = None
    mlp_b_us: Each | None = None
    disp_b_us: Each | None = None
    attn_b_us: Each | None = None
    mlp_wgrad_us: Each | None = None
    attn_wgrad_us: Each | None = None

    def __post_init__(self) -> None:
        check_count("layers", self.layers)
        if self.layers > MAX_LAYERS:
            raise CostError(f"layers = {self.layers} of a stage; use {MAX_LAYERS} or fewer")
        check_one_of("block", self.block, tuple(BlockOrder))
        check_one_of("mlp_w", self.mlp_w, MLP_W_WHEN)
        if not is_number(self.comm_sm_share) or not 0 <= self.comm_sm_share < 1:
            raise CostError(f"comm_sm_share = {self.comm_sm_share!r}; use 0 or more, less than 1")
        for name in COSTS:
            value = getattr(self, f"{name}_us")
            if value is not None:
                _check_each(name, value, self.layers)

    def us(self, kernel: Kernel) -> list[float]:
        """The µs of a kernel in force, by layer."""
        value = getattr(self, f"{kernel.cost}_us")
        if value is None:
            rule = _UNLESS_GIVEN[kernel.cost]
            if isinstance(rule, tuple):
                factor, of = rule
                return [factor * us for us in self.us(Kernel(COSTS.index(of)))]
            value = rule
        return [float(us) for us in value] if _is_list(value) else [float(value)] * self.layers

    def ns(self, scale: float = 1.0) -> Table:
        """The ns of every kernel, by its number and by layer; every µs times `scale`."""
        return tuple(tuple(round(us * scale * 1000) for us in self.us(kernel)) for kernel in Kernel)

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, as plain data that `from_dict` takes."""
        default = MoE()
        return {
            f.name.removesuffix("_us"): list(value) if _is_list(value) else value
            for f in fields(self)
            if (value := getattr(self, f.name)) != getattr(default, f.name)
        }

    def in_force(self) -> dict[str, Any]:
        """Every key with its value, defaults spelt out, as plain data that `from_dict` takes."""
        data = {name: getattr(self, name) for name in PLAIN}
        for kernel in Kernel:
            us = self.us(kernel)
            data[kernel.cost] = us[0] if len(set(us)) == 1 else us
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MoE:
        """Costs of plain data, as `[moe]` of a TOML file and a trace's metadata hold it.

        The number of layers is that of the lists when it is not given.

        Raises:
            CostError: naming the key that is unknown, or the value that is no cost.
        """
        if not isinstance(data, Mapping):
            raise CostError("moe is no table; write it as [moe]")
        try:
            _check_keys(data, KEYS)
            lengths = [len(data[name]) for name in COSTS if _is_list(data.get(name))]
            inferred = {"layers": lengths[0]} if lengths and lengths[0] else {}
            values = {key if key in PLAIN else f"{key}_us": data[key] for key in data}
            return cls(**inferred | values)
        except CostError as error:
            raise CostError(f"moe: {error}") from None

    @classmethod
    def from_pairs(cls, pairs: Sequence[str]) -> MoE:
        """Costs of texts KEY=VALUE, as from `--moe`; a list is written with commas.

        The keys of `Model` derive the kernels' costs from a model; a kernel's own
        cost goes before that.

            ["block=dualpipe", "layers=2", "attn_f=400", "mlp_f=100,200"]

        Raises:
            CostError: naming the text that is no pair, or the key or value that is wrong.
        """
        data: dict[str, Any] = {}
        said: dict[str, str] = {}
        for text in pairs:
            key, equals, value = text.partition("=")
            if not equals:
                raise CostError(f"moe: {text!r} is no cost; write KEY=VALUE, such as attn_f=400")
            if key in said:
                raise CostError(f"moe: {said[key]} and {text}: {key} is given twice; give it once")
            said[key], data[key] = text, _parse(key, value)
        model = {key: data.pop(key) for key in MODEL_KEYS if key in data}
        return cls.from_dict((_model_times(model) if model else {}) | data)

    @classmethod
    def from_model(
        cls,
        *,
        layers: int = 1,
        block: str = BlockOrder.PAIR,
        mlp_w: str = "before",
        comm_sm_share: float = 0.0,
        **size: float,
    ) -> MoE:
        """Costs derived from a model and a device: see `Model` for the sizes and the arithmetic.

        Raises:
            CostError: for a size that is missing, unknown or impossible.
        """
        given = {"layers": layers, "block": block, "mlp_w": mlp_w, "comm_sm_share": comm_sm_share}
        return cls.from_dict(given | _model_times(size))

    def at_stage(self, where: str, entry: Any) -> MoE:
        """These costs with those of single kernels that a stage has of its own.

        Raises:
            CostError: for a key that is no kernel's cost or a value that is no cost.
        """
        if not isinstance(entry, Mapping):
            raise CostError(f"{where}: moe is no table of kernel costs")
        try:
            _check_keys(entry, COSTS)
            return replace(self, **{f"{key}_us": value for key, value in entry.items()})
        except CostError as error:
            raise CostError(f"{where}: moe: {error}") from None


# The ns of a stage's kernels: by the kernel's number, then by layer.
Table = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Kernel costs in integer ns for one program.

    Attributes:
        of_stage: by stage.
        single: of (stage, microbatch), where it differs.
    """

    of_stage: list[Table]
    single: dict[tuple[int, int], Table] = field(default_factory=dict)

    @classmethod
    def of(
        cls, stages: Sequence[MoE], scales: Mapping[tuple[int, int], float] | None = None
    ) -> KernelTimes:
        """Times of each stage's costs, and of those (stage, microbatch) that are scaled."""
        single = {key: stages[key[0]].ns(scale) for key, scale in (scales or {}).items()}
        return cls([moe.ns() for moe in stages], single)

    def table(self, stage: int, microbatch: int) -> Table:
        """The ns of the kernels of one microbatch on one stage."""
        if not self.single:
            return self.of_stage[stage]
        return self.single.get((stage, microbatch), self.of_stage[stage])

    def plain_columns(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """The ns of F, B, I and W of each stage when nothing overlaps."""
        f, b, i, w = zip(*map(plain_ns, self.of_stage), strict=True)
        return list(f), list(b), list(i), list(w)

    def plain_singles(self) -> dict[int, int]:
        """The same of each microbatch that differs, by the code of its action."""
        return {
            encode(stage, kind, microbatch): ns
            for (stage, microbatch), table in self.single.items()
            for kind, ns in enumerate(plain_ns(table))
        }


def plain_ns(table: Table) -> tuple[int, int, int, int]:
    """What F, B, I and W last when nothing overlaps: the sums of their kernels."""
    f, i, w = (sum(sum(table[k]) for k in kernels) for kernels in (FORWARD, INPUT, WEIGHT))
    return f, i + w, i, w


def check_modes(p2p: str, dispatch: str) -> None:
    """Refuse the ways to replay that kernels have no meaning for.

    Raises:
        CostError: for blocking transfers, or for ranks that take any ready action.
    """
    if p2p == "blocking":
        raise CostError("MoE costs with --p2p blocking: kernels run on two streams; use async")
    if dispatch == "dynamic":
        raise CostError(
            "MoE costs with --dispatch dynamic: an action is no longer one piece; use static"
        )


def _model_times(size: Mapping[str, float]) -> dict[str, float]:
    try:
        _check_keys(size, MODEL_KEYS)
        if missing := [key for key in MODEL_KEYS if key not in (*size, *OPTIONAL)]:
            raise CostError(f"the model lacks {', '.join(missing)}")
        return Model(**size).times()
    except CostError as error:
        raise CostError(f"moe: {error}") from None


def _parse(key: str, text: str) -> Any:
    """The value of a text: a word for block and mlp_w, else a number or a list of them."""
    if key in ("block", "mlp_w"):
        return text
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise CostError(f"moe: {key} = {text!r} is no number") from None
    if key == "layers" and len(numbers) == 1 and numbers[0].is_integer():
        return int(numbers[0])
    return numbers if len(numbers) > 1 else numbers[0]


def _check_keys(data: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in data:
        if key not in known:
            raise CostError(f"no cost {key!r}; there are {', '.join(known)}")


def _check_each(name: str, value: Any, layers: int) -> None:
    if _is_list(value) and len(value) != layers:
        numbers, there_are = _count(len(value), "number"), _count(layers, "layer")
        raise CostError(f"{name} has {numbers}; there {there_are}")
    for one in value if _is_list(value) else [value]:
        if not is_number(one) or not 0 <= one < math.inf:
            raise CostError(f"{name} = {one!r} is no cost; use a finite number, 0 or more")
        if one > MOST:
            raise CostError(f"{name} is more than any cost; {MOST:g} is the most")


def _count(number: int, noun: str) -> str:
    be = ("is " if number == 1 else "are ") if noun == "layer" else ""
    return f"{be}{number} {noun}{'s' * (number != 1)}"


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
