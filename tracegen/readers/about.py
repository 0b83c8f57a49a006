"""What a trace says of itself beside its events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracegen import layout, metrics
from tracegen.costs import Costs
from tracegen.errors import CostError, FileError, ScheduleError
from tracegen.ir import MAX_STAGES, Placement, Program, Step, Stream, parse
from tracegen.readers.finite import not_finite
from tracegen.readers.warn import Warnings
from tracegen.timeline import Timeline


class About:
    """The metadata of a trace; of one that tracegen did not write, nothing.

    Attributes:
        own: whether tracegen wrote it.
        said: the metadata as it stands.
        costs: in force, the defaults where none are given.
    """

    def __init__(self, path: object, top: dict[str, Any], warnings: Warnings) -> None:
        """From the values beside the events.

        Raises:
            FileError: if it is tracegen's and holds what tracegen never writes, such as NaN.
        """
        self.path = path
        known = (top.get(key) for key in ("metadata", "otherData"))
        own = [said for said in known if isinstance(said, dict) and said.get("tool") == "tracegen"]
        self.own = bool(own)
        self.said: dict[str, Any] = _printable(own[0]) if own else {}
        self.costs = Costs()
        if not self.own:
            return
        version = self._count("schema_version")
        if version > metrics.SCHEMA_VERSION:
            warnings.add(
                "versions",
                f"its schema_version is {version}; this tracegen knows {metrics.SCHEMA_VERSION}",
            )
        for where in not_finite(self.said, "metadata"):
            raise FileError(f"{path}: {where} is no finite number")
        try:
            self.costs = Costs.from_dict(self._table("costs"))
        except CostError as error:
            raise FileError(f"{path}: metadata: {error}") from None
        self.num_ranks, self.num_microbatches = self._count("p"), self._count("m")

    num_ranks: int = 0
    num_microbatches: int = 0

    @property
    def num_stages(self) -> int:
        return self._count("stages") if self.own else 0

    @property
    def stages_per_rank(self) -> int:
        return -(-self.num_stages // max(1, self.num_ranks))

    @property
    def num_steps(self) -> int:
        """How many training steps its tiles are of."""
        said = self.said.get("replay")
        steps = said.get("steps") if isinstance(said, dict) else None
        return steps if type(steps) is int and steps > 0 else 1

    @property
    def schedule(self) -> str | None:
        name = self.said.get("schedule")
        return name if isinstance(name, str) else None

    @property
    def recipe(self) -> dict[str, Any]:
        """What makes the program again; empty where the metadata spells the program out."""
        if self.schedule is None or "program" in self.said:
            return {}
        also = {"forward_only": True} if self.said.get("forward_only") is True else {}
        return {"schedule": self.schedule, **also}

    @property
    def of_program(self) -> dict[str, Any]:
        """What it states of the program that its tiles need not show."""
        return {key: self.said[key] for key in ("chains", "forward_only") if key in self.said}

    def placement(self, stages: int, p: int) -> Placement | None:
        """As stated, if it is one for these stages and ranks."""
        ranks, chains = self.said.get("stage_ranks"), self.said.get("chains")
        if not (isinstance(ranks, list) and isinstance(chains, list) and len(ranks) == stages):
            return None
        if not all(isinstance(rank, int) and 0 <= rank < p for rank in ranks):
            return None
        if not all(isinstance(chain, list) for chain in chains):
            return None
        if sorted(str(stage) for chain in chains for stage in chain) != sorted(
            map(str, range(stages))
        ):
            return None
        return Placement(str(self.said.get("placement")), tuple(ranks), tuple(map(tuple, chains)))

    def program(self) -> Program | None:
        """The program where the metadata spells it out.

        Raises:
            FileError: if that is no program.
        """
        rows = self.said.get("program")
        if rows is None:
            return None
        if not (isinstance(rows, list) and all(isinstance(row, str) for row in rows)):
            raise FileError(f"{self.path}: metadata: program is no list of rows of actions")
        try:
            streams = tuple(Stream.of(map(parse, row.split())) for row in rows)
        except ScheduleError as error:
            raise FileError(f"{self.path}: metadata: program: {error}") from None
        placement = self.placement(self.num_stages, len(streams))
        if placement is None:
            raise FileError(f"{self.path}: metadata: it lacks stage_ranks and chains of the stages")
        return Program(str(self.schedule), self.num_microbatches, placement, streams)

    def zero_length(self, p: int) -> Iterator[tuple[int, Step, int, str]]:
        """(rank, action, ns, what it waited for) of each action that has no tile.

        Raises:
            FileError: if an entry is none.
        """
        rows = self.said.get("zero_length", [])
        try:
            for rank, row in enumerate(rows):
                for text, us, *waited in row:
                    if rank >= p:
                        raise ValueError
                    yield rank, parse(text), round(us * 1000), str(waited[0]) if waited else ""
        except (TypeError, ValueError, ScheduleError):
            raise FileError(
                f"{self.path}: metadata: zero_length is not, by rank, a list of [action, us]"
            ) from None

    def stated_ns(self, key: str, p: int) -> list[int]:
        """A figure by rank, in ns; empty where it is not stated for p ranks."""
        us = self.said.get(key)
        if not (isinstance(us, list) and len(us) == p):
            return []
        return [round(value * 1000) for value in us if isinstance(value, int | float)]

    def figures(self, line: Timeline) -> tuple[dict[str, Any], dict[str, Any]]:
        """What it states of its figures, and what it says of how it was made."""
        if not self.own or not line.program.num_ranks:
            return {}, {}
        ours = layout.about(line)
        figures = {*metrics.summary(line), *metrics.OF_SOME}  # though its tiles may not say them
        stated = {key: value for key, value in self.said.items() if key in figures}
        others = {*ours, *figures, "program"}
        config = {key: value for key, value in self.said.items() if key not in others}
        return stated, config

    def _count(self, key: str) -> int:
        value = self.said.get(key)
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise FileError(f"{self.path}: metadata: {key} is {value!r:.24}; expected a number")
        if key in ("p", "stages") and value > MAX_STAGES:
            raise FileError(f"{self.path}: metadata: {key} is {value}; use {MAX_STAGES} or fewer")
        return value

    def _table(self, key: str) -> dict[str, Any]:
        value = self.said.get(key, {})
        if not isinstance(value, dict):
            raise FileError(f"{self.path}: metadata: {key} is {value!r:.24}; expected an object")
        return value


def _printable(value: Any) -> Any:
    """Plain data whose texts can be printed: half a surrogate pair becomes ?"""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_printable(key): _printable(inner) for key, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list) else value
