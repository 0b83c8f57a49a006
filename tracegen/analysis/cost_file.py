"""Costs -> the TOML file that `--costs` reads: those of one schedule's stages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tracegen.analysis.measure import Size, compiled, with_block
from tracegen.analysis.normalise import Source
from tracegen.files import write_text

_BARE = re.compile("[A-Za-z0-9_-]+")


def write(size: Size, source: Source, target: str | Path) -> None:
    """Write the costs of a schedule's stages at a size.

    Raises:
        ScheduleError: if the schedule is not defined for it.
        CostError: if the model cannot be cut like that.
        FileError: if the file cannot be written.
    """
    program = compiled(size)
    costs = with_block(source.costs(program.placement), program)
    about = (
        f"# {program.name}, p = {program.num_ranks}, v = {program.stages_per_rank}: "
        f"costs of its {program.num_stages} stages."
    )
    write_text(target, ["\n".join([about, *_lines(costs.given())]) + "\n"])


def _lines(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The values of a table, then the tables in it."""
    for name, value in data.items():
        if not isinstance(value, Mapping):
            yield f"{_key(name)} = {json.dumps(value, allow_nan=False)}"
    for name, value in data.items():
        if isinstance(value, Mapping):
            inner = (*path, _key(name))
            if any(not isinstance(one, Mapping) for one in value.values()):
                yield from ("", f"[{'.'.join(inner)}]")
            yield from _lines(value, inner)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)
