"""SEND and RECV right beside their compute, fused, or as the program itself has them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from tracegen.deps import neighbours
from tracegen.errors import ProgramError
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    NO_MATE,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    STAGE_MASK,
    STAGE_SHIFT,
    Program,
    Stream,
    decode,
    encode,
)
from tracegen.ir import F as FORWARD
from tracegen.ir import W as WEIGHT

SENDS, RECEIVES = (SEND_F, SEND_B), (RECV_F, RECV_B)


def is_message(code: int) -> bool:
    return SEND_F <= code & KIND_MASK <= RECV_B


def has_messages(program: Program) -> bool:
    """Whether the program says itself where its SEND and RECV stand."""
    return any(map(is_message, program.kinds))


def without_messages(program: Program) -> Program:
    """The same program without SEND and RECV."""
    if not program.has_communication:
        return program
    return program.with_ranks(
        stream.kept([at for at, code in enumerate(stream.codes) if not is_message(code)])
        for stream in program.ranks
    )


def other_end(program: Program, code: int) -> int:
    """The code of the RECV of a SEND, or of the SEND of a RECV."""
    other = {SEND_F: RECV_F, RECV_F: SEND_F, SEND_B: RECV_B, RECV_B: SEND_B}[code & KIND_MASK]
    return encode(_other_stage(program, code), other, code >> MICROBATCH_SHIFT)


def neighbour(program: Program, code: int) -> int:
    """The rank at the other end of a message."""
    return program.placement.ranks[_other_stage(program, code)]


def _other_stage(program: Program, code: int) -> int:
    """The stage at the other end of a message, -1 where the chain has none."""
    previous, following = neighbours(program)
    stages = following if code & KIND_MASK in (SEND_F, RECV_B) else previous
    return stages[code >> STAGE_SHIFT & STAGE_MASK]


def add_naive(program: Program) -> Program:
    """The program with each RECV right before the compute that needs it, each SEND right after."""
    program = without_messages(program)
    return program.with_ranks(_naive(program, stream) for stream in program.ranks)


def _naive(program: Program, stream: Stream) -> Stream:
    codes, mates = array("q"), array("q")
    for code, mate in zip(stream.codes, stream.mates, strict=True):
        halves = [half for half in (code, mate) if half != NO_MATE]
        receives = [m for half in halves for m in handovers(program, half, RECEIVES)]
        sends = [m for half in halves for m in handovers(program, half, SENDS)]
        codes.extend((*receives, code, *sends))
        mates.extend((*(NO_MATE for _ in receives), mate, *(NO_MATE for _ in sends)))
    return Stream(codes, mates)


def handovers(program: Program, code: int, kinds: tuple[int, int]) -> Iterator[int]:
    """The SEND, or the RECV, of an action whose result goes to, or comes from, another rank."""
    if code & KIND_MASK >= WEIGHT:
        return
    stage, ranks = code >> STAGE_SHIFT & STAGE_MASK, program.placement.ranks
    message = encode(stage, kinds[code & KIND_MASK != FORWARD], code >> MICROBATCH_SHIFT)
    other = _other_stage(program, message)
    if other >= 0 and ranks[other] != ranks[stage]:
        yield message


def add_fused(program: Program) -> Program:
    """As `add_naive`, a send and a receive with one neighbour between two computes being one."""
    naive = add_naive(program)
    return naive.with_ranks(_fused(naive, stream) for stream in naive.ranks)


def _fused(program: Program, stream: Stream) -> Stream:
    codes, mates = array("q"), array("q")
    waiting: list[int] = []  # the messages since the last compute

    def flush() -> None:
        receives: dict[int, list[int]] = {}
        for message in reversed(waiting):
            if message & KIND_MASK in RECEIVES:
                receives.setdefault(neighbour(program, message), []).append(message)
        taken = set()
        for message in waiting:
            if message in taken:
                continue
            fits = receives.get(neighbour(program, message)) if _is_send(message) else None
            codes.append(message)
            mates.append(fits.pop() if fits else NO_MATE)
            taken.add(mates[-1])
        waiting.clear()

    for code, mate in zip(stream.codes, stream.mates, strict=True):
        if is_message(code):
            waiting.append(code)
            continue
        flush()
        codes.append(code)
        mates.append(mate)
    flush()
    return Stream(codes, mates)


def _is_send(code: int) -> bool:
    return code & KIND_MASK in SENDS


def check_messages(program: Program) -> Program:
    """Return the program if its SEND and RECV are those that its hand-overs need.

    Each once, on the rank of its stage, SEND after the compute whose result it
    sends and RECV before the compute that needs it.

    Raises:
        ProgramError: naming rank and action of each violation.
    """
    problems: list[str] = []
    for rank, stream in enumerate(program.ranks):
        problems += _of_rank(program, rank, stream)
    if problems:
        raise ProgramError(program.name, problems)
    return program


def check_links(program: Program) -> Program:
    """Return the program if every link's messages are sent and received in one order.

    PyTorch's messages carry no name: the n-th RECV of a link gets what its n-th SEND
    sends, whatever that is.

    Raises:
        ProgramError: naming the first RECV of each link that would get another's.
    """
    sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
    received: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for rank, stream in enumerate(program.ranks):
        for at, code in stream.halves():
            if _is_send(code):
                sent.setdefault((rank, neighbour(program, code)), []).append((at, code))
            elif is_message(code):
                received.setdefault((neighbour(program, code), rank), []).append((at, code))
    problems = []
    for (a, b), sends in sent.items():
        for (at, code), (there, wanted) in zip(sends, received.get((a, b), ()), strict=False):
            if other_end(program, code) != wanted:
                problems.append(
                    f"rank {b}, action {there}: {decode(wanted)} gets what rank {a}, action {at}: "
                    f"{decode(code)} sends; a link's messages arrive in the order they are sent"
                )
                break
    if problems:
        raise ProgramError(program.name, problems)
    return program


def _of_rank(program: Program, rank: int, stream: Stream) -> Iterator[str]:
    placed: dict[int, int] = {}
    for at, code in stream.halves():
        if is_message(code):
            here = f"rank {rank}, action {at}: {decode(code)}"
            if program.placement.ranks[code >> STAGE_SHIFT & STAGE_MASK] != rank:
                yield f"{here} is of a stage that another rank holds"
            elif code in placed:
                yield f"{here} is there already, as action {placed[code]}"
            placed[code] = at
    for at, code in stream.halves():
        if code & KIND_MASK <= WEIGHT:
            for problem in _of_compute(program, code, at, placed):
                yield f"rank {rank}, action {at}: {problem}"
    for code, at in placed.items():
        yield f"rank {rank}, action {at}: {decode(code)} moves nothing between two ranks"


def _of_compute(program: Program, code: int, at: int, placed: dict[int, int]) -> Iterator[str]:
    """What is wrong with the messages of an action; those that it has leave `placed`."""
    for kinds in (RECEIVES, SENDS):
        for message in handovers(program, code, kinds):
            if (where := placed.pop(message, None)) is None:
                yield f"{decode(code)} has no {decode(message)}, which is missing"
            elif (where < at) != (kinds == RECEIVES):
                order = "before" if kinds == RECEIVES else "after"
                yield f"{decode(code)} comes {order} its {decode(message)}, which is action {where}"
