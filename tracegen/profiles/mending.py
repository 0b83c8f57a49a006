"""What profilers write that is no JSON -> JSON, as it was meant.

torch's profiler writes names as they are: with a Windows path's backslashes, control characters
or quotation marks in them (pytorch issues 98432, 130622, 136180; kineto 336, pull request 1459),
and figures that are N/A, inf or nan.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_FIGURE = re.compile(r"(:\s*)(?:N/A|[-+]?(?:inf|nan)(?:\(\w*\))?)(?=\s*[,}\]])")
# Where one event ends and the next begins; what nested values have is other keys.
BETWEEN_EVENTS = re.compile(r'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|id|bp|s|args)"\s*:)')
_LENIENT = json.JSONDecoder(strict=False)


# An event whose end cannot be told is looked for in this many of the parts that follow.
_PARTS = 3


@dataclass(slots=True)
class Mended:
    """Events of a text that is no JSON.

    Attributes:
        events: those that are JSON, or could be mended.
        lost: the texts of the others.
        slips: whether there were any.
        used: where the next event begins.
    """

    events: list[Any] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    slips: bool = False
    used: int = 0


def mended(text: str, *, one: bool = False) -> Mended:
    """The events of a text, up to the last that surely ends in it; of `one`, that."""
    starts = [0, *(match.end() for match in BETWEEN_EVENTS.finditer(text))]
    if one:
        starts.append(len(text))
    found = Mended()
    at = 0
    while at < len(starts) - 1:
        try:
            after = _one_of(text, starts[at : at + 1 + _PARTS], found)
        except _BeyondError:
            break
        if not after:
            found.lost.append(text[starts[at] : starts[at + 1]])
        at += after or 1
    found.used = starts[at]
    return found


class _BeyondError(Exception):
    """A text goes on where its event, and the list of them, has ended."""


def _one_of(text: str, starts: list[int], found: Mended) -> int:
    """Add the event that begins at the first place; before which one it ends, 0 if it is none."""
    for after in range(1, len(starts)):
        part = text[starts[0] : starts[after]].rstrip(", \t\r\n")
        try:
            found.events.append(json.loads(part))
        except json.JSONDecodeError as error:
            if error.msg == "Extra data" and part[error.pos] == "]":
                raise _BeyondError from None
        except RecursionError:
            break
        else:
            return after
    for after in range(1, len(starts)):
        part = text[starts[0] : starts[after]].rstrip(", \t\r\n")
        try:
            found.events.append(parsed(part))
        except (ValueError, RecursionError):
            continue
        found.slips = True
        return after
    return 0


def parsed(text: str) -> Any:
    """The value of a text that is no JSON but for its backslashes, control characters or figures.

    Raises:
        ValueError: if it is none even so.
    """
    text = _ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else r"\\", text)
    return _LENIENT.decode(_FIGURE.sub(r"\1null", text))
