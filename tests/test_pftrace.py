"""Protobuf says what the JSON says, and what JSON cannot: order, colours, units, one axis."""

import dataclasses
import gzip
import itertools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

import tracegen
from tests.perfetto.awkward import RANKS, SCHEDULES, Traces, line
from tests.perfetto.browser import PerfettoUi
from tests.perfetto.colours import colour
from tests.perfetto.processor import Engine
from tracegen import emit, emit_proto, layout, layout_kernels
from tracegen.cli import main
from tracegen.emit_proto import COLOURS
from tracegen.errors import FileError
from tracegen.moe import Kernel
from tracegen.readers import chrome, proto
from tracegen.readers.request import request_of
from tracegen.tiles import RECOMPUTE_LETTERS
from tracegen.ui.query import ask, stats

pytest_plugins = ["tests.perfetto.fixtures"]

every_trace = pytest.mark.parametrize(
    ("name", "costs"), list(itertools.product(SCHEDULES, ("short", "long")))
)

TREE = """
    SELECT
        t.name, parent.name AS parent, EXTRACT_ARG(t.source_arg_set_id, 'sibling_order_rank') AS at,
        EXTRACT_ARG(t.source_arg_set_id, 'child_ordering') AS ordering,
        EXTRACT_ARG(t.source_arg_set_id, 'description') AS description
    FROM track AS t LEFT JOIN track AS parent ON parent.id = t.parent_id
    ORDER BY parent.id, at
"""
SEEDS = """
    SELECT slice.name, track_id, string_value FROM slice JOIN args USING (arg_set_id)
    WHERE key = 'correlation_id'
"""


# What the JSON says


@every_trace
def test_the_same_sql_gives_the_same_rows(
    name: str, costs: str, engine: Engine, traces: Traces
) -> None:
    plain, zipped, native = (
        engine.facts(traces.path(name, costs, suffix))
        for suffix in (".json", ".json.gz", ".pftrace")
    )
    assert native.problems == []
    assert len(native.slices) > 200
    assert zipped == plain
    assert native == plain


def test_json_gz_is_the_json(traces: Traces) -> None:
    for name in SCHEDULES:
        plain = traces.path(name, "short", ".json").read_bytes()
        assert gzip.decompress(traces.path(name, "short", ".json.gz").read_bytes()) == plain


def test_arguments_keep_their_type(engine: Engine, traces: Traces) -> None:
    sql = "SELECT DISTINCT SUBSTR(key, INSTR(key, '.') + 1), value_type FROM args WHERE key GLOB"
    told = []
    for suffix, prefix in ((".json", "args"), (".pftrace", "debug")):
        opened = engine.load(traces.path("dualpipev", "short", suffix))
        told.append(sorted(ask(opened, f"{sql} '{prefix}.*'").rows))
    assert told[0] == told[1]
    assert ("wait_us", "real") in told[0]


def test_views_and_figures(traces: Traces) -> None:
    plain, native = (
        stats(traces.path("moe-1f1b-overlap", "short", suffix)) for suffix in (".json", ".pftrace")
    )
    assert native.bubble == plain.bubble
    assert native.ranks == plain.ranks
    assert native.problems.rows == ()


# What JSON cannot say


@pytest.mark.parametrize("name", ["dualpipev", "moe-1f1b-overlap"])
def test_tracks_stand_in_order(name: str, engine: Engine, traces: Traces) -> None:
    tracks = ask(engine.load(traces.path(name, "short", ".pftrace")), TREE).records()
    root = next(track for track in tracks if track["parent"] is None)
    assert root["name"] == f"{name} p={RANKS} m={line(name, 'short').program.num_microbatches}"
    assert "bubble" in str(root["description"])
    ranks = [f"rank {rank:02d}" for rank in range(RANKS)]
    children = {
        root["name"]: ["pipeline"],
        "pipeline": ranks + [f"{rank} activations" for rank in ranks],
    }
    if line(name, "short").kernels is not None:
        children[root["name"]] += ["kernels"]
        kinds = "compute", "communication"
        children["kernels"] = [f"{rank} {kind}" for rank in ranks for kind in kinds]
    for parent, names in children.items():
        assert [track["name"] for track in tracks if track["parent"] == parent] == names
        (group,) = (track for track in tracks if track["name"] == parent)
        assert group["ordering"] == "explicit"
        assert group["description"]


def test_counters_have_a_unit_and_one_axis(engine: Engine, traces: Traces) -> None:
    opened = engine.load(traces.path("zbv", "short", ".pftrace"))
    sql = """
        SELECT DISTINCT unit, EXTRACT_ARG(source_arg_set_id, 'y_axis_share_key'), description != ''
        FROM counter_track
    """
    assert ask(opened, sql).rows == (("activations", "activations", 1),)


def test_counters_in_bytes(engine: Engine, tmp_path: Path) -> None:
    costs = tracegen.Costs(f_us=1, i_us=1, w_us=1, activation_bytes=1e9 / 3, w_share=1 / 3)
    timeline = tracegen.replay(tracegen.compile("zb-h1", 3, 6, communication=False), costs)
    samples = []
    for suffix in (".json", ".pftrace"):
        tracegen.write(timeline, tmp_path / f"t{suffix}")
        samples.append(engine.facts(tmp_path / f"t{suffix}").counters)
    assert len(samples[0]) > 30
    for plain, native in zip(*samples, strict=True):
        assert native == plain | {"value": pytest.approx(plain["value"], rel=1e-15)}


@pytest.mark.parametrize("name", ["dualpipev", "moe-1f1b-overlap", "1f1b", "zb-h1"])
def test_every_kind_has_its_colour(name: str, engine: Engine, traces: Traces) -> None:
    opened = engine.load(traces.path(name, "short", ".pftrace"))
    seeds = ask(opened, SEEDS).rows
    assert len(seeds) == ask(opened, "SELECT COUNT(*) FROM slice").rows[0][0]
    for label, _, seed in seeds:
        kind = "".join(letter for letter in str(label) if not letter.isdigit())
        assert seed == COLOURS[kind]


def test_colours_are_well_apart() -> None:
    kernels = {layout_kernels.kernel_name(kernel) for kernel in Kernel}
    moved = {layout_kernels.kernel_name(kernel) for kernel in Kernel if kernel.is_communication}
    tiles = set(COLOURS) - kernels
    assert kernels < set(COLOURS)
    assert {
        *layout.LETTERS.values(),
        *("F" + letter for letter in layout.PAIR_LETTERS.values()),
        RECOMPUTE_LETTERS,
    } == (tiles)
    for row in (tiles, kernels - moved, moved):
        looks = {colour(COLOURS[kind], strip_digits=False) for kind in row}
        assert len(looks) == len(row) - ("FB" in row)
        for (hue, light), (other, otherwise) in itertools.combinations(looks, 2):
            turn = min(abs(hue - other), 360 - abs(hue - other))
            assert turn >= 29 or abs(light - otherwise) >= 15


def test_the_real_ui_shows_it_in_order(real_ui: PerfettoUi, traces: Traces) -> None:
    shown = real_ui.load(traces.path("moe-1f1b", "short", ".pftrace"))
    ranks = [f"rank {rank:02d}" for rank in range(RANKS)]
    kernels = [f"{rank} {kind}" for rank in ranks for kind in ("compute", "communication")]
    assert (shown.refused, shown.import_errors, shown.nested) == (None, 0, 0)
    assert shown.track_order == (*ranks, *kernels)
    assert shown.collapsed == ()


# The bytes


@pytest.mark.parametrize("name", ["dualpipe", "moe-1f1b-overlap"])
def test_the_packets_are_what_the_package_would_write(name: str, traces: Traces) -> None:
    data = traces.path(name, "long", ".pftrace").read_bytes()
    trace = Trace.FromString(data)
    # Were a length wrong or a number written longer than it is, this would differ.
    assert len(trace.SerializeToString()) == len(data)
    assert len(Trace.FromString(trace.SerializeToString()).packet) == len(trace.packet)
    assert trace.packet[0].sequence_flags == 1
    assert {packet.trusted_packet_sequence_id for packet in trace.packet} == {1}


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_end_stands_before_the_next_beginning(name: str, traces: Traces) -> None:
    last: dict[int, tuple[int, int]] = {}
    begin, end = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
    for packet in Trace.FromString(traces.path(name, "short", ".pftrace").read_bytes()).packet:
        event = packet.track_event
        if event.type in (begin, end):
            then, what = last.get(event.track_uuid, (0, end))
            assert packet.timestamp >= then
            assert event.type != what
            last[event.track_uuid] = packet.timestamp, event.type
    assert {what for _, what in last.values()} == {end}


def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path, traces: Traces) -> None:
    again = tmp_path / "again.pftrace"
    program = tracegen.compile("dualpipev", RANKS, 24, communication=False)
    tracegen.write(tracegen.replay(program, line("dualpipev", "short").costs), again)
    assert again.read_bytes() == traces.path("dualpipev", "short", ".pftrace").read_bytes()


@pytest.mark.parametrize("name", SCHEDULES)
def test_at_most_half_the_size_of_the_json(name: str, traces: Traces) -> None:
    native, plain = (
        traces.path(name, "long", suffix).stat().st_size for suffix in (".pftrace", ".json")
    )
    assert native < 0.5 * plain


def test_arrows_between_slices_that_start_as_one(engine: Engine, tmp_path: Path) -> None:
    program = tracegen.compile("gpipe", 2, 2, communication=False)
    shown = layout.layout(tracegen.replay(program, tracegen.Costs(f_us=1, b_us=2)))
    up, down = (1, 1000, 0, 1000, "up", "x"), (0, 1000, 1, 1000, "down", "x")
    shown = dataclasses.replace(shown, arrows=lambda: iter([up, down]))
    plain, native = tmp_path / "t.json", tmp_path / "t.pftrace"
    emit.write_layout(shown, plain)
    emit_proto.write(shown, native)
    assert len(engine.facts(plain).flows) == 2
    assert engine.facts(native) == engine.facts(plain)


# Reading it back


@pytest.mark.parametrize("name", ["dualpipev", "zb-h2", "moe-1f1b"])
def test_what_is_read_is_what_the_json_gives(name: str, traces: Traces) -> None:
    plain, native = (
        chrome.read(traces.path(name, "short", suffix)) for suffix in (".json", ".pftrace")
    )
    assert native == plain
    assert native.found == plain.found
    assert native.found is not None
    assert native.found.own
    assert len(native.found.arrows) > 100


@pytest.mark.parametrize("costs", ["short", "long"])
def test_what_was_written_is_read(costs: str, tmp_path: Path, traces: Traces) -> None:
    path = traces.path("1f1b", costs, ".pftrace")
    again = tmp_path / "again.pftrace"
    tracegen.write(chrome.read(path), again)
    assert again.read_bytes() == path.read_bytes()
    assert request_of(path).program == line("1f1b", costs).program


def test_another_tools_protobuf(tmp_path: Path) -> None:
    """Two threads of a process, names in torch's text form, times since 1970, one unfinished."""
    trace = Trace()
    trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=1)
    for rank in (0, 1):
        described = trace.packet.add(trusted_packet_sequence_id=1).track_descriptor
        described.uuid, described.thread.pid, described.thread.tid = 7 + rank, 50, 60 + rank
        described.thread.thread_name = f"rank {rank}"
    events = [(0, 0, "0F0"), (100, 0, ""), (101, 1, "1F0"), (207, 1, ""), (210, 0, "0F1")]
    for ns, rank, name in events:
        packet = trace.packet.add(
            trusted_packet_sequence_id=1, timestamp=1_790_000_000 * 10**9 + ns
        )
        packet.track_event.track_uuid = 7 + rank
        packet.track_event.type = 1 if name else 2
        if name:
            packet.track_event.name = name
    path = tmp_path / "other.perfetto-trace"
    path.write_bytes(trace.SerializeToString())
    timeline = proto.read(path)
    assert (list(timeline.start_ns), list(timeline.end_ns)) == ([0, 101], [100, 207])
    assert timeline.found is not None
    assert not timeline.found.own
    assert any("no dur" in text for text in timeline.found.warnings)


@pytest.mark.parametrize("data", [b"", b"nothing of the kind", b"\x0a\xff"])
def test_what_is_no_trace_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.pftrace"
    path.write_bytes(data)
    with pytest.raises(FileError, match=str(path)):
        chrome.read(path)


# The command line


def test_commands_take_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        return result.output

    assert "wrote t.pftrace" in said("run", "--schedule", "zbv", "-p", "2", "-o", "t.pftrace")
    assert "t.pftrace: sound: p=2" in said("check", "t.pftrace")
    assert "zbv" in said("show", "t.pftrace")
    said("run", "--like", "t.pftrace", "-o", "again.pftrace")
    assert Path("again.pftrace").read_bytes() == Path("t.pftrace").read_bytes()


def test_a_rank_without_a_tile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage takes no time, so that its rank has no track; its 8 actions are there."""
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text("[stage.3]\nf_us = 0\nb_us = 0\n")
    asked = ("run", "-s", "1f1b", "-p", "4", "-m", "4", "--costs", "c.toml", "-o", "t.pftrace")
    assert CliRunner().invoke(main, asked).exit_code == 0
    assert [len(stream) for stream in tracegen.read("t.pftrace").program.ranks] == [8, 8, 8, 8]


def test_a_name_that_is_no_traces(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"ends in \.json or \.json\.gz or \.pftrace"):
        tracegen.write(line("gpipe", "short"), tmp_path / "t.pb")
    with pytest.raises(FileError, match="cannot be written"):
        tracegen.write(line("gpipe", "short"), tmp_path / "nowhere" / "t.pftrace")
    assert list(tmp_path.iterdir()) == []


def test_json_needs_no_perfetto(tmp_path: Path) -> None:
    program = f"""
        import sys, tracegen
        line = tracegen.replay(tracegen.compile("gpipe", 2, 2), tracegen.Costs())
        tracegen.write(line, {str(tmp_path / "t.json")!r})
        sys.exit("perfetto" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(program)]).returncode == 0
