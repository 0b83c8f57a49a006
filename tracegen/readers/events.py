"""Events -> slices by thread, flow ends and counters: one pass, columns of integers."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tracegen.errors import FileError
from tracegen.readers.actions import Namer, identity
from tracegen.readers.threads import FlowEnd, Flows, Half, Id, Thread
from tracegen.readers.times import EXACT_US, LIMIT_NS, Imprecise, exact_ns, whole
from tracegen.readers.warn import Warnings

# Up to here a float of microseconds times 1000 is wrong by less than a hundredth of the slip.
_QUICK_NS = 1e12
_SLIP = 1e-3
_QUICK = frozenset((int, float))
_KINDS = {list: "a list", int: "a number", float: "a number", bool: "true or false"}
_NOTHING_TO_READ = frozenset("ibnespRaNODvVcPTF(),=")


class Gather:
    """What the events of one trace say, gathered.

    Attributes:
        threads: by (pid, tid), in the order of the file.
        counters: (pid, name, key) -> the samples (ns, value).
        process_names, thread_names: as the M events give them.
    """

    def __init__(self, path: object, namer: Namer, warnings: Warnings) -> None:
        self.path, self.namer, self.warnings = path, namer, warnings
        self.threads: dict[tuple[Id, Id], Thread] = {}
        self.flows = Flows()
        self.counters: defaultdict[tuple[Id, str, str], list[tuple[int, float]]]
        self.counters = defaultdict(list)
        self.process_names: dict[Id, str] = {}
        self.thread_names: dict[tuple[Id, Id], str] = {}
        self.events = 0
        self._by_raw: dict[tuple[Any, Any], Thread] = {}

    def feed(self, number: int, events: list[Any], exactly: Callable[[], list[Any]]) -> None:
        """Take the events of a chunk, the first of which has that number.

        Raises:
            FileError: for an event that no reading would make right, with its number.
        """
        done, handlers = 0, self._handlers()
        self.events = number + len(events)
        while done < len(events):
            try:
                for at in range(done, len(events)):
                    event, done = events[at], at
                    handler = handlers.get(event.get("ph", "")) if type(event) is dict else None
                    if handler is None:
                        self._odd(event, number + at)
                    else:
                        handler(event, number + at)
                return
            except Imprecise:
                events = exactly()
            except TypeError:
                raise FileError(
                    f"{self.path}: event {number + done}: its ph, pid, tid, name or id is a list "
                    "or an object; expected a number or text"
                ) from None
            except FileError as error:
                raise FileError(f"{self.path}: {error}") from None

    def _handlers(self) -> dict[str, Callable[[dict[str, Any], int], None]]:
        """By phase; made anew for each chunk, as what is kept would be a cycle of references."""
        return {
            "X": self._complete,
            "B": self._begin,
            "E": self._end,
            "C": self._counter,
            "M": self._meta,
            "s": self._flow,
            "t": self._flow,
            "f": self._flow,
        }

    def _odd(self, event: Any, number: int) -> None:
        if type(event) is not dict:
            if event is not None:
                what = _KINDS.get(type(event), "text")
                self.warnings.add(
                    "events that are no objects", f"event {number} is {what}, not an object"
                )
        elif "ph" not in event:
            self.warnings.add("events without ph", f"event {number} has no ph; it is left out")
        elif event["ph"] not in _NOTHING_TO_READ:
            self.warnings.add(
                "unknown events", f"event {number} has ph {event['ph']!r:.24}, none of Chrome's"
            )

    def _thread(self, event: dict[str, Any], number: int) -> Thread:
        raw = event.get("pid", 0), event.get("tid", 0)
        known = self._by_raw.get(raw)
        if known is None:
            pid, tid = _id(raw[0], f"event {number}: pid"), _id(raw[1], f"event {number}: tid")
            known = self.threads.setdefault((pid, tid), Thread(pid, tid))
            self._by_raw[raw] = known
        return known

    def _args(self, event: dict[str, Any], number: int) -> dict[str, Any]:
        args = event.get("args")
        if type(args) is dict:
            return args
        if args is not None:
            self.warnings.add(
                "args that are no objects",
                f"event {number}: args is {_KINDS.get(type(args), 'text')}, no object; left out",
            )
        return {}

    def _complete(self, event: dict[str, Any], number: int) -> None:
        ts, dur, name, args = (
            event.get("ts"),
            event.get("dur"),
            event.get("name"),
            event.get("args"),
        )
        if type(ts) in _QUICK and type(dur) in _QUICK:
            from_ns, length = ts * 1000, dur * 1000  # type: ignore[operator]
            if -_QUICK_NS < from_ns < _QUICK_NS and 0 <= length < _QUICK_NS:
                start, whole_length = round(from_ns), round(length)
                if abs(from_ns - start) < _SLIP and abs(length - whole_length) < _SLIP:
                    thread = self._by_raw.get((event.get("pid"), event.get("tid")))
                    if thread is None or type(name) is not str or type(args) is not dict:
                        self._slice(event, number, start, start + whole_length)
                    else:
                        self._add(thread, start, start + whole_length, name, args)
                    return
        self._exact(event, number)

    def _exact(self, event: dict[str, Any], number: int) -> None:
        """A slice whose times are no plain numbers of whole ns."""
        if "dur" not in event:
            self.warnings.add(
                "slices without dur",
                f"event {number}: {_name(event)!r} has no dur: it is unfinished, and left out",
            )
            return
        start = exact_ns(event.get("ts"), f"event {number}: ts")
        length = exact_ns(event["dur"], f"event {number}: dur")
        if length < 0:
            self.warnings.add(
                "slices with a negative dur",
                f"event {number}: {_name(event)!r} has dur {event['dur']}, less than 0: left out",
            )
            return
        if start + length >= LIMIT_NS:
            raise FileError(f"event {number}: it ends beyond 2**62 ns")
        self._slice(event, number, whole(start), whole(start + length))

    def _slice(self, event: dict[str, Any], number: int, start: int, end: int) -> None:
        thread, args = self._thread(event, number), self._args(event, number)
        self._add(thread, start, end, _name(event), args)

    def _add(self, thread: Thread, start: int, end: int, name: str, args: dict[str, Any]) -> None:
        code, mate = self.namer.of(name, args) if args else self.namer.by_name(name)
        rank = args.get("rank", -1)
        if type(rank) is not int or not -1 <= rank < LIMIT_NS:
            rank = -1
        if not name.isascii():
            name = _text(name)
        about = identity(args) if code < 0 and args else ""
        waited = args.get("waited_for", "")
        thread.slices.append((start, end, code, mate, rank, name, waited, about))

    def _begin(self, event: dict[str, Any], number: int) -> None:
        self._half(event, number, beginning=True)

    def _end(self, event: dict[str, Any], number: int) -> None:
        self._half(event, number, beginning=False)

    def _half(self, event: dict[str, Any], number: int, *, beginning: bool) -> None:
        ns = self._ns(event, number)
        name = _text(event["name"]) if "name" in event else None
        half = (ns, beginning, name, self._args(event, number), number)
        self._thread(event, number).halves.append(half)

    def _ns(self, event: dict[str, Any], number: int) -> int:
        ts = event.get("ts")
        if type(ts) in _QUICK and abs(ts) < EXACT_US:  # type: ignore[arg-type]
            return round(ts * 1000)  # type: ignore[operator]
        return whole(exact_ns(ts, f"event {number}: ts"))

    def _counter(self, event: dict[str, Any], number: int) -> None:
        ns, args, pid, name = (
            self._ns(event, number),
            event.get("args"),
            event.get("pid"),
            _name(event),
        )
        if type(args) is not dict:
            args = self._args(event, number)
        if type(pid) is not int:
            pid = _id(event.get("pid", 0), f"event {number}: pid")
        if "id" in event:
            name += f" {_id(event['id'], f'event {number}: id')}"
        if not args:
            self.warnings.add("counters without a value", f"event {number}: {name!r} has no value")
        for key, value in args.items():
            if type(value) is not int:
                value = self._value(value, f"event {number}: {name} {key}")
            if value is not None:
                self.counters[pid, name, key].append((ns, value))

    def _value(self, value: Any, where: str) -> float | None:
        try:
            number = None if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None:
            self.warnings.add("counters without a value", f"{where} is {value!r:.24}: left out")
        elif not math.isfinite(number):
            raise FileError(f"{where} is {value}; expected a finite number")
        return number if number is None or number != int(number) else int(number)

    def _meta(self, event: dict[str, Any], number: int) -> None:
        said = event.get("args")
        if type(said) is not dict or type(name := said.get("name")) is not str:
            return
        if event.get("name") == "process_name":
            pid = _id(event.get("pid", 0), f"event {number}: pid")
            self.process_names[pid] = _text(name)
        elif event.get("name") == "thread_name":
            thread = self._thread(event, number)
            self.thread_names[thread.pid, thread.tid] = _text(name)

    def _flow(self, event: dict[str, Any], number: int) -> None:
        flows, identity = self.flows, event.get("id")
        if type(identity) is not int:
            identity = _flow_id(event)
        if identity is None:
            self.warnings.add(
                "flow events without an id",
                f"event {number}: the flow {_name(event)!r} has no id; no arrow is drawn",
            )
            return
        ts, phase = event.get("ts"), event["ph"]
        quick = type(ts) is float and -EXACT_US < ts < EXACT_US
        ns = round(ts * 1000) if quick else self._ns(event, number)  # type: ignore[operator]
        thread = self._by_raw.get((event.get("pid"), event.get("tid")))
        if thread is None:
            thread = self._thread(event, number)
        name = event.get("name")
        if type(name) is str and not name.isascii():
            name = _text(name)
        category, last = event.get("cat"), flows.last
        if last is not None:
            flows.last = None
            key, source, began, event_s = last
            same = key[2] == identity and key[1] == name and key[0] == category
            if phase == "f" and same and began <= ns and event.get("bp") == "e":
                flows.pairs.append((key, source, began, event_s, thread, ns, number))
                return
            flows.loose.append(FlowEnd(key, "s", source, began, True, event_s))
        key = category, name, identity
        if key in flows.used or phase != "s":
            flows.again.add(key)
        flows.used.add(key)
        if phase == "s":
            flows.last = (key, thread, ns, number)
        else:
            enclosing = phase == "t" or event.get("bp") == "e"
            flows.loose.append(FlowEnd(key, phase, thread, ns, enclosing, number))


def close(gather: Gather) -> None:
    """Make slices of beginnings and ends, and columns of all slices; nothing is gathered more."""
    if (last := gather.flows.last) is not None:
        gather.flows.loose.append(FlowEnd(last[0], "s", last[1], last[2], True, last[3]))
    for thread in gather.threads.values():
        _join(thread, gather)
        if thread.slices:
            start, end, code, mate, rank, names, waited, about = zip(*thread.slices, strict=True)
            thread.start, thread.end = array("q", start), array("q", end)
            thread.code, thread.mate = array("q", code), array("q", mate)
            thread.rank = array("q", rank)
            thread.names, thread.waited, thread.about = list(names), list(waited), list(about)
            thread.slices.clear()


def _join(thread: Thread, gather: Gather) -> None:
    """Make slices of the pairs of B and E; name those that have no other end.

    An E with a name ends the last open slice of that name, one without the last open slice.
    """
    halves = sorted(thread.halves, key=lambda half: half[0])
    thread.halves.clear()
    open_: list[Half | None] = []
    of_name: defaultdict[str | None, list[int]] = defaultdict(list)
    for half in halves:
        ns, beginning, name, args, number = half
        if beginning:
            of_name[name].append(len(open_))
            open_.append(half)
            continue
        while open_ and open_[-1] is None:
            open_.pop()
        wanted = open_[-1][2] if name is None and open_ and open_[-1] else name
        place = of_name[wanted].pop() if of_name[wanted] else -1
        if place < 0 or (begun := open_[place]) is None:
            gather.warnings.add(
                "ends without a beginning",
                f"event {number}: E ends {name!r} on {label(gather, thread)}, where no such "
                "slice is open; it is left out",
            )
            continue
        open_[place] = None
        gather._add(thread, begun[0], ns, begun[2] or "", {**begun[3], **args})
    for left in open_:
        if left is not None:
            gather.warnings.add(
                "beginnings without an end",
                f"event {left[4]}: B begins {left[2]!r} on {label(gather, thread)} and no E ends "
                "it: it is unfinished, and left out",
            )


def label(gather: Gather, thread: Thread) -> str:
    """What people call a thread: the names of process and thread, or their ids."""
    process = gather.process_names.get(thread.pid) or f"process {thread.pid}"
    name = gather.thread_names.get((thread.pid, thread.tid)) or f"thread {thread.tid}"
    return f"{process} / {name}"


def _id(value: Any, where: str) -> Id:
    """A pid or tid: a number, also where it is written as text."""
    if type(value) is str:
        digits = value[1:] if value[:1] == "-" else value
        plain = digits.isascii() and digits.isdecimal() and len(digits) < 19
        return int(value) if plain else _text(value)
    if type(value) is int:
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise FileError(f"{where} is {value!r:.24}; expected a number or text")


def _flow_id(event: dict[str, Any]) -> Any:
    """The id that the ends of an arrow share; `0x1f` is 31; None where there is none."""
    value = event.get("id", event.get("bind_id"))
    if value is None and type(id2 := event.get("id2")) is dict:
        if "global" in id2:
            return id2["global"]
        return (event.get("pid"), id2["local"]) if "local" in id2 else None
    if isinstance(value, str) and value[:2] in ("0x", "0X"):
        try:
            return int(value, 16)
        except ValueError:
            return value
    return None if type(value) is bool else value


def _name(event: dict[str, Any]) -> str:
    name = event.get("name", "")
    return name if type(name) is str and name.isascii() else _text(name)


def _text(value: Any) -> str:
    """A name that can be printed: half a surrogate pair is shown as ?"""
    return str(value).encode("utf-8", "replace").decode()
