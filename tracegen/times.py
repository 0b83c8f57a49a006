"""Costs of one program in integer nanoseconds: what the replay asks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracegen.cost_checks import TIMES, Table
from tracegen.errors import CostError
from tracegen.ir import (
    KIND_MASK,
    NO_MATE,
    STAGE_MASK,
    STAGE_SHIFT,
    Placement,
    Program,
    encode,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.moe import KernelTimes

if TYPE_CHECKING:
    from tracegen.costs import Costs

DEFAULT_US = 1000.0

# One number for all, or one a stage (for boundary_bytes, one a boundary).
Each = float | Sequence[float]


@dataclass(frozen=True, slots=True)
class Times:
    """Costs in integer ns for one program.

    Attributes:
        of_kind: by the kind's number (F, B, I, W), then by stage.
        pair: by the stage of the pair's forward; None where it is the sum of its halves.
        single: what differs: the ns of an action's code.
        single_pair: of a pair, by the code of its forward.
        alpha: latency by (from rank, to rank), where it differs from `any_alpha`.
        any_alpha: latency of the other links.
        kernels: of MoE stages the times of their kernels, whose sums `of_kind` and `single` are.
    """

    of_kind: tuple[list[int], list[int], list[int], list[int]]
    pair: list[int | None]
    single: dict[int, int]
    single_pair: dict[int, int]
    alpha: dict[tuple[int, int], int]
    any_alpha: int
    bandwidth: dict[tuple[int, int], float | None]
    any_bandwidth: float | None
    boundary_bytes: list[float]
    kernels: KernelTimes | None = None

    @classmethod
    def of(cls, costs: Costs, program: Program) -> Times:
        S, M = program.num_stages, program.num_microbatches
        whole: list[dict[str, float | None]] = []
        for stage in range(S):
            base = {n: of_each(getattr(costs, n), stage, n, S) for n in TIMES}
            times = times_at(base, DEFAULTS)
            whole.append(times_at(of_number(costs.stage, stage), times))
        for where, table, count in (
            ("stage", costs.stage, S),
            ("microbatch", costs.microbatch, M),
        ):
            for number in table:
                if not 0 <= int(number) < count:
                    raise CostError(f"{where} {number} has costs; the last {where} is {count - 1}")
        single, single_pair = {}, {}
        for stage, microbatch, times in _singles(costs, whole, M):
            kinds = _in_ns(times)
            for kind in (FORWARD, FULL, INPUT, WEIGHT):
                single[encode(stage, kind, microbatch)] = kinds[kind]
            if (pair := times["fb_us"]) is not None:
                single_pair[encode(stage, FORWARD, microbatch)] = _ns(pair)
        columns = tuple([_in_ns(times)[kind] for times in whole] for kind in range(4))
        if (kernels := _kernels(costs, S, M)) is not None:
            columns, single = kernels.plain_columns(), kernels.plain_singles()
        alpha, bandwidth = _links(costs, program.num_ranks)
        return cls(
            columns,  # type: ignore[arg-type]
            [None if (fb := times["fb_us"]) is None else _ns(fb) for times in whole],
            single,
            single_pair,
            alpha,
            _ns(costs.alpha_us),
            bandwidth,
            costs.bandwidth_GBps,
            _boundaries(costs.boundary_bytes, program.placement),
            kernels,
        )

    def duration(self, code: int, mate: int = NO_MATE) -> int:
        """The ns of a step: an action, or a pair of the codes of its forward and its backward."""
        stage = code >> STAGE_SHIFT & STAGE_MASK
        if mate == NO_MATE:
            known = self.single.get(code) if self.single else None
            return self.of_kind[code & KIND_MASK][stage] if known is None else known
        pair = self.single_pair.get(code, self.pair[stage])
        return self.duration(code) + self.duration(mate) if pair is None else pair

    def latency(self, link: tuple[int, int]) -> int:
        """The ns a hand-over takes from the first rank to the second, beside its bytes."""
        return self.alpha.get(link, self.any_alpha)

    def occupancy(self, link: tuple[int, int], stage: int) -> int:
        """The ns that what stage `stage` hands to its next stage occupies the link."""
        bandwidth = self.bandwidth.get(link, self.any_bandwidth)
        return 0 if bandwidth is None else round(self.boundary_bytes[stage] / bandwidth)

    @property
    def links_queue(self) -> bool:
        """Whether any link has a bandwidth, so that transfers wait for each other."""
        return any(self.boundary_bytes) and (
            self.any_bandwidth is not None or any(v is not None for v in self.bandwidth.values())
        )


DEFAULTS: dict[str, float | None] = {
    "f_us": DEFAULT_US,
    "i_us": DEFAULT_US,
    "w_us": DEFAULT_US,
    "fb_us": None,
}


def _ns(us: float) -> int:
    return round(us * 1000)


def _in_ns(times: Mapping[str, float | None]) -> tuple[int, int, int, int]:
    f, i, w = (_ns(times[name] or 0.0) for name in ("f_us", "i_us", "w_us"))
    return f, i + w, i, w


def times_at(
    given: Mapping[str, Any], outer: Mapping[str, float | None]
) -> dict[str, float | None]:
    """f, i, w and fb in µs where `given` says something, over `outer`."""

    def of(name: str) -> float | None:
        value = given.get(name)
        return outer[name] if value is None else value

    b, i, w = (given.get(name) for name in ("b_us", "i_us", "w_us"))
    if b is None:
        i, w = of("i_us"), of("w_us")
    elif i is None and w is None:
        i = w = b / 2
    elif i is not None and w is not None:
        if not math.isclose(b, i + w, rel_tol=1e-9, abs_tol=1e-6):
            raise CostError(f"b_us = {b} is not i_us + w_us = {i + w}; give two of the three")
    elif (rest := b - (w if i is None else i)) < 0:
        half = "w_us" if i is None else "i_us"
        raise CostError(f"b_us = {b} is less than its half {half} = {b - rest}; b = i + w")
    else:
        i, w = (rest, w) if i is None else (i, rest)
    scale = given.get("scale", 1.0)
    times = {"f_us": of("f_us"), "i_us": i, "w_us": w, "fb_us": of("fb_us")}
    return {name: None if us is None else us * scale for name, us in times.items()}


def of_number(table: Table, number: int) -> Mapping[str, Any]:
    """The entry of a stage or microbatch, whose key is text in TOML and JSON."""
    return table.get(number) or table.get(str(number)) or {}


def _singles(
    costs: Costs, whole: list[dict[str, float | None]], num_microbatches: int
) -> Iterator[tuple[int, int, dict[str, float | None]]]:
    """(stage, microbatch, its times) wherever a microbatch has costs of its own."""
    everywhere = {int(number): entry for number, entry in costs.microbatch.items()}
    for stage, times in enumerate(whole):
        here = {
            int(number): entry
            for number, entry in of_number(costs.stage, stage).get("microbatch", {}).items()
        }
        for microbatch in sorted(everywhere.keys() | here.keys()):
            if microbatch >= num_microbatches:
                raise CostError(
                    f"microbatch {microbatch} has costs; the last microbatch is "
                    f"{num_microbatches - 1}"
                )
            own = times_at(everywhere.get(microbatch, {}), times)
            yield stage, microbatch, times_at(here.get(microbatch, {}), own)


def _kernels(costs: Costs, num_stages: int, num_microbatches: int) -> KernelTimes | None:
    if costs.moe is None:
        return None
    stages = [
        costs.moe.at_stage(f"stage {stage}", of_number(costs.stage, stage).get("moe", {}))
        for stage in range(num_stages)
    ]
    unit: dict[str, float | None] = dict.fromkeys(DEFAULTS, 1.0)
    singles = _singles(costs, [unit] * num_stages, num_microbatches)
    return KernelTimes.of(
        stages, {(stage, mb): scaled["f_us"] or 0.0 for stage, mb, scaled in singles}
    )


def _links(
    costs: Costs, num_ranks: int
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], float | None]]:
    alpha: dict[tuple[int, int], int] = {}
    bandwidth: dict[tuple[int, int], float | None] = {}
    for name, entry in costs.link.items():
        a, _, b = str(name).partition("-")
        link = (int(a), int(b))
        if max(link) >= num_ranks or link[0] == link[1]:
            raise CostError(f"link {name!r}: there is none; ranks are 0 to {num_ranks - 1}")
        if "alpha_us" in entry:
            alpha[link] = _ns(entry["alpha_us"])
        if "bandwidth_GBps" in entry:
            bandwidth[link] = entry["bandwidth_GBps"]
    return alpha, bandwidth


def _boundaries(given: Each, placement: Placement) -> list[float]:
    """Bytes by the lower stage of each boundary."""
    S = placement.num_stages
    if not isinstance(given, Sequence):
        return [float(given)] * S
    if len(given) not in (S, S - 1):
        raise CostError(
            f"boundary_bytes has {len(given)} numbers; {S} stages have {S - 1} boundaries"
        )
    return [*map(float, given), 0.0][:S]


def of_each(value: Each | None, stage: int, name: str = "", num_stages: int = 0) -> float | None:
    if not isinstance(value, Sequence):
        return value
    if num_stages and len(value) != num_stages:
        raise CostError(f"{name} has {len(value)} numbers; there are {num_stages} stages")
    return value[stage]
