"""Timeline -> Perfetto/Chrome JSON: the only place that writes microseconds.

The layout follows what Perfetto's importer really does: all ranks are threads of
one process, since only then do they keep their order in every version; times
are differences of integer ns printed with three decimals, since rounding start
and duration apart makes tiles overlap and the importer drops one; an arrow's
ends stand at the starts of the tiles it joins, its start first in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracegen import __version__, metrics
from tracegen.deps import NOTHING
from tracegen.errors import FileError
from tracegen.files import STDOUT, write_text
from tracegen.ir import (
    KIND_MASK,
    KINDS,
    MICROBATCH_SHIFT,
    NO_MATE,
    STAGE_MASK,
    STAGE_SHIFT,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.timeline import Timeline

# What a tile is called, before its microbatch. Perfetto colours a tile by a hash of
# its name without digits: plain B looks like F there, and W like I. These give
# yellow, red, blue and green; a pair (F1B0) is violet.
LETTERS = {FORWARD: "F", FULL: "BP", INPUT: "I", WEIGHT: "WG"}
PAIR_LETTERS = {FULL: "B", INPUT: "I"}
CATEGORY = {FORWARD: "forward", FULL: "backward", INPUT: "input", WEIGHT: "weight"}

# The ranks are threads 1 to p of this process. A thread whose id is that of its
# process becomes its main thread and leaves the row.
PIPELINE = 0

SUFFIXES = (".json", ".json.gz")


def write(line: Timeline, target: str | Path) -> None:
    """Write the timeline as a trace for ui.perfetto.dev.

    Args:
        line: predicted, measured or read.
        target: a path that ends in .json or .json.gz, or "-" for stdout.

    Raises:
        FileError: if the name has another ending or the file cannot be written.
    """
    special = str(target) == STDOUT or (Path(target).exists() and not Path(target).is_file())
    if not special and not str(target).endswith(SUFFIXES):
        raise FileError(f"{target}: a trace's name ends in {' or '.join(SUFFIXES)}")
    write_text(target, chunks(line))


def chunks(line: Timeline) -> Iterator[str]:
    """The trace as JSON text, in pieces: an event a line."""
    about = json.dumps(metadata(line), separators=(",", ":"), allow_nan=False)
    yield '{"displayTimeUnit":"ns",\n"otherData":' + about + ',\n"metadata":' + about
    yield ',\n"traceEvents":[\n'
    yield ",\n".join(_names(line))
    for rank in range(line.program.num_ranks):
        for events in (_tiles(line, rank), _counter(line, rank)):
            if text := ",\n".join(events):
                yield ",\n" + text
    if text := ",\n".join(_arrows(line)):
        yield ",\n" + text
    yield "\n]}\n"


def metadata(line: Timeline) -> dict[str, Any]:
    """What the trace says of itself: the request, the costs in force and the figures."""
    program = line.program
    about = {
        **metrics.summary(line),
        "tool": "tracegen",
        "tool_version": __version__,
        "placement": program.placement.name,
        "stage_ranks": list(program.placement.ranks),
        "chains": [list(chain) for chain in program.placement.chains],
        "forward_only": program.forward_only,
        "costs": line.costs.in_force(),
        "zero_length_actions": sum(
            start == end for start, end in zip(line.start_ns, line.end_ns, strict=True)
        ),
        **line.config,
    }
    if not program.recipe:
        about["program"] = [" ".join(map(str, stream)) for stream in program.ranks]
    return about


def us(ns: int) -> str:
    """Nanoseconds as microseconds with exactly three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def rank_name(rank: int, num_ranks: int) -> str:
    """`rank 03`: as wide as the last, so that text order is rank order."""
    return f"rank {rank:0{len(str(num_ranks - 1))}d}"


def _names(line: Timeline) -> Iterator[str]:
    def meta(what: str, tid: int, **args: object) -> str:
        event = {"ph": "M", "pid": PIPELINE, "tid": tid, "name": what, "args": args}
        return json.dumps(event, separators=(",", ":"))

    yield meta("process_name", 0, name="pipeline")
    yield meta("process_sort_index", 0, sort_index=0)
    p = line.program.num_ranks
    for rank in range(p):
        yield meta("thread_name", rank + 1, name=rank_name(rank, p))
        yield meta("thread_sort_index", rank + 1, sort_index=rank)


def _tiles(line: Timeline, rank: int) -> Iterator[str]:
    program = line.program
    base, stream = program.offsets[rank], program.ranks[rank]
    chain_of, bounds = program.placement.chain_of_stages(), metrics.phases(stream)
    free = 0
    for at, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True)):
        start, end = line.start_ns[base + at], line.end_ns[base + at]
        waited, free = start - free, end
        if end == start:
            continue
        kind, stage = code & KIND_MASK, code >> STAGE_SHIFT & STAGE_MASK
        name = f"{LETTERS[kind]}{code >> MICROBATCH_SHIFT}"
        category, pair = CATEGORY[kind], ""
        if mate != NO_MATE:
            other = mate & KIND_MASK
            name += f"{PAIR_LETTERS[other]}{mate >> MICROBATCH_SHIFT}"
            category = "overlap"
            pair = (
                f',"backward_op":"{KINDS[other]}"'
                f',"backward_stage":{mate >> STAGE_SHIFT & STAGE_MASK}'
                f',"backward_microbatch":{mate >> MICROBATCH_SHIFT}'
            )
        wait = f',"wait_us":{us(waited)}' if waited else ""
        if line.blocker[base + at] != NOTHING:
            wait = f',"waited_for":"{metrics.waited_for(line, base + at)}"' + wait
        yield (
            f'{{"ph":"X","pid":{PIPELINE},"tid":{rank + 1},"ts":{us(start)},"dur":{us(end - start)}'
            f',"name":"{name}","cat":"{category}","args":{{"rank":{rank},"stage":{stage}'
            f',"microbatch":{code >> MICROBATCH_SHIFT},"op":"{KINDS[kind]}"{pair}'
            f',"chain":{chain_of[stage]},"phase":"{metrics.phase(at, bounds)}"{wait}}}}}'
        )


def _counter(line: Timeline, rank: int) -> Iterator[str]:
    """The activations that the rank holds: one sample wherever they change."""
    name = rank_name(rank, line.program.num_ranks)
    for ns, held in metrics.activations(line, rank):
        yield (
            f'{{"ph":"C","pid":{PIPELINE},"ts":{us(ns)},"name":"{name}"'
            f',"args":{{"activations":{held}}}}}'
        )


def _arrows(line: Timeline) -> Iterator[str]:
    """Two events for every transfer between ranks whose tiles are both there."""
    program, start, end = line.program, line.start_ns, line.end_ns
    number = 0
    for move in line.transfers():
        a, b = move.source, move.target
        if start[a] == end[a] or start[b] == end[b]:
            continue
        number += 1
        what = '"activation","cat":"forward"' if move.forward else '"gradient","cat":"backward"'
        ends = ((a, "s", ""), (b, "f", ',"bp":"e"'))
        yield ",\n".join(
            f'{{"ph":"{ph}","pid":{PIPELINE},"tid":{program.rank_of_step(step) + 1}'
            f',"ts":{us(start[step])},"id":{number},"name":{what}{point}}}'
            for step, ph, point in ends
        )
