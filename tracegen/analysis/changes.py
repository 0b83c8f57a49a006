"""What could be made faster, and the costs with that done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tracegen.cost_checks import TIMES
from tracegen.costs import Costs
from tracegen.ir import KIND_MASK, NO_MATE, STAGE_MASK, STAGE_SHIFT, Program
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.moe import Kernel
from tracegen.times import DEFAULTS, of_each, of_number, times_at

LESS = 0.99  # 1 % off
FASTER = 0.5  # twice as fast

NAMES = {FORWARD: "forward", FULL: "backward", INPUT: "input gradient", WEIGHT: "weight gradient"}
COST = {
    FORWARD: ("f_us",),
    FULL: ("i_us", "w_us", "split_us", "r_us"),
    INPUT: ("i_us", "r_us"),
    WEIGHT: ("w_us", "split_us"),
}
# The kinds whose costs are those of a kind too: a full backward is an input and a weight gradient.
SAME = {FULL: (INPUT, WEIGHT), INPUT: (FULL,), WEIGHT: (FULL,)}
PAIR = -1


@dataclass(frozen=True, slots=True)
class Change:
    """One thing made faster.

    Attributes:
        text: what, in words.
        stages: whose actions become 1 % shorter; empty if it is none of these.
        kind: the kind of these actions, or PAIR.
        rank: whose computing becomes 1 % shorter.
        links: ranks whose links, either way, become twice as fast.
        kernel: of MoE stages, the kernel that becomes 1 % shorter.
    """

    text: str
    stages: tuple[int, ...] = ()
    kind: int = PAIR
    rank: int | None = None
    links: tuple[tuple[int, int], ...] = ()
    kernel: Kernel | None = None


def changes(program: Program, costs: Costs | None) -> Iterator[Change]:
    """All that are worth a thought: of stages, of ranks, of links.

    Args:
        program: what runs.
        costs: what it is predicted from; None if it was measured, when links are named anyhow.
    """
    if costs is not None and costs.moe is not None:
        for kernel in Kernel:
            yield Change(f"1 % off every {kernel.label}", kernel=kernel)
    else:
        yield from _of_stages(program, costs)
    for rank in range(program.num_ranks):
        if len(program.ranks[rank]):
            yield Change(f"1 % off all of rank {rank}", rank=rank)
    links = sorted(_links(program))
    if costs is None or _takes_time(costs):
        for a, b in links:
            yield Change(f"the link of ranks {a} and {b} twice as fast", links=((a, b),))
        if len(links) > 1:
            yield Change("all links twice as fast", links=tuple(links))


def _of_stages(program: Program, costs: Costs | None) -> Iterator[Change]:
    """Of each stage its kinds, and each kind everywhere.

    What was measured of a pair is the pair's; what is predicted of one are its halves, unless
    a pair has a cost of its own.
    """
    kinds: dict[int, set[int]] = {kind: set() for kind in (*NAMES, PAIR)}
    own_pairs = costs is None or _has_pairs(costs)
    for stream in program.ranks:
        for code, mate in zip(stream.codes, stream.mates, strict=True):
            stage = code >> STAGE_SHIFT & STAGE_MASK
            if mate != NO_MATE and own_pairs:
                kinds[PAIR].add(stage)
                continue
            kinds[code & KIND_MASK].add(stage)
            if mate != NO_MATE:
                kinds[mate & KIND_MASK].add(mate >> STAGE_SHIFT & STAGE_MASK)
    for kind, stages in kinds.items():
        name = NAMES.get(kind, "pair")
        for stage in sorted(stages):
            yield Change(f"1 % off stage {stage}'s {name}", (stage,), kind)
        every = stages if costs is None else stages.union(*(kinds[k] for k in SAME.get(kind, ())))
        if stages and len(every) > 1:
            yield Change(f"1 % off every {name}", tuple(sorted(every)), kind)


def _has_pairs(costs: Costs) -> bool:
    return costs.fb_us is not None or any("fb_us" in entry for entry in costs.stage.values())


def _links(program: Program) -> set[tuple[int, int]]:
    ranks = program.placement.ranks
    return {
        (min(ranks[a], ranks[b]), max(ranks[a], ranks[b]))
        for chain in program.placement.chains
        for a, b in pairwise(chain)
        if ranks[a] != ranks[b]
    }


def _takes_time(costs: Costs) -> bool:
    entries = costs.link.values()
    return bool(
        costs.alpha_us
        or any(entry.get("alpha_us") for entry in entries)
        or (costs.bandwidth_GBps is not None and costs.boundary_bytes)
        or any("bandwidth_GBps" in entry for entry in entries)
    )


def with_change(costs: Costs, program: Program, change: Change) -> Costs:
    """The costs with a change made."""
    if change.links:
        return _faster_links(costs, change.links)
    if change.rank is not None:
        entry = of_number(costs.rank, change.rank)
        slow = {**entry, "slowdown": entry.get("slowdown", 1.0) * LESS}
        return replace(costs, rank=_put(costs.rank, change.rank, slow))
    if change.kernel is not None:
        return _shorter_kernel(costs, change.kernel)
    stage = costs.stage
    for number in change.stages:
        stage = _put(stage, number, _shorter_stage(costs, program, number, change.kind))
    return replace(costs, stage=stage)


def _put(table: Mapping[str | int, Any], key: int, entry: Any) -> dict[str | int, Any]:
    return {k: v for k, v in table.items() if int(k) != key} | {key: entry}


def _faster_links(costs: Costs, links: tuple[tuple[int, int], ...]) -> Costs:
    table: dict[str | int, Any] = dict(costs.link)
    for a, b in links:
        for name in (f"{a}-{b}", f"{b}-{a}"):
            entry = dict(table.get(name, {}))
            entry["alpha_us"] = entry.get("alpha_us", costs.alpha_us) * FASTER
            bandwidth = entry.get("bandwidth_GBps", costs.bandwidth_GBps)
            if bandwidth is not None:
                entry["bandwidth_GBps"] = bandwidth / FASTER
            table[name] = entry
    return replace(costs, link=table)


def _shorter_kernel(costs: Costs, kernel: Kernel) -> Costs:
    assert costs.moe is not None
    # All of them spelt out: what is not given follows from what is, and must not follow now.
    every: dict[str, Any] = {f"{k.cost}_us": costs.moe.us(k) for k in Kernel}
    every[f"{kernel.cost}_us"] = [us * LESS for us in every[f"{kernel.cost}_us"]]
    stage = {}
    for number, entry in costs.stage.items():
        own = costs.moe.at_stage(f"stage {number}", entry.get("moe", {}))
        kernels: dict[str, Any] = {k.cost: own.us(k) for k in Kernel}
        kernels[kernel.cost] = [us * LESS for us in kernels[kernel.cost]]
        stage[number] = {**entry, "moe": kernels} if "moe" in entry else entry
    return replace(costs, moe=replace(costs.moe, **every), stage=stage)


Us = dict[str, float | None]


def _shorter_stage(costs: Costs, program: Program, stage: int, kind: int) -> dict[str, Any]:
    """The entry of a stage: all its times spelt out, and those of microbatches that differ."""
    entry = of_number(costs.stage, stage)
    base = {name: of_each(getattr(costs, name), stage) for name in TIMES}
    times = times_at(entry, times_at(base, DEFAULTS))
    kept = {k: v for k, v in entry.items() if k not in (*TIMES, "microbatch")}
    here = {int(number): inner for number, inner in entry.get("microbatch", {}).items()}
    everywhere = {int(number): inner for number, inner in costs.microbatch.items()}
    own = {
        str(number): _less(
            times_at(here.get(number, {}), times_at(everywhere.get(number, {}), times)), kind
        )
        for number in sorted(here.keys() | everywhere.keys())
    }
    return {**kept, **_less(times, kind), **({"microbatch": own} if own else {})}


def _less(times: Us, kind: int) -> dict[str, float]:
    shorter = ("fb_us",) if kind == PAIR else COST[kind]
    return {
        name: us * LESS if name in shorter else us for name, us in times.items() if us is not None
    }
