"""A trace in Perfetto's protobuf -> the events that Chrome JSON would have of it.

Perfetto's own trace processor reads it, so that any trace of its kind can be read: a slice becomes
an X, an arrow s and f, a sample a C. What the readers of JSON make of those, they make of these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count, islice
from pathlib import Path
from typing import Any

from tracegen.timeline import Timeline

SUFFIXES = (".pftrace", ".perfetto-trace")
# Events handed on at once.
BATCH = 4096
# Slices and samples asked for at once.
AT_ONCE = 50_000
# Up to here microseconds are exact as a float.
FLOAT_NS = 1 << 49

Event = dict[str, Any]

# Every track as a thread of a process. Real ones have their numbers; of others a group is the
# process. Order: as the tracks say it, as tracegen's do, or else as they come.
TRACKS = """
    SELECT
      t.id,
      COALESCE(process.pid, 'track ' || COALESCE(t.parent_id, t.id)) AS pid,
      COALESCE(IIF(thread_track.id IS NULL, NULL, thread.tid), 'track ' || t.id) AS tid,
      COALESCE(process.name, parent.name, '') AS process,
      COALESCE(thread.name, t.name, '') AS thread,
      counter_track.id IS NOT NULL AS counts,
      COALESCE(counter_track.unit, '') AS unit
    FROM track AS t
    LEFT JOIN thread_track ON thread_track.id = t.id
    LEFT JOIN process_track ON process_track.id = t.id
    LEFT JOIN thread ON thread.utid = thread_track.utid
    LEFT JOIN process ON process.upid = COALESCE(thread.upid, process_track.upid)
    LEFT JOIN track AS parent ON parent.id = t.parent_id
    LEFT JOIN counter_track ON counter_track.id = t.id
    WHERE t.id IN (SELECT track_id FROM slice UNION SELECT track_id FROM counter)
    ORDER BY
      EXTRACT_ARG(parent.source_arg_set_id, 'sibling_order_rank'),
      EXTRACT_ARG(t.source_arg_set_id, 'sibling_order_rank'),
      t.id
"""
COUNTS = """
    SELECT track_id, COUNT(*) FROM slice GROUP BY track_id
    UNION ALL SELECT track_id, COUNT(*) FROM counter GROUP BY track_id
"""
# With the args as more columns, each of them by its key: a join takes ten times as long.
SLICES = """
    SELECT track_id, ts, dur, name, arg_set_id{} FROM slice
    WHERE track_id IN ({}) ORDER BY track_id, ts, depth
"""
ARG_KEYS = """
    SELECT key FROM args WHERE key GLOB 'debug.*' OR key GLOB 'args.*'
    GROUP BY key ORDER BY MIN(id)
"""
ARG = ", EXTRACT_ARG(arg_set_id, '{}')"
# Where there are more keys, the args of the slices as rows.
MOST_KEYS = 40
ARGS = """
    SELECT arg_set_id, key, COALESCE(int_value, real_value, string_value) FROM args
    WHERE (key GLOB 'debug.*' OR key GLOB 'args.*')
    AND arg_set_id IN (SELECT arg_set_id FROM slice WHERE track_id IN ({}))
"""
SAMPLES = """
    SELECT track_id, ts, value FROM counter WHERE track_id IN ({}) ORDER BY track_id, ts, id
"""
ARROWS = """
    SELECT source.track_id, source.ts, target.track_id, target.ts, trace_id
    FROM flow
    JOIN slice AS source ON source.id = flow.slice_out
    JOIN slice AS target ON target.id = flow.slice_in
    ORDER BY trace_id, flow.id
"""


def read(path: str | Path) -> Timeline:
    """Read a trace, as `chrome.read` reads one of JSON.

    Raises:
        FileError: if it cannot be read, or no slice says which action it is.
        ToolMissing: there is no trace processor.
    """
    from tracegen.readers import chrome

    return chrome.read(path)


@dataclass
class Document:
    """A trace as events: what `text.Document` is for JSON.

    Attributes:
        about: the values beside the events, once `events` has ended.
    """

    path: str | Path
    about: dict[str, Any] = field(default_factory=dict)

    def events(self) -> Generator[tuple[int, list[Any], Callable[[], list[Any]]], None, None]:
        """(number of the first, events, the same), a chunk at a time.

        Raises:
            FileError: where it is no trace.
            ToolMissing: there is no trace processor.
        """
        from tracegen.ui.trace_processor import open_trace

        with open_trace(self.path) as opened:
            ask = _asking(opened)
            said = _said(ask)
            events = _events(ask, said.pop("arrows", []))
            for number in count(0, BATCH):
                if not (batch := list(islice(events, BATCH))):
                    break
                yield number, batch, lambda batch=batch: batch  # type: ignore[misc]
        self.about = said


Ask = Callable[[str], tuple[tuple[Any, ...], ...]]


def _asking(opened: Any) -> Ask:
    from tracegen.ui.query import ask

    return lambda sql: ask(opened, sql).rows


def _said(ask: Ask) -> dict[str, Any]:
    """What tracegen's own trace says of itself, and the names of its arrows."""
    from tracegen.emit_proto import ARROWS, METADATA

    found: dict[str, str] = dict(
        ask("SELECT name, str_value FROM metadata WHERE name GLOB 'cr-tracegen*'")
    )
    names = {"metadata": METADATA, "arrows": ARROWS}
    return {
        key: json.loads(text) for key, name in names.items() if (text := found.get(f"cr-{name}"))
    }


def _events(ask: Ask, arrow_names: list[str]) -> Iterator[Event]:
    tracks = ask(TRACKS)
    places = {track: {"pid": pid, "tid": tid} for track, pid, tid, *_ in tracks}
    keys = [key for (key,) in ask(ARG_KEYS)]
    for several in _together(tracks, dict(ask(COUNTS))):
        ids = ", ".join(str(track[0]) for track in several)
        slices = _slices(ask, ids, keys)
        samples: dict[int, list[tuple[int, float]]] = {}
        for track, ns, value in ask(SAMPLES.format(ids)):
            samples.setdefault(track, []).append((ns, value))
        for track, _, _, process, thread, counts, unit in several:
            place = places[track]
            yield {"ph": "M", "name": "process_name", **place, "args": {"name": process}}
            if counts:
                name, key = thread.removesuffix(f" {unit}"), unit or "value"
                for ns, value in samples.pop(track, ()):
                    yield {"ph": "C", "name": name, **place, "ts": _us(ns), "args": {key: value}}
                continue
            yield {"ph": "M", "name": "thread_name", **place, "args": {"name": thread}}
            for event in slices.pop(track, ()):
                yield event | place
    yield from _arrows(ask, places, arrow_names)


def _together(
    tracks: tuple[tuple[Any, ...], ...], counts: dict[int, int]
) -> Iterator[list[tuple[Any, ...]]]:
    """Neighbours that are asked for at once: each question goes through all slices of a trace."""
    several: list[tuple[Any, ...]] = []
    rows = 0
    for track in tracks:
        if several and rows + counts.get(track[0], 0) > AT_ONCE:
            yield several
            several, rows = [], 0
        several.append(track)
        rows += counts.get(track[0], 0)
    if several:
        yield several


def _slices(ask: Ask, ids: str, keys: list[str]) -> dict[int, list[Event]]:
    """The slices of each of several tracks, in order."""
    args: dict[int, Event] = {}
    if len(keys) > MOST_KEYS:
        for number, key, value in ask(ARGS.format(ids)):
            args.setdefault(number, {})[key.partition(".")[2]] = value
        keys = []
    names = [key.partition(".")[2] for key in keys]
    columns = "".join(ARG.format(key.replace("'", "''")) for key in keys)
    found: dict[int, list[Event]] = {}
    for track, ns, dur, name, number, *values in ask(SLICES.format(columns, ids)):
        event: Event = {"ph": "X", "name": name or "", "ts": _us(ns)}
        if dur >= 0:  # of a slice without an end it is -1
            event["dur"] = _us(dur)
        own = {key: value for key, value in zip(names, values, strict=True) if value is not None}
        event["args"] = own or args.get(number, {})
        found.setdefault(track, []).append(event)
    return found


def _arrows(ask: Ask, places: dict[int, Event], names: list[str]) -> Iterator[Event]:
    from tracegen.emit_proto import NAME_BITS

    for number, (source, start, target, then, identity) in enumerate(ask(ARROWS)):
        what: Event = {"id": number, "name": ""}
        if names and identity is not None:
            what["name"] = names[identity & (1 << NAME_BITS) - 1]
        yield {"ph": "s", **places[source], "ts": _us(start), **what}
        yield {"ph": "f", **places[target], "ts": _us(then), **what, "bp": "e"}


def _us(ns: int) -> float | Decimal:
    return ns / 1000 if abs(ns) < FLOAT_NS else Decimal(ns).scaleb(-3)
