"""Profiles, whatever they are of -> a measured Timeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tracegen import engine
from tracegen.errors import FileError
from tracegen.profiles import inferred, inputs, kineto, megatron, nsys, ranks, stragglers
from tracegen.profiles.merge import merge
from tracegen.profiles.model import Recorded
from tracegen.profiles.spans import profile_of
from tracegen.readers import chrome
from tracegen.readers.warn import Warnings
from tracegen.timeline import Timeline


def read(
    names: Sequence[str | Path], rank_map: str | None = None, name_pattern: str | None = None
) -> Timeline:
    """Read the profiles of one run's ranks. What is odd about them is in `found.warnings`.

    `config["executed"]` says what they are, how the clocks were related and what replay
    predicts; `beside` is that prediction.

    Args:
        names: folders, files, or patterns of names.
        rank_map: which ranks of the run are the pipeline's, as `ranks.ranks_of` has it.
        name_pattern: what ranges of actions are called, as `Namer` has it.

    Raises:
        FileError: if something is missing that cannot be inferred, and what.
    """
    warnings = Warnings()
    given = inputs.given(names)
    if given.format == inputs.CHROME:
        return _chrome(given.paths, name_pattern)
    whole: int | None = None
    if given.format == inputs.MEGATRON:
        files, places, whole = megatron.read_all(given.paths, warnings)
    else:
        files, places, whole = _ranges(given, rank_map, name_pattern, warnings)
    for note in dict.fromkeys(note for one in files for note in one.notes):
        which = sum(note in one.notes for one in files)
        warnings.add("notes", f"{which} of {len(files)} files: {note}")
    if given.format == inputs.MEGATRON:
        warnings.add("notes", megatron.NOTE)
    profiles = [profile_of(one, place, warnings) for one, place in zip(files, places, strict=True)]
    about: dict[str, Any] = {"profile": given.format, "files": len(files)}
    about["tiles_of"] = _tiles_of(files)
    complete = whole is None or places == list(range(whole))
    return merge(profiles, _name(given.paths), about, warnings, complete)


def _ranges(
    given: inputs.Given, rank_map: str | None, pattern: str | None, warnings: Warnings
) -> tuple[list[Recorded], list[int], int | None]:
    """The files of one pipeline, their places, and how many there should be if that is said."""
    files: list[Recorded] = []
    idle: list[str] = []
    for path in given.paths:
        if given.format == inputs.NSYS:
            files += nsys.read(path, pattern, warnings)
            continue
        if given.format == inputs.STRAGGLERS:
            files += stragglers.read(path, warnings)
            continue
        try:
            files += kineto.read(path, warnings, pattern)
        except FileError as error:
            idle.append(str(error))
    if not files or (idle and rank_map is None):
        raise FileError(idle[0])
    for text in idle:
        warnings.add("files that were not read", text)
    chosen, places = ranks.pipeline(files, rank_map, warnings)
    if not chosen:
        raise FileError(f"{given.paths[0].parent}: no file is of the pipeline that is asked for")
    inferred.agree(chosen)
    whole = len(chosen[0].peers) if rank_map is None and chosen[0].peers else None
    return chosen, places, whole


def _tiles_of(files: Sequence[Recorded]) -> str:
    if all(one.on_device and one.exact for one in files):
        return "kernels annotated with each action"
    if all(one.on_device for one in files):
        return "kernels launched during each range"
    if all(one.exact for one in files):
        return "the ranges as they are"
    return "the host's operations in each range"


def _name(paths: Sequence[Path]) -> str:
    """What people would call the run: its folder, or the one file."""
    if len(paths) == 1:
        return paths[0].name.split(".")[0]
    return paths[0].resolve().parent.name or "profile"


def _chrome(paths: Sequence[Path], name_pattern: str | None) -> Timeline:
    if len(paths) > 1:
        raise FileError(
            f"{paths[0]}, {paths[1]}: they are no profiles of torch.profiler's (no schemaVersion, "
            "distributedInfo or cpu_op at their beginning); a Chrome trace of another tool is read "
            "if one file holds all ranks"
        )
    return chrome.read(paths[0], name_pattern)


def replayed(line: Timeline) -> Timeline:
    """What replay predicts of a timeline that was read, from the costs in it.

    Raises:
        ProgramError: if what was read is no whole program.
    """
    return line.beside or engine.replay(line.program, line.costs)
