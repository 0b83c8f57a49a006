"""What a trace of tracegen's was made of: so that it can be made again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracegen import compiler
from tracegen.costs import Costs
from tracegen.errors import CostError, FileError
from tracegen.ir import Program
from tracegen.mode import Mode
from tracegen.readers.about import About
from tracegen.readers.document import document_of
from tracegen.readers.warn import Warnings

# What the metadata says of a trace's looks: rows and counters beside the usual.
LOOKS = ("rows", "memory_limit")


@dataclass(frozen=True, slots=True)
class Request:
    """A replay and how its trace looks.

    Attributes:
        program, costs, mode: what `replay` takes.
        looks: the part of `Timeline.config` that adds to the trace.
    """

    program: Program
    costs: Costs
    mode: Mode = field(default_factory=Mode)
    looks: dict[str, Any] = field(default_factory=dict)


def request_of(path: str | Path) -> Request:
    """The program and the costs that a trace of tracegen's says it was made of, and the mode.

    Raises:
        FileError: if it is not tracegen's, or cannot be read.
        ScheduleError: if there is no such schedule any more.
    """
    warnings = Warnings()
    document = document_of(path, warnings)
    for _ in document.events():
        pass
    about = About(path, document.about, warnings)
    if not about.own:
        raise FileError(
            f"{path}: its metadata has no request of tracegen's; expected its own trace"
        )
    looks = {key: about.said[key] for key in LOOKS if key in about.said}
    return Request(_program(path, about), about.costs, mode_of(path, about), looks)


def mode_of(path: object, about: About) -> Mode:
    """How it was replayed.

    Raises:
        FileError: if the metadata says what is no mode.
    """
    said = about.said.get("replay", {})
    try:
        return Mode.from_dict(said if isinstance(said, dict) else {"": said})
    except CostError as error:
        raise FileError(f"{path}: metadata: {error}") from None


def _program(path: str | Path, about: About) -> Program:
    if (program := about.program()) is not None:
        return program
    if about.schedule is None:
        raise FileError(f"{path}: its metadata names no schedule")
    return compiler.compile(
        about.schedule,
        about.num_ranks,
        about.num_microbatches,
        about.stages_per_rank,
        forward_only="forward_only" in about.recipe,
        communication=False,
    )
