"""Costs of one program in integer nanoseconds: what the replay asks."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tracegen.alike import alike
from tracegen.cost_checks import TIMES, Table
from tracegen.errors import CostError
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    NO_MATE,
    OPTIMIZER,
    REDUCE_GRAD,
    STAGE_MASK,
    STAGE_SHIFT,
    SUM_REPLICAS,
    UNSHARD,
    Placement,
    Program,
    Stream,
    encode,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT

if TYPE_CHECKING:
    from tracegen.costs import Costs
    from tracegen.jitter import Jitter
    from tracegen.moe import KernelTimes, MoE

DEFAULT_US = 1000.0

# One number for all, or one a stage (for boundary_bytes, one a boundary).
Each = float | Sequence[float]


class Times(NamedTuple):
    """Costs in integer ns for one program.

    Attributes:
        of_kind: by the kind's number (F, B, I, W), then by stage.
        pair: by the stage of the pair's forward; None where it is the sum of its halves.
        single: what differs: the ns of an action's code.
        single_pair: of a pair, by the code of its forward.
        recompute: by stage, the part of B and I, and on top of `pair`, that is recomputation.
        single_recompute: the same by the code of B and I, where it differs.
        alpha: latency by (from rank, to rank), where it differs from `any_alpha`.
        any_alpha: latency of the other links.
        kernels: of MoE stages the times of their kernels, whose sums `of_kind` and `single` are.
        num_microbatches: of a step; where several steps are numbered in one row, microbatch m
            is the first of the second.
        of_whole_stage: by kind (UNSHARD, REDUCE_GRAD, SUM_REPLICAS, OPTIMIZER), then by stage.
        zero: as in Costs.
        jitter: the factor on top, if there is one.
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
    kernels: KernelTimes | None
    num_microbatches: int
    of_whole_stage: dict[int, list[int]]
    recompute: list[int]
    single_recompute: dict[int, int]
    zero: int | None = None
    jitter: Jitter | None = None

    @classmethod
    def of(cls, costs: Costs, program: Program) -> Times:
        S, M = program.num_stages, program.num_microbatches
        _check_numbers(costs, program)
        slow = _slowdowns(costs, program.placement)
        given: list[dict[str, float | None]] = []
        for stage in range(S):
            base = {n: of_each(getattr(costs, n), stage, n, S) for n in TIMES}
            times = times_at(base, DEFAULTS)
            given.append(_named(f"stage {stage}", of_number(costs.stage, stage), times))
        whole = [_slowed(times, slow[stage]) for stage, times in enumerate(given)]
        single, single_pair, again = {}, {}, {}
        for stage, microbatch, own in _singles(costs, given, M):
            times = _slowed(own, slow[stage])
            kinds = _in_ns(times)
            for kind in (FORWARD, FULL, INPUT, WEIGHT):
                single[encode(stage, kind, microbatch)] = kinds[kind]
            for kind in (FULL, INPUT):
                again[encode(stage, kind, microbatch)] = _ns(times["r_us"] or 0.0)
            if (pair := times["fb_us"]) is not None:
                single_pair[encode(stage, FORWARD, microbatch)] = _ns(pair)
        columns = tuple([_in_ns(times)[kind] for times in whole] for kind in range(4))
        if (kernels := _kernels(costs, slow, M)) is not None:
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
            M,
            _whole_stages(costs, slow),
            [_ns(times["r_us"] or 0.0) for times in whole],
            again,
            costs.zero,
            _jitter(costs, M) if costs.jitter else None,
        )

    def duration(self, code: int, mate: int = NO_MATE) -> int:
        """The ns of a step: an action, or a pair of the codes of its forward and its backward."""
        stage = code >> STAGE_SHIFT & STAGE_MASK
        if mate == NO_MATE:
            known = self.single.get(self.in_step(code)) if self.single else None
            ns = self.of_kind[code & KIND_MASK][stage] if known is None else known
            return ns if self.jitter is None else self.jitter.of(ns, code)
        pair = self.pair[stage]
        if self.single_pair:
            pair = self.single_pair.get(self.in_step(code), pair)
        if pair is None:
            return self.duration(code) + self.duration(mate)
        pair += self._again(mate)
        return pair if self.jitter is None else self.jitter.of_pair(pair, code)

    @property
    def recomputes(self) -> bool:
        """Whether anything is recomputed."""
        return any(self.recompute) or any(self.single_recompute.values())

    def recomputation(self, code: int, mate: int = NO_MATE) -> int:
        """The ns of a step, of those of `duration`, that are recomputation: the first."""
        half = code if mate == NO_MATE else mate
        if half & KIND_MASK not in (FULL, INPUT):
            return 0
        ns = self._again(half)
        if self.jitter is None:
            return ns
        stage = code >> STAGE_SHIFT & STAGE_MASK
        pair = self.single_pair.get(self.in_step(code), self.pair[stage])
        whole = mate != NO_MATE and pair is not None
        return self.jitter.of_pair(ns, code) if whole else self.jitter.of(ns, half)

    def _again(self, code: int) -> int:
        stage = code >> STAGE_SHIFT & STAGE_MASK
        if not self.single_recompute:
            return self.recompute[stage]
        return self.single_recompute.get(self.in_step(code), self.recompute[stage])

    def durations(self, stream: Stream) -> array[int]:
        """The ns of every step of a rank. What steps alike have in common is looked up once."""
        if self.single or self.single_pair or self.jitter is not None:
            return array("q", map(self.duration, stream.codes, stream.mates))
        sorts, numbers = alike(stream)
        known = [self.duration(*sort) for sort in sorts]
        return array("q", map(known.__getitem__, numbers))

    def in_step(self, code: int) -> int:
        """The code with its microbatch numbered within its step."""
        m = self.num_microbatches
        return code - ((code >> MICROBATCH_SHIFT) // m * m << MICROBATCH_SHIFT)

    def kernel(self, ns: int, code: int) -> int:
        """The ns of a compute kernel of an action: its cost, and the action's jitter."""
        return ns if self.jitter is None else self.jitter.of(ns, code)

    def whole_stage(self, code: int) -> int:
        """The ns of an action of `of_whole_stage`; 0 of other kinds."""
        stages = self.of_whole_stage.get(code & KIND_MASK)
        return 0 if stages is None else stages[code >> STAGE_SHIFT & STAGE_MASK]

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


DEFAULTS: dict[str, float | None] = dict.fromkeys(("f_us", "i_us", "w_us"), DEFAULT_US)
DEFAULTS |= {"split_us": 0.0, "fb_us": None, "r_us": 0.0}


def _ns(us: float) -> int:
    return round(us * 1000)


def _in_ns(times: Mapping[str, float | None]) -> tuple[int, int, int, int]:
    names = ("f_us", "i_us", "w_us", "split_us", "r_us")
    f, i, w, split, r = (_ns(times[name] or 0.0) for name in names)
    return f, r + i + w, r + i, max(0, w + split)


def times_at(
    given: Mapping[str, Any], outer: Mapping[str, float | None]
) -> dict[str, float | None]:
    """f, i, w, split, fb and r in µs where `given` says something, over `outer`.

    Raises:
        CostError: if b, i and w contradict each other.
    """

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
    if (split := of("split_us") or 0.0) < 0 and w is not None and w + split < -1e-6:
        raise CostError(f"split_us = {split} is more than w_us = {w} can save")
    scale = given.get("scale", 1.0)
    times = {"i_us": i, "w_us": w}
    times |= {name: of(name) for name in ("f_us", "split_us", "fb_us", "r_us")}
    return {name: None if us is None else us * scale for name, us in times.items()}


def _named(
    where: str, given: Mapping[str, Any], outer: Mapping[str, float | None]
) -> dict[str, float | None]:
    """As `times_at`, an error saying where."""
    try:
        return times_at(given, outer)
    except CostError as error:
        raise CostError(f"{where}: {error}") from None


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
            name = f"microbatch {microbatch}"
            own = _named(name, everywhere.get(microbatch, {}), times)
            yield stage, microbatch, _named(f"stage {stage} {name}", here.get(microbatch, {}), own)


def _check_numbers(costs: Costs, program: Program) -> None:
    for where, table, count in (
        ("stage", costs.stage, program.num_stages),
        ("microbatch", costs.microbatch, program.num_microbatches),
        ("rank", costs.rank, program.num_ranks),
    ):
        for number in table:
            if not 0 <= int(number) < count:
                raise CostError(f"{where} {number} has costs; the last {where} is {count - 1}")


def _slowdowns(costs: Costs, placement: Placement) -> list[float]:
    """By stage, what its rank's times are multiplied by."""
    return [of_number(costs.rank, rank).get("slowdown", 1.0) for rank in placement.ranks]


def _slowed(times: dict[str, float | None], factor: float) -> dict[str, float | None]:
    return {name: None if us is None else us * factor for name, us in times.items()}


def _whole_stages(costs: Costs, slow: list[float]) -> dict[int, list[int]]:
    """The ns of what is done to whole stages; only the optimizer's depend on the rank's speed."""

    def us(name: str, stage: int) -> float:
        given = of_each(getattr(costs, name), stage, name, len(slow))
        return of_number(costs.stage, stage).get(name, given) or 0.0

    stages = range(len(slow))
    return {
        UNSHARD: [_ns(us("unshard_us", stage)) for stage in stages],
        REDUCE_GRAD: [_ns(us("grad_sync_us", stage)) for stage in stages],
        SUM_REPLICAS: [_ns(us("replica_sync_us", stage)) for stage in stages],
        OPTIMIZER: [_ns(us("optimizer_us", stage) * slow[stage]) for stage in stages],
    }


def _jitter(costs: Costs, num_microbatches: int) -> Jitter:
    from tracegen.jitter import Jitter

    return Jitter(costs.jitter, costs.seed, num_microbatches)


def _kernels(costs: Costs, slow: list[float], num_microbatches: int) -> KernelTimes | None:
    if costs.moe is None:
        return None
    from tracegen.moe import KernelTimes

    stages = [
        _slow_kernels(
            costs.moe.at_stage(f"stage {stage}", of_number(costs.stage, stage).get("moe", {})),
            factor,
        )
        for stage, factor in enumerate(slow)
    ]
    unit: dict[str, float | None] = dict.fromkeys(DEFAULTS, 1.0)
    singles = _singles(costs, [unit] * len(slow), num_microbatches)
    return KernelTimes.of(
        stages, {(stage, mb): scaled["f_us"] or 0.0 for stage, mb, scaled in singles}
    )


def _slow_kernels(moe: MoE, factor: float) -> MoE:
    """The costs on a slow rank: its compute kernels last longer, its communication does not."""
    if factor == 1:
        return moe
    from tracegen.moe import Kernel

    compute = [kernel for kernel in Kernel if not kernel.is_communication]
    slowed: dict[str, Any] = {f"{k.cost}_us": [us * factor for us in moe.us(k)] for k in compute}
    return replace(moe, **slowed)


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
    """A stage's value of one for all, or of one a stage.

    Raises:
        CostError: if `num_stages` is given and there are not so many values.
    """
    if not isinstance(value, Sequence):
        return value
    if num_stages and len(value) != num_stages:
        raise CostError(f"{name} has {len(value)} numbers; there are {num_stages} stages")
    return value[stage]
