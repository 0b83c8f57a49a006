"""The JSON of a Chrome trace, in whatever state it is: bytes -> top-level values and events.

The format allows what JSON does not (no closing bracket, a comma before it), and
a trace may hold millions of events, so they are parsed a chunk at a time and
never all held at once.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from tracegen.emit import SUFFIXES
from tracegen.errors import FileError
from tracegen.files import with_endings
from tracegen.readers.finite import not_finite
from tracegen.readers.warn import Warnings

EXPECTED = 'expected a Chrome trace, {"traceEvents":[...]} or an array of events'
# How a schedule's CSV begins.
_ROW = re.compile(r"\(?\d+(F|B|I|W|SEND|RECV|UNSHARD|RESHARD|REDUCE)")
_IF_ROWS = "; of a schedule's CSV (FILE.csv) `tracegen import` makes a trace"
# About as much text as is parsed at once: a few thousand events.
CHUNK = 1 << 19
EVENTS = "traceEvents"
STDIN = "-"

# Keys of an event that decide a figure.
DECISIVE = ("ts", "dur")
# How many events are parsed singly where a chunk of text could not be.
ONE_BY_ONE = 4000

Chunks = Generator[tuple[int, list[Any], Callable[[], list[Any]]], None, int]

_GZIP = b"\x1f\x8b"
_SPACE = re.compile(r"[ \t\r\n]*")
_GAP = re.compile(r"[ \t\r\n,]*")
_BETWEEN = re.compile(r"\}[ \t\r\n]*,[ \t\r\n]*(?=\{)")
# What is left of a number, a word or an escape where a text is cut off in it.
_CUT = re.compile(r"[-+.\w]{0,9}|\\u?\w{0,3}")
_SCAN: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def text_of(path: str | Path, warnings: Warnings) -> str:
    """The text of a file, or of standard input for "-", gzipped or not, whatever its name says.

    Raises:
        FileError: if it cannot be read, is empty, or its gzip data is broken.
    """
    try:
        data = _of_stdin() if str(path) == STDIN else Path(path).read_bytes()
    except OSError as error:
        files = with_endings(path, SUFFIXES) if isinstance(error, FileNotFoundError) else ""
        right = f"give the whole name: {files}" if files else EXPECTED
        raise FileError(f"{path}: {error.strerror or error}; {right}") from None
    named = str(path).endswith(".gz")
    if data.startswith(_GZIP):
        if not named and str(path) != STDIN:
            warnings.add("names", "it is gzipped, though its name does not end in .gz")
        data = _unzipped(path, data)
    elif named and data:
        warnings.add("names", "it is not gzipped, though its name ends in .gz")
    if not data.strip():
        raise FileError(f"{path}: it is empty; {EXPECTED}")
    return _decoded(data, warnings)


def _of_stdin() -> bytes:
    if sys.stdin is None:
        raise OSError("standard input is closed")
    return sys.stdin.buffer.read()


def _unzipped(path: str | Path, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise FileError(f"{path}: its gzip data is broken or cut off: {error}") from None


def _decoded(data: bytes, warnings: Warnings) -> str:
    encoding = json.detect_encoding(data[:4])
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        warnings.add(
            "bytes", f"byte {error.start} is not {encoding.upper()}; such bytes are shown as \ufffd"
        )
        return data.decode(encoding, "replace")


@dataclass
class Document:
    """A trace's text, taken apart.

    Attributes:
        about: the values beside the events, by key; empty for a bare array.
    """

    path: str | Path
    text: str
    warnings: Warnings
    about: dict[str, Any] = field(default_factory=dict)

    def events(self) -> Chunks:
        """(number of the first, events, the same with exact decimals), a chunk at a time.

        `about` is complete when this has ended. The third parses again: for times
        that a float cannot hold to the nanosecond.

        Raises:
            FileError: where the text is no JSON of a trace.
        """
        at = _skip(_SPACE, self.text, 0)
        first = self.text[at : at + 1]
        if first == "[":
            at = yield from self._array(at + 1)
        elif first == "{":
            at = yield from self._object(at + 1)
        else:
            begins = self.text[at : at + 12]
            what = f"{EXPECTED}{_IF_ROWS if _ROW.match(begins) else ''}"
            raise FileError(f"{self.path}: it begins with {begins!r}; {what}")
        if (rest := _skip(_SPACE, self.text, at)) < len(self.text):
            self.warnings.add(
                "trailing texts", f"{self._where(rest)}: what follows the trace is not looked at"
            )
        return at

    def _object(self, at: int) -> Chunks:
        text, seen = self.text, False
        while True:
            at = _skip(_GAP, text, at)
            if at >= len(text):
                self._say_cut("its last closing brace is missing")
                break
            if text[at] == "}":
                at += 1
                break
            key, at = self._key(at)
            if key != EVENTS:
                at = self._value(key, at)
                continue
            if seen:
                raise FileError(f"{self.path}: {EVENTS} is there twice; keep the one that is meant")
            seen = True
            if text[at : at + 1] != "[":
                raise FileError(
                    f"{self.path}: {EVENTS} is no list: {text[at : at + 12]!r}; {EXPECTED}"
                )
            at = yield from self._array(at + 1)
        if not seen:
            raise FileError(f"{self.path}: it has no {EVENTS}; {EXPECTED}")
        return at

    def _key(self, at: int) -> tuple[str, int]:
        """The key at `at` and where its value begins: "" and the end if the text ends before."""
        nothing = ("", len(self.text))
        if self.text[at] != '"':
            raise FileError(f"{self.path}: {self._where(at)}: expected a key in double quotes")
        try:
            key, after = _SCAN(self.text, at)
        except ValueError as error:
            self._broken(at, error)
            return nothing
        after = _skip(_SPACE, self.text, after)
        if after < len(self.text) and self.text[after] != ":":
            raise FileError(f"{self.path}: {self._where(after)}: expected ':' after {key!r}")
        after = _skip(_SPACE, self.text, after + 1)
        return (key, after) if after < len(self.text) else nothing

    def _value(self, key: str, at: int) -> int:
        """Keep the value of a key; where it ends: the end of the text if it is cut off in it."""
        if at == len(self.text):
            return at
        try:
            value, after = _SCAN(self.text, at)
        except (ValueError, StopIteration, RecursionError) as error:
            self._broken(at, error)
            return len(self.text)
        if key in self.about:
            self.warnings.add("keys", f"{key!r} is there twice; the last one counts")
        self.about[key] = value
        return int(after)

    def _array(self, at: int) -> Chunks:
        """The events from `at` to the closing bracket; returns where that ends."""
        text, number = self.text, 0
        while True:
            at = _skip(_GAP, text, at)
            if at >= len(text):
                self._say_cut("its closing bracket is missing")
                return at
            if text[at] == "]":
                return at + 1
            events, after = _chunk(text, at) or self._one_by_one(at, number)
            if events:
                self._report_twice(number, events, at, after)
                self._refuse_constants(number, events, at, after)
                yield number, events, _exactly(text, at, after)
            number, at = number + len(events), after

    def _refuse_constants(self, number: int, events: list[Any], at: int, after: int) -> None:
        """Refuse NaN in an event's arguments; of a counter, whoever reads its values does."""
        if self.text.find("NaN", at, after) < 0 and self.text.find("Infinity", at, after) < 0:
            return
        for index, event in enumerate(events, number):
            if isinstance(event, dict) and event.get("ph") != "C":
                for where in not_finite(event.get("args"), "args"):
                    raise FileError(
                        f"{self.path}: event {index}: {where}; expected a finite number"
                    )

    def _report_twice(self, number: int, events: list[Any], at: int, after: int) -> None:
        """Say where an event has one of its decisive keys twice; as in all JSON the last counts."""
        objects = [event for event in events if type(event) is dict]
        for key in DECISIVE:
            if self.text.count(f'"{key}"', at, after) > sum(key in event for event in objects):
                break
        else:
            return
        for event in range(number, number + len(events)):
            twice: list[str] = []
            _, at = _pairs_decoder(twice).raw_decode(self.text, _skip(_GAP, self.text, at))
            for key in twice:
                text = f"event {event}: it has {key!r} twice; the last one counts"
                self.warnings.add("keys that are there twice", text)

    def _one_by_one(self, at: int, number: int) -> tuple[list[Any], int]:
        """Some events from `at`, and where they end: the end of the text where it is cut off."""
        events: list[Any] = []
        while len(events) < ONE_BY_ONE:
            try:
                event, after = _SCAN(self.text, at)
            except (ValueError, StopIteration, RecursionError) as error:
                if not events:
                    self._broken(at, error, f"event {number}, ")
                    return events, len(self.text)
                break
            events.append(event)
            at = _skip(_GAP, self.text, after)
            if self.text[at : at + 1] in ("]", ""):
                break
        return events, at

    def _broken(self, at: int, error: BaseException, event: str = "") -> None:
        """Say that the text is cut off, if it is; refuse it if it is anything else.

        Raises:
            FileError: with line and column.
        """
        if isinstance(error, RecursionError):
            raise FileError(f"{self.path}: {event}{self._where(at)}: it is nested too deeply")
        place = error.value if isinstance(error, StopIteration) else getattr(error, "pos", at)
        no_value = isinstance(error, StopIteration)
        reason = "expecting a value" if no_value else getattr(error, "msg", "a number is too long")
        rest = self.text[place:].strip()
        if reason.startswith("Unterminated string") or _CUT.fullmatch(rest):
            self._say_cut(f"{event}{self._where(at)} is not complete; what comes before is read")
            return
        raise FileError(
            f"{self.path}: {event}{self._where(place)}: it is no JSON at {rest[:12]!r}: {reason}"
        )

    def _where(self, at: int) -> str:
        line = self.text.count("\n", 0, at) + 1
        return f"line {line}, column {at - self.text.rfind(chr(10), 0, at)}"

    def _say_cut(self, what: str) -> None:
        self.warnings.add("cuts", f"the file is cut off: {what}")


def _pairs_decoder(twice: list[str]) -> json.JSONDecoder:
    """A decoder that notes the keys which an object has twice."""

    def note(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice.extend(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)
        return found

    return json.JSONDecoder(object_pairs_hook=note)


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _chunk(text: str, at: int) -> tuple[list[Any], int] | None:
    """The events of the next piece of text and where it ends; None if they must be read singly.

    A piece ends between two braces. Such a place may lie inside an event or a
    string: then the piece is no complete JSON, and is not taken.
    """
    cut = _BETWEEN.search(text, at + CHUNK)
    try:
        if cut is not None:
            return json.loads(f"[{text[at : cut.start() + 1]}]"), cut.end()
        events, end = _SCAN(f"[{text[at:]}", 0)
        return events, at + end - 2
    except (ValueError, StopIteration, RecursionError):
        return None


def _exactly(text: str, at: int, after: int) -> Callable[[], list[Any]]:
    def parse() -> list[Any]:
        piece = text[at:after].rstrip(", \t\r\n")
        events: list[Any] = json.loads(f"[{piece}]", parse_float=Decimal)
        return events

    return parse
