"""Options that are given several times, each as KEY=VALUE: --slow and --moe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tracegen.moe import MoE


def slowdowns(texts: tuple[str, ...]) -> dict[str | int, dict[str, float]]:
    """The entries of slow ranks, as costs have them."""
    said: dict[str | int, str] = {}
    slow = {}
    for text in texts:
        rank, entry = _slowdown(text)
        if rank in said:
            both = f"--slow {said[rank]} and --slow {text}"
            raise click.UsageError(f"{both}: rank {rank} is given twice; give it once")
        said[rank], slow[rank] = text, entry
    return slow


def _slowdown(text: str) -> tuple[str | int, dict[str, float]]:
    rank, _, factor = text.partition("=")
    try:
        return int(rank), {"slowdown": float(factor)}
    except ValueError:
        raise click.UsageError(f"--slow {text}: expected RANK=FACTOR, such as 3=1.5") from None


def moe_of(pairs: tuple[str, ...], base: MoE | None, block: str) -> MoE:
    """Kernel costs: the pairs over those of a file, else with the schedule's block."""
    from tracegen.moe import MoE

    found = MoE.from_pairs(pairs)
    given = {text.partition("=")[0] for text in pairs}
    if base is not None:
        return MoE.from_dict(base.in_force() | found.given())
    return replace(found, block=block) if block and "block" not in given else found
