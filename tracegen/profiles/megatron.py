"""Pipeline timer dumps of Megatron-LM, as the public patch writes them -> Recorded.

A file a rank, `event_times_PP<p>_VPP<v>_TPxCPxDP_rank_<a>_pp_rank_<r>_rank_<g>.json`: one flat
object of milliseconds, `forward-<mb>-start`, `forward-<mb>-end`, `backward-<mb>-...`; with
virtual stages `forward-<chunk>-<mb>-start`, where chunk c of pipeline rank r is stage c * p + r.
The form is that which the PP-Schedule-Visualization project reads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracegen.errors import FileError
from tracegen.ir import MAX_STAGES, NO_MATE, encode
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.profiles.model import Recorded, Window
from tracegen.readers.warn import Warnings

NAME = re.compile(
    r"event_times_PP(\d{1,5})_VPP(\d{1,5}|None)_TPxCPxDP_rank_(\d{1,7})_pp_rank_(\d{1,5})"
    r"_rank_(\d{1,7})\.json"
)
KEY = re.compile(r'"(forward|backward)-(?:(\d{1,5})-)?(\d{1,9})-(start|end)"')
NOTE = (
    "timers' times are read as they are: whether a forward's includes the wait for its input is "
    "for the timers to say"
)


def read_all(paths: Sequence[Path], warnings: Warnings) -> tuple[list[Recorded], list[int], int]:
    """One file of each pipeline rank, its place, and the number of pipeline ranks.

    Raises:
        FileError: if a name or a file is not in the form, or sizes differ.
    """
    named = [_named(path) for path in paths]
    sizes = {(p, v) for _, p, v, _, _, _ in named}
    if len(sizes) > 1:
        raise FileError(
            f"{paths[0].parent}: the names say several sizes (PP, VPP): {sorted(sizes)}"
        )
    p, v = sizes.pop()
    places: dict[int, dict[int, tuple[Path, int]]] = {}
    for path, _, _, other, place, rank in named:
        places.setdefault(other, {})[place] = (path, rank)
    replica = min(places, key=lambda other: (-len(places[other]), other))
    by_place = dict(places[replica])
    for other in sorted(places):
        for place, one in places[other].items():
            if by_place.setdefault(place, one) is one and other != replica:
                warnings.add(
                    "replicas",
                    f"pipeline rank {place} is of TPxCPxDP_rank_{other}, others of "
                    f"TPxCPxDP_rank_{replica}: replicas of one run may differ in time",
                )
    if beyond := [place for place in by_place if place >= p]:
        raise FileError(f"{by_place[beyond[0]][0]}: pp_rank {beyond[0]} is beyond PP{p}")
    if left := len(named) - len(by_place):
        warnings.add(
            "left out",
            f"{left} of {len(named)} files are of other replicas than TPxCPxDP_rank_{replica} and "
            "left out",
        )
    if lost := [place for place in range(p) if place not in by_place]:
        warnings.add("missing", f"no file is of pipeline rank {', '.join(map(str, lost))}")
    found = [_read(path, place, p, v, rank) for place, (path, rank) in sorted(by_place.items())]
    return found, sorted(by_place), p


def _named(path: Path) -> tuple[Path, int, int, int, int, int]:
    """What a file's name says: PP, VPP, the replica, the pipeline rank and the rank."""
    match = NAME.fullmatch(path.name)
    if match is None:
        raise FileError(
            f"{path}: its name does not say its rank; expected "
            "event_times_PP<p>_VPP<v>_TPxCPxDP_rank_<a>_pp_rank_<r>_rank_<g>.json"
        )
    p, v, other, place, rank = (int(g) if g.isdecimal() else 1 for g in match.groups())
    return path, p, v, other, place, rank


def _read(path: Path, place: int, p: int, v: int, rank: int) -> Recorded:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: it cannot be read as JSON: {error}") from None
    if not isinstance(said, dict):
        raise FileError(f"{path}: it is no object of milliseconds")
    ends: dict[tuple[int, int, int], dict[str, int]] = {}
    for key, value in said.items():
        match = KEY.fullmatch(f'"{key}"')
        if match is None:
            continue
        chunk = int(match[2] or 0)
        if chunk >= v or (chunk * p + place) >= MAX_STAGES:
            raise FileError(f"{path}: {key}: there is no chunk {chunk}; its name says VPP{v}")
        kind = FORWARD if match[1] == "forward" else FULL
        at = ends.setdefault((kind, chunk * p + place, int(match[3])), {})
        at[match[4]] = _ns(value, f"{path}: {key}")
    found = Recorded(str(path), rank=rank, exact=True)
    for (kind, stage, microbatch), at in ends.items():
        if at.keys() != {"start", "end"} or at["end"] < at["start"]:
            what = "forward" if kind == FORWARD else "backward"
            raise FileError(
                f"{path}: {what} of microbatch {microbatch}, stage {stage}: expected a start and "
                "an end that comes after it"
            )
        code = encode(stage, kind, microbatch)
        found.windows.append(Window(at["start"], at["end"], code, NO_MATE))
    found.windows.sort(key=lambda window: (window.start_ns, window.end_ns))
    if not found.windows:
        raise FileError(
            f"{path}: it has no key such as forward-0-start; expected milliseconds by key"
        )
    return found


def _ns(value: Any, where: str) -> int:
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > 1e12:
        raise FileError(f"{where} is {value!r:.24}; expected milliseconds, a number")
    ms: float = value
    return round(ms * 1_000_000)
