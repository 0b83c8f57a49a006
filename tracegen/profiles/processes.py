"""A file of several processes -> the ranks among them, each with what it did and launched.

Scripts that merge the files of ranks put their events one after the other, as they are or with
other pids: a label before each (`[TP00-PP01] 4711`), a name or number of the rank for all of a
file's, or one number more for each file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tracegen.errors import FileError
from tracegen.profiles.model import Window
from tracegen.profiles.process import Device, Key, Process

_RANK = re.compile(r"rank[\s_.:#-]*(\d{1,7})", re.IGNORECASE)
_PLACE = re.compile(r"(?<![a-z])(tp|dp|pp|ep|cp)[\s_-]*(\d{1,7})", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,9}")
_PIPELINE = re.compile(r"(^|[^a-z])pp([^a-z]|$)|pipeline_(model_)?parallel(_group)?$")
# Two ranges cross that have more than this share of the shorter one in common.
_CROSSING = 0.25
AS_THEY_WERE = "give the files of the ranks as they were before they were merged"


def actors(processes: Mapping[Key, Process]) -> list[Key]:
    """The processes that run actions, or, where none is marked, that show what they are."""
    if marked := [key for key, one in processes.items() if one.found.windows]:
        return marked
    return [
        key
        for key, one in processes.items()
        if one.unmarked.backward.start and one.unmarked.between.start
    ]


def devices_of(
    path: str, ranks: list[Key], processes: Mapping[Key, Process], devices: Mapping[Key, Device]
) -> dict[Key, list[Device]]:
    """Each rank's devices: those of its own file or label, else those whose ids it alone launched.

    Raises:
        FileError: if a device's kernels could be several ranks'.
    """
    found: dict[Key, list[Device]] = {key: [] for key in ranks}
    for key, device in devices.items():
        owner = owner_of(key, ranks)
        if owner is None:
            by_id = [one for one in ranks if _launched_any(processes[one], device)]
            if len(by_id) > 1:
                raise FileError(
                    f"{path}: the kernels of process {key[1]} could be of {len(by_id)} processes "
                    f"({names(by_id)}) by their correlation ids; {AS_THEY_WERE}"
                )
            owner = by_id[0] if by_id else None
        if owner is not None:
            found[owner].append(device)
    return found


def owner_of(key: Key, ranks: list[Key]) -> Key | None:
    """The rank that another process, or a device, is of, as far as their keys say."""
    if key in ranks:
        return key
    together = [one for one in ranks if one[0] == key[0]]
    if len(together) == 1:
        return together[0]
    label = _label(key[1])
    alike = [one for one in together or ranks if label and _label(one[1]) == label]
    return alike[0] if len(alike) == 1 else None


def _label(pid: Any) -> str:
    """What a script wrote before a pid."""
    if not isinstance(pid, str):
        return ""
    return pid.rstrip("0123456789").rstrip() if pid[-1:].isdecimal() else pid


def _launched_any(process: Process, device: Device) -> bool:
    if device.of and not set(device.of).isdisjoint(process.ids):
        return True
    return not set(device.flows.values()).isdisjoint(process.flows)


def mixed(windows: Sequence[Window]) -> bool:
    """Whether ranges of one thread, in order, cross: then they are of several processes.

    By no more than a part of one, for times are rounded, and some are made by hand.
    """
    last: dict[Any, Window] = {}
    for window in windows:
        before = last.get(window.thread, window)
        if window.end_ns > before.end_ns:
            both = before.end_ns - window.start_ns
            shorter = min(one.end_ns - one.start_ns for one in (before, window))
            if both > _CROSSING * shorter:
                return True
        if window.end_ns >= before.end_ns:
            last[window.thread] = window
    return False


def names(keys: list[Key]) -> str:
    """Some of the processes, for a message."""
    shown = ", ".join(repr(key[1]) if key[1] == "" else str(key[1]) for key in keys[:4])
    return shown + (", ..." if len(keys) > 4 else "")


def number_ranks(
    processes: Mapping[Key, Process], ranks: list[Key], called: Mapping[Any, str]
) -> str:
    """Give the ranks their numbers, and their pipelines, if something says them; what does.

    Args:
        processes: all of the file.
        ranks: those that are ranks.
        called: what metadata calls a process, by pid.
    """
    texts = [f"{called.get(key[1], '')} {key[1]}" for key in ranks]
    said = [processes[key].said for key in ranks]
    if all(len(one) == 1 for one in said) and _apart(numbers := [min(one) for one in said]):
        how = "the rank in their events' args"
    elif all(isinstance(key[1], int) for key in ranks) and {key[1] for key in ranks} == set(
        range(len(ranks))
    ):
        numbers, how = [key[1] for key in ranks], "their pids"
    elif _apart(numbers := [int(m[1]) if (m := _RANK.search(t)) else -1 for t in texts]):
        how = "the rank in their names"
    elif places := _places(texts):
        numbers = _by_place(processes, ranks, places)
        how = "the place in their names"
    elif _apart(numbers := _differing(texts)):
        how = "the number in their names"
    else:
        return ""
    for key, number in zip(ranks, numbers, strict=True):
        processes[key].found.rank = number
    return how


def _apart(numbers: list[int]) -> bool:
    return bool(numbers) and min(numbers) >= 0 and len(set(numbers)) == len(numbers)


def _places(texts: list[str]) -> list[dict[str, int]]:
    """Where each name says it is, if all say where in the pipeline, and no two the same."""
    places = [{m[1].lower(): int(m[2]) for m in _PLACE.finditer(text)} for text in texts]
    apart = {tuple(sorted(place.items())) for place in places}
    return places if all("pp" in one for one in places) and len(apart) == len(texts) else []


def _by_place(
    processes: Mapping[Key, Process], ranks: list[Key], places: list[dict[str, int]]
) -> list[int]:
    """Ranks counted pipeline by pipeline; each pipeline is a group of ranks."""

    def pipeline(at: int) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((k, v) for k, v in places[at].items() if k != "pp"))

    order = sorted(range(len(ranks)), key=lambda at: (pipeline(at), places[at]["pp"]))
    numbers = [order.index(at) for at in range(len(ranks))]
    for at, key in enumerate(ranks):
        peers = tuple(numbers[other] for other in order if pipeline(other) == pipeline(at))
        processes[key].found.peers = peers
    return numbers


def _differing(texts: list[str]) -> list[int]:
    """The one number in which names differ that are alike otherwise."""
    if len({_NUMBER.sub("#", text) for text in texts}) > 1:
        return []
    columns = list(zip(*([int(n) for n in _NUMBER.findall(text)] for text in texts), strict=True))
    differ = [column for column in columns if len(set(column)) > 1]
    return list(differ[0]) if len(differ) == 1 else []


def pipeline_of(said: Any) -> tuple[tuple[int, ...], bool]:
    """The ranks of the pipeline's process group, as `distributedInfo` has it; () if it does not.

    And whether nothing says that the group is the pipeline's.

    A group is the pipeline's if its description or its name says pp or pipeline (a DeviceMesh's
    `mesh_pp`, Megatron's PIPELINE_MODEL_PARALLEL_GROUP, torchtitan's `torchtitan_real_pp`); where
    there is one group only, it is that.
    """
    config = said.get("pg_config") if isinstance(said, dict) else None
    groups = [g for g in config if isinstance(g, dict)] if isinstance(config, list) else []
    named = {}
    for group in groups:
        ranks = group.get("ranks")
        if isinstance(ranks, str) and "..." not in ranks:
            ranks = [int(one) for one in re.findall(r"\d+", ranks)]
        if isinstance(ranks, list) and ranks and all(type(one) is int for one in ranks):
            said_by = [str(group[key]).lower() for key in ("pg_desc", "pg_name") if key in group]
            name = next((one for one in said_by if _PIPELINE.search(one)), "".join(said_by[:1]))
            named[name] = tuple(ranks)
    for name, ranks in sorted(named.items(), key=lambda item: len(item[0])):
        if _PIPELINE.search(name):
            return ranks, False
    return (next(iter(named.values())), True) if len(named) == 1 else ((), False)
