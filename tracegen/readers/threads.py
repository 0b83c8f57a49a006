"""Slices by thread and the ends of flows, as the events of a trace give them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

Id = int | str
Key = tuple[Any, Any, Any]
Slice = tuple[int, int, int, int, int, str, str, str]
# ns, whether it is the beginning, name, args, number of the event.
Half = tuple[int, bool, str | None, dict[str, Any], int]


@dataclass(slots=True)
class Thread:
    """The slices of one (pid, tid): as they come, and, once `close` has run, as columns.

    Attributes:
        slices: (start, end, code, mate, rank, name, waited, about) of each; then empty.
        halves: the beginnings and ends of slices that are written in two; then empty.
        code, mate: of the action that a slice is, -1 where it is none.
        rank: what its args say, -1 where they say nothing.
        waited: what its args say it waited for, "" for nothing.
        about: what its args say that a slice which is no action is, as of `identity`.
        resumed: until when an action recomputed before its backward -> its slice.
        steps: by slice, the step of the program that it is; filled in when there is a program.
    """

    pid: Id
    tid: Id
    slices: list[Slice] = field(default_factory=list)
    halves: list[Half] = field(default_factory=list)
    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    code: array[int] = field(default_factory=lambda: array("q"))
    mate: array[int] = field(default_factory=lambda: array("q"))
    rank: array[int] = field(default_factory=lambda: array("q"))
    names: list[str] = field(default_factory=list)
    waited: list[str] = field(default_factory=list)
    about: list[str] = field(default_factory=list)
    resumed: dict[int, int] = field(default_factory=dict)
    steps: array[int] = field(default_factory=lambda: array("q"))

    def keep(self, places: list[int]) -> None:
        """Keep the slices at these places alone, in this order; their `steps` come later."""
        for name in ("start", "end", "code", "mate", "rank"):
            column = getattr(self, name)
            setattr(self, name, array("q", [column[at] for at in places]))
        for name in ("names", "waited", "about"):
            column = getattr(self, name)
            setattr(self, name, [column[at] for at in places])


@dataclass(frozen=True, slots=True)
class FlowEnd:
    """An event s, t or f.

    Attributes:
        key: (category, name, id): what the ends of an arrow have in common.
        enclosing: whether it is at the slice around it, and not at the next.
    """

    key: Key
    phase: str
    thread: Thread
    ns: int
    enclosing: bool
    event: int

    def __str__(self) -> str:
        return f"event {self.event}: the flow {self.key[1]!r}, id {self.key[2]!r},"


Pair = tuple[Key, Thread, int, int, Thread, int, int]


@dataclass(slots=True)
class Flows:
    """The flow events, as they come.

    Attributes:
        pairs: an s with the f right behind it, which is how most files have them:
            (key, thread, ns and event of s, thread, ns and event of f).
        loose: all other ends.
        last: an s that may yet be one of `pairs`.
        used: the keys of `pairs` and `loose`; those that begin more than once are in `again` too.
    """

    pairs: list[Pair] = field(default_factory=list)
    loose: list[FlowEnd] = field(default_factory=list)
    used: set[Key] = field(default_factory=set)
    again: set[Key] = field(default_factory=set)
    last: tuple[Key, Thread, int, int] | None = None
