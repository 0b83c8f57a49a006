"""The action IR: what each rank does, in order. No timing, no tensors, no I/O.

The text form is that of torch.distributed.pipelining, so `2F0` is the forward
of microbatch 0 on stage 2 and a written program can be loaded by torch.

A Program keeps its actions as columns of integers, one code an action, so that
ten million of them fit; Action, Overlap and StageAction are the views that
people read. A code holds microbatch, stage and kind in one integer:
`microbatch << 24 | stage << 8 | kind`.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, overload

from tracegen.errors import ScheduleError


class Kind(StrEnum):
    """What an action does; the value is its name in the text form."""

    FORWARD = "F"
    FULL_BACKWARD = "B"  # I and W in one
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_F = "SEND_F"
    RECV_F = "RECV_F"
    SEND_B = "SEND_B"
    RECV_B = "RECV_B"
    UNSHARD = "UNSHARD"
    RESHARD = "RESHARD"
    REDUCE_GRAD = "REDUCE_GRAD"
    SUM_REPLICAS = "SUM_REPLICAS"  # the gradients of a stage that several chains hold
    OPTIMIZER = "OPTIMIZER"

    @property
    def is_compute(self) -> bool:
        return KINDS.index(self) <= W

    @property
    def of_whole_stage(self) -> bool:
        """Whether this concerns a stage and no microbatch."""
        return KINDS.index(self) >= UNSHARD

    @property
    def starts_backward(self) -> bool:
        """Whether this sends an input gradient to the previous stage."""
        return self in (Kind.FULL_BACKWARD, Kind.BACKWARD_INPUT)


KINDS = tuple(Kind)
NUMBER = {kind: number for number, kind in enumerate(KINDS)}
# The kind's number is the low byte of a code. Compute kinds come first.
F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B = range(8)
UNSHARD, RESHARD, REDUCE_GRAD, SUM_REPLICAS, OPTIMIZER = range(8, len(KINDS))

STAGE_SHIFT, MICROBATCH_SHIFT = 8, 24
KIND_MASK, STAGE_MASK = 0xFF, 0xFFFF
ALL_BUT_MICROBATCH = (1 << MICROBATCH_SHIFT) - 1
MAX_STAGES = STAGE_MASK + 1
MAX_MICROBATCHES = 1 << 32
NO_MATE = -1


def encode(stage: int, kind: int, microbatch: int) -> int:
    """The code of an action; kind is F, B, I, W or another kind's number."""
    return microbatch << MICROBATCH_SHIFT | stage << STAGE_SHIFT | kind


@dataclass(frozen=True, slots=True)
class Action:
    """One unit of work of one rank, for one microbatch."""

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @property
    def code(self) -> int:
        return encode(self.stage, NUMBER[self.kind], self.microbatch)


@dataclass(frozen=True, slots=True)
class StageAction:
    """What a rank does to a whole stage, such as `3REDUCE_GRAD`."""

    stage: int
    kind: Kind

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}"

    @property
    def code(self) -> int:
        return encode(self.stage, NUMBER[self.kind], 0)


@dataclass(frozen=True, slots=True)
class Overlap:
    """A forward and a backward that the rank runs as one block."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A send and a receive with one neighbour as one action. Not PyTorch's: ours alone."""

    send: Action
    receive: Action

    def __str__(self) -> str:
        return f"({self.send};{self.receive})SEND_RECV"


Step = Action | StageAction | Overlap | Exchange

_ACTION = r"([0-9]+)([FBIW]|SEND_F|RECV_F|SEND_B|RECV_B)([0-9]+)"
_STAGE_ACTION = r"([0-9]+)(UNSHARD|RESHARD|REDUCE_GRAD)"
_OVERLAP = r"\(([0-9]+F[0-9]+);([0-9]+[BI][0-9]+)\)OVERLAP_F_B"
_EXCHANGE = r"\(([0-9]+SEND_[FB][0-9]+);([0-9]+RECV_[FB][0-9]+)\)SEND_RECV"


def parse(text: str) -> Step:
    """Read the text form, such as `2F0` or `(3F5;0B2)OVERLAP_F_B`.

    Raises:
        ScheduleError: if text is not exactly one action, or its numbers are out of range.
    """
    if match := re.fullmatch(_ACTION, text):
        return Action(
            _number("stage", match[1], MAX_STAGES),
            Kind(match[2]),
            _number("microbatch", match[3], MAX_MICROBATCHES),
        )
    if match := re.fullmatch(_STAGE_ACTION, text):
        return StageAction(_number("stage", match[1], MAX_STAGES), Kind(match[2]))
    if match := re.fullmatch(_OVERLAP, text) or re.fullmatch(_EXCHANGE, text):
        first, second = parse(match[1]), parse(match[2])
        assert isinstance(first, Action)
        assert isinstance(second, Action)
        return Overlap(first, second) if first.kind.is_compute else Exchange(first, second)
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    raise ScheduleError(
        f"{shown!r} is not an action; expected <stage><F|B|I|W><microbatch>, such as 2F0, "
        "<stage><SEND_F|RECV_F|SEND_B|RECV_B><microbatch>, <stage><UNSHARD|RESHARD|REDUCE_GRAD> "
        "or (3F5;0B2)OVERLAP_F_B"
    )


def _number(what: str, digits: str, end: int) -> int:
    # Python refuses to convert thousands of digits, so the length is looked at first.
    if len(digits) > 2 * len(str(end)) or int(digits) >= end:
        shown = digits if len(digits) <= 20 else f"{digits[:8]}... of {len(digits)} digits"
        raise ScheduleError(f"{what} {shown} is out of range; it goes from 0 to {end - 1}")
    return int(digits)


def decode(code: int) -> Action | StageAction:
    """The action of a code."""
    kind = KINDS[code & KIND_MASK]
    stage = code >> STAGE_SHIFT & STAGE_MASK
    if kind.of_whole_stage:
        return StageAction(stage, kind)
    return Action(stage, kind, code >> MICROBATCH_SHIFT)


class Stream(Sequence[Step]):
    """What one rank does, in order: a view of the columns of a Program.

    Attributes:
        codes: a code for each step; of a pair, its forward's, of an exchange, its send's.
        mates: the code of the other half of each step that is a pair or an exchange, else NO_MATE.
        alike: what the function of that name has found, kept with it.
    """

    __slots__ = ("alike", "codes", "mates")

    def __init__(self, codes: array[int], mates: array[int]) -> None:
        assert len(codes) == len(mates)
        self.codes, self.mates = codes, mates
        self.alike: Any = None

    @classmethod
    def of(cls, steps: Iterable[Step]) -> Stream:
        codes, mates = array("q"), array("q")
        for step in steps:
            if isinstance(step, Overlap):
                codes.append(step.forward.code)
                mates.append(step.backward.code)
            elif isinstance(step, Exchange):
                codes.append(step.send.code)
                mates.append(step.receive.code)
            else:
                codes.append(step.code)
                mates.append(NO_MATE)
        return cls(codes, mates)

    def halves(self) -> Iterator[tuple[int, int]]:
        """(position, code) of every action, both halves of a pair at one position."""
        return self._halves() if self.has_mates else enumerate(self.codes)

    def kept(self, positions: Sequence[int]) -> Stream:
        """The steps at these positions alone."""
        codes, mates = (array("q", [of[at] for at in positions]) for of in (self.codes, self.mates))
        return Stream(codes, mates)

    @property
    def has_mates(self) -> bool:
        """Whether any step is a pair or an exchange."""
        return self.mates != array("q", [NO_MATE]) * len(self.mates)

    def _halves(self) -> Iterator[tuple[int, int]]:
        for at, (code, mate) in enumerate(zip(self.codes, self.mates, strict=True)):
            yield at, code
            if mate != NO_MATE:
                yield at, mate

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, index: int) -> Step: ...
    @overload
    def __getitem__(self, index: slice) -> list[Step]: ...
    def __getitem__(self, index: int | slice) -> Step | list[Step]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        step, mate = decode(self.codes[index]), self.mates[index]
        if mate == NO_MATE:
            return step
        other = decode(mate)
        assert isinstance(step, Action)
        assert isinstance(other, Action)
        return Overlap(step, other) if step.kind.is_compute else Exchange(step, other)

    def __iter__(self) -> Iterator[Step]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return self.codes == other.codes and self.mates == other.mates

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} steps: {' '.join(map(str, self[:4]))}{' ...' * (len(self) > 4)}>"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which rank holds each stage, and the chains that the microbatches run along.

    Attributes:
        name: loop, v or bidirectional.
        ranks: the rank of each stage.
        chains: the stages of each chain in forward order; the m microbatches go
            to the chains in equal runs, chain 0 first.
    """

    name: str
    ranks: tuple[int, ...]
    chains: tuple[tuple[int, ...], ...]

    @property
    def num_stages(self) -> int:
        return len(self.ranks)

    def stages_of(self, rank: int) -> list[int]:
        """The rank's stages, in the order of chains and, in a chain, of the forward."""
        return [stage for chain in self.chains for stage in chain if self.ranks[stage] == rank]

    def microbatches_of(self, chain: int, num_microbatches: int) -> range:
        n = len(self.chains)
        return range(chain * num_microbatches // n, (chain + 1) * num_microbatches // n)

    def chain_of_stages(self) -> list[int]:
        """The chain of each stage."""
        of = [0] * self.num_stages
        for number, chain in enumerate(self.chains):
            for stage in chain:
                of[stage] = number
        return of

    def neighbours(self) -> tuple[list[int], list[int]]:
        """The previous and the next stage of each stage in its chain, -1 where there is none."""
        previous, following = [-1] * self.num_stages, [-1] * self.num_stages
        for chain in self.chains:
            for a, b in pairwise(chain):
                previous[b], following[a] = a, b
        return previous, following


@dataclass(frozen=True, repr=False)  # it has its own
class Program:
    """The ordered actions of every rank.

    Attributes:
        name: the schedule it comes from, or the file.
        num_microbatches: m.
        placement: stage to rank, and the chains.
        ranks: one Stream a rank.
        num_steps: how many training steps in a row; a rank does the same number of actions in
            each, and each has microbatches 0 to m - 1.
        recipe: what `compile` makes it of again, beside m, p and v; empty for a program that
            came from elsewhere or was changed since.
        memo: what layers above have derived from this program, kept with it.
    """

    name: str
    num_microbatches: int
    placement: Placement
    ranks: tuple[Stream, ...]
    num_steps: int = field(default=1, kw_only=True)
    recipe: dict[str, Any] = field(default_factory=dict, compare=False)
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    def __repr__(self) -> str:
        return (
            f"<Program {self.name} p={self.num_ranks} m={self.num_microbatches} "
            f"v={self.stages_per_rank}: {len(self)} steps>"
        )

    @property
    def num_stages(self) -> int:
        return self.placement.num_stages

    @property
    def stages_per_rank(self) -> int:
        return -(-self.num_stages // self.num_ranks)

    def __len__(self) -> int:
        """The number of steps of all ranks."""
        return sum(map(len, self.ranks))

    @cached_property
    def offsets(self) -> list[int]:
        """Where each rank's steps begin when all ranks' are numbered in one row; then the total."""
        offsets = [0]
        for stream in self.ranks:
            offsets.append(offsets[-1] + len(stream))
        return offsets

    def rank_of_step(self, step: int) -> int:
        """The rank of a step numbered as by `offsets`."""
        from bisect import bisect_right

        return bisect_right(self.offsets, step) - 1

    @cached_property
    def kinds(self) -> Counter[int]:
        """How many actions there are of each kind, both halves of a pair counted."""
        from tracegen.alike import kinds

        return kinds(self)

    @property
    def forward_only(self) -> bool:
        """Whether no rank does any backward: evaluation, or pipelined inference."""
        return not any(self.kinds[kind] for kind in (B, I, W))

    @property
    def has_communication(self) -> bool:
        return any(kind > W for kind in self.kinds)

    def with_ranks(self, ranks: Iterable[Stream]) -> Program:
        """The same program with other steps."""
        return replace(self, ranks=tuple(ranks), recipe={}, memo={})

    def compute_only(self) -> Program:
        """The same without communication and whole-stage actions."""
        if not self.has_communication:
            return self
        if "compute_only" not in self.memo:
            compute = self.with_ranks(
                stream.kept([at for at, code in enumerate(stream.codes) if code & KIND_MASK <= W])
                for stream in self.ranks
            )
            self.memo["compute_only"] = replace(compute, recipe=self.recipe)
        return self.memo["compute_only"]  # type: ignore[no-any-return]
