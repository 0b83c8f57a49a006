"""`nsys export --type sqlite`: NVTX ranges that name the actions -> Recorded.

Read are the tables NVTX_EVENTS (push/pop and start/end ranges, eventType 59 and 60; times in
ns; text, or textId of StringIds), CUPTI_ACTIVITY_KIND_RUNTIME and CUPTI_ACTIVITY_KIND_KERNEL
(joined by correlationId and process) and TARGET_INFO_SESSION_START_TIME, as the documentation
of Nsight Systems' SQLite schema has them. A globalTid holds its process in bits 24 to 47.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from tracegen.errors import FileError
from tracegen.profiles.model import Recorded, Window
from tracegen.readers.actions import NO_ACTION, Namer
from tracegen.readers.warn import Warnings

_BETWEEN_RANKS = re.compile(r"nccl|nvshmem|deep_ep", re.IGNORECASE)
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
_PROCESS = 0xFFFFFF000000
NO_KERNELS = "it holds no CUDA kernels: tiles are the ranges, with whatever wait is inside them"


def is_sqlite(beginning: str) -> bool:
    """Whether a file that begins so is a database of SQLite's."""
    return beginning.startswith("SQLite format 3\0")


def read(path: Path, pattern: str | None, warnings: Warnings) -> list[Recorded]:
    """The processes of an export that ran actions, in the order of their ids.

    Raises:
        FileError: if it is no such export, or no range in it is an action.
    """
    namer = Namer(pattern)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master")}
            if "NVTX_EVENTS" not in tables:
                raise FileError(
                    f"{path}: it has no table NVTX_EVENTS; expected the output of `nsys export "
                    "--type sqlite` of a profile with --trace cuda,nvtx"
                )
            found = _windows(base, path, namer, tables)
            _kernels(base, found, tables)
            shift = _started(base, tables)
    except sqlite3.Error as error:
        raise FileError(f"{path}: it cannot be read as SQLite: {error}") from None
    if not found:
        raise FileError(_nothing(path, pattern))
    for one in found.values():
        one.shift_ns = shift
        one.windows.sort(key=lambda window: (window.start_ns, -window.end_ns))
        one.on_device = bool(one.kernels.start)
        one.exact = not one.on_device
        if one.exact:
            one.notes.append(NO_KERNELS)
    ordered = [found[process] for process in sorted(found)]
    if len(ordered) == 1 and (match := _RANK_IN_NAME.search(path.name)):
        ordered[0].rank = int(match[1])
    elif len(ordered) > 1 and namer.needs_rank:
        for rank, one in enumerate(ordered):
            one.rank = rank
        warnings.add("ranks", f"{path}: its processes count as ranks in the order of their ids")
    return ordered


def _nothing(path: Path, pattern: str | None) -> str:
    what = "is named as an action" if pattern is None else f"matches --name-pattern {pattern!r}"
    return (
        f"{path}: none of its NVTX ranges {what}; give --name-pattern with the groups stage, op "
        r"and mb, such as 'stage(?P<stage>\d+) (?P<op>fwd|bwd) mb(?P<mb>\d+)'"
    )


def _windows(
    base: sqlite3.Connection, path: Path, namer: Namer, tables: set[str]
) -> dict[int, Recorded]:
    columns = {row[1] for row in base.execute("PRAGMA table_info(NVTX_EVENTS)")}
    if not {"start", "end", "globalTid"} <= columns:
        raise FileError(f"{path}: its NVTX_EVENTS has no start, end and globalTid")
    text, join = "e.text", ""
    if "textId" in columns and "StringIds" in tables:
        text = "COALESCE(e.text, s.value)" if "text" in columns else "s.value"
        join = " LEFT JOIN StringIds s ON s.id = e.textId"
    kinds = " AND e.eventType IN (59, 60)" if "eventType" in columns else ""
    query = (
        f"SELECT e.start, e.end, e.globalTid, {text} FROM NVTX_EVENTS e{join} "
        f"WHERE e.end IS NOT NULL{kinds} ORDER BY e.start"
    )
    found: dict[int, Recorded] = {}
    for start, end, thread, name in base.execute(query):
        if not isinstance(name, str):
            continue
        code, mate = namer.by_name(name)
        if (code, mate) == NO_ACTION:
            continue
        process = (thread or 0) & _PROCESS
        one = found.setdefault(process, Recorded(f"{path}", host=str(path.resolve())))
        one.one_stage = namer.needs_rank
        one.windows.append(Window(start, end, code, mate))
    return found


def _kernels(base: sqlite3.Connection, found: dict[int, Recorded], tables: set[str]) -> None:
    """Give each process its kernels, by launch."""
    kernels, calls = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
    if not {kernels, calls} <= tables:
        return
    columns = {row[1] for row in base.execute(f"PRAGMA table_info({kernels})")}
    name = next((c for c in ("shortName", "demangledName") if c in columns), "NULL")
    process = "k.globalPid" if "globalPid" in columns else "r.globalTid"
    query = (
        f"SELECT r.start, k.start, k.end, r.globalTid, s.value FROM {kernels} k "
        f"JOIN {calls} r ON r.correlationId = k.correlationId "
        f"AND (r.globalTid & {_PROCESS}) = ({process} & {_PROCESS}) "
        f"LEFT JOIN StringIds s ON s.id = {'NULL' if name == 'NULL' else f'k.{name}'} "
        "ORDER BY r.start"
    )
    for launched, start, end, thread, label in _rows(base, query):
        one = found.get(thread & _PROCESS)
        if one is not None:
            to = one.copies if _BETWEEN_RANKS.search(label or "") else one.kernels
            to.add(start, end)
            to.launched.append(launched)


def _rows(base: sqlite3.Connection, query: str) -> Iterator[tuple[int, int, int, int, str | None]]:
    yield from base.execute(query)


def _started(base: sqlite3.Connection, tables: set[str]) -> int:
    """When the session started, in ns of UTC; 0 if it does not say."""
    if "TARGET_INFO_SESSION_START_TIME" not in tables:
        return 0
    columns = [row[1] for row in base.execute("PRAGMA table_info(TARGET_INFO_SESSION_START_TIME)")]
    if "utcEpochNs" not in columns:
        return 0
    row = base.execute("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME").fetchone()
    return int(row[0]) if row and row[0] is not None else 0
