"""`nsys export --type sqlite`: NVTX ranges that name the actions -> Recorded.

Read are the tables NVTX_EVENTS (push/pop and start/end ranges, eventType 59 and 60; times in
ns; text, or textId of StringIds), CUPTI_ACTIVITY_KIND_RUNTIME and CUPTI_ACTIVITY_KIND_KERNEL
(joined by correlationId and process) and TARGET_INFO_SESSION_START_TIME, as the documentation
of Nsight Systems' SQLite schema has them; newer exports add _V2 or _V3 to a name. A globalTid
holds its process in bits 24 to 47.
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
_VERSION = re.compile(r"(.*?)(?:_V(\d{1,4}))?$", re.DOTALL)
_MAX_NS = 1 << 62
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
            tables = _tables(base)
            if "NVTX_EVENTS" not in tables:
                raise FileError(
                    f"{path}: it has no table NVTX_EVENTS; expected the output of `nsys export "
                    "--type sqlite` of a profile with --trace cuda,nvtx"
                )
            found = _windows(base, path, namer, tables, warnings)
            _kernels(base, found, tables, warnings)
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


def _tables(base: sqlite3.Connection) -> dict[str, str]:
    """The tables by their names without a version; of several versions the last."""
    found: dict[str, tuple[int, str]] = {}
    for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"):
        plain, version = _VERSION.match(name).groups()  # type: ignore[union-attr]
        found[plain] = max(found.get(plain, (-1, "")), (int(version or 0), name))
    return {plain: name for plain, (_, name) in found.items()}


def _nothing(path: Path, pattern: str | None) -> str:
    what = "is named as an action" if pattern is None else f"matches --name-pattern {pattern!r}"
    return (
        f"{path}: none of its NVTX ranges {what}; give `tracegen import --name-pattern` with "
        r"the groups stage, op and mb, such as 'stage(?P<stage>\d+) (?P<op>fwd|bwd) mb(?P<mb>\d+)'"
    )


def _windows(
    base: sqlite3.Connection, path: Path, namer: Namer, tables: dict[str, str], warnings: Warnings
) -> dict[int, Recorded]:
    events, strings = tables["NVTX_EVENTS"], tables.get("StringIds")
    columns = _columns(base, events)
    if missing := [one for one in ("start", "end", "globalTid") if one not in columns]:
        raise FileError(f"{path}: its {events} has no {', no '.join(missing)}")
    text, join = "e.text", ""
    if "textId" in columns and strings:
        text = "COALESCE(e.text, s.value)" if "text" in columns else "s.value"
        join = f" LEFT JOIN {strings} s ON s.id = e.textId"
    elif "text" not in columns:
        raise FileError(f"{path}: its {events} names no range: it has no text, and no textId")
    kinds = " AND e.eventType IN (59, 60)" if "eventType" in columns else ""
    query = (
        f"SELECT e.start, e.end, e.globalTid, {text} FROM {events} e{join} "
        f"WHERE e.end IS NOT NULL{kinds} ORDER BY e.start"
    )
    found: dict[int, Recorded] = {}
    for start, end, thread, name in base.execute(query):
        if not isinstance(name, str):
            continue
        code, mate = namer.by_name(name)
        if (code, mate) == NO_ACTION:
            continue
        if not _are_times(start, end) or type(thread) not in (int, type(None)):
            warnings.add(
                "ranges without a time",
                f"{path}: {name!r:.60}: its start, end or globalTid is no integer; left out",
            )
            continue
        process = (thread or 0) & _PROCESS
        one = found.setdefault(process, Recorded(f"{path}", host=str(path.resolve())))
        one.one_stage = namer.needs_rank
        one.windows.append(Window(start, end, code, mate))
    return found


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in base.execute(f"PRAGMA table_info({table})")}


def _are_times(*cells: object) -> bool:
    """Whether cells are times; SQLite lets any value stand in any column."""
    return all(type(cell) is int and abs(cell) < _MAX_NS for cell in cells)


def _kernels(
    base: sqlite3.Connection,
    found: dict[int, Recorded],
    tables: dict[str, str],
    warnings: Warnings,
) -> None:
    """Give each process its kernels, by launch."""
    kernels = tables.get("CUPTI_ACTIVITY_KIND_KERNEL")
    calls = tables.get("CUPTI_ACTIVITY_KIND_RUNTIME")
    if kernels is None or calls is None:
        return
    columns = _columns(base, kernels)
    name = next((f"k.{c}" for c in ("shortName", "demangledName") if c in columns), "NULL")
    label, join = "NULL", ""
    if strings := tables.get("StringIds"):
        label, join = "s.value", f"LEFT JOIN {strings} s ON s.id = {name} "
    process = "k.globalPid" if "globalPid" in columns else "r.globalTid"
    query = (
        f"SELECT r.start, k.start, k.end, r.globalTid, {label} FROM {kernels} k "
        f"JOIN {calls} r ON r.correlationId = k.correlationId "
        f"AND (r.globalTid & {_PROCESS}) = ({process} & {_PROCESS}) "
        f"{join}ORDER BY r.start"
    )
    for launched, start, end, thread, called in _rows(base, query):
        one = found.get(thread & _PROCESS) if type(thread) is int else None
        if one is None:
            continue
        if not _are_times(launched, start, end):
            warnings.add(
                "kernels without a time",
                f"{one.path}: a kernel's launch, start or end is no integer; left out",
            )
        else:
            to = one.copies if _BETWEEN_RANKS.search(str(called)) else one.kernels
            to.add(start, end)
            to.launched.append(launched)


def _rows(base: sqlite3.Connection, query: str) -> Iterator[tuple[int, int, int, int, str | None]]:
    yield from base.execute(query)


def _started(base: sqlite3.Connection, tables: dict[str, str]) -> int:
    """When the session started, in ns of UTC; 0 if it does not say."""
    table = tables.get("TARGET_INFO_SESSION_START_TIME")
    if table is None or "utcEpochNs" not in _columns(base, table):
        return 0
    row = base.execute(f"SELECT utcEpochNs FROM {table}").fetchone()
    return row[0] if row and _are_times(row[0]) else 0
