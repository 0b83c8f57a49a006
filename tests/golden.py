"""Orders of other projects' code (data/golden/README.md), and ours as the oracle reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oracle import Case

from tracegen import registry

SHIPPED = registry.shipped()
GOLDEN = Path(__file__).parent / "data" / "golden"


def golden(stem: str) -> list[dict[str, Any]]:
    """The orders of one file."""
    return [json.loads(line) for line in (GOLDEN / f"{stem}.jsonl").read_text().splitlines()]


def case(name: str, p: int, m: int, v: int | None = None) -> Case:
    """A shipped schedule at a size."""
    schedule = SHIPPED[name]
    pipe = schedule.pipe(p, m, v)
    rows = [[str(step) for step in stream] for stream in schedule.streams(pipe)]
    return Case(rows, pipe.placement.ranks, pipe.placement.chains, m)


def case_of(name: str, recorded: dict[str, Any]) -> Case:
    """A shipped schedule at the size of a golden order."""
    p, m, v = recorded["p"], recorded["m"], recorded["stages"] // recorded["p"]
    return case(name, p, m, v if SHIPPED[name].stages_per_rank is None else None)
