"""Flow events -> arrows from slice to slice; what would be a wrong arrow is reported, not drawn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tracegen.readers.events import Gather, label
from tracegen.readers.threads import FlowEnd, Flows, Key, Thread

NOTHING = -1


# An arrow as found: what it carries; thread and number of the slice it leaves, and those of
# the slice it reaches; the event it begins with. NOTHING for a slice that is not there.
Arrow = tuple[str, Thread, int, Thread, int, int]


def at_starts(gather: Gather) -> Iterator[Arrow]:
    """The arrows of a trace of tracegen's, whose ends stand exactly where slices start.

    An end at which none starts has lost its slice.
    """
    flows = gather.flows
    again = flows.again
    for key, thread_a, ns_a, event, thread_b, ns_b, _ in flows.pairs:
        if key not in again:
            a, b = bisect_left(thread_a.start, ns_a), bisect_left(thread_b.start, ns_b)
            if a == len(thread_a.start) or thread_a.start[a] != ns_a:
                a = thread_a.resumed.get(ns_a, NOTHING)
            if b == len(thread_b.start) or thread_b.start[b] != ns_b:
                b = NOTHING
            yield str(key[1]), thread_a, a, thread_b, b, event
    for begin, end in _matched(gather, _ends(flows, flows.again)):
        yield str(begin.key[1]), begin.thread, _at(begin), end.thread, _at(end), begin.event


def anywhere(gather: Gather) -> Iterator[Arrow]:
    """The arrows of any trace, bound to slices as Perfetto does."""
    flows = gather.flows
    for begin, end in _matched(gather, _ends(flows, flows.used)):
        source = _enclosing(gather, begin)
        target = _enclosing(gather, end) if end.enclosing else _following(gather, end)
        if source != NOTHING and target != NOTHING:
            name = "" if begin.key[1] is None else str(begin.key[1])
            yield name, begin.thread, source, end.thread, target, begin.event
        else:
            _say(gather, begin if source == NOTHING else end, "stands at no slice; it is left out")


def _ends(flows: Flows, keys: set[Key]) -> Iterator[FlowEnd]:
    """The loose ends, and those of the pairs with one of the keys, in the order of the file."""
    for key, thread_a, ns_a, event_a, thread_b, ns_b, event_b in flows.pairs:
        if key in keys:
            yield FlowEnd(key, "s", thread_a, ns_a, True, event_a)
            yield FlowEnd(key, "f", thread_b, ns_b, True, event_b)
    yield from flows.loose


def _matched(gather: Gather, ends: Iterable[FlowEnd]) -> Iterator[tuple[FlowEnd, FlowEnd]]:
    """(beginning, end) of each arrow; ids that are used again are told apart by time."""
    of_key: dict[object, list[FlowEnd]] = {}
    for end in ends:
        of_key.setdefault(end.key, []).append(end)
    for group in of_key.values():
        group.sort(key=lambda end: (end.ns, end.phase != "s", end.event))
        yield from _sequence(gather, group)


def _sequence(gather: Gather, group: list[FlowEnd]) -> Iterator[tuple[FlowEnd, FlowEnd]]:
    """The arrows of ends with one key: s, then any number of t and f, then perhaps s again."""
    last, used, open_ = None, True, False
    for end in group:
        if end.phase == "s":
            if last is not None and not used:
                _say(gather, end, "begins again before it has ended; it is open what ends which")
                open_ = True
            elif last is not None:
                _say(gather, end, "uses an id again; the next end belongs to it")
                open_ = False
            last, used = end, False
        elif last is None:
            _say(gather, end, "has no beginning before it; no arrow is drawn")
        elif open_:
            _say(gather, end, "could belong to several beginnings; no arrow is drawn")
            used = True
        else:
            yield last, end
            used = True
            last = end if end.phase == "t" else last
    if last is not None and not used:
        _say(gather, last, "has no end; no arrow is drawn")


def _say(gather: Gather, end: FlowEnd, what: str) -> None:
    gather.warnings.add("odd flows", f"{end} {what}")


def _at(end: FlowEnd) -> int:
    place = bisect_left(end.thread.start, end.ns)
    here = place < len(end.thread.start) and end.thread.start[place] == end.ns
    return place if here else end.thread.resumed.get(end.ns, NOTHING)


def _enclosing(gather: Gather, end: FlowEnd) -> int:
    """The slice of the thread that began last, as Perfetto binds, even if it has ended."""
    place = bisect_right(end.thread.start, end.ns) - 1
    if place >= 0 and end.thread.end[place] < end.ns:
        behind = end.thread.names[place]
        _say(gather, end, f"stands behind {behind!r}, to which it is taken to belong")
    return place


def _following(gather: Gather, end: FlowEnd) -> int:
    """The next slice of the thread: where the format puts an end that does not say bp e."""
    place = bisect_left(end.thread.start, end.ns)
    if place == len(end.thread.start):
        return NOTHING
    _say(gather, end, f"has no bp, so that it ends at the next slice, {end.thread.names[place]!r}")
    return place


def slice_label(gather: Gather, thread: Thread, at: int) -> str:
    """A slice for people: its thread and its name."""
    return f"{label(gather, thread)}: {thread.names[at]}"
