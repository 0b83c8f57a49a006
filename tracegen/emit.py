"""Layout -> Perfetto/Chrome JSON: the only place that writes microseconds.

It follows what Perfetto's importer really does: all ranks are threads of one
process, since only then do they keep their order in every version; times are
differences of integer ns printed with three decimals, since rounding start and
duration apart makes tiles overlap and the importer drops one; an arrow's ends
stand at the starts of the slices it joins, its start first in the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from tracegen import files
from tracegen.errors import FileError
from tracegen.files import check_path, is_special, write_text
from tracegen.layout import Layout, Row, Shape, layout
from tracegen.shape import Series
from tracegen.timeline import Timeline

PROTO = ".pftrace"
SUFFIXES = (".json", ".json.gz", PROTO)

# Perfetto reads a time as a float of microseconds: from here on one loses its nanoseconds, and
# tiles that touch seem to overlap.
JSON_HOLDS_NS = (1 << 42) * 1000

# Events joined to one piece of text: enough to write in few calls, few enough to hold.
BATCH = 1024
# Steps from which on a second process is started for half of the text.
LONG = 20_000
# Times that are kept as text.
KEPT = 1 << 18


def write(
    line: Timeline, target: str | Path, watched: Callable[[Layout], Layout] | None = None
) -> None:
    """Write the timeline as a trace for ui.perfetto.dev.

    Args:
        line: predicted, measured or read.
        target: a path that ends in .json, .json.gz or .pftrace, or "-" for JSON on stdout.
        watched: makes of what is shown the same that says how far the writing is.

    Raises:
        FileError: if the name has another ending or the file cannot be written.
    """
    if not isinstance(line, Timeline):
        what = f"{type(line).__name__} is no Timeline"
        raise FileError(f"line: {what}; tracegen.replay or tracegen.read makes one")
    check_path("target", target)
    shown = layout(line)
    write_layout(shown if watched is None else watched(shown), target, len(line.program) >= LONG)


def check_target(target: str | Path) -> None:
    """Before long work whose trace goes there.

    Raises:
        FileError: if `write` could not write it.
    """
    _check_name(target)
    files.check_target(target)


def write_layout(shown: Layout, target: str | Path, long: bool = False) -> None:
    """`write`, of what a trace is to show.

    Args:
        shown: the trace.
        target: as of `write`.
        long: whether it is worth two processes.

    Raises:
        FileError: if the name has another ending or the file cannot be written.
    """
    _check_name(target)
    if str(target).endswith(PROTO):
        from tracegen import emit_proto

        emit_proto.write(shown, target)
    else:
        write_text(target, *((_slices_of_all(shown), _rest(shown)) if long else (chunks(shown),)))


def _check_name(target: str | Path) -> None:
    if not is_special(target) and not str(target).endswith(SUFFIXES):
        kind = Path(target).suffix[1:].lower()
        hint = f"; `tracegen show --{kind}` writes pictures" if kind in ("svg", "html") else ""
        raise FileError(f"{target}: a trace's name ends in {' or '.join(SUFFIXES)}{hint}")


def chunks(shown: Layout) -> Iterator[str]:
    """The trace as JSON text, in pieces: an event a line."""
    return chain(_slices_of_all(shown), _rest(shown))


def _slices_of_all(shown: Layout) -> Iterator[str]:
    about = json.dumps(shown.about, separators=(",", ":"), allow_nan=False)
    yield '{"displayTimeUnit":"ns",\n"otherData":' + about + ',\n"metadata":' + about
    yield ',\n"traceEvents":[\n'
    ids, texts = thread_ids(shown), _Microseconds()
    yield ",\n".join(_names(shown, ids))
    for row, (pid, tid) in zip(shown.rows, ids, strict=True):
        yield from _joined(_slices(row, pid, tid, texts))


def _rest(shown: Layout) -> Iterator[str]:
    ids, texts = thread_ids(shown), _Microseconds()
    for counter in shown.counters():
        yield from _joined(_samples(counter, texts))
    yield from _joined(_arrows(shown, ids, texts))
    yield "\n]}\n"


def _joined(events: Iterator[str]) -> Iterator[str]:
    while batch := list(islice(events, BATCH)):
        yield ",\n"
        yield ",\n".join(batch)


def us(ns: int) -> str:
    """Nanoseconds as microseconds with exactly three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


class _Microseconds(dict[int, str]):
    """`us`, kept for a while: a time ends one tile, starts the next and both ends of arrows."""

    def __missing__(self, ns: int) -> str:
        if len(self) >= KEPT:
            self.clear()
        text = self[ns] = us(ns)
        return text


def thread_ids(shown: Layout) -> list[tuple[int, int]]:
    """The pid and tid of each row: the processes 0, 1000000, ...; their threads from 1.

    A thread whose id is that of its process becomes its main thread and leaves the
    row; thread 0 of another process than 0 is taken for that.
    """
    ids, count = [], dict[str, int]()
    for row in shown.rows:
        count[row.process] = count.get(row.process, 0) + 1
        ids.append((list(count).index(row.process) * 1_000_000, count[row.process]))
    return ids


def _names(shown: Layout, ids: list[tuple[int, int]]) -> Iterator[str]:
    def meta(what: str, pid: int, tid: int, **args: object) -> str:
        event = {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": args}
        return json.dumps(event, separators=(",", ":"))

    named = set[int]()
    for row, (pid, tid) in zip(shown.rows, ids, strict=True):
        if pid not in named:
            yield meta("process_name", pid, 0, name=row.process)
            yield meta("process_sort_index", pid, 0, sort_index=len(named))
            named.add(pid)
        yield meta("thread_name", pid, tid, name=row.name)
        yield meta("thread_sort_index", pid, tid, sort_index=tid - 1)


def _slices(row: Row, pid: int, tid: int, texts: _Microseconds) -> Iterator[str]:
    head = f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":'
    known: dict[Shape, tuple[list[str], list[int]]] = {}
    plain: dict[Shape, list[str]] = {}  # those of one argument that is no time
    for start, end, name, shape, values in row.slices():
        if shape in plain:  # most tiles of most traces
            before, after = plain[shape]
            yield (
                f'{head}{texts[start]},"dur":{texts[end - start]},"name":"{name}"'
                f"{before}{values[0]}{after}"
            )
            continue
        if shape not in known:
            known[shape] = _around(shape, values)
        around, in_ns = known[shape]
        if len(around) == 2 and not in_ns:
            plain[shape] = around
        for at in in_ns:
            values = (*values[:at], texts[values[at]], *values[at + 1 :])
        if len(values) == 2:
            own = f"{around[0]}{values[0]}{around[1]}{values[1]}"
        else:
            own = "".join(
                [f"{before}{value}" for before, value in zip(around, values, strict=False)]
            )
        yield f'{head}{texts[start]},"dur":{texts[end - start]},"name":"{name}"{own}{around[-1]}'


def _around(shape: Shape, values: tuple[object, ...]) -> tuple[list[str], list[int]]:
    """The text of a slice behind its name, cut where its own arguments go; which are in ns."""
    text = f',"cat":"{shape.category}","args":{{'
    text += "".join(f'"{key}":{json.dumps(value)},' for key, value in shape.fixed)
    around = []
    for key, value in zip(shape.keys, values, strict=True):
        quote = '"' if isinstance(value, str) and not key.endswith("_us") else ""
        around.append(f'{text}"{key}":{quote}')
        text = f"{quote},"
    in_ns = [at for at, key in enumerate(shape.keys) if key.endswith("_us")]
    return [*around, f"{text.removesuffix(',')}}}}}"], in_ns


def _samples(counter: Series, texts: _Microseconds) -> Iterator[str]:
    end = f',"name":{json.dumps(counter.track)},"args":{{{json.dumps(counter.key)}:'
    for ns, value in zip(counter.ns, counter.values, strict=True):
        yield f'{{"ph":"C","pid":0,"ts":{texts[ns]}{end}{value}}}}}'


def _arrows(shown: Layout, ids: list[tuple[int, int]], texts: _Microseconds) -> Iterator[str]:
    at = [f'"pid":{pid},"tid":{tid},"ts":' for pid, tid in ids]
    kinds: dict[tuple[str, str], str] = {}
    for number, (row_a, start_a, row_b, start_b, name, category) in enumerate(shown.arrows(), 1):
        if (kind := kinds.get((name, category))) is None:
            kind = kinds[name, category] = f',"name":{json.dumps(name)},"cat":"{category}"'
        both = f',"id":{number}{kind}'
        yield (
            f'{{"ph":"s",{at[row_a]}{texts[start_a]}{both}}},\n'
            f'{{"ph":"f",{at[row_b]}{texts[start_b]}{both},"bp":"e"}}'
        )
