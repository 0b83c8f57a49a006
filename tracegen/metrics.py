"""Bubble, phases, waits and critical path of a Timeline."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Any

from tracegen.alike import alike
from tracegen.blame import causes
from tracegen.deps import NOTHING, neighbours, waits
from tracegen.ir import (
    KIND_MASK,
    KINDS,
    MICROBATCH_SHIFT,
    NO_MATE,
    STAGE_MASK,
    STAGE_SHIFT,
    UNSHARD,
    Program,
    Stream,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.memory import peak_bytes
from tracegen.timeline import Timeline, as_number

SCHEMA_VERSION = 1
# Figures that `summary` has of some timelines only: of MoE costs, of several steps, of bytes.
OF_SOME = ("comm_busy_us", "exposed_us", "overlap_ratio", "steady_step_us", "peak_memory_bytes")

WARMUP, STEADY, COOLDOWN = "warmup", "steady", "cooldown"


def bubble_ratio(line: Timeline) -> float:
    """1 - sum(busy) / (p * makespan): the share of all ranks' time in which they wait."""
    whole = line.program.num_ranks * line.makespan_ns
    return 1 - sum(line.busy_ns) / whole if whole else 0.0


def bubble_overhead(line: Timeline) -> float:
    """sum(idle) / sum(busy): what waiting adds to the work; (p - 1) / m for 1F1B."""
    busy = sum(line.busy_ns)
    return sum(line.idle_ns) / busy if busy else 0.0


def span_rate(line: Timeline) -> float:
    """1 - busy / span of the rank with the longest span, from its first start to its last end.

    The bubble rate of the Zero Bubble papers, where the next step may start on
    a rank that is done. Of ranks with equal spans the lowest counts.
    """
    longest = max(range(line.program.num_ranks), key=lambda rank: span_ns(line, rank))
    span = span_ns(line, longest)
    return 1 - line.busy_ns[longest] / span if span else 0.0


def span_ns(line: Timeline, rank: int) -> int:
    """From the rank's first start to its last end; 0 for a rank that does nothing."""
    first, last = line.program.offsets[rank], line.program.offsets[rank + 1]
    return line.end_ns[last - 1] - line.start_ns[first] if last > first else 0


def phases(stream: Stream) -> tuple[int, int]:
    """Where a rank's steady phase begins and where its cool-down begins.

    Warm-up is what comes before the first backward, less the forward of a steady
    one-forward-one-backward, which only a rank has that does forwards after its
    first backward too. Cool-down is what comes after the last forward.
    """
    codes, size = stream.codes, len(stream)
    forwards = (at for at in range(size - 1, -1, -1) if codes[at] & KIND_MASK == FORWARD)
    backwards = (at for at, code in stream.halves() if code & KIND_MASK != FORWARD)
    last_forward, first_backward = next(forwards, -1), next(backwards, size)
    steady = first_backward
    if first_backward < last_forward and stream.mates[first_backward] == NO_MATE:
        steady = max(0, first_backward - 1)
    return steady, max(steady, last_forward + 1)


def phases_of_steps(program: Program, rank: int) -> list[tuple[int, int]]:
    """The `phases` of a rank in each training step, by position in its whole stream."""
    stream, size = program.ranks[rank], len(program.ranks[rank]) // program.num_steps
    if program.num_steps == 1:
        return [phases(stream)]
    found = []
    for first in range(0, len(stream), max(1, size)):
        part = slice(first, first + size)
        steady, cooldown = phases(Stream(stream.codes[part], stream.mates[part]))
        found.append((first + steady, first + cooldown))
    return found


def phase(at: int, bounds: tuple[int, int]) -> str:
    """The phase of a rank's step, from its `phases`."""
    return WARMUP if at < bounds[0] else STEADY if at < bounds[1] else COOLDOWN


_PAIR = re.compile(r"\((\d+F\d+);(\d+[BI]\d+)\)OVERLAP_F_B")


def readable(text: str) -> str:
    """A text for people, its pairs as in the tiling but with their stages: 3F5/0B2."""
    return _PAIR.sub(r"\1/\2", text)


def waited_for(line: Timeline, rank: int, step: int) -> str:
    """The action whose result a step of the rank waited for last, in text form.

    Where messages block, the one that held it, whose result may have gone to another. Of a
    stage that was not there before, its UNSHARD.
    "" for a step that did not wait for another.
    """
    program, blocker = line.program, line.blocker[step]
    if line.collectives and (fetched := _fetched(line, rank, step)):
        return fetched
    if blocker == NOTHING:
        return ""
    previous, following = neighbours(program)
    at = step - program.offsets[rank]
    code, mate = program.ranks[rank].codes[at], program.ranks[rank].mates[at]
    if blocker == waits(program).forward[step]:
        stage = previous[code >> STAGE_SHIFT & STAGE_MASK]
        return f"{stage}F{code >> MICROBATCH_SHIFT}"
    if blocker != waits(program).backward[step]:  # through messages, a sum or a barrier
        other = program.rank_of_step(blocker)
        return str(program.ranks[other][blocker - program.offsets[other]])
    half = code if mate == NO_MATE else mate
    stage = following[half >> STAGE_SHIFT & STAGE_MASK]
    other = program.rank_of_step(blocker)  # a trace may have it on another rank than its stage
    stream, where = program.ranks[other], blocker - program.offsets[other]
    made = stream.codes[where] if stream.mates[where] == NO_MATE else stream.mates[where]
    return f"{stage}{KINDS[made & KIND_MASK].value}{half >> MICROBATCH_SHIFT}"


def _fetched(line: Timeline, rank: int, step: int) -> str:
    """The UNSHARD at whose end a step of the rank began, in text form; "" if there is none."""
    at = step - line.program.offsets[rank]
    stream, start = line.program.ranks[rank], line.start_ns[step]
    if at and line.end_ns[step - 1] == start:
        return ""
    halves = [half for half in (stream.codes[at], stream.mates[at]) if half != NO_MATE]
    stages = {half >> STAGE_SHIFT & STAGE_MASK for half in halves}
    ran = line.collectives[rank]
    for one in islice(ran, bisect_left(ran, start, key=lambda one: one.end_ns), None):
        if one.end_ns > start:
            break
        here = one.end_ns > one.start_ns and one.code & KIND_MASK == UNSHARD
        if here and one.code >> STAGE_SHIFT & STAGE_MASK in stages:
            return str(one)
    return ""


def critical_path(line: Timeline) -> array[int]:
    """The steps that the makespan is the sum of, first to last, with the transfers between.

    Back from the last end: what a step waited for, or else the step before it
    on its rank. Shortening anything else shortens nothing.
    """
    if not len(line.end_ns):
        return array("q")
    firsts, cause = set(line.program.offsets), causes(line)
    step = max(range(len(line.end_ns)), key=line.end_ns.__getitem__)
    path = array("q", [step])
    while True:
        if cause[step] != NOTHING:
            step = cause[step]
        elif step in firsts:
            break
        else:
            step -= 1
        path.append(step)
    path.reverse()
    return path


def us(ns: int) -> float:
    """Nanoseconds as microseconds."""
    return ns / 1000


def summary(line: Timeline) -> dict[str, Any]:
    """The figures of a timeline as plain data: the same in `--json` and in a trace's metadata.

    Times are in µs; `peak_activations` as Timeline has them. The figures of the
    communication stream are there only with MoE costs and with `zero`.
    """
    program = line.program
    found = {
        "schema_version": SCHEMA_VERSION,
        "schedule": program.name,
        "p": program.num_ranks,
        "m": program.num_microbatches,
        "v": program.stages_per_rank,
        "stages": program.num_stages,
        "makespan_us": us(line.makespan_ns),
        "bubble_ratio": bubble_ratio(line),
        "bubble_overhead": bubble_overhead(line),
        "span_rate": span_rate(line),
        "busy_us": [us(busy) for busy in line.busy_ns],
        "idle_us": [us(idle) for idle in line.idle_ns],
        "peak_activations": line.peak_activations,
        **_only_some(line),
    }
    if line.kernels is not None or line.collectives:
        found["comm_busy_us"] = [us(busy) for busy in line.comm_busy_ns]
        found["exposed_us"] = [us(exposed) for exposed in line.exposed_ns]
        found["overlap_ratio"] = line.overlap_ratio
    return found


def _only_some(line: Timeline) -> dict[str, Any]:
    """Figures of several training steps, and of memory in bytes where that is known."""
    held = peak_bytes(line.program, line.costs)
    steady = line.steady_step_ns
    return {
        **({} if steady is None else {"steady_step_us": steady / 1000}),
        **({} if held is None else {"peak_memory_bytes": held}),
    }


def critical_steps(line: Timeline) -> list[dict[str, Any]]:
    """The critical path as plain data: rank, action, start and end in µs of each step."""
    program, rows = line.program, []
    for step in critical_path(line):
        rank = program.rank_of_step(step)
        rows.append(
            {
                "rank": rank,
                "action": str(program.ranks[rank][step - program.offsets[rank]]),
                "start_us": us(line.start_ns[step]),
                "end_us": us(line.end_ns[step]),
            }
        )
    return rows


def activations(line: Timeline, rank: int) -> Iterator[tuple[int, float]]:
    """(ns, activations held from then on) wherever they change, as `freed_at_input` counts them."""
    program = line.program
    stream, base = program.ranks[rank], program.offsets[rank]
    taken, given_back = _held_by(line, stream)
    steps = slice(base, base + len(stream))
    then, held, shown, numbers = 0, 0.0, 0.0, _Numbers()
    columns = (alike(stream).numbers, line.start_ns[steps], line.end_ns[steps])
    for number, start, end in zip(*columns, strict=True):
        if change := taken[number]:
            if start != then:
                if held != shown or not then:
                    yield then, numbers[held]
                    shown = held
                then = start
            held += change
        if change := given_back[number]:
            if end != then:
                if held != shown or not then:
                    yield then, numbers[held]
                    shown = held
                then = end
            held -= change
    yield then, numbers[held]


class _Numbers(dict[float, float]):
    """`as_number`, kept: a rank comes back to what it has held before."""

    def __missing__(self, value: float) -> float:
        number = self[value] = as_number(value)
        return number


def _held_by(line: Timeline, stream: Stream) -> tuple[list[float], list[float]]:
    """What a step takes at its start and gives back at its end, by the number of its sort."""
    size = line.costs.activations(line.program.num_stages)
    share = line.costs.w_share
    shares = {
        FULL: 1.0,
        INPUT: 1.0 - share,
        WEIGHT: share,
        FORWARD: float(line.program.forward_only),
    }
    taken, given_back = [], []
    for code, mate in alike(stream).sorts:
        one = size[code >> STAGE_SHIFT & STAGE_MASK]
        taken.append(one if code & KIND_MASK == FORWARD else 0.0)
        last = code if mate == NO_MATE else mate
        one = size[last >> STAGE_SHIFT & STAGE_MASK]
        given_back.append(one * shares.get(last & KIND_MASK, 0.0))
    return taken, given_back


def gaps(line: Timeline, rank: int) -> list[tuple[int, int]]:
    """(step, ns the rank stood still before it) wherever it did; the first step counts from 0."""
    first, last = line.program.offsets[rank], line.program.offsets[rank + 1]
    ends = [0, *line.end_ns[first:last]]
    waited = [start - end for start, end in zip(line.start_ns[first:last], ends, strict=False)]
    return [(step, ns) for step, ns in enumerate(waited, first) if ns]
