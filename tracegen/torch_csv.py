"""PyTorch's schedule CSV: one row a rank, one action a cell.

What torch.distributed.pipelining's `_load_csv` reads, and what its `_dump_csv`
writes, with empty cells as bubbles. The reader is stricter than torch's: a row
that torch would read by halves is refused, with the place.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from tracegen.errors import FileError, ProgramError, ScheduleError
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    Exchange,
    Placement,
    Program,
    Step,
    Stream,
    parse,
)
from tracegen.ir import F as FORWARD
from tracegen.ir import W as WEIGHT
from tracegen.order import both_ways, loop, v_shape

EXAMPLE = "expected one row a rank, its actions separated by commas, such as 0F0,0F1,0B0,0B1"


def write(program: Program) -> str:
    """The program in torch's form, with the communication that it has.

    Raises:
        ScheduleError: if several chains run through one model, which torch's form cannot say,
            there is no backward, which its runtime refuses, or a send and a receive are one.
    """
    if len(program.placement.chains) > 1:
        raise ScheduleError(
            f"{program.name} has {len(program.placement.chains)} chains of stages on one model: "
            "torch's form numbers the stages of one chain, so export one of a single chain "
            "(dualpipev instead of dualpipe, hanayo instead of chimera)"
        )
    if program.forward_only:
        raise ScheduleError(
            f"{program.name} has no backward: torch's runtime refuses such a file; export the "
            "training schedule, whose eval() leaves the backward out"
        )
    for rank, stream in enumerate(program.ranks):
        for at, step in enumerate(stream):
            if isinstance(step, Exchange):
                raise ScheduleError(
                    f"{program.name}: rank {rank}, action {at}: {step} is a send and a receive as "
                    "one action, which torch has not; export it with the order torch or naive"
                )
    return "".join(",".join(map(str, stream)) + "\n" for stream in program.ranks)


def read(path: Path) -> Program:
    """Read a program; where the stages are is inferred from the rows.

    Raises:
        FileError: if it cannot be read or is not in torch's form, with line and cell.
        ProgramError: if no placement fits the rows.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}; expected a schedule CSV") from None
    return from_text(_decode(data, str(path)), str(path))


def from_text(text: str, name: str) -> Program:
    """As `read`, of the text itself; `name` is what errors call it."""
    rows = [[*_row(line, cells, name)] for line, cells in _rows(text, name)]
    streams = [Stream.of(step for step in row if step is not None) for row in rows]
    return Program(name, *_shape(streams, rows, name), tuple(streams))


def _decode(data: bytes, name: str) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data:
        raise FileError(f"{name}: it is in UTF-16 or not text at all; expected UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"{name}: byte {error.start} is not UTF-8; expected UTF-8") from None


def _rows(text: str, name: str) -> Iterator[tuple[int, list[str]]]:
    lines = re.split(r"\r\n|\r|\n", text)
    while lines and not lines[-1].strip(", "):
        lines.pop()
    if not lines:
        raise FileError(f"{name}: it holds no actions; {EXAMPLE}")
    for number, line in enumerate(lines, start=1):
        if "\t" in line:
            raise FileError(f"{name}, line {number}: it has tabs; {EXAMPLE}")
        if not line.strip(", "):
            raise FileError(f"{name}, line {number}: it is empty; {EXAMPLE}")
        try:
            yield number, next(csv.reader([line], strict=True))
        except csv.Error as error:
            raise FileError(f"{name}, line {number}: {error}; {EXAMPLE}") from None


def _row(line: int, cells: list[str], name: str) -> Iterator[Step | None]:
    for number, cell in enumerate(cells):
        try:
            yield parse(cell.strip(" ")) if cell.strip(" ") else None
        except ScheduleError as error:
            raise FileError(f"{name}, line {line}, cell {number + 1}: {error}") from None


def _shape(
    streams: Sequence[Stream], rows: Sequence[Sequence[Step | None]], name: str
) -> tuple[int, Placement]:
    """The number of microbatches and the placement that the rows say."""
    owner: dict[int, int] = {}
    batches: defaultdict[int, set[int]] = defaultdict(set)
    for rank, stream in enumerate(streams):
        for at, code in stream.halves():
            stage = code >> STAGE_SHIFT & STAGE_MASK
            if owner.setdefault(stage, rank) != rank:
                raise ProgramError(
                    name,
                    [
                        f"rank {rank}, action {at}: {stream[at]} belongs on rank {owner[stage]}, "
                        f"which holds stage {stage}"
                    ],
                )
            batch = batches[stage]
            if code & KIND_MASK <= WEIGHT:
                batch.add(code >> MICROBATCH_SHIFT)
    if not any(batches.values()):
        raise ProgramError(name, ["no rank has an F, B, I or W; there is nothing to do"])
    _check_stages(owner, streams, name)
    _check_numbering(streams, name)
    numbers = set().union(*batches.values())
    m = 1 + max(numbers)
    missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
    if missing < m:
        raise ProgramError(
            name, [f"microbatch {missing} is missing; the highest is {m - 1}, and m runs from 0"]
        )
    ranks = tuple(owner[stage] for stage in range(len(owner)))
    return m, placement_of(ranks, batches, m, len(rows))


def _check_stages(owner: dict[int, int], streams: Sequence[Stream], name: str) -> None:
    missing = next((s for s in range(len(owner)) if s not in owner), None)
    if missing is None:
        return
    above = min(stage for stage in owner if stage > missing)
    rank = owner[above]
    at = next(
        at for at, code in streams[rank].halves() if code >> STAGE_SHIFT & STAGE_MASK == above
    )
    raise ProgramError(
        name,
        [
            f"rank {rank}, action {at}: {streams[rank][at]} is of stage {above}, but no rank "
            f"holds stage {missing}; stages are numbered from 0 without a gap"
        ],
    )


def _check_numbering(streams: Sequence[Stream], name: str) -> None:
    """Recognise the drawn order of torch's Schedule1F1B, whose last rank starts at F1."""
    forwards = [
        [code >> MICROBATCH_SHIFT for _, code in stream.halves() if code & KIND_MASK == FORWARD]
        for stream in streams
    ]
    m = len(forwards[0])
    if len(streams) > 1 and forwards[-1] == [*range(1, m + 1)] and 0 in forwards[0]:
        at = next(at for at, code in streams[-1].halves() if code & KIND_MASK == FORWARD)
        raise ProgramError(
            name,
            [
                f"rank {len(streams) - 1}, action {at}: {streams[-1][at]} should be of microbatch "
                "0: this is how torch's Schedule1F1B draws itself, numbering the last rank's "
                "forwards from 1; take one from each, or use `tracegen export 1f1b`"
            ],
        )


def placement_of(ranks: tuple[int, ...], batches: dict[int, set[int]], m: int, p: int) -> Placement:
    """A known placement that has these ranks of stages and chains, else one named custom."""
    chains = _chains(batches, m)
    v = max(1, len(ranks) // p)
    for place in (loop, v_shape, both_ways):
        try:
            known = place(p, v)
        except ScheduleError:
            continue
        if known.ranks == ranks and known.chains == chains:
            return known
    return Placement("custom", ranks, chains)


def _chains(batches: dict[int, set[int]], m: int) -> tuple[tuple[int, ...], ...]:
    """Runs of stages that share no microbatch with the next run; one run if any is shared."""
    stages = range(len(batches))
    starts = [0] + [b for a, b in pairwise(stages) if batches[a].isdisjoint(batches[b])]
    chains = tuple(tuple(range(a, b)) for a, b in pairwise([*starts, len(stages)]))
    equal = Placement("", (0,) * len(stages), chains)
    fits = all(
        set().union(*(batches[s] for s in chain)) <= set(equal.microbatches_of(number, m))
        for number, chain in enumerate(chains)
    )
    return chains if fits else (tuple(stages),)
