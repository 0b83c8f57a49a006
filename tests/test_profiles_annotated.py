"""Steps that are replays of CUDA graphs: actions by the annotations of kernels, or on streams.

No GPU was at hand: the files are made by hand, as Kineto writes them and torch's annotations are
put into them (`torch.cuda._annotate_cuda_graph_trace`).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tracegen
from tests import profiles_made as made
from tests.profiles_made import Event, graph, info, kineto, write
from tracegen.errors import FileError
from tracegen.profiles.nearest import known
from tracegen.profiles.reading import read
from tracegen.timeline import Timeline

ANNOTATED = "kernels annotated with each action"


def run(name: str, p: int, m: int) -> Timeline:
    costs = tracegen.Costs(f_us=1000, i_us=1000, w_us=800, alpha_us=60)
    return tracegen.replay(tracegen.compile(name, p, m, communication=False), costs)


def files(folder: Path, line: Timeline, mesh: int = 1, **how: Any) -> Path:
    """One file a rank, of the ranks 0, mesh, 2 mesh ... of the run."""
    p = line.program.num_ranks
    for rank in range(p):
        about = info(rank * mesh, p * mesh, {"mesh_pp": [mesh * at for at in range(p)]})
        path = folder / f"rank{rank * mesh}_trace.json"
        write(path, graph(line, rank, **how), host_name="n", baseTimeNanoseconds=10**18, **about)
    return folder


def assert_times(found: Timeline, line: Timeline) -> None:
    assert found.program.ranks == line.program.ranks
    for got, expected in ((found.start_ns, line.start_ns), (found.end_ns, line.end_ns)):
        assert max(abs(a - b) for a, b in zip(got, expected, strict=True)) <= 2  # ns


@pytest.mark.parametrize("nodes", [True, False])
@pytest.mark.parametrize("replays", [1, 3])
@pytest.mark.parametrize(
    ("name", "p", "m"), [("interleaved-1f1b", 2, 4), ("zbv", 4, 8), ("1f1b", 4, 6), ("gpipe", 2, 1)]
)
def test_tiles_are_the_annotated_kernels(
    tmp_path: Path, name: str, p: int, m: int, replays: int, nodes: bool
) -> None:
    """By start on the device; with the nodes of graphs or, as in files cut down, without."""
    line = run(name, p, m)
    found = read([files(tmp_path, line, mesh=4, replays=replays, nodes=nodes)])
    assert_times(found, line)
    facts = found.config["executed"]
    assert facts["tiles_of"] == ANNOTATED
    assert facts["steps_measured"] == replays
    assert known(found).names == known(line).names
    assert found.busy_ns == pytest.approx(line.busy_ns, abs=100)


def test_receives_bound_what_a_rank_waits_for(tmp_path: Path) -> None:
    """Its second rank has nothing to do before 1F0, which is received from 1000 - 200 us on."""
    line = run("1f1b", 2, 2)
    found = read([files(tmp_path, line)])
    assert found.waiting_ns is not None
    first = found.program.offsets[1]
    assert str(found.program.ranks[1][0]) == "1F0"
    assert found.start_ns[first] == 1_060_000
    assert found.waiting_ns[first] == 800_000
    for step, began in enumerate(found.waiting_ns):
        free = found.end_ns[step - 1] if step not in found.program.offsets else 0
        assert began == -1 or free <= began < found.start_ns[step]
    waited = {str(found.program.ranks[0][step]) for step in range(4) if found.waiting_ns[step] >= 0}
    assert waited == {"0B0", "0B1"}


def test_the_clocks_of_hosts_are_related_by_the_annotated_messages(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 2, 4)
    for rank in range(2):
        about = info(rank, 2, {"default_pg": [0, 1]})
        events = graph(line, rank, skew_us=5000.0 * rank)
        write(tmp_path / f"r{rank}.json.gz", events, host_name=f"n{rank}", **about)
    facts = read([tmp_path]).config["executed"]
    assert facts["clock_offsets_us"] == [0, pytest.approx(-5000, abs=0.01)]
    assert facts["clock_uncertainty_us"] < 100


def small(*spans: tuple[str, str, float, float], **about: Any) -> list[Event]:
    """Kernels (name, annotation, from, to) of one replay, in us, each on a stream of its own."""
    events = []
    for node, (kernel, action, start, end) in enumerate(spans):
        event, _ = made._kernel(kernel, 40 + node, start, end, 9, True)
        event["args"] |= {"name": action, "graph node id": node + 1, **about}
        events.append(event)
    return events


STEP = (
    ("copy_out", "PP:1UNSHARD", -60, -50),
    ("fill", "PP:1F0", -20, -10),
    ("nccl_recv", "PP:1RECV_F0", 0, 100),
    ("fill", "PP:1F0", 20, 30),
    ("gemm", "PP:1F0", 101, 150),
    ("gemm", "PP:1F0", 120, 180.5),
    ("gemm", "PP:1F0", 130, 140),
    ("gemm", "PP:1B0", 181, 300),
    ("nccl_send", "PP:1SEND_B0", 301, 310),
    ("adam", "optimizer", 400, 500),
)


def test_a_tile_starts_at_the_first_operation_after_its_receive(tmp_path: Path) -> None:
    found = read([write(tmp_path / "rank1.json", small(*STEP))])
    assert [list(map(str, rank)) for rank in found.program.ranks] == [["1F0", "1B0"]]
    assert list(found.start_ns) == [0, 80_000]
    assert list(found.end_ns) == [79_500, 199_000]
    assert (
        f"{tmp_path}/rank1.json: 1 of 8 kernels of CUDA graphs are annotated with no action, and "
        "belong to none"
    ) in found.found.warnings


def test_kernels_that_all_ran_before_the_receive_did_not_wait_for_it(tmp_path: Path) -> None:
    early = [("nccl_recv", "PP:1RECV_F0", 0, 100), ("gemm", "PP:1F0", 20, 30)]
    found = read([write(tmp_path / "r.json", small(*early, ("gemm", "PP:1B0", 101, 131)))])
    assert list(found.start_ns) == [0, 81_000]
    assert found.waiting_ns is not None
    assert list(found.waiting_ns) == [-1, -1]


def test_a_rank_waits_from_its_last_action_on_or_from_where_it_receives(tmp_path: Path) -> None:
    spans = [
        ("gemm", "PP:1F0", 0, 20),
        ("nccl_recv", "PP:1RECV_F1", 5, 30),
        ("gemm", "PP:1F1", 31, 40),
        ("nccl_recv", "PP:1RECV_F2", 45, 50),
        ("gemm", "PP:1F2", 50, 60),
        ("nccl_recv", "PP:1RECV_F3", 51, 60),
        ("gemm", "PP:1F3", 61, 70),
        ("gemm", "PP:1B0", 70, 80),
    ]
    found = read([write(tmp_path / "r.json", small(*spans))])
    assert found.waiting_ns is not None
    assert list(found.waiting_ns) == [-1, 20_000, 45_000, -1, -1]


def test_a_pair_is_one_action(tmp_path: Path) -> None:
    spans = [
        ("gemm", "PP:0F0", 0, 10),
        ("gemm", "PP:(0F1;1B0)OVERLAP_F_B", 10, 25),
        ("gemm", "PP:(0F1;1B0)OVERLAP_F_B", 12, 30),
    ]
    found = read([write(tmp_path / "r.json", small(*spans))])
    assert list(map(str, found.program.ranks[0])) == ["0F0", "(0F1;1B0)OVERLAP_F_B"]
    assert list(found.end_ns) == [10_000, 30_000]


def test_steps_are_those_of_the_profiler_by_launch(tmp_path: Path) -> None:
    """A recording that begins within a step: the first replay's last action is no step's first."""
    line = run("gpipe", 1, 3)
    events = graph(line, 0, replays=4)
    calls = [e for e in events if e["cat"] in ("kernel", "gpu_memset")]
    lost = {"PP:0F0", "PP:0F1", "PP:0F2", "PP:0B0"}
    cut = [e for e in calls if e["args"]["correlation"] == 50 and e["args"].get("name") in lost]
    found = read([write(tmp_path / "r.json", [e for e in events if e not in cut])])
    assert_times(found, line)
    assert found.config["executed"]["steps_measured"] == 3
    assert found.found.warnings[-1] == (
        "1 of 4 steps ran another order, or are not whole, and are left out"
    )


def test_steps_without_a_launch_are_those_of_the_profilers_ranges_on_the_device(
    tmp_path: Path,
) -> None:
    line = run("gpipe", 1, 3)
    events = [e for e in graph(line, 0, replays=3) if e["cat"] in ("kernel", "gpu_memset")]
    lost = {"PP:0F0", "PP:0F1", "PP:0F2", "PP:0B0"}
    cut = [e for e in events if e["args"]["correlation"] == 50 and e["args"].get("name") in lost]
    events = [e for e in events if e not in cut]
    for replay in range(3):
        zero = 5_010_000.0 + replay * made.PERIOD
        for stream in (100, 101):
            step = f"ProfilerStep#{replay}"
            span = zero - 900 + stream, zero + 20_000
            events.append(made._x("gpu_user_annotation", step, stream, *span, pid=0))
    found = read([write(tmp_path / "r.json", events)])
    assert_times(found, line)
    assert found.config["executed"]["steps_measured"] == 2


def test_a_graph_of_one_action_that_is_replayed_for_all_microbatches_is_said(
    tmp_path: Path,
) -> None:
    events: list[Event] = []
    for at in range(3):
        for node, name, start in ((1, "PP:0F0", 0), (2, "PP:0B0", 10)):
            (event, _) = made._kernel(
                "gemm", 7, 50 + 20 * at + start, 58 + 20 * at + start, 5, True
            )
            event["args"] |= {"name": name, "graph node id": node}
            events.append(event)
    events += [
        made._x("user_annotation", "ProfilerStep#4", 1, 0, 200),
        *made._launch(3, 1, 5, True),
    ]
    found = read([write(tmp_path / "r.json", events)])
    assert found.found.warnings[0] == (
        f"{tmp_path}/r.json: the action of microbatch 0 on stage 0 ran 3 times in one step of the "
        "profiler's, and counts as of so many steps; a graph that is captured for one microbatch "
        "and replayed for others names them alike"
    )


def test_ranges_of_the_host_come_first(tmp_path: Path) -> None:
    """Unless they launched nothing, as those of the step that was captured."""
    line, other = run("interleaved-1f1b", 2, 4), run("zbv", 2, 4)
    for rank in range(2):
        events = kineto(line, rank)
        for event in events:
            if event["cat"] == "kernel":
                event["args"] |= {"name": "PP:0F0", "graph node id": 1}
        write(tmp_path / f"rank{rank}.json", events, host_name="n")
    found = read([tmp_path])
    assert found.program.ranks == line.program.ranks
    assert found.config["executed"]["tiles_of"] == "kernels launched during each range"
    for rank in range(2):
        captured = kineto(line, rank, base=4_000_000.0)
        captured = [e for e in captured if e["cat"] in ("user_annotation", "cpu_op")]
        write(tmp_path / f"rank{rank}.json", captured + graph(other, rank), host_name="n")
    found = read([tmp_path])
    assert_times(found, other)
    assert found.config["executed"]["tiles_of"] == ANNOTATED


def test_ranges_on_the_device_are_read_where_nothing_else_says_the_actions(tmp_path: Path) -> None:
    """As in files from which the host's events were taken; those of streams of NCCL's are none."""
    line = run("interleaved-1f1b", 2, 4)
    for rank in range(2):
        events = [e for e in kineto(line, rank) if e["cat"] in ("kernel", "gpu_user_annotation")]
        for event in list(events):
            if event["cat"] == "gpu_user_annotation":
                late = {**event, "tid": 20, "ts": event["ts"] + event["dur"] / 2}
                events.append({**late, "dur": event["dur"] / 2})
                events.append({**event, "tid": 30, "dur": event["dur"] + 50})
        write(tmp_path / f"rank{rank}.json", events, host_name="n", **info(rank, 2, {}))
    found = read([tmp_path])
    assert_times(found, line)
    assert found.config["executed"]["tiles_of"] == "the ranges as they are"
    assert found.found.warnings[0] == (
        "2 of 2 files: neither a range of the host nor an annotated kernel says its actions: tiles "
        "are the profiler's ranges on the device, with whatever wait is inside them"
    )


def test_annotations_of_messages_alone_say_no_actions(tmp_path: Path) -> None:
    """Where annotations inside the actions' own replaced these, the ranges are left."""
    line = run("gpipe", 1, 3)
    events = [e for e in kineto(line, 0, comm=False) if e["cat"] == "gpu_user_annotation"]
    events += small(("nccl_send", "PP:0SEND_F0", 5_011_000, 5_011_010))
    found = read([write(tmp_path / "r.json", events)])
    assert_times(found, line)
    assert found.config["executed"]["tiles_of"] == "the ranges as they are"


def test_annotated_kernels_that_only_flows_tie_to_ranges_are_the_ranges(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 2, 4)
    for rank in range(2):
        events = kineto(line, rank, correlation=False, comm=False)
        for event in events:
            if event["cat"] == "kernel":
                event["args"]["name"] = "PP:0F0"
        write(tmp_path / f"rank{rank}.json", events, host_name="n")
    assert_times(read([tmp_path]), line)


def test_gpipes_ranges_on_the_device_are_read(tmp_path: Path) -> None:
    """They say no stage, and unlike the host's they hold the loss."""
    line = run("gpipe", 2, 3)
    for rank in range(2):
        events = [e for e in kineto(line, rank) if e["cat"] == "gpu_user_annotation"]
        for event in events:
            kind = {"F": "Forward", "B": "Backward"}[event["name"][4]]
            event["name"] = f"{kind} {event['name'][5:]}"
        write(tmp_path / f"rank{rank}.json", events, host_name="n", **info(rank, 2, {"pp": [0, 1]}))
    assert_times(read([tmp_path]), line)


def merged(line: Timeline, ranks: int, pid: Any = None) -> list[Event]:
    """Ranks in one file, each process with a pid of its own, and named, as torchtitan's script."""
    events: list[Event] = []
    for rank in range(ranks):
        pids = {4242: 2 * rank + 1, 0: 2 * rank + 2 if pid is None else pid}
        events += [{**e, "pid": pids[e["pid"]]} for e in graph(line, rank, replays=2)]
        for at in pids.values():
            name = {"name": f"PP rank {rank} (global rank {4 * rank}) | GPU"}
            events.append({"ph": "M", "name": "process_name", "pid": at, "tid": 0, "args": name})
            events[-1]["cat"] = ""
    return events


def test_ranks_that_were_merged_are_told_apart(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 3, 6)
    path = write(tmp_path / "merged.json.gz", merged(line, 3), baseTimeNanoseconds=10**18)
    found = read([path])
    assert_times(found, line)
    assert (
        f"{path}: 3 of its processes run actions and are read as ranks, told apart by the rank in "
        "their names"
    ) in found.found.warnings


def test_ranks_that_were_merged_under_one_device_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "merged.json", merged(run("interleaved-1f1b", 3, 6), 3, pid=0))
    with pytest.raises(FileError) as refused:
        read([path])
    assert str(refused.value) == (
        f"{path}: actions of one device run at the same time: files of several ranks were merged "
        "under one pid; give the files of the ranks as they were before they were merged"
    )


def test_graphs_without_annotations_are_refused_with_what_would_give_them(tmp_path: Path) -> None:
    events = graph(run("gpipe", 1, 3), 0)
    for event in events:
        event["args"] = {k: v for k, v in event.get("args", {}).items() if k != "name"}
    with pytest.raises(FileError) as refused:
        read([write(tmp_path / "r.json", events)])
    assert str(refused.value).endswith(
        "; its kernels are replayed from CUDA graphs, and no annotation says what they are of: "
        "capture with torch.cuda.graph(..., enable_annotations=True), and put the annotations into "
        "the trace with torch.cuda._annotate_cuda_graph_trace"
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"name": ["PP:0F0"]},
        {"name": None, "graph node id": "3"},
        {"name": "PP:0F99999999999999999999", "graph node id": 2.5},
        {"name": "PP:", "graph node id": -1},
    ],
)
def test_annotations_of_any_type_are_no_trap(tmp_path: Path, odd: Event) -> None:
    line = run("gpipe", 1, 3)
    events = graph(line, 0)
    extra, _ = made._kernel("gemm", 7, 5_000_000.0, 5_000_001.0, 50, True)
    extra["args"] |= odd
    assert_times(read([write(tmp_path / "r.json", [extra, *events])]), line)


def test_ids_of_64_bits_are_read(tmp_path: Path) -> None:
    line = run("interleaved-1f1b", 2, 4)
    for rank in range(2):
        events = graph(line, rank)
        for event in events:
            if "graph node id" in event.get("args", {}):
                event["args"]["graph node id"] += 2**63
        write(tmp_path / f"r{rank}.json", events, host_name="n", **info(rank, 2, {}))
    assert_times(read([tmp_path]), line)


@pytest.mark.parametrize(
    "said", [{"pg_name": "7", "pg_desc": "mesh_pp"}, {"pg_name": "torchtitan_real_pp"}]
)
def test_a_mesh_is_reduced_to_the_group_that_its_description_or_name_says(
    tmp_path: Path, said: dict[str, str]
) -> None:
    line = run("interleaved-1f1b", 2, 4)
    for rank in (0, 1, 4, 5):
        about = info(rank, 8, {"default_pg": list(range(8)), "mesh_dp": [rank, rank ^ 1]})
        pipeline = {**said, "ranks": [rank % 4, rank % 4 + 4]}
        about["distributedInfo"]["pg_config"].append(pipeline)
        write(tmp_path / f"r{rank}.json", graph(line, rank // 4), host_name="n", **about)
    found = read([tmp_path])
    assert_times(found, line)
    assert any("2 of 4 files are of other ranks" in text for text in found.found.warnings)


def test_the_commands_read_them(tmp_path: Path) -> None:
    line = run("zbv", 2, 4)
    folder, out = files(tmp_path, line, mesh=4, replays=2), tmp_path / "out.json"

    def said(*words: object) -> str:
        command = [sys.executable, "-m", "tracegen", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "this is zbv" in said("import", folder, "-o", out)
    assert "zbv" in said("show", folder)
    assert "sound" in said("check", folder)
    assert "same" in said("diff", out, folder)
    assert said("explain", folder)
    trace = json.loads(out.read_text())
    tiles = [e for e in trace["traceEvents"] if e.get("ph") == "X" and "stage" in e.get("args", {})]
    starts = sorted(e["ts"] for e in tiles if e["tid"] in (1, 2))
    assert starts[0] == 0
    assert len(starts) >= len(line.program)
