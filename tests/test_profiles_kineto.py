"""torch.profiler's files: of GPU runs as their format is documented, and in odd states.

No GPU was at hand: the GPU files are made by hand, with launches, kernels, correlation ids,
`ac2g` flows and streams as Kineto writes them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import tracegen
from tests import profiles_made as made
from tests.profiles_made import Event, info, kineto, write
from tracegen.errors import FileError
from tracegen.profiles import kineto as reader
from tracegen.profiles.nearest import known
from tracegen.profiles.reading import read
from tracegen.readers.warn import Warnings
from tracegen.timeline import Timeline

SAMPLES = Path(__file__).parent.parent / "examples" / "profiles"


def run(name: str, p: int, m: int) -> Timeline:
    costs = tracegen.Costs(f_us=1000, i_us=1000, w_us=800, alpha_us=60)
    return tracegen.replay(tracegen.compile(name, p, m, communication=False), costs)


def files(folder: Path, line: Timeline, **how: Any) -> Path:
    p = line.program.num_ranks
    for rank in range(p):
        about = info(rank, p, {"default_pg": list(range(p))})
        path = folder / f"rank{rank}.pt.trace.json"
        write(path, kineto(line, rank, **how), host_name=f"n{rank}", **about)
    return folder


def assert_times(found: Timeline, line: Timeline, tolerance_ns: int) -> None:
    assert found.program.ranks == line.program.ranks
    for got, expected in ((found.start_ns, line.start_ns), (found.end_ns, line.end_ns)):
        assert max(abs(a - b) for a, b in zip(got, expected, strict=True)) <= tolerance_ns


@pytest.mark.parametrize(
    ("name", "p", "m"),
    [("interleaved-1f1b", 2, 4), ("zbv", 4, 8), ("dualpipev", 2, 8), ("looped-bfs", 4, 8)],
)
@pytest.mark.parametrize("correlation", [True, False])
def test_tiles_of_a_gpu_are_its_kernels(
    tmp_path: Path, name: str, p: int, m: int, correlation: bool
) -> None:
    """Launched ahead of time, a backward's from another thread, joined by id or by flow."""
    line = run(name, p, m)
    found = read([files(tmp_path, line, correlation=correlation)])
    assert_times(found, line, 1000)
    assert found.config["executed"]["tiles_of"] == "kernels launched during each range"
    assert known(found).names == known(line).names
    assert found.busy_ns == pytest.approx(line.busy_ns, abs=10_000)


def test_kernels_between_ranks_are_no_compute_and_tell_the_clocks(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 2, 4)
    for rank in range(2):
        about = info(rank, 2, {"default_pg": [0, 1]})
        events = kineto(line, rank, skew_us=5000.0 * rank)
        write(tmp_path / f"r{rank}.json.gz", events, host_name=f"n{rank}", **about)
    found = read([tmp_path])
    assert_times(found, line, 1000)
    assert found.config["executed"]["clock_offsets_us"] == [0, pytest.approx(-5000, abs=1)]
    assert found.config["executed"]["clock_uncertainty_us"] < 100


def test_several_streams_that_overlap_are_said(tmp_path: Path) -> None:
    line = run("gpipe", 1, 2)
    events = kineto(line, 0, comm=False)
    last = [e for e in events if e.get("cat") == "kernel"][1]
    last["dur"] += 300.0
    found = read([write(tmp_path / "r.json", events)])
    assert found.start_ns[1] == found.end_ns[0]
    assert "two actions overlap by 300000 ns on the device" in found.found.warnings[0]


def test_a_mesh_is_reduced_to_one_pipeline(tmp_path: Path) -> None:
    """dp=2, pp=2, tp=2: ranks 0 and 2 are the first pipeline."""
    line = run("interleaved-1f1b", 2, 4)
    for rank in range(8):
        dp, pp, tp = rank // 4, rank // 2 % 2, rank % 2
        groups = {
            "default_pg": list(range(8)),
            "mesh_pp": [dp * 4 + tp, dp * 4 + 2 + tp],
            "mesh_tp": [rank - tp, rank - tp + 1],
        }
        write(tmp_path / f"x{rank}.json", kineto(line, pp), host_name="n", **info(rank, 8, groups))
    found = read([tmp_path])
    assert_times(found, line, 1000)
    assert found.found.warnings == [
        "6 of 8 files are of other ranks of the run and left out, such as "
        f"{tmp_path}/x1.json; --rank-map chooses others"
    ]
    assert_times(read([tmp_path], rank_map="5,7"), line, 1000)
    assert_times(read([tmp_path], rank_map="dp=2,pp=2,tp=2"), line, 1000)
    with pytest.raises(FileError, match=r"^--rank-map asks for rank 9, and no file is of it"):
        read([tmp_path], rank_map="0,9")
    with pytest.raises(
        FileError, match=r"^--rank-map pp=2,pp=4: pp=2 and pp=4; expected the ranks of one"
    ):
        read([tmp_path], rank_map="pp=2,pp=4")
    with pytest.raises(
        FileError, match=r"^--rank-map dp=2: the mesh has no pp; expected the ranks"
    ):
        read([tmp_path], rank_map="dp=2")


def test_without_metadata_the_stages_say_the_ranks(tmp_path: Path) -> None:
    line = run("zbv", 4, 8)
    for rank, name in enumerate(("d", "a", "c", "b")):
        write(tmp_path / f"{name}.json", kineto(line, rank), host_name="n")
    assert_times(read([tmp_path]), line, 1000)
    write(tmp_path / "e.json", kineto(line, 1), host_name="n")
    with pytest.raises(FileError, match=r"run the same stages: they are of several pipelines"):
        read([tmp_path])


def test_missing_ranks_are_said(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 4, 8)
    folder = files(tmp_path, line)
    (folder / "rank2.pt.trace.json").unlink()
    found = read([folder])
    assert found.program.num_ranks == 3
    assert found.found.warnings[0] == (
        "no file is of rank 2 of the pipeline 0, 1, 2, 3: what they did is not shown"
    )
    alone = read([folder / "rank0.pt.trace.json"])
    assert alone.program.num_ranks == 1
    assert len(alone.program.ranks[0]) == len(line.program.ranks[0])
    assert any("no whole program" in text for text in alone.found.warnings)


def test_what_public_profiles_hold_is_read(tmp_path: Path) -> None:
    """Hundreds of streams, epochs, negative ids, orphan flows, and events of every other kind."""
    line = run("gpipe", 1, 3)
    events = kineto(line, 0, comm=False, base=1_790_000_000_000_000.0)
    for stream in range(300):
        events.append({**events[-1], "cat": "kernel", "tid": stream, "pid": 0})
        events[-1]["args"] = {"correlation": -stream}
    odd: list[Any] = [
        {"ph": "f", "id": 10**18, "pid": -1, "tid": -7, "ts": 5, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "python_function", "name": "PP:0F0", "ts": 0, "dur": 1},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 0, "dur": 1e9},
        {"ph": "i", "name": "Record Window End", "ts": 0, "s": "g"},
        {"ph": "X", "cat": "cpu_op", "name": "broken", "ts": None, "dur": 1},
        None,
    ]
    found = read([write(tmp_path / "r.json", events + odd)])
    assert_times(found, line, 1500)
    said = "\n".join(found.found.warnings)
    assert "kernels whose launch it does not hold belong to no action" in said
    assert "'broken': ts or dur is no time; left out" in said
    assert "its times are exact to 0.25 us only" in said


def test_a_file_that_is_cut_off_is_read_up_to_there(tmp_path: Path) -> None:
    line = run("gpipe", 1, 3)
    path = write(tmp_path / "r.json", kineto(line, 0, comm=False))
    text = path.read_text()
    path.write_text(text[: text.rindex('"traceName"') - 40])
    found = read([path])
    assert len(found.program) == 6
    assert "the file is cut off" in found.found.warnings[0]
    whole = gzip.compress(text.encode())
    zipped = tmp_path / "z.json.gz"
    zipped.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(FileError) as refused:
        read([zipped])
    assert "z.json.gz" in str(refused.value)


def test_ranges_inside_strings_and_long_headers_are_no_trap(tmp_path: Path) -> None:
    line = run("gpipe", 1, 2)
    events: list[Event] = []
    for at, event in enumerate(kineto(line, 0, comm=False)):
        note = '}, {"ph": "X"' * (at % 3) + "\\" + "x" * 5000
        events.append({**event, "args": {**event.get("args", {}), "note": note, "l": [{}, {}]}})
    events *= 1
    path = write(tmp_path / "r.json", events, long="y" * 3_000_000)
    assert path.stat().st_size > 3_000_000
    assert_times(read([path]), line, 1000)


@pytest.mark.parametrize(
    ("ranges", "such"),
    [
        ([], ", if it has any"),
        (
            ["ProfilerStep#2", "moe_forward", "## Call Compiled ##"],
            ", such as 'moe_forward', '## Call Compiled ##'",
        ),
    ],
)
def test_a_profile_without_a_pipeline_is_refused(
    tmp_path: Path, ranges: list[str], such: str
) -> None:
    """As most public ones are: a step of one model on one device."""
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": 1, "dur": 1, "tid": 1, "pid": 1}
        for cat, name in (("cpu_op", "aten::mm"), *(("user_annotation", one) for one in ranges))
    ]
    with pytest.raises(FileError) as refused:
        read([write(tmp_path / "r.json", events)])
    assert str(refused.value) == (
        f"{tmp_path}/r.json: nothing says which action runs when: it has no ranges named "
        "PP:<action> or Forward <i>, no forward operators tied to their backward (fwdbwd flows), "
        "no operators of autograd's engine, no sends or receives; profile the steps with "
        "torch.profiler on torch's runtime, or give tracegen import a --name-pattern for its own "
        f"ranges{such}"
    )


def test_ranges_of_another_name_need_a_pattern(tmp_path: Path) -> None:
    line = run("gpipe", 2, 3)
    for rank in range(2):
        events = kineto(line, rank, prefix="my ")
        for event in events:
            event["name"] = event["name"].replace("my 0", "my ").replace("my 1", "my ")
        about = info(rank, 2, {"default_pg": [0, 1]})
        write(tmp_path / f"r{rank}.json", events, host_name="n", **about)
    found = read([tmp_path], name_pattern=r"my (?P<op>[FB])(?P<mb>\d+)")
    assert found.program.ranks == line.program.ranks


def test_files_of_one_rank_twice_or_of_other_steps_are_refused(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 2, 4)
    about = info(0, 2, {"default_pg": [0, 1]})
    paths = [write(tmp_path / f"{n}.json", kineto(line, 0), **about) for n in "ab"]
    with pytest.raises(FileError, match="both say they are of rank 0; give one file a rank"):
        read(paths)
    more = kineto(line, 1) + kineto(line, 1, base=9_000_000.0)
    write(paths[1], more, host_name="n", **info(1, 2, {"default_pg": [0, 1]}))
    with pytest.raises(FileError, match=r"b.json holds 2 steps and .*a.json 1; profile the same"):
        read(paths)


@pytest.mark.parametrize("name", ["dualpipev", "gpipe", "1f1b"])
def test_the_recorded_samples(name: str) -> None:
    """Real runs of two processes over gloo."""
    found = read([SAMPLES / name])
    assert known(found).names[0] == name
    assert found.config["executed"]["tiles_of"] == "the host's operations in each range"
    inferred = [
        text for text in found.found.warnings if "they are inferred from autograd's" in text
    ]
    assert len(inferred) == (name == "1f1b")
    for rank in range(2):
        assert 0 < found.busy_ns[rank] < found.makespan_ns


@pytest.mark.parametrize("name", ["dualpipev", "gpipe", "1f1b"])
@pytest.mark.parametrize(("skew_ns", "rate"), [(5_000_000, 0), (-5_000_000, 0), (5_000_000, 1e-4)])
@pytest.mark.parametrize("hosts", [("a", "b"), ("a", "a")])
def test_a_skew_between_the_recorded_files_is_taken_out(
    tmp_path: Path, name: str, skew_ns: int, rate: float, hosts: tuple[str, str]
) -> None:
    plain = read([SAMPLES / name])
    for rank in (0, 1):
        data = gzip.decompress((SAMPLES / name / f"rank{rank}.json.gz").read_bytes())
        said = json.loads(data)
        said["host_name"] = hosts[rank]
        if rank:
            said["baseTimeNanoseconds"] += skew_ns
            first = said["traceEvents"][0]["ts"]
            for event in said["traceEvents"]:
                event["ts"] = first + (event["ts"] - first) * (1 + rate)
                event["dur"] = event.get("dur", 0) * (1 + rate)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(said))
    moved = read([tmp_path])
    facts = moved.config["executed"]
    drifted = 1e6 * moved.makespan_ns / 1e9 * rate  # us, at most, between the two ends
    assert abs(facts["clock_offsets_us"][1] + skew_ns / 1000) <= (
        facts["clock_uncertainty_us"] + drifted
    )
    assert moved.program.ranks == plain.program.ranks
    assert moved.busy_ns[0] == plain.busy_ns[0]


def test_a_range_is_no_tile(tmp_path: Path) -> None:
    """A range of 100 ms whose receive ends after 80: the tile is what was computed after that."""
    events = [
        made._x("user_annotation", "PP:1F0", 1, 0, 100_000),
        made._x("user_annotation", "gloo:recv", 1, -50, 80_000),
        made._x("cpu_op", "c10d::recv_", 1, -60, -40),
        made._x("cpu_op", "aten::linear", 1, 80_100, 90_000),
        made._x("cpu_op", "aten::tanh", 1, 90_100, 95_000),
        made._x("cpu_op", "c10d::send", 1, 95_100, 99_000),
    ]
    (found,) = reader.read(write(tmp_path / "r.json", events), Warnings())
    line = read([tmp_path / "r.json"])
    assert (len(found.windows), len(found.receives)) == (1, 1)
    assert line.busy_ns == [14_900_000]


def unmarked(line: Timeline, rank: int) -> list[Event]:
    """A rank of torch's 1F1B on a GPU: no ranges, backward from autograd's thread, NCCL.

    As torch runs it: a receive and a send around each action, but none at the ends of the
    pipeline.
    """
    program, events, now = line.program, [], 1000.0
    first, last = program.offsets[rank : rank + 2]
    ends = (program.num_ranks - 1, 0)
    events.append(made._x("cpu_op", "aten::tensor_split", made.MAIN, now - 50, now - 40))
    for step in range(first, last):
        code = program.ranks[rank].codes[step - first]
        forward = code & 0xFF == 0
        if rank != ends[forward]:
            events.append(made._x("cpu_op", "c10d::recv_", made.MAIN, now, now + 5))
            events.append(made._x("user_annotation", "nccl:recv 0<-1", made.MAIN, now, now + 5))
        now += 10
        start, end = (of[step] / 1000 + 10_000 for of in (line.start_ns, line.end_ns))
        for part in range(2):
            thread = made.MAIN if forward else made.AUTOGRAD
            number = step * 2 + part + 1
            if forward:
                events.append(
                    {
                        "ph": "s",
                        "id": number,
                        "pid": 4242,
                        "tid": thread,
                        "ts": now + 8,
                        "cat": "fwdbwd",
                        "name": "fwdbwd",
                    }
                )
            else:
                name = "autograd::engine::evaluate_function: MmBackward0"
                events.append(made._x("cpu_op", name, thread, now + 7, now + 17))
            events += made._launch(now + 10, thread, number, True)
            middle = (start + end) / 2
            a, b = ((start, middle), (middle, end))[part]
            events += made._kernel("gemm", 7, a, b, number, True)
            now += 20
        if rank != ends[not forward]:
            events.append(made._x("cpu_op", "detach", made.MAIN, now, now + 1))
            events.append(made._x("cpu_op", "c10d::send", made.MAIN, now + 2, now + 4))
        now += 10
    events.append(made._x("cpu_op", "aten::div_", made.MAIN, now, now + 10))
    return events


@pytest.mark.parametrize(("name", "p", "m"), [("1f1b", 4, 6), ("1f1b", 2, 2), ("1f1b", 1, 3)])
def test_a_run_that_marks_nothing_is_inferred(tmp_path: Path, name: str, p: int, m: int) -> None:
    line = run(name, p, m)
    for rank in range(p):
        about = info(rank, p, {"mesh_pp": list(range(p))})
        write(tmp_path / f"{rank}.json", unmarked(line, rank), host_name="n", **about)
    if p == 1:
        with pytest.raises(FileError, match="no sends or receives"):
            read([tmp_path])
        return
    found = read([tmp_path])
    assert_times(found, line, 1000)
    assert name in known(found).names
    assert "they are inferred from autograd's operators" in found.found.warnings[0]


def test_an_inferred_run_that_lacks_a_backward_is_refused(tmp_path: Path) -> None:
    line = run("1f1b", 2, 3)
    events = [e for e in unmarked(line, 1) if not e.get("name", "").startswith("autograd")]
    kept = [e for e in unmarked(line, 1) if e.get("name", "").startswith("autograd")][:2]
    with pytest.raises(FileError, match="its operators show 3 forwards and 1 backwards"):
        read([write(tmp_path / "rank1.json", events + kept)])


def labelled(labels: list[str]) -> list[Event]:
    """What a trace begins with that calls its processes so."""
    return [
        {"ph": "M", "name": name, "pid": at, "tid": 0, "ts": 0, "args": {key: value}}
        for at, label in enumerate(labels)
        for name, key, value in (
            ("process_name", "name", "python"),
            ("process_labels", "labels", label),
        )
    ]


def test_a_trace_of_another_tool_with_labels_is_no_profile_of_torch(tmp_path: Path) -> None:
    """Chrome's own traces label their processes too, and so do simulators."""
    tiles = [
        {"ph": "X", "name": f"{rank}{op}{mb}", "pid": rank, "tid": 1, "ts": ts, "dur": 9}
        for rank, op, mb, ts in ((0, "F", 0, 0), (1, "F", 0, 10), (1, "B", 0, 20), (0, "B", 0, 30))
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": labelled(["a page", "another"]) + tiles}))
    found = tracegen.read(path)
    assert [list(map(str, rank)) for rank in found.program.ranks] == [
        ["0F0", "0B0"],
        ["1F0", "1B0"],
    ]
    line = run("gpipe", 1, 2)
    events = [e for e in kineto(line, 0, comm=False) if e["cat"] != "cpu_op"]
    path.write_text(json.dumps(labelled(["CPU", "GPU 0"]) + events))
    assert_times(tracegen.read(path), line, 1000)


def test_times_in_whole_microseconds_are_said(tmp_path: Path) -> None:
    """As torch wrote them until 2.3: integers since 1970."""
    line = run("gpipe", 1, 3)
    events = [
        {**e, **{key: round(e[key]) for key in ("ts", "dur") if key in e}}
        for e in kineto(line, 0, comm=False, base=1_666_149_715_033_200.0)
    ]
    found = read([write(tmp_path / "r.json", events)])
    assert_times(found, line, 2000)
    assert found.found.warnings == [f"{tmp_path}/r.json: its times are whole microseconds"]


@pytest.mark.parametrize("huge", [2**64 - 1, -(2**63), 2**63])
def test_ids_of_64_bits_are_read(huge: int, tmp_path: Path) -> None:
    line = run("gpipe", 1, 2)
    events = kineto(line, 0, comm=False)
    for event in events:
        if event.get("args", {}).get("correlation") == 1:
            event["args"]["correlation"] = huge
    found = read([write(tmp_path / "r.json", events)])
    assert_times(found, line, 1000)
    assert found.found.warnings == []


def test_a_list_of_ranks_that_was_shortened_says_no_pipeline(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 2, 4)
    for rank in range(2):
        about = info(rank, 2, {"mesh_pp": []})
        about["distributedInfo"]["pg_config"][0]["ranks"] = "[0, 4, 8, ...]"
        write(tmp_path / f"rank{rank}.json", kineto(line, rank), **about)
    assert_times(read([tmp_path]), line, 1000)


@pytest.mark.parametrize(
    "odd",
    [
        {"ts": 1e300, "dur": 1},
        {"ts": 1, "dur": 1e300},
        {"ts": 10**40, "dur": 1},
        {"ts": float("inf"), "dur": 1},
        {"ts": 1, "dur": float("nan")},
        {"ts": [], "dur": 1},
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_times_that_are_none_are_left_out(odd: Event, first: bool, tmp_path: Path) -> None:
    line = run("gpipe", 1, 3)
    events = kineto(line, 0, comm=False)
    for cat in ("cpu_op", "kernel", "cuda_runtime", "user_annotation"):
        event = {"ph": "X", "cat": cat, "name": "PP:0F7", "pid": 1, "tid": 1, **odd}
        event["args"] = {"correlation": 7}
        events.insert(0 if first else len(events), event)
    found = read([write(tmp_path / "r.json", events, baseTimeNanoseconds=2**70)])
    assert_times(found, line, 1000)
    assert found.found.warnings[:1] == [
        f"{tmp_path}/r.json: 'PP:0F7': ts or dur is no time; left out"
    ]


def test_threads_of_any_type_and_durations_below_zero_are_read(tmp_path: Path) -> None:
    """Kineto has written negative durations; here they are none."""
    line = run("gpipe", 1, 3)
    events = kineto(line, 0, comm=False)
    for at, event in enumerate(events):
        if event["cat"] == "user_annotation":
            event["tid"] = [[], {}, None][at % 3]
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 5.0, "dur": -3})
    found = read([write(tmp_path / "r.json", events)])
    assert_times(found, line, 1000)
    assert found.found.warnings == []
