"""A Chrome trace of any size, its events a chunk at a time; never all of it in memory."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from tracegen.errors import FileError
from tracegen.profiles import mending
from tracegen.readers.warn import Warnings

EXPECTED = 'expected a profile, {"traceEvents":[...]} or an array of events'
# How much of the file is read at once, in bytes; a value of the header may be longer than that.
BLOCK = 1 << 20
# A value, or an event, that is longer than this many characters is taken for a broken file.
LONGEST = 1 << 26
SLIPS = (
    "some of its texts are no JSON (backslashes or control characters as they are, figures such as "
    "N/A); they are read as they are meant"
)
# How many events are parsed one by one where no end of one is found quickly.
SINGLY = 2000

_GZIP = b"\x1f\x8b"
_COMMA = ", \t\r\n"
_GAP = re.compile(r"[\s,]*")
_COLON = re.compile(r"\s*:\s*")
_BETWEEN = re.compile(r"\}\s*,\s*\{")
_GOES_ON = frozenset(("", ".", "e", "E", "+", "-"))
# What is left of a number, a word or an escape where a text is cut off in it.
_CUT = re.compile(r"[-+.\w]{0,9}|\\u?\w{0,3}")
_DECODER = json.JSONDecoder()


class NoJSON(FileError):
    """What stands in the text is no JSON, and is not cut off either."""


class Stream:
    """The events of one file, and what stands beside them.

    Attributes:
        about: the values beside the events, by key; complete once `events` has ended.
    """

    def __init__(self, path: str | Path, warnings: Warnings) -> None:
        self.path, self.warnings = path, warnings
        self.about: dict[str, Any] = {}
        self._text, self._at, self._ended, self._slips = "", 0, False, False

    def events(self) -> Iterator[list[Any]]:
        """Lists of events, in the order of the file.

        Raises:
            FileError: if the file cannot be read or is no JSON; one that is cut off is read up
                to there, with a warning.
        """
        with self._opened() as file:
            self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
            self._file = file
            self._gap()
            first = self._text[self._at : self._at + 1]
            if first not in ("{", "["):
                what = repr(self._text[self._at : self._at + 12]) if first else "nothing"
                raise FileError(f"{self.path}: it begins with {what}; {EXPECTED}")
            self._at += 1
            if first == "[":
                yield from self._array()
            else:
                yield from self._object()

    def _opened(self) -> IO[bytes]:
        try:
            with Path(self.path).open("rb") as file:
                packed = file.read(2) == _GZIP
            return cast("IO[bytes]", gzip.open(self.path)) if packed else Path(self.path).open("rb")
        except OSError as error:
            raise FileError(f"{self.path}: {error.strerror or error}; {EXPECTED}") from None

    def _more(self) -> bool:
        """Read on; False at the end of the file."""
        if self._ended:
            return False
        try:
            data = self._file.read(BLOCK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.warnings.add("cuts", f"{self.path}: its gzip data ends early: {error}")
            data = b""
        self._ended = not data
        self._text = self._text[self._at :] + self._decoder.decode(data, final=not data)
        self._at = 0
        return True

    def _gap(self) -> None:
        """Go to what comes after blanks and commas."""
        while True:
            match = _GAP.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text) or not self._more():
                return

    def _value(self) -> tuple[Any, bool]:
        """The value that stands here, and whether it is there: not if the file is cut off in it."""
        while True:
            try:
                value, after = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise FileError(f"{self.path}: a value is nested too deeply") from None
            except ValueError as error:
                # More text mends what is cut off only; the texts that are tried are short.
                room = len(self._text) - self._at
                if room < 2 * BLOCK or (room < LONGEST and self._is_cut(error)):
                    if self._more():
                        continue
                    if self._is_cut(error):
                        return None, False
                raise NoJSON(f"{self.path}: it is no JSON: {error}") from None
            # A number at the very end of what was read may go on, as 1 of 1.5 does.
            if self._text[after : after + 1] not in _GOES_ON or not self._more():
                self._at = after
                return value, True

    def _is_cut(self, error: ValueError) -> bool:
        """Whether the text is right up to its end."""
        rest = self._text[getattr(error, "pos", 0) :].strip()
        return "Unterminated string" in str(error) or bool(_CUT.fullmatch(rest))

    def _object(self) -> Iterator[list[Any]]:
        while True:
            self._gap()
            if self._at == len(self._text):
                self._cut("its closing brace is missing")
                return
            if self._text[self._at] == "}":
                return
            key, there = self._value()
            if there:
                there = self._colon()
            if not there:
                self._cut("it ends in a key")
                return
            if key == "traceEvents" and self._text[self._at : self._at + 1] == "[":
                self._at += 1
                yield from self._array()
                continue
            value, there = self._value()
            if not there:
                self._cut(f"it ends in {key}")
                return
            self.about[str(key)] = value

    def _colon(self) -> bool:
        while True:
            match = _COLON.match(self._text, self._at)
            if match and match.end() < len(self._text):
                self._at = match.end()
                return True
            if not self._more():
                return False

    def _array(self) -> Iterator[list[Any]]:
        """The events up to the closing bracket."""
        singly = 0
        while True:
            self._gap()
            if self._at == len(self._text):
                self._cut("its closing bracket is missing")
                return
            if self._text[self._at] == "]":
                self._at += 1
                return
            if singly:
                singly -= 1
            elif (many := self._many()) is not None:
                yield many
                continue
            else:
                singly = SINGLY
            try:
                event, there = self._value()
            except NoJSON as error:
                yield self._mended_event(error)
                continue
            if not there:
                self._cut("its last event is not complete")
                self._at = len(self._text)
                return
            yield [event]

    def _many(self) -> list[Any] | None:
        """The events up to the last place in the text where one ends; None if that is not sure.

        Such a place may lie inside an event or a string: then what is before it is no JSON.
        """
        if len(self._text) - self._at < BLOCK // 2:
            self._more()
        cut = self._text.rfind("{")
        for _ in range(8):
            if cut <= self._at:
                return None
            start = self._text.rfind("}", self._at, cut)
            if start >= 0 and _BETWEEN.fullmatch(self._text, start, cut + 1):
                events, used = self._parsed(self._text[self._at : cut])
                if used:
                    self._at += used
                    return events
            cut = self._text.rfind("{", self._at, cut)
        return None

    def _parsed(self, text: str) -> tuple[list[Any], int]:
        """Events of a text that ends where one may end, and how much of it they are; 0 if none."""
        try:
            return json.loads(f"[{text.rstrip(_COMMA)}]"), len(text)
        except RecursionError:
            return [], 0
        except ValueError as error:
            at = getattr(error, "pos", len(text))
            # What is wrong at the end of a text, or of a string, is that it was cut there.
            if at >= len(text.rstrip(_COMMA)) or "Unterminated string" in str(error):
                return [], 0
        return self._mended(text)

    def _mended_event(self, error: NoJSON) -> list[Any]:
        """The event that stands here and is no JSON, if it can be mended; goes to the next.

        Raises:
            NoJSON: if there is none.
        """
        seen = self._at
        while (end := mending.BETWEEN_EVENTS.search(self._text, seen)) is None:
            if len(self._text) - self._at >= LONGEST:
                raise error
            # The next event's beginning may be read in part only.
            unread = max(0, len(self._text) - self._at - 100)
            if not self._more():
                raise error
            seen = self._at + unread
        events, used = self._mended(self._text[self._at : end.end()], one=True)
        if not used:
            raise error
        self._at += used
        return events

    def _mended(self, text: str, *, one: bool = False) -> tuple[list[Any], int]:
        found = mending.mended(text, one=one)
        for lost in found.lost:
            self.warnings.add(
                "events that are no JSON",
                f"{self.path}: an event is no JSON and is left out: {lost[:60]!r}",
            )
        if found.slips and not self._slips:
            self.warnings.add("texts", f"{self.path}: {SLIPS}")
        self._slips = self._slips or found.slips
        return found.events, found.used

    def _cut(self, what: str) -> None:
        self.warnings.add("cuts", f"{self.path}: the file is cut off: {what}; the rest is read")


def first_keys(path: str | Path) -> str:
    """The beginning of a file, unzipped, as text: enough to see what format it is of."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(1 << 16)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    if data.startswith(_GZIP):
        try:
            data = zlib.decompressobj(31).decompress(data, 1 << 16)
        except zlib.error:
            return ""
    return data.decode("utf-8", "replace")
