"""A trace, or the profiles of a run, by one name: what `tracegen.read` and the commands call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tracegen.files import check_path
from tracegen.profiles.inputs import is_profile as is_profile
from tracegen.readers import chrome
from tracegen.timeline import Timeline


def read(path: str | Path, name_pattern: str | None = None) -> Timeline:
    """Read a trace, or the profiles of a run's ranks. What is odd is in `found.warnings`.

    Args:
        path: JSON, gzipped or not, or protobuf (*.pftrace); or a folder, a file or a pattern
            of names of profiles: torch.profiler's, Megatron-LM's timers, nsys exports.
        name_pattern: what the names of slices, or ranges, are like: a regular expression with
            named groups op and mb, and stage (without it a rank has one stage, of its number).

    Raises:
        FileError: if it cannot be read, is malformed beyond repair, or nothing in it says
            which action it is.
    """
    check_path("path", path)
    if is_profile(str(path)):
        return _profile(path, name_pattern)
    return chrome.read(path, name_pattern)


def read_any(path: str | Path, name_pattern: str | None = None) -> Timeline:
    """As `read`, but a trace without any action is a timeline of no ranks and of other rows."""
    if is_profile(str(path)):
        return _profile(path, name_pattern)
    return chrome.read_any(path, name_pattern)


def _profile(path: str | Path, name_pattern: str | None) -> Timeline:
    from tracegen.profiles.reading import read as profiles

    return replace(profiles([path], name_pattern=name_pattern), beside=None)
