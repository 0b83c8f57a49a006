"""Find schedules: the shipped files, a file the user names, installed plugins.

All three are loaded the same way, as a file or object that holds `Schedule`s,
so a user's file needs nothing that a shipped one has.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from tracegen.errors import ScheduleError, UnknownSchedule
from tracegen.files import with_endings
from tracegen.schedule import Schedule, line_in

ENTRY_POINTS = "tracegen.schedules"
SHIPPED = "tracegen.schedules"  # what their modules are called
SCHEDULES_ARE = "expected a name that `tracegen list` has, or a file that ends in .py or .csv"


def shipped_dir() -> Path:
    """schedules/ as the wheel holds it, or the checkout's beside tracegen/."""
    here = Path(__file__).parent
    installed = here / "schedules"
    return installed if installed.is_dir() else here.parent / "schedules"


def load_file(path: Path) -> list[Schedule]:
    """Run a schedule file and return the schedules it defines.

    Raises:
        ScheduleError: if there is no such file, it does not run, or it defines no schedule.
    """
    if not os.path.isfile(path):
        raise ScheduleError(f"{path}: no such file; expected a Python file with a @schedule")
    package = SHIPPED if path.parent == shipped_dir() else "tracegen.user"
    name = f"{package}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            raise ScheduleError(f"{path}{_where(error, path)}: {_said(error)}") from error
        raise
    return _schedules_of(module, str(path))


def _loaded(path: Path) -> list[Schedule]:
    """The schedules of a shipped file, loaded once for as long as the file stays as it is."""
    return _loaded_as(path, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache
def _loaded_as(path: Path, changed_ns: int) -> list[Schedule]:
    return load_file(path)


def _at_home(name: str) -> Schedule | None:
    """The shipped schedule whose file has its name: no other file is looked at for it."""
    stem = name.lower().replace("-", "_")
    path = shipped_dir() / f"{stem}.py"
    if not stem.isidentifier() or stem.startswith("_") or not os.path.isfile(path):
        return None
    return next((s for s in _loaded(path) if _plain(s.name) == _plain(name)), None)


def shipped() -> dict[str, Schedule]:
    """The schedules in schedules/, by name.

    Raises:
        ScheduleError: if two of its files define the same name, or one cannot be used.
    """
    named: dict[str, Schedule] = {}
    home: dict[str, Path] = {}
    for path in sorted(shipped_dir().glob("[!_]*.py")):
        for s in _loaded(path):
            if s.name in named:
                raise ScheduleError(
                    f"{path} defines {s.name!r}, as {home[s.name]} does; give it another name"
                )
            named[s.name], home[s.name] = s, path
    return named


def installed(taken: dict[str, Schedule]) -> tuple[dict[str, Schedule], list[str]]:
    """The schedules that other distributions offer, and what is wrong with those that fail.

    A distribution offers them by the entry point group `tracegen.schedules`,
    whose entries are a Schedule or a module that holds some.
    """
    from importlib.metadata import entry_points

    named: dict[str, Schedule] = {}
    problems = []
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
        try:
            value = entry.load()
            one = isinstance(value, Schedule)
            for s in [value] if one else _schedules_of(value, entry.value):
                if s.name in taken or s.name in named:
                    raise ScheduleError(f"it defines {s.name!r}, a name that is already taken")
                named[s.name] = s
        except (
            Exception,
            SystemExit,
        ) as error:  # whatever a plugin does, the others still work
            problems.append(f"plugin {entry.name} ({entry.value}): {_said(error)}")
    return named, problems


def available() -> tuple[dict[str, Schedule], list[str]]:
    """Every schedule that has a name, and what is wrong with the plugins that have none."""
    named = shipped()
    others, problems = installed(named)
    return named | others, problems


def find(name_or_path: str) -> Schedule:
    """The schedule of that name, or the only one in the file at that path.

    Names are forgiving: case, hyphens, underscores and a leading "Schedule" do
    not matter, and aliases are known.

    Raises:
        UnknownSchedule: with the nearest name, or all.
        ScheduleError: if the file cannot be used.
    """
    if name_or_path.endswith(".py"):
        found = load_file(Path(name_or_path))
        if len(found) > 1:
            names = ", ".join(s.name for s in found)
            raise ScheduleError(
                f"{name_or_path} defines {len(found)} schedules ({names}); keep one"
            )
        return found[0]
    if (at_home := _at_home(name_or_path)) is not None:
        return at_home
    named = shipped()
    problems: list[str] = []
    if _plain(name_or_path) not in (known := _by_plain_name(named)):
        others, problems = installed(named)
        named |= others
        known = _by_plain_name(named)
    if (hit := known.get(_plain(name_or_path))) is not None:
        return hit
    raise UnknownSchedule(_unknown(name_or_path, known) + "".join(f"\n  {p}" for p in problems))


def _unknown(name: str, known: dict[str, Schedule]) -> str:
    """What is wrong with a name that no schedule has, and what may be meant."""
    if name == "-":
        return "-: standard input is not read; give a name or a file"
    if os.path.isdir(name):
        what = "a schedule's file ends in .py or .csv, and `tracegen import` reads profiles"
        return f"{name} is a folder; {what}"
    if os.path.isfile(name):
        return f"{name} is no schedule; {SCHEDULES_ARE}"
    if files := with_endings(name, (".py", ".csv")):
        return f"no schedule {name!r}; of the file give the whole name: {files}"
    from difflib import get_close_matches

    typed = _plain(name)
    swapped = [other for other in known if sorted(other) == sorted(typed)]
    if close := swapped or get_close_matches(typed, known, n=1):
        return f"no schedule {name!r}; did you mean {known[close[0]].name!r}?"
    if os.sep in name or Path(name).suffix:
        return f"{name}: no such file; {SCHEDULES_ARE}"
    every = sorted({schedule.name for schedule in known.values()})
    return f"no schedule {name!r}; there are {', '.join(every)}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower()).removeprefix("schedule")


def _by_plain_name(named: dict[str, Schedule]) -> dict[str, Schedule]:
    known = {_plain(alias): s for s in named.values() for alias in s.aliases}
    return known | {_plain(name): s for name, s in named.items()}


def _schedules_of(module: ModuleType, source: str) -> list[Schedule]:
    found = [value for value in vars(module).values() if isinstance(value, Schedule)]
    if not found:
        raise ScheduleError(
            f"{source} defines no schedule; mark a function of (rank, pipe) with @schedule"
        )
    return found


def _said(error: BaseException) -> str:
    text = (error.msg if isinstance(error, SyntaxError) else str(error)) or "no message"
    return text if isinstance(error, ScheduleError) else f"{type(error).__name__}: {text}"


def _where(error: BaseException, path: Path) -> str:
    """The line of the user's file that the error came through."""
    here = str(path.absolute())
    in_file = isinstance(error, SyntaxError) and error.filename in (here, None)
    line = error.lineno if in_file and isinstance(error, SyntaxError) else line_in(here, error)
    return "" if line is None else f", line {line}"
