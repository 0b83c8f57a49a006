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
SLICES = "SELECT id, ts, dur, name FROM slice WHERE track_id = {} ORDER BY ts, depth"
ARGS = """
    SELECT slice.id, key, COALESCE(int_value, real_value, string_value)
    FROM slice JOIN args USING (arg_set_id)
    WHERE track_id = {} AND (key GLOB 'debug.*' OR key GLOB 'args.*')
"""
SAMPLES = "SELECT ts, value FROM counter WHERE track_id = {} ORDER BY ts, id"
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
    for track, _, _, process, thread, counts, unit in tracks:
        place = places[track]
        yield {"ph": "M", "name": "process_name", **place, "args": {"name": process}}
        if counts:
            name, key = thread.removesuffix(f" {unit}"), unit or "value"
            for ns, value in ask(SAMPLES.format(track)):
                yield {"ph": "C", "name": name, **place, "ts": _us(ns), "args": {key: value}}
            continue
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": thread}}
        yield from _slices(ask, track, place)
    yield from _arrows(ask, places, arrow_names)


def _slices(ask: Ask, track: int, place: Event) -> Iterator[Event]:
    args: dict[int, Event] = {}
    for number, key, value in ask(ARGS.format(track)):
        args.setdefault(number, {})[key.partition(".")[2]] = value
    for number, ns, dur, name in ask(SLICES.format(track)):
        event = {"ph": "X", "name": name or "", **place, "ts": _us(ns)}
        if dur >= 0:  # of a slice without an end it is -1
            event["dur"] = _us(dur)
        yield event | {"args": args.get(number, {})}


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
