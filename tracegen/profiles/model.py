"""What a profile says of one rank, on the clock of its own process (data; times in ns)."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

# What tells the message of a step: the step's number, whether it is an activation (else a
# gradient), the stage that made it, the microbatch.
Key = tuple[int, bool, int, int]

NO_WAIT = -1


def column() -> array[int]:
    """An empty column of integers."""
    return array("q")


@dataclass(slots=True)
class Window:
    """A range that a profiler's user marked: an action, from its wait for input to its end.

    Attributes:
        code, mate: the action, as a Stream has it.
        loose: whether what follows it, up to the next range, is of it too.
        talks: whether it holds its own receive and send.
        thread: the thread it ran on, where that is known.
        wait_ns: of one that is a tile as it is, when the rank began to wait for its input,
            NO_WAIT where it did not.
    """

    start_ns: int
    end_ns: int
    code: int
    mate: int
    loose: bool = False
    talks: bool = False
    thread: object = None
    wait_ns: int = NO_WAIT


@dataclass(slots=True)
class Message:
    """An operation that sends or receives: when it was posted and when it was done."""

    start_ns: int
    end_ns: int


@dataclass(slots=True)
class Columns:
    """Spans as two columns, and when each was launched where something launched it."""

    start: array[int] = field(default_factory=column)
    end: array[int] = field(default_factory=column)
    launched: array[int] = field(default_factory=column)

    def add(self, start: int, end: int) -> None:
        self.start.append(start)
        self.end.append(end)

    def outermost(self) -> Columns:
        """The spans that no other is around, of those sorted by start; what crosses is joined."""
        found = Columns()
        for start, end in zip(self.start, self.end, strict=True):
            if found.end and start < found.end[-1]:
                found.end[-1] = max(found.end[-1], end)
            else:
                found.add(start, end)
        return found

    def sort(self, by: str = "start") -> None:
        """By start, or by `launched`."""
        key = getattr(self, by)
        order = sorted(range(len(key)), key=key.__getitem__)
        for name in ("start", "end", "launched"):
            of = getattr(self, name)
            if of:
                setattr(self, name, array("q", [of[at] for at in order]))


@dataclass(slots=True)
class Recorded:
    """The raw material of one process: what a format's reader finds.

    Attributes:
        path: the file, for messages.
        rank: of all ranks of the run, -1 if the file does not say.
        peers: the ranks of its pipeline in order, empty if the file does not say.
        only_group: whether that is the one group the file names, and not said to be a pipeline's.
        host: what tells its clock from others; "" if it is not said.
        windows: the actions, by start; communication among them.
        marks: where the profiler's own steps begin.
        updates: where an optimizer begins its step.
        step_sizes: the microbatches of each step, where actions are inferred and that is known.
        ops: operations of the host that compute, of any thread, by start.
        kernels, copies: of a device: those that compute, and those that communicate between
            ranks, by launch; empty where the host computes.
        sends, receives: operations between ranks, by start.
        shift_ns: what its times lack to those of its clock.
        on_device: whether tiles are made of kernels.
        exact: whether a window is a tile as it is.
        one_stage: whether the actions say no stage: its own is that of its place in the pipeline.
        ranges: what some ranges are called that are no action.
        notes: what had to be inferred, for the user.
    """

    path: str
    rank: int = -1
    peers: tuple[int, ...] = ()
    only_group: bool = False
    host: str = ""
    windows: list[Window] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    step_sizes: list[int] = field(default_factory=list)
    ops: Columns = field(default_factory=Columns)
    kernels: Columns = field(default_factory=Columns)
    copies: Columns = field(default_factory=Columns)
    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    shift_ns: int = 0
    on_device: bool = False
    exact: bool = False
    one_stage: bool = False
    ranges: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tile:
    """What an action took: from its first operation to the end of its last.

    Attributes:
        wait_ns: when the rank began to wait for its input, -1 where it did not.
    """

    code: int
    mate: int
    wait_ns: int
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class RankProfile:
    """One rank of the pipeline: its steps, and its messages.

    Attributes:
        sent: when each result left at the earliest.
        received: when each was there at the latest.
        waits_inside_ns: by step, what its pairs waited between their forward and the arrival of
            their backward's input.
    """

    path: str
    host: str
    steps: list[list[Tile]]
    waits_inside_ns: list[int] = field(default_factory=list)
    sent: dict[Key, int] = field(default_factory=dict)
    received: dict[Key, int] = field(default_factory=dict)
