"""Layout -> Perfetto's native protobuf: the rows, slices, arrows and counters of the JSON.

What JSON cannot say is here: the order of rows as it is, colours of our choice,
counters with a unit and one y axis, arrows tied to slices themselves. Names are
written once and referred to by number from then on, so that a trace has about
half the size of its JSON.

The bytes of a protobuf message are those of its parts, one after another. So
the perfetto package makes each part once (a rank, an op, a colour), and a packet
is put together from these: a third of the time that building each takes.

The trace says of itself what the JSON's metadata says: JSON text in a ChromeMetadata named
"tracegen", which Perfetto shows as `cr-tracegen` in its table `metadata`.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from itertools import islice
from operator import getitem
from pathlib import Path
from typing import IO, Any, ClassVar

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (  # type: ignore[import-untyped]
    ChromeEventBundle,
    ChromeMetadata,
    CounterDescriptor,
    DebugAnnotation,
    DebugAnnotationName,
    EventCategory,
    EventName,
    InternedData,
    InternedString,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import (  # type: ignore[import-untyped]
    StreamingTraceProtoBuilder,
)

from tracegen.files import opened
from tracegen.layout import KERNELS, PIPELINE, PREDICTED, WAITING, Layout, Row, Shape
from tracegen.shape import Series

METADATA, ARROWS = "tracegen", "tracegen-arrows"

# What the Perfetto UI hashes to the colour of a slice, by its name without digits; the numbers
# are chosen for what comes out, as (hue, lightness) of 0 to 359 and 40 to 79. Hues are those of
# the pictures; lightness tells the kinds of a row apart without them.
COLOURS = {
    "F": "forward 1812",  # (66, 78) yellow
    "I": "input 37",  # (236, 68) light blue
    "FB": "pair 889",  # (284, 60) violet
    "FI": "pair 889",  # the same
    "WG": "weight 1625",  # (152, 48) green
    "BP": "backward 720",  # (8, 40) dark red
    "Re": "recompute 133",  # (328, 72) pink
    "attn_F": "attn_F 57",  # (68, 76) yellow
    "mlp_F": "mlp_F 63",  # (36, 68) orange
    "mlp_W": "mlp_W 110",  # (128, 64) light green
    "attn_W": "attn_W 7",  # (157, 48) green
    "mlp_B": "mlp_B 59",  # (331, 48) pink
    "attn_B": "attn_B 735",  # (8, 40) dark red
    "disp_F": "disp_F 481",  # (225, 77) light blue
    "comb_F": "comb_F 275",  # (252, 60) blue
    "disp_B": "disp_B 104",  # (304, 64) light violet
    "comb_B": "comb_B 261",  # (276, 44) dark violet
}

DESCRIPTIONS = {
    PIPELINE: "What each rank computes, and until when: F forward, BP backward in full, I the "
    "input's gradient, WG the weights', Re what a backward recomputes first; F1B0 and F1I0 are "
    "two at once. Below, what it holds.",
    KERNELS: "What each rank's communication stream runs: kernels, beside those of its compute "
    "stream, or the gathers and sums of data parallelism.",
    PREDICTED: "The same step, as it was predicted.",
    WAITING: "Where a rank stood in a communication, until what it waited for was there.",
}
HELD = "The activations that the rank holds, of forwards whose backward is to come."

_DIGITS = re.compile(r"\d+")

# uuids: 1 is the whole trace, then the processes, the rows and the counters; one sequence.
ROOT, SEQUENCE = 1, 1
# Packets joined to one piece: enough to write in few calls, few enough to hold.
BATCH = 4096
# Of an argument with more values than this the rest are made anew, not kept.
KEPT = 1 << 16
# The argument whose values hardly occur twice, so that a number for each would save nothing.
ONCE = "waited_for"

# An arrow's number comes before so many bits for its name, and in memory two for what its end is.
NAME_BITS = 20
LEAVES, REACHES, REACHES_END = 0, 1, 2

# The tags of Trace.packet, TracePacket.timestamp and .track_event: what comes before the number,
# or before the length of what follows.
PACKET, TIMESTAMP, EVENT = b"\x0a", b"\x40", b"\x5a"


def write(shown: Layout, target: str | Path) -> None:
    """Write a trace as protobuf.

    Raises:
        FileError: if the target cannot be written; what stood there is kept.
    """
    tracks, arrows, words = Tracks(shown), Arrows(shown), Words()
    with opened(target) as file:
        tracks.describe(StreamingTraceProtoBuilder(file), arrows)
        for number, row in enumerate(shown.rows):
            _save(file, Slices(tracks.row(number), words).packets(row, arrows.ends(number)))
        for number, counter in enumerate(tracks.counters):
            _save(file, _samples(counter, tracks.counter(number)))


def _save(file: IO[bytes], packets: Iterator[bytes]) -> None:
    while batch := b"".join(islice(packets, BATCH)):
        file.write(batch)


class Tracks:
    """The uuids of a trace's tracks, rows first since slices name them most."""

    def __init__(self, shown: Layout) -> None:
        self._shown, self.counters = shown, shown.counters()

    def row(self, number: int) -> int:
        """The uuid of a row."""
        return ROOT + 1 + number

    def counter(self, number: int) -> int:
        """The uuid of a counter."""
        return self.row(len(self._shown.rows)) + number

    def describe(self, builder: Any, arrows: Arrows) -> None:
        """Write what the trace is, and its tracks in order: a process's rows, then counters."""
        shown, about = self._shown, self._shown.about
        root = TrackDescriptor(uuid=ROOT, child_ordering=TrackDescriptor.EXPLICIT)
        root.name = f"{about['schedule']} p={about['p']} m={about['m']}"
        root.description = (
            f"{about['p']} ranks, {about['m']} microbatches, {about['stages']} stages: "
            f"{about['makespan_us']:,.3f} us, bubble {100 * about['bubble_ratio']:.2f} %"
        )
        first = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        _write(builder, track_descriptor=root, sequence_flags=first)
        texts = {METADATA: about, ARROWS: arrows.names}
        notes = [
            ChromeMetadata(
                name=name, json_value=json.dumps(text, separators=(",", ":"), allow_nan=False)
            )
            for name, text in texts.items()
        ]
        _write(builder, chrome_events=ChromeEventBundle(metadata=notes))
        uuid_of, names = dict[str, int](), {row.name for row in shown.rows}
        for number, row in enumerate(shown.rows):
            if row.process not in uuid_of:
                uuid_of[row.process] = self.counter(len(self.counters)) + len(uuid_of)
                _write(builder, track_descriptor=_process(row.process, uuid_of))
            child = _child(row.name, self.row(number), uuid_of[row.process], number)
            _write(builder, track_descriptor=child)
        for number, counter in enumerate(self.counters):
            uuid, place = self.counter(number), len(shown.rows) + number
            child = _child(counter.name, uuid, uuid_of[PIPELINE], place)
            if counter.track in names:
                child.description = HELD
            child.counter.CopyFrom(
                CounterDescriptor(unit_name=counter.key, y_axis_share_key=counter.key)
            )
            _write(builder, track_descriptor=child)


def _process(name: str, uuid_of: dict[str, int]) -> Any:
    process = _child(name, uuid_of[name], ROOT, len(uuid_of))
    process.child_ordering = TrackDescriptor.EXPLICIT
    if name in DESCRIPTIONS:
        process.description = DESCRIPTIONS[name]
    return process


def _child(name: str, uuid: int, parent: int, place: int) -> Any:
    return TrackDescriptor(name=name, uuid=uuid, parent_uuid=parent, sibling_order_rank=place)


def _write(builder: Any, **content: object) -> None:
    builder.write_packet(_packet(**content))


class Words:
    """Strings by number; `fresh` are packets that say so, to stand before the first that uses one.

    Numbers start at 1 for each kind of string.
    """

    _MESSAGE: ClassVar = {
        "event_categories": EventCategory,
        "event_names": EventName,
        "debug_annotation_names": DebugAnnotationName,
        "debug_annotation_string_values": InternedString,
        "correlation_id_str": InternedString,
    }

    def __init__(self) -> None:
        self.fresh = b""
        self.names = Names(self)
        self._arguments: dict[str, Argument] = {}
        self._numbers: dict[str, dict[str, int]] = {kind: {} for kind in self._MESSAGE}

    def number(self, kind: str, text: str) -> int:
        """The number of a string of that kind: a field of InternedData."""
        known = self._numbers[kind]
        if text not in known:
            known[text] = len(known) + 1
            message = self._MESSAGE[kind]
            said = {"str": text.encode()} if message is InternedString else {"name": text}
            data = InternedData(**{kind: [message(iid=known[text], **said)]})
            self.fresh += _framed(_bytes(_packet(interned_data=data)))
        return known[text]

    def argument(self, key: str) -> Argument:
        """The argument of that name."""
        if key not in self._arguments:
            self._arguments[key] = Argument(key, self)
        return self._arguments[key]


class Names(dict[str, bytes]):
    """The name of a slice -> its part of the slice's event: name and colour."""

    def __init__(self, words: Words) -> None:
        super().__init__()
        self._words = words

    def __missing__(self, name: str) -> bytes:
        event = TrackEvent(name_iid=self._words.number("event_names", name))
        if seed := COLOURS.get(_DIGITS.sub("", name)):
            event.correlation_id_str_iid = self._words.number("correlation_id_str", seed)
        self[name] = part = _bytes(event)
        return part


class Argument(dict[Any, bytes]):
    """The value of one argument -> its part of the slice's event."""

    def __init__(self, key: str, words: Words) -> None:
        super().__init__()
        self._key, self._words = key, words

    def __missing__(self, value: Any) -> bytes:
        note = DebugAnnotation(name_iid=self._words.number("debug_annotation_names", self._key))
        if self._key.endswith("_us"):
            note.double_value = value / 1000
        elif isinstance(value, int):
            note.int_value = value
        elif isinstance(value, float):
            note.double_value = value
        elif self._key == ONCE:
            note.string_value = value
        else:
            note.string_value_iid = self._words.number("debug_annotation_string_values", value)
        part = _bytes(TrackEvent(debug_annotations=[note]))
        if len(self) < KEPT:
            self[value] = part
        return part


class Arrows:
    """The ends of all arrows, by row and by the start of their slice.

    Perfetto ties the ends of an id together in the order of time and of the file. An arrow
    between slices that start as one ends with its slice, where nothing is in doubt.

    Attributes:
        names: the id of an arrow is its number << NAME_BITS | the place of its name here.
    """

    def __init__(self, shown: Layout) -> None:
        self._starts = [array("q") for _ in shown.rows]
        self._ids = [array("q") for _ in shown.rows]
        places: dict[str, int] = {}
        for number, (row_a, start_a, row_b, start_b, name, _) in enumerate(shown.arrows(), 1):
            identity = number << NAME_BITS | places.setdefault(name, len(places))
            self._starts[row_a].append(start_a)
            self._ids[row_a].append(identity << 2 | LEAVES)
            self._starts[row_b].append(start_b)
            self._ids[row_b].append(identity << 2 | (REACHES if start_a < start_b else REACHES_END))
        self.names = list(places)

    def ends(self, row: int) -> tuple[dict[int, bytes], dict[int, bytes]]:
        """Start of a slice -> what its BEGIN has, and its END."""
        begin, end = dict[int, bytes](), dict[int, bytes]()
        for start, identity in zip(self._starts[row], self._ids[row], strict=True):
            how = identity & 3
            part = FLOW_TAGS[how == LEAVES] + (identity >> 2).to_bytes(8, "little")
            of = end if how == REACHES_END else begin
            of[start] = of.get(start, b"") + part
        return begin, end


class Slices:
    """The packets of the slices of one row."""

    def __init__(self, uuid: int, words: Words) -> None:
        self._uuid, self._words = uuid, words
        self._shapes: dict[Shape, tuple[bytes, list[Argument]]] = {}
        self._end = _bytes(TrackEvent(type=TrackEvent.TYPE_SLICE_END, track_uuid=uuid))

    def packets(self, row: Row, ends: tuple[dict[int, bytes], dict[int, bytes]]) -> Iterator[bytes]:
        """BEGIN and END of every slice in order of time; at one time END comes before BEGIN."""
        arrows, at_end = ends
        words, shapes, names = self._words, self._shapes, self._words.names
        open_: list[tuple[int, bytes]] = []
        for start, end, name, shape, values in row.slices():
            while open_ and open_[-1][0] <= start:
                yield _event(*open_.pop())
            if shape not in shapes:
                shapes[shape] = self._shape(shape)
            head, arguments = shapes[shape]
            body = head + names[name] + b"".join(map(getitem, arguments, values))
            if start in arrows:
                body += arrows.pop(start)
            if words.fresh:
                yield words.fresh
                words.fresh = b""
            yield _event(start, body, NEEDS_WORDS)
            open_.append((end, self._end + at_end.pop(start, b"")))
        while open_:
            yield _event(*open_.pop())

    def _shape(self, shape: Shape) -> tuple[bytes, list[Argument]]:
        """What all slices of the shape have in common, and their arguments."""
        words = self._words
        begin = TrackEvent(type=TrackEvent.TYPE_SLICE_BEGIN, track_uuid=self._uuid)
        begin.category_iids.append(words.number("event_categories", shape.category))
        fixed = b"".join(words.argument(key)[value] for key, value in shape.fixed)
        return _bytes(begin) + fixed, [words.argument(key) for key in shape.keys]


def _samples(counter: Series, uuid: int) -> Iterator[bytes]:
    head = _bytes(TrackEvent(type=TrackEvent.TYPE_COUNTER, track_uuid=uuid))
    parts: dict[float, bytes] = {}
    for ns, value in zip(counter.ns, counter.values, strict=True):
        if (part := parts.get(value)) is None:
            whole = isinstance(value, int) and abs(value) < 1 << 63
            field = "counter_value" if whole else "double_counter_value"
            part = parts[value] = _bytes(TrackEvent(**{field: value}))
        yield _event(ns, head + part)


def _bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _packet(**content: object) -> Any:
    return TracePacket(trusted_packet_sequence_id=SEQUENCE, **content)


def _framed(packet: bytes) -> bytes:
    return PACKET + varint(len(packet)) + packet


SEQUENCE_ID = _bytes(_packet())
NEEDS_WORDS = SEQUENCE_ID + _bytes(
    TracePacket(sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE)
)
FLOW_TAGS = [
    _bytes(TrackEvent(terminating_flow_ids=[0]))[:-8],
    _bytes(TrackEvent(flow_ids=[0]))[:-8],
]


def _event(ns: int, body: bytes, about: bytes = SEQUENCE_ID) -> bytes:
    """A packet with an event at a time."""
    packet = TIMESTAMP + varint(ns) + about + EVENT + varint(len(body)) + body
    return PACKET + varint(len(packet)) + packet


def varint(number: int) -> bytes:
    """A number in protobuf's variable-length form: 7 bits a byte, the lowest first."""
    if number < 0x80:
        return bytes((number,))
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
