"""@schedule: what turns a function of a schedule file into a named schedule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tracegen.errors import BrokenSchedule, ScheduleError
from tracegen.ir import MAX_STAGES, Placement, Stream
from tracegen.numbering import number
from tracegen.order import Order, Pipe, Place, loop

# The largest size for which a refusal looks for sizes nearby that would do.
NEARBY = 64

# Forwards and backwards of a program: ten times what is comfortable, and a few GB.
MAX_ACTIONS = 100_000_000


@dataclass(frozen=True, eq=False)
class Schedule:
    """A named order, its paper, its constraints and the placement it is written for.

    Attributes:
        name: as typed, lower case with hyphens.
        paper: arXiv id or other short reference; empty where there is none.
        order: (rank, pipe) -> what that rank does, in order.
        place: (p, v) -> where the stages are.
        stages_per_rank: v, or None where it is the user's choice.
        default_stages_per_rank: v where it is the user's choice and not given.
        example: the (p, m) of the paper's own figure, or of a textbook's: what a request
            without sizes gets.
        block: for a schedule of mixture-of-experts stages, the order in which its kernels run:
            what makes the command line replay it with MoE costs unless others are given.
        needs: the sizes it is defined for, in words, such as "m >= 2p".
        aliases: other names that people use.
    """

    name: str
    paper: str
    order: Callable[[int, Pipe], Order]
    place: Place
    stages_per_rank: int | None
    default_stages_per_rank: int
    example: tuple[int, int]
    block: str
    needs: str
    aliases: tuple[str, ...]

    @property
    def summary(self) -> str:
        """What it is, in a line: the function's docstring, or the file's."""
        doc = inspect.getdoc(self.order) or inspect.getdoc(inspect.getmodule(self.order)) or ""
        return doc.partition("\n")[0].rstrip(".")

    def pipe(
        self, num_ranks: int, num_microbatches: int, stages_per_rank: int | None = None
    ) -> Pipe:
        """The size as the order sees it.

        Raises:
            ScheduleError: if there is no such pipe, or v is not the user's choice here.
        """
        p, m = num_ranks, num_microbatches
        v = self._checked(p, m, stages_per_rank)
        try:
            return Pipe(p, m, v, self._placed(p, v))
        except BrokenSchedule:
            raise
        except ScheduleError as error:
            raise self._refusal(str(error), p, m, v) from None

    def crosses(self, num_ranks: int, stages_per_rank: int) -> bool:
        """Whether so many stages per rank are the user's choice, and each is of another pipe.

        True too where the placement refuses them: compiling says why.
        """
        if self.stages_per_rank is not None:
            return False
        try:
            chains = self._placed(num_ranks, stages_per_rank).chains
        except ScheduleError:
            return True
        return len(chains) == stages_per_rank > 1

    def default_microbatches(self, p: int, v: int | None) -> int:
        """The first m from the example's m/p times p upwards that the schedule accepts.

        That m itself if it refuses p or v whatever m is.

        Raises:
            ScheduleError: if there is no such pipe, or v is not the user's choice here.
        """
        v = self._checked(p, 1, v)
        least = -(-p * self.example[1] // self.example[0])
        return next((m for m in range(least, least + 2 * p) if self._accepts(p, m, v)), least)

    def _checked(self, p: int, m: int, v: int | None) -> int:
        """v, of a size that any schedule could have."""
        for symbol, what, value in (
            ("p", "ranks", p),
            ("m", "microbatches", m),
            ("v", "stages per rank", v),
        ):
            if value is not None and value < 1:
                raise ScheduleError(f"{self.name}: {symbol} = {value} {what}; use 1 or more")
        v = v or self.stages_per_rank or self.default_stages_per_rank
        if self.stages_per_rank not in (None, v):
            raise ScheduleError(
                f"{self.name}: v = {v} stages per rank; "
                f"it is defined for v = {self.stages_per_rank}"
            )
        if p * v > MAX_STAGES:
            raise ScheduleError(f"{self.name}: p * v = {p * v} stages; use {MAX_STAGES} or fewer")
        if (actions := 2 * p * v * m) > MAX_ACTIONS:
            raise ScheduleError(
                f"{self.name}: p={p} m={m} v={v} is {actions} actions; "
                f"use sizes of {MAX_ACTIONS} or fewer"
            )
        return v

    def _placed(self, p: int, v: int) -> Placement:
        with _own_code(self.name, self.place):
            placement = self.place(p, v)
            if not isinstance(placement, Placement):
                raise BrokenSchedule(f"place gives {placement!r}, which is no Placement")
            return placement

    def _ordered(self, rank: int, pipe: Pipe) -> Order:
        with _own_code(f"{self.name}, rank {rank}", self.order):
            order = self.order(rank, pipe)
            if not isinstance(order, Sequence) or isinstance(order, str):
                raise BrokenSchedule(f"its order is {order!r}; return a list of slots")
            return order

    def streams(self, pipe: Pipe) -> list[Stream]:
        """What every rank does, numbered.

        Raises:
            ScheduleError: if the schedule is not defined for this pipe, naming
                the rule and the nearest sizes that would do.
        """
        p, m, v = pipe.num_ranks, pipe.num_microbatches, pipe.stages_per_rank
        try:
            chains = len(pipe.placement.chains)
            if m % chains:
                raise ScheduleError(f"m is a multiple of {chains}, an equal share for each pipe")
            return [self._stream(rank, pipe) for rank in range(p)]
        except BrokenSchedule:
            raise
        except ScheduleError as error:
            raise self._refusal(str(error), p, m, v) from None

    def _stream(self, rank: int, pipe: Pipe) -> Stream:
        order = self._ordered(rank, pipe)
        with _own_code(f"{self.name}, rank {rank}", self.order):
            return number(order)

    def _accepts(self, p: int, m: int, v: int) -> bool:
        try:
            pipe = Pipe(p, m, v, self._placed(p, v))
            self._ordered(0, pipe)
        except ScheduleError:
            return False
        return m % len(pipe.placement.chains) == 0

    def _refusal(self, rule: str, p: int, m: int, v: int) -> ScheduleError:
        near = []
        if max(p, m) <= NEARBY:
            near += _nearest("m", m, lambda x: self._accepts(p, x, v))
            near = near or _nearest("p", p, lambda x: self._accepts(x, m, v))
            if self.stages_per_rank is None:
                near = near or _nearest("v", v, lambda x: self._accepts(p, m, x))
        hint = f"; nearest that would do: {' or '.join(near)}" if near else ""
        return ScheduleError(f"{self.name} is not defined for p={p} m={m} v={v}: {rule}{hint}")


@contextmanager
def _own_code(where: str, function: Callable[..., object]) -> Iterator[None]:
    """What a schedule's author got wrong is said with its place, not as a fault of this tool.

    Raises:
        BrokenSchedule: for whatever else than a refusal comes out.
    """
    try:
        yield
    except BrokenSchedule as error:
        raise BrokenSchedule(f"{where}: {error}") from None
    except ScheduleError:
        raise
    except Exception as error:
        file = getattr(getattr(function, "__code__", None), "co_filename", "")
        line = line_in(file, error)
        place = "" if line is None else f", {file}, line {line}"
        raise BrokenSchedule(
            f"{where}{place}: {type(error).__name__}: {error or 'no message'}"
        ) from error


def line_in(file: str, error: BaseException) -> int | None:
    """The last line of a file that an error came through."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _nearest(symbol: str, value: int, good: Callable[[int], bool]) -> list[str]:
    """The nearest number below and above that would do, as `m=8`."""
    below = next((x for x in range(value - 1, 0, -1) if good(x)), None)
    above = next((x for x in range(value + 1, value + 2 * NEARBY) if good(x)), None)
    return [f"{symbol}={x}" for x in (below, above) if x is not None]


def schedule(
    name: str,
    *,
    paper: str = "",
    place: Place = loop,
    stages_per_rank: int | None = 1,
    default_stages_per_rank: int = 2,
    example: tuple[int, int] = (4, 8),
    block: str = "",
    needs: str = "",
    aliases: tuple[str, ...] = (),
) -> Callable[[Callable[[int, Pipe], Order]], Schedule]:
    """Name an order. `stages_per_rank=None` leaves the number to the user."""
    if not isinstance(name, str) or not name:
        raise BrokenSchedule(f'@schedule has {name!r} for a name; write @schedule("NAME")')
    for v in (stages_per_rank, default_stages_per_rank):
        if v is not None and (not isinstance(v, int) or v < 1):
            raise BrokenSchedule(f"{name}: {v!r} stages per rank; give a number, 1 or more")

    def wrap(order: Callable[[int, Pipe], Order]) -> Schedule:
        if min(example) < 1:
            raise BrokenSchedule(f"{name}: example = {example}; give p and m of 1 or more")
        return Schedule(
            name,
            paper,
            order,
            place,
            stages_per_rank,
            default_stages_per_rank,
            example,
            block,
            needs,
            aliases,
        )

    return wrap
