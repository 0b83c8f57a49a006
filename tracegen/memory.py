"""What ranks hold: activations, weights, gradients, optimizer state and what W still needs.

Activations are taken when F starts; given back when B ends, or, split, when I
ends less the share `w_share`, which W gives back (freed at input), or all when W
ends (freed at weight). A pair's F is taken before its B gives back; without
backward an activation is given back when its F ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import NamedTuple

from tracegen.alike import alike
from tracegen.costs import Costs
from tracegen.errors import CostError
from tracegen.ir import (
    KIND_MASK,
    STAGE_MASK,
    STAGE_SHIFT,
    Program,
    Stream,
    decode,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.timeline import FREED_AT, Timeline, as_number
from tracegen.times import of_each

# What `--memory-at` says -> the convention.
CONVENTIONS = {"input": "freed_at_input", "weight": "freed_at_weight"}

RESIDENT = ("weight_bytes", "gradient_bytes", "optimizer_bytes")

UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGTP", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")


class Limit(NamedTuple):
    """What no rank may hold more than.

    Attributes:
        size: in bytes, or in activations of one stage and microbatch where costs give no bytes.
        at: the convention: freed_at_input or freed_at_weight.
        text: as it was given.
    """

    size: float
    at: str
    text: str


def limit(text: str, at: str, costs: Costs) -> Limit:
    """The limit of a text such as 6, 80GiB or 1.5e9.

    Raises:
        CostError: for what is no size, or for bytes where the costs give none.
    """
    match = _SIZE.fullmatch(text.strip())
    names = {name.lower(): size for name, size in UNITS.items()}
    if match is None or match[2].lower() not in names:
        raise CostError(
            f"memory limit {text!r}: expected a number of stage activations, or of bytes, "
            "such as 6 or 80GiB"
        )
    if match[2] and not counts_bytes(costs):
        raise CostError(
            f"memory limit {text}: the costs say nothing of bytes; give --activation-bytes, or a "
            "limit in stage activations, such as 6"
        )
    return Limit(float(match[1]) * names[match[2].lower()], CONVENTIONS[at], text)


def counts_bytes(costs: Costs) -> bool:
    return costs.in_bytes or bool(costs.memory)


def peaks(program: Program, costs: Costs) -> dict[str, list[float]]:
    """The most activations each rank holds, by both conventions.

    In units of one stage's activations of one microbatch, or in bytes where the
    costs give them.
    """
    size = costs.activations(program.num_stages)
    ledgers = {at: _changes(size, [0.0] * len(size), kept) for at, kept in _kept(costs).items()}
    found: dict[str, list[float]] = {at: [] for at in ledgers}
    for stream in program.ranks:
        for at, change in ledgers.items():
            found[at].append(as_number(_peak(stream, change, program.forward_only)))
    return found


def _peak(stream: Stream, change: dict[int, list[float]], forward_only: bool) -> float:
    """The most of `_holding`, without its positions: steps alike are looked up once."""
    sorts, numbers = alike(stream)
    by = [
        [change[code & KIND_MASK][code >> STAGE_SHIFT & STAGE_MASK] for code in sort if code >= 0]
        for sort in sorts
    ]
    if forward_only:
        return max(chain.from_iterable(by), default=0.0)
    if stream.has_mates:
        return max(accumulate(chain.from_iterable(map(by.__getitem__, numbers))), default=0.0)
    return max(accumulate(map([one for (one,) in by].__getitem__, numbers)), default=0.0)


def peak_bytes(program: Program, costs: Costs) -> dict[str, list[float]] | None:
    """The most bytes each rank holds in all, by both conventions; None if they are not known.

    Raises:
        CostError: if sizes are given for another number of stages, or not those of activations.
    """
    if not costs.memory:
        return None
    return {
        at: [
            as_number(max((held for _, _, held in _all(program, costs, rank, at)), default=base))
            for rank, base in enumerate(resident(program, costs))
        ]
        for at in FREED_AT
    }


def resident(program: Program, costs: Costs) -> list[float]:
    """By rank, the bytes that its stages hold throughout: weights, gradients, optimizer state.

    With `zero = 3`, of the weights the most that are there at once.
    """
    S = program.num_stages
    if costs.zero == 3:
        return _with_sharded_weights(program, costs)
    per_stage = [sum(_size(costs, name, s, S) for name in RESIDENT) for s in range(S)]
    held = [0.0] * program.num_ranks
    for stage, rank in enumerate(program.placement.ranks):
        held[rank] += per_stage[stage]
    return held


def _with_sharded_weights(program: Program, costs: Costs) -> list[float]:
    S = program.num_stages
    weights = [_size(costs, RESIDENT[0], s, S) for s in range(S)]
    others = [sum(_size(costs, name, s, S) for name in RESIDENT[1:]) for s in range(S)]
    key = f"weights there at once {weights}"
    if key not in program.memo:
        from tracegen.passes.whole_stage import most_whole

        program.memo[key] = [most_whole(stream, weights) for stream in program.ranks]
    held: list[float] = list(program.memo[key])
    for stage, rank in enumerate(program.placement.ranks):
        held[rank] += others[stage]
    return held


def over_limit(program: Program, costs: Costs, most: Limit) -> Iterator[str]:
    """The first action of each rank that takes more than the limit allows."""
    unit = " bytes" if counts_bytes(costs) else " stage activations"
    for rank in range(program.num_ranks):
        for at, code, held in _all(program, costs, rank, most.at):
            if held > most.size:
                yield (
                    f"rank {rank}, action {at}: {decode(code)} makes it hold "
                    f"{as_number(held):.15g}{unit} ({most.at.replace('_', ' ')}); "
                    f"the limit is {most.text}"
                )
                break


def over_time(line: Timeline, rank: int) -> Iterator[tuple[int, float]]:
    """(ns, bytes the rank holds from then on) wherever they change; freed at input."""
    program, base = line.program, resident(line.program, line.costs)[rank]
    changes: dict[int, float] = {0: 0.0}
    before = base
    for at, code, held in _all(program, line.costs, rank, "freed_at_input"):
        step = program.offsets[rank] + at
        ns = (line.start_ns if code & KIND_MASK == FORWARD else line.end_ns)[step]
        changes[ns] = changes.get(ns, 0.0) + held - before
        before = held
        if program.forward_only:
            end = line.end_ns[step]
            changes[end] = changes.get(end, 0.0) + base - held
            before = base
    now, shown = base, None
    for ns, change in sorted(changes.items()):
        now += change
        if now != shown:
            yield ns, as_number(now)
            shown = now


def _kept(costs: Costs) -> dict[str, float]:
    """The share of an activation that stays from I to W, by convention."""
    return {"freed_at_input": costs.w_share, "freed_at_weight": 1.0}


def _changes(size: list[float], stash: list[float], kept: float) -> dict[int, list[float]]:
    """By kind and stage, what an action changes."""
    return {
        FORWARD: size,
        FULL: [-one for one in size],
        INPUT: [(kept - 1.0) * one + extra for one, extra in zip(size, stash, strict=True)],
        WEIGHT: [-kept * one - extra for one, extra in zip(size, stash, strict=True)],
    }


def _holding(
    program: Program, rank: int, change: dict[int, list[float]], base: float = 0.0
) -> Iterator[tuple[int, int, float]]:
    """(position, code, what the rank holds then) of each action; a forward-only F at its most."""
    held, forward_only = base, program.forward_only
    for at, code in program.ranks[rank].halves():
        held += change[code & KIND_MASK][code >> STAGE_SHIFT & STAGE_MASK]
        yield at, code, held
        if forward_only:
            held = base


def _all(program: Program, costs: Costs, rank: int, at: str) -> Iterator[tuple[int, int, float]]:
    """As `_holding`, of all that the rank holds."""
    change = changes(costs, program.num_stages, at)
    return _holding(program, rank, change, resident(program, costs)[rank])


def changes(costs: Costs, num_stages: int, at: str) -> dict[int, list[float]]:
    """By kind (F, B, I, W) and stage, what an action adds to all that its rank holds.

    Raises:
        CostError: if sizes are given for another number of stages, or not those of activations.
    """
    if costs.memory and not costs.in_bytes:
        raise CostError(
            "[memory] gives bytes, but those of activations are missing; add activation_bytes"
        )
    stash = [_size(costs, "w_stash_bytes", s, num_stages) for s in range(num_stages)]
    return _changes(costs.activations(num_stages), stash, _kept(costs)[at])


def _size(costs: Costs, name: str, stage: int, num_stages: int) -> float:
    return of_each(costs.memory.get(name), stage, f"memory: {name}", num_stages) or 0.0
