"""A folder of golden traces, each with the command that makes it; make them again and compare.

The folder holds golden.toml:

    times = "exact"                      # how far times may be apart, as of `diff`

    ["1f1b.json.gz"]
    run = "--schedule 1f1b -p 4 -m 8"    # what `tracegen run` is given, from this folder

    ["mine.json"]
    run = "--schedule ../schedules/mine.py -p 8 -m 32 --alpha 15"
    times = "5%"
"""

from __future__ import annotations

import shlex
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracegen.comparison.model import Difference, Tolerance
from tracegen.differ import diff
from tracegen.emit import SUFFIXES
from tracegen.errors import DiffError, FileError, TracegenError
from tracegen.files import opened

MANIFEST = "golden.toml"
EXAMPLE = (
    f"""expected in {MANIFEST}: ["1f1b.json.gz"] and under it run = "--schedule 1f1b -p 4 -m 8\""""
)

# Writes the trace that the options of `tracegen run` ask for to a path.
Make = Callable[[list[str], Path], None]


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden trace.

    Attributes:
        path: its file.
        run: the options of `tracegen run` that make it.
        times: how far times may be apart, as of `diff`.
    """

    path: Path
    run: list[str]
    times: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one golden trace.

    Attributes:
        golden: which.
        found: the difference; None if they could not be compared.
        error: why they could not.
        written: whether it was written anew.
    """

    golden: Golden
    found: Difference | None = None
    error: TracegenError | None = None
    written: bool = False


def manifest(folder: str | Path) -> list[Golden]:
    """The golden traces of a folder, by name.

    Raises:
        FileError: if there is no manifest, or it is not in its form.
        DiffError: for times that are none.
    """
    path = Path(folder) / MANIFEST
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; {EXAMPLE}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: it is not TOML: {error}; {EXAMPLE}") from None
    times = data.pop("times", "exact")
    goldens = [_golden(path, name, entry, times) for name, entry in sorted(data.items())]
    if not goldens:
        raise FileError(f"{path}: it names no trace; {EXAMPLE}")
    return goldens


def _golden(path: Path, name: str, entry: Any, times: Any) -> Golden:
    where = f"{path}: {name}"
    if not isinstance(entry, dict) or not isinstance(entry.get("run"), str):
        raise FileError(f"{where}: it has no run; {EXAMPLE}")
    if unknown := entry.keys() - {"run", "times"}:
        raise FileError(f"{where}: no key {min(unknown)!r}; there are run and times")
    if not name.endswith(SUFFIXES) or Path(name).name != name:
        raise FileError(f"{where}: expected the name of a trace here: *{', *'.join(SUFFIXES)}")
    said = entry.get("times", times)
    if not isinstance(said, str):
        raise DiffError(f"{where}: times {said!r}: expected exact, order-only or 5%")
    try:
        Tolerance.parse(said)
        run = shlex.split(entry["run"])
    except DiffError as error:
        raise DiffError(f"{where}: {error}") from None
    except ValueError as error:
        raise FileError(f"{where}: run {entry['run']!r}: {error}") from None
    if run[:2] == ["tracegen", "run"]:
        run = run[2:]
    return Golden(path.parent / name, run, said)


def check(folder: str | Path, make: Make) -> Iterator[Verdict]:
    """Make every trace again and compare it with the golden one.

    Raises:
        FileError, DiffError: as `manifest`.
    """
    for golden in manifest(folder):
        yield _checked(golden, make)


def update(folder: str | Path, make: Make) -> Iterator[Verdict]:
    """Make every trace again; write those that differ or are not there yet.

    A golden that means the same is left as it is, so that a new version of the
    tool changes no file by itself.

    Raises:
        FileError, DiffError: as `manifest`.
    """
    for golden in manifest(folder):
        if golden.path.exists():
            verdict = _checked(golden, make)
            if verdict.found is not None and verdict.found.same:
                yield verdict
                continue
        yield _written(golden, make)


def _checked(golden: Golden, make: Make) -> Verdict:
    try:
        if not golden.path.exists():
            raise FileError(f"{golden.path}: there is none yet; make it with `golden update`")
        with tempfile.TemporaryDirectory() as scratch:
            new = _made(golden, make, Path(scratch))
            return Verdict(golden, diff(golden.path, new, golden.times))
    except TracegenError as error:
        return Verdict(golden, error=error)


def _written(golden: Golden, make: Make) -> Verdict:
    try:
        with tempfile.TemporaryDirectory() as scratch:
            new = _made(golden, make, Path(scratch))
            with opened(golden.path) as file:
                file.write(new.read_bytes())
        return Verdict(golden, written=True)
    except TracegenError as error:
        return Verdict(golden, error=error)


def _made(golden: Golden, make: Make, scratch: Path) -> Path:
    """Make the trace again, from the golden's folder: what its paths are relative to."""
    target = scratch / golden.path.name
    with chdir(golden.path.parent):
        make(golden.run, target)
    return target
