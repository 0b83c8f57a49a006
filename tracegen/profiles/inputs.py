"""What was given -> files, and the format they are of: the one place that tells them apart."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tracegen.errors import FileError
from tracegen.files import with_endings
from tracegen.profiles import kineto, megatron, nsys, stragglers
from tracegen.profiles.stream import first_keys

KINETO, MEGATRON, NSYS, CHROME = "torch profiler", "Megatron-LM timers", "nsys", "chrome trace"
STRAGGLERS = "StragglerAnalysis timeline"
SHOWN = 5
SUFFIXES = (".json", ".json.gz", ".sqlite", ".sqlite3", ".db")


@dataclass(frozen=True, slots=True)
class Given:
    """Files of one format, in the order of their names."""

    format: str
    paths: list[Path]


def is_profile(name: str) -> bool:
    """Whether what was given is a profile of another tool, and no trace of Chrome's kind."""
    if os.path.isdir(name) or name.endswith(SUFFIXES[2:]):
        return True
    if glob.has_magic(name) and not os.path.exists(name):
        return True
    if not (name.endswith(SUFFIXES[:2]) and os.path.isfile(name)):
        return False
    return _format(Path(name)) != CHROME


def given(names: Sequence[str | Path]) -> Given:
    """The files of folders, globs and names, all of one format.

    Raises:
        FileError: if there are none, or of several formats.
    """
    paths: list[Path] = []
    for name in names:
        paths += _files(str(name))
    paths = sorted(dict.fromkeys(paths), key=_natural)
    if not paths:
        raise FileError(f"{', '.join(map(str, names))}: no file named; expected {EXPECTED}")
    formats = {path: _format(path) for path in paths}
    kinds = sorted(set(formats.values()))
    if len(kinds) > 1:
        examples = "; ".join(f"{next(p for p in paths if formats[p] == k)} is {k}" for k in kinds)
        raise FileError(f"the files are of several formats: {examples}; give one run's alone")
    return Given(kinds[0], paths)


# What a trace of tracegen's says of itself at its beginning.
_OWN = re.compile(r'"tool":\s*"tracegen"')
EXPECTED = (
    "torch profiler traces (*.json, *.json.gz), Megatron-LM's event_times_*.json or an nsys "
    "export (*.sqlite)"
)


def _files(name: str) -> list[Path]:
    path = Path(name)
    if path.is_dir():
        found = _named_so(path)
        if not found:
            raise FileError(f"{name}: the folder holds no profile; {_below(path)}")
        # Other JSON beside profiles, such as a configuration, or a tiling made of them.
        profiles = [p for p in found if _format(p) != CHROME]
        return profiles or found
    if path.is_file():
        return [path]
    if found := [Path(one) for one in glob.glob(name) if Path(one).is_file()]:
        return found
    what = "no file is so named" if glob.has_magic(name) else "no such file"
    files = with_endings(name, SUFFIXES)
    whole = f"give the whole name: {files}"
    right = whole if files else f"expected a folder, files or a pattern of {EXPECTED}"
    raise FileError(f"{name}: {what}; {right}")


def _named_so(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name.endswith(SUFFIXES) and p.is_file()]


def _below(folder: Path) -> str:
    """Which folders in it hold profiles; else what is expected."""
    folders = sorted(p for p in folder.iterdir() if p.is_dir())
    holding = [str(p) for p in folders if _holds_profiles(p)]
    if not holding:
        return f"expected {EXPECTED}"
    more = f" and {len(holding) - SHOWN} more" if len(holding) > SHOWN else ""
    return f"those in it do: give one of {', '.join(holding[:SHOWN])}{more}"


def _holds_profiles(folder: Path) -> bool:
    try:
        return any(_format(p) != CHROME for p in _named_so(folder))
    except (OSError, FileError):  # nobody asked for it
        return False


def _format(path: Path) -> str:
    if path.name.endswith(SUFFIXES[2:]):
        return NSYS
    if megatron.NAME.fullmatch(path.name):
        return MEGATRON
    text = first_keys(path)
    if _OWN.search(text):
        return CHROME
    if nsys.is_sqlite(text):
        return NSYS
    if megatron.KEY.search(text) and "traceEvents" not in text:
        return MEGATRON
    if stragglers.is_timeline(text):
        return STRAGGLERS
    own = any(mark in text for mark in kineto.MARKS) or kineto.LABELS.search(text)
    return KINETO if own else CHROME


def _natural(path: Path) -> tuple[list[tuple[int, str]], str]:
    """By the numbers in a name, so that rank10 comes after rank9."""
    parts: list[tuple[int, str]] = []
    digits = ""
    for letter in f"{path.name}\0":
        if letter.isdecimal():
            digits += letter
            continue
        if digits:
            parts.append((int(digits[:18]), ""))
            digits = ""
        parts.append((-1, letter))
    return parts, str(path)
