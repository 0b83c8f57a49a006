"""Chrome trace JSON -> Timeline: tracegen's own traces, and others as far as they say.

Of another tool's trace the reader needs to know which stage, op and microbatch a
slice is: from args `stage`, `op` and `microbatch`, from a name in torch's text
form (`2F0`: what its `_dump_chrometrace` writes) or PiPPy's (`F_2,0`), or by a
pattern with named groups. Ranks are told apart by the names of threads or processes, the arg
`rank`, or their ids. All other slices are kept as rows beside the ranks'.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tracegen import engine
from tracegen.deps import NOTHING, waits
from tracegen.drawn import ACTIVATION
from tracegen.engine import is_plain
from tracegen.errors import FileError, TracegenError
from tracegen.found import Found, Row
from tracegen.ir import Program
from tracegen.readers import beside, flows, from_rows, proto, recompute, rows
from tracegen.readers.about import About
from tracegen.readers.actions import Namer
from tracegen.readers.document import document_of
from tracegen.readers.events import Gather, close
from tracegen.readers.request import mode_of
from tracegen.readers.tiles import Tiles, add_zero_length
from tracegen.readers.warn import Warnings
from tracegen.repeat import step_of
from tracegen.shape import Series
from tracegen.timeline import Timeline


def read(path: str | Path, name_pattern: str | None = None) -> Timeline:
    """Read a trace. What is odd about it is in `found.warnings`.

    Args:
        path: JSON, gzipped or not, or protobuf: *.pftrace.
        name_pattern: what the names of slices are like: a regular expression with named
            groups op and mb, and stage (without it a rank has one stage, of its number).

    Raises:
        FileError: if it cannot be read, is malformed beyond repair, or no slice says which
            action it is.
    """
    line = read_any(path, name_pattern)
    if line.program.num_ranks:
        return line
    assert line.found is not None
    slices = [(row.name, label) for row in line.found.rows for label in row.labels[:1]]
    what = f"{sum(len(row.labels) for row in line.found.rows)} slices" if slices else "no slices"
    such = f", such as {slices[0][1]!r} on {slices[0][0]}" if slices else ""
    odd = "".join(f"\n  {text}" for text in line.found.warnings)
    raise FileError(
        f"{path}: it holds {what}{such}, and none says which action it is; expected args stage, "
        f"op and microbatch, names like 2F0, or `tracegen import --name-pattern`{odd}"
    )


def read_any(path: str | Path, name_pattern: str | None = None) -> Timeline:
    """As `read`, but a trace without any action is a timeline of no ranks and of other rows."""
    with without_collection():
        return _read(path, name_pattern)


@contextmanager
def without_collection() -> Iterator[None]:
    """Events make no cycles of references; looking for some takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _read(path: str | Path, name_pattern: str | None) -> Timeline:
    warnings = Warnings()
    document = document_of(path, warnings)
    gather = Gather(path, Namer(name_pattern), warnings)
    for number, events, exactly in document.events():
        gather.feed(number, events, exactly)
    about = About(path, document.about, warnings)
    del document
    close(gather)
    rows.sort(gather)
    if about.own:
        recompute.join(gather)
    ranks, others = rows.split(gather, about.own)
    add_zero_length(ranks, about)
    tiles = Tiles(gather, about, ranks, about.schedule or _stem(path))
    program = tiles.program()
    line = tiles.timeline(program)
    base = tiles.base_ns
    found = Found(about.own, counters=_counters(gather, base), rows=_moved(others, base))
    if about.own:
        until_ns = beside.until_ns(found.rows)
        found = replace(found, of_program=about.of_program, until_ns=until_ns)
        line = replace(line, busy_ns=beside.busy_ns(line.busy_ns, found.rows))
    _arrows(gather, tiles, program, found)
    return _complete(line, about, replace(found, warnings=warnings.texts()))


def _stem(path: str | Path) -> str:
    name = Path(path).name.removesuffix(".gz")
    return Path(name).stem if name.endswith((".json", *proto.SUFFIXES)) else name


def _moved(others: list[Row], base: int) -> list[Row]:
    if not base:
        return others

    def moved(column: array[int]) -> array[int]:
        return array("q", [ns - base for ns in column])

    return [replace(r, start_ns=moved(r.start_ns), end_ns=moved(r.end_ns)) for r in others]


def _counters(gather: Gather, base: int) -> list[Series]:
    series = []
    for (pid, track, key), samples in gather.counters.items():
        samples.sort(key=lambda sample: sample[0])
        process = gather.process_names.get(pid) or f"process {pid}"
        name = track if process == rows.PIPELINE else f"{process} / {track}"
        series.append(Series(name, key, [ns - base for ns, _ in samples], [v for _, v in samples]))
    return series


def _arrows(gather: Gather, tiles: Tiles, program: Program, found: Found) -> None:
    """Put the arrows between steps, and the others, where they belong."""
    _number_steps(gather, tiles, program)
    mend = _Mender(program)
    for arrow in flows.at_starts(gather) if found.own else flows.anywhere(gather):
        name, thread_a, a, thread_b, b, event = arrow
        source = thread_a.steps[a] if a != NOTHING else NOTHING
        target = thread_b.steps[b] if b != NOTHING else NOTHING
        if found.own or NOTHING in (a, b):
            source, target = mend(name, source, target)
        if source != NOTHING and target != NOTHING:
            found.arrows.add(source, target, name)
        elif a == NOTHING or b == NOTHING:
            gather.warnings.add(
                "arrows without a slice",
                f"event {event}: the arrow {name!r} has an end at which no slice starts; "
                "it is left out",
            )
        else:
            ends = (flows.slice_label(gather, t, i) for t, i in ((thread_a, a), (thread_b, b)))
            found.other_arrows.append((next(ends), next(ends), name))


def _number_steps(gather: Gather, tiles: Tiles, program: Program) -> None:
    """Tell each slice which step of the program it is, NOTHING if it is none."""
    threads = list(gather.threads.values())
    for thread in threads:
        thread.steps = array("q", [NOTHING]) * len(thread.start)
    for rank, row in tiles.ranks.items():
        for step, source in enumerate(row.source, program.offsets[rank]):
            if source != rows.NO_SLICE:
                threads[source >> 32].steps[source & 0xFFFF_FFFF] = step


class _Mender:
    """Finds the step of an arrow's end that lost its tile: the tile was moved, the arrow was not.

    No tile, or another slice, such as a sum, may stand there now.

    What a step waits for, and which step waits for one, is the program's to say.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._waiting: dict[bool, dict[int, int]] = {}

    def __call__(self, name: str, source: int, target: int) -> tuple[int, int]:
        if (source == NOTHING) == (target == NOTHING):
            return source, target
        forward, needs = name == ACTIVATION, waits(self._program)
        sources = needs.forward if forward else needs.backward
        if source == NOTHING:
            return sources[target], target
        if forward not in self._waiting:
            self._waiting[forward] = {made: step for step, made in enumerate(sources)}
        return source, self._waiting[forward].get(source, NOTHING)


def _complete(line: Timeline, about: About, found: Found) -> Timeline:
    """The timeline with what only the metadata or another replay can say."""
    line = _as_replayed(replace(line, found=found), about, found.rows) if about.own else line
    if about.own and not line.held:
        line = replace(line, held=from_rows.held(line, found.rows))
    if about.own:
        hangs, waiting = from_rows.hangs(line, found.rows), from_rows.waiting(line, found.rows)
        line = replace(line, hangs=hangs, waiting_ns=waiting)
    stated, config = about.figures(line)
    return replace(line, found=replace(found, stated=stated), config=config)


def _as_replayed(line: Timeline, about: About, others: list[Row]) -> Timeline:
    """With what its slices do not show, if another replay of the request gives the same ones."""
    times, mode = line.costs.times(line.program), mode_of(about.path, about)
    program = about.program() or step_of(line.program, 0)
    if is_plain(program, times, mode) and not (times.links_queue or line.costs.moe):
        return line
    try:
        again = engine.replay(program, line.costs, **mode.given())
    except TracegenError:
        return line
    if (again.start_ns, again.end_ns) != (line.start_ns, line.end_ns):
        return line
    if not beside.as_replayed(again, others):
        return line
    return replace(
        line,
        busy_ns=again.busy_ns,
        blocker=again.blocker,
        queued=again.queued,
        kernels=again.kernels,
        held=again.held,
        collectives=again.collectives,
        source=again.source,
        first_step_ns=again.first_step_ns,
    )
