"""Costs of one model, for schedules that cut it into different numbers of stages.

Costs are given for the stages of 1F1B, p of them. A schedule whose chain has n
stages gets p/n of each: of times, activations, weights and what is kept of them.
What crosses a boundary is the same wherever the model is cut, so the bytes of a
hand-over, latencies and bandwidths stay, and so do the speeds of ranks.

Costs that differ from stage to stage are of the finest division known. For fewer
stages neighbours are summed, for more each is split evenly; a number of stages
that neither divides nor is divided by theirs is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tracegen.cost_checks import TIMES, WHOLE_STAGE
from tracegen.costs import Costs
from tracegen.errors import CostError
from tracegen.ir import Placement
from tracegen.moe import COSTS as KERNELS
from tracegen.moe import MoE
from tracegen.times import DEFAULTS, of_each, of_number, times_at

# What a stage has more of the longer it is, beside its times.
AMOUNTS = ("activation_bytes", *WHOLE_STAGE)


class Source(Protocol):
    """Where the costs of a program's stages come from."""

    def costs(self, placement: Placement) -> Costs:
        """The costs of the stages of a placement.

        Raises:
            CostError: if the model cannot be cut like that.
        """

    def unit(self, placement: Placement) -> float:
        """How many 1F1B stages one stage of the placement is."""


def chain_length(placement: Placement) -> int:
    """The stages that the model is cut into: all chains have equally many."""
    return len(placement.chains[0])


def parts_of_ranks(placement: Placement) -> tuple[tuple[int, ...], ...]:
    """Which of the stages of a chain each rank has, once for ranks that have the same.

    Nothing where that leaves a stage in two places: two ranks share it and not others.
    """
    held: list[list[int]] = [[] for _ in range(max(placement.ranks) + 1)]
    for chain in placement.chains:
        for at, stage in enumerate(chain):
            held[placement.ranks[stage]].append(at)
    parts = tuple(dict.fromkeys(tuple(sorted(of_rank)) for of_rank in held))
    apart = sum(map(len, parts)) == chain_length(placement)
    return parts if apart else ()


@dataclass(frozen=True, slots=True)
class PerStage:
    """The same costs for a stage of any schedule, however long: a way out of one model."""

    given: Costs

    def costs(self, placement: Placement) -> Costs:
        return self.given

    def unit(self, placement: Placement) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class OneModel:
    """Costs of a 1F1B stage: the `ranks`-th part of a model.

    Attributes:
        given: the costs.
        ranks: how many such stages the model has.
    """

    given: Costs
    ranks: int

    def unit(self, placement: Placement) -> float:
        return self.ranks / chain_length(placement)

    def costs(self, placement: Placement) -> Costs:
        """The costs of the stages of a placement, as the module's head says.

        Raises:
            CostError: for costs of single stages that do not go with the number of stages, or
                MoE layers that are not whole.
        """
        division = _division(self.given, self.ranks)
        n, chains = chain_length(placement), len(placement.chains)
        if n == division == self.ranks:
            return self.given if chains == 1 else _copied(self.given, n, chains)
        if _has_lists(self.given):
            _check_division(division, n, self.given)
            changed = self._regrouped(division, n, chains)
        else:
            changed = {name: _part(getattr(self.given, name), self.ranks, n) for name in AMOUNTS}
            if self.given.moe is None:
                given = {name: getattr(self.given, name) for name in TIMES}
                times = times_at(given, DEFAULTS)
                changed |= {name: _part(us, self.ranks, n) for name, us in times.items()}
                changed["b_us"] = None
        changed |= {
            "memory": {k: self._amount(v, n, chains) for k, v in self.given.memory.items()},
            "microbatch": {
                key: _part_of_table(entry, self.ranks, n)
                for key, entry in self.given.microbatch.items()
            },
            "boundary_bytes": _boundaries(self.given.boundary_bytes, division, n, chains),
            "moe": None if self.given.moe is None else _moe(self.given.moe, self.ranks, n),
        }
        return replace(self.given, **changed)

    def _amount(self, value: Any, n: int, chains: int) -> Any:
        if isinstance(value, Sequence):
            return _plain(regroup(value, n) * chains)
        return _part(value, self.ranks, n)

    def _regrouped(self, division: int, n: int, chains: int) -> dict[str, Any]:
        """Times and amounts by stage, where some differ; the table of stages goes into them."""
        given, ranks = self.given, self.ranks
        found: dict[str, Any] = {"stage": {}}
        if given.moe is None:
            rows = [_times(given, stage, ranks, division) for stage in range(division)]
            for name in ("f_us", "i_us", "w_us", "split_us", "fb_us", "r_us"):
                column = [us for row in rows if (us := row[name]) is not None]
                if column:
                    found[name] = _plain(regroup(column, n) * chains)
            found["b_us"] = None
        for name in AMOUNTS:
            amounts = [
                of_number(given.stage, stage).get(
                    name, _scaled(getattr(given, name), stage, ranks, division)
                )
                for stage in range(division)
            ]
            if None not in amounts:
                found[name] = _plain(regroup(amounts, n) * chains)
        return found


def regroup(values: Sequence[float], n: int) -> list[float]:
    """A quantity of len(values) slices of a model, for n slices: neighbours summed, or split."""
    have = len(values)
    if have % n == 0:
        size = have // n
        return [sum(values[at * size : (at + 1) * size]) for at in range(n)]
    assert n % have == 0
    return [value * have / n for value in values for _ in range(n // have)]


def _has_lists(costs: Costs) -> bool:
    every = [getattr(costs, name) for name in (*TIMES, *AMOUNTS)] + list(costs.memory.values())
    return bool(costs.stage) or any(isinstance(value, Sequence) for value in every)


def _division(costs: Costs, ranks: int) -> int:
    """How many slices of the model the costs tell apart.

    Raises:
        CostError: if two of them disagree, or a single stage is none of them.
    """
    names = (*TIMES, *AMOUNTS)
    lengths = {len(v) for name in names if isinstance(v := getattr(costs, name), Sequence)}
    lengths |= {len(v) for v in costs.memory.values() if isinstance(v, Sequence)}
    if len(lengths) > 1:
        raise CostError(f"costs for {sorted(lengths)} stages; give one a stage of each")
    division = lengths.pop() if lengths else ranks
    for stage in costs.stage:
        if int(stage) >= division:
            raise CostError(f"stage {stage} has costs; the last stage is {division - 1}")
    return division


def _check_division(division: int, n: int, costs: Costs) -> None:
    if division % n and n % division:
        raise CostError(
            f"costs of {division} stages cannot be those of {n}; give them for a multiple of {n}, "
            "or --per-stage-costs"
        )
    for stage, entry in costs.stage.items():
        for name in ("microbatch", "moe"):
            if name in entry:
                raise CostError(
                    f"stage {stage} has costs of its own ({name}), which cannot be cut into {n} "
                    f"stages from {division}; use a schedule of {division} stages"
                )


def _part(value: Any, ranks: int, n: int) -> Any:
    """A p-th of the model -> an n-th of it."""
    return None if value is None else value * ranks / n


def _part_of_table(entry: Mapping[str, Any], ranks: int, n: int) -> dict[str, Any]:
    return {key: _part(v, ranks, n) if key in TIMES else v for key, v in entry.items()}


def _scaled(value: Any, stage: int, ranks: int, division: int) -> Any:
    """A stage's share of a quantity given for 1F1B stages, or by slices."""
    if isinstance(value, Sequence):
        return of_each(value, stage)
    return _part(value, ranks, division)


def _times(costs: Costs, stage: int, ranks: int, division: int) -> dict[str, float | None]:
    """f, i, w, split, r and fb of one slice of the model; fb of none or of all."""
    base = {name: _scaled(getattr(costs, name), stage, ranks, division) for name in TIMES}
    outer = {name: _part(us, ranks, division) for name, us in DEFAULTS.items()}
    times = times_at(of_number(costs.stage, stage), times_at(base, outer))
    pairs = costs.fb_us is not None or any("fb_us" in entry for entry in costs.stage.values())
    if pairs and times["fb_us"] is None:
        times["fb_us"] = sum(times[name] or 0.0 for name in ("f_us", "i_us", "w_us"))
    return times


def _plain(values: list[float]) -> float | list[float]:
    """One number where all are the same."""
    return values[0] if len(set(values)) == 1 else values


def _copied(costs: Costs, n: int, chains: int) -> Costs:
    """The costs of one chain's stages for every chain."""

    def copied(value: Any) -> Any:
        return list(value) * chains if isinstance(value, Sequence) else value

    stage: dict[str | int, Mapping[str, Any]] = {
        str(int(key) + chain * n): entry
        for chain in range(chains)
        for key, entry in costs.stage.items()
    }
    return replace(
        costs,
        **{name: copied(getattr(costs, name)) for name in (*TIMES, *AMOUNTS)},
        memory={name: copied(value) for name, value in costs.memory.items()},
        stage=stage,
        boundary_bytes=_boundaries(costs.boundary_bytes, n, n, chains),
    )


def _boundaries(given: Any, division: int, n: int, chains: int) -> Any:
    """What crosses each boundary: as given, those between the stages that there are."""
    if not isinstance(given, Sequence):
        return given
    inner = list(given)[: division - 1]
    if len(inner) != division - 1:
        raise CostError(
            f"boundary_bytes has {len(given)} numbers; {division} stages have {division - 1} "
            "boundaries"
        )
    if len(set(inner)) == 1:
        return inner[0]
    if division % n:
        raise CostError(
            f"boundary_bytes differ between {division} stages; what crosses the boundaries of {n} "
            "is not known; give one number"
        )
    size = division // n
    kept = [inner[at * size - 1] for at in range(1, n)]
    return (kept + [0.0]) * chains


def _moe(moe: MoE, ranks: int, n: int) -> MoE:
    """The same layers, in n stages instead of `ranks`."""
    whole = moe.layers * ranks
    if whole % n:
        raise CostError(
            f"moe: {moe.layers} layers in each of {ranks} stages are not to be cut into {n} equal "
            f"stages; give layers a multiple of {_least(ranks, n)}"
        )
    lists = {f"{name}_us": getattr(moe, f"{name}_us") for name in KERNELS}
    lists = {name: list(v) for name, v in lists.items() if isinstance(v, Sequence)}
    if any(len(set(values)) > 1 for values in lists.values()):
        raise CostError(
            f"moe: the layers of a stage differ, so {ranks} equal stages are not {n} equal ones; "
            "give each kernel one number"
        )
    changed: dict[str, Any] = {name: values[0] for name, values in lists.items()}
    return replace(moe, layers=whole // n, **changed)


def _least(ranks: int, n: int) -> int:
    """The least number of layers a 1F1B stage must have, to be cut into n stages in all."""
    from math import gcd

    return n // gcd(ranks, n)
