"""Critical path, the chains behind gaps, and what-if: held against full replays."""

from __future__ import annotations

import json
import random
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
import strategies as own
from command import refusal, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracegen import Costs, Program, Timeline, compile, engine, read, replay, write
from tracegen.analysis.explain import Explained
from tracegen.analysis.graph import Graph
from tracegen.analysis.timed import work_of
from tracegen.analysis.what_if import WhatIf
from tracegen.found import Found
from tracegen.metrics import critical_path
from tracegen.moe import MoE
from tracegen.work import lower

SETTINGS = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
us = st.integers(0, 5000)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Program, Costs]:
    """A program in any order a rank may follow, and costs that differ wherever they may."""
    program = draw(own.programs())
    stages, m = range(program.num_stages), program.num_microbatches
    single = {
        str(stage): {"microbatch": {str(draw(st.integers(0, m - 1))): {"f_us": draw(us)}}}
        for stage in stages
        if draw(st.booleans())
    }
    costs = Costs(
        f_us=[draw(us) for _ in stages],
        i_us=[draw(us) for _ in stages],
        w_us=[draw(us) for _ in stages],
        fb_us=draw(st.none() | us),
        alpha_us=draw(st.sampled_from([0, 0, 7, 900])),
        stage=single,
        microbatch={0: {"scale": 1.7}} if draw(st.booleans()) else {},
        rank={0: {"slowdown": 1.5}} if draw(st.booleans()) else {},
        link={"0-1": {"alpha_us": 33}} if program.num_ranks > 1 and draw(st.booleans()) else {},
        jitter=draw(st.sampled_from([0, 0, 0.1])),
    )
    return program, costs


@SETTINGS
@given(cases())
def test_the_critical_path_is_as_long_as_the_makespan(case: tuple[Program, Costs]) -> None:
    line = replay(*case)
    path = Explained(line).path()
    assert sum(piece.ns for piece in path) == line.makespan_ns
    assert [piece.end_ns for piece in path[:-1]] == [piece.start_ns for piece in path[1:]]
    assert (path[0].start_ns, path[-1].end_ns) == (0, line.makespan_ns)
    times = line.costs.times(line.program)
    latencies = {times.any_alpha, *times.alpha.values()}
    assert all(piece.ns in latencies for piece in path if piece.action == "transfer")
    assert all(piece.action != "between" for piece in path)
    steps = [piece.step for piece in path if piece.step >= 0]
    assert list(critical_path(line))[-len(steps) :] == steps  # less what takes no time at 0


@SETTINGS
@given(cases())
def test_gaps_are_all_idle_time_and_their_chains_add_up(case: tuple[Program, Costs]) -> None:
    line = replay(*case)
    idle = [0] * line.program.num_ranks
    for gap in Explained(line).gaps():
        idle[gap.rank] += gap.ns
        assert sum(piece.ns for piece in gap.chain) == gap.ns
        assert gap.chain[0].start_ns == gap.start_ns
        for a, b in zip(gap.chain, gap.chain[1:], strict=False):
            assert a.end_ns == b.start_ns
    busy = [bool(len(stream)) for stream in line.program.ranks]
    assert [ns for ns, some in zip(idle, busy, strict=True) if some] == [
        ns for ns, some in zip(line.idle_ns, busy, strict=True) if some
    ]


@SETTINGS
@given(cases())
def test_what_if_from_slack_equals_a_full_replay(case: tuple[Program, Costs]) -> None:
    line = replay(*case)
    what_if = WhatIf(line, measured=False)
    assert what_if.from_slack
    changes = what_if.changes()
    assert len(changes) >= line.program.num_stages
    for change in changes:
        assert what_if.makespan(change) == what_if.replayed(change), change


def test_of_too_many_changes_none_that_is_left_out_buys_more_than_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = replay(compile("zbv", 4, 6, communication=False), Costs(f_us=10, i_us=11, w_us=9))
    every = {gain.change: gain.saves_ns for gain in WhatIf(line, measured=False).gains()}
    monkeypatch.setattr("tracegen.analysis.what_if.MOST_FROM_SLACK", 5 * len(line.program))
    what_if = WhatIf(line, measured=False)
    found, left = what_if.gains(), what_if.left_out
    assert {gain.change for gain in found} | {bound.change for bound in left} == every.keys()
    assert len(found) + len(left) == len(every)
    assert all(gain.saves_ns == every[gain.change] for gain in found)
    assert all(bound.saves_ns >= every[bound.change] for bound in left)
    assert left


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipev", "interleaved-zb", "chimera"])
def test_what_if_on_schedules(name: str) -> None:
    program = compile(name, 4, 8, communication=False)
    costs = Costs(f_us=900, i_us=1100, w_us=[700] * program.num_stages, alpha_us=40)
    what_if = WhatIf(replay(program, costs), measured=False)
    gains = what_if.gains()
    assert gains[0].saves_ns > 0
    assert [gain.saves_ns for gain in gains] == sorted((g.saves_ns for g in gains), reverse=True)
    for gain in gains:
        assert what_if.makespan_ns - gain.saves_ns == what_if.replayed(gain.change)


@pytest.mark.parametrize("fb", [None, 2100])
@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zbv", "dualpipe", "dualpipev"])
def test_every_is_of_every_stage_and_of_both_forms_of_backward(name: str, fb: int | None) -> None:
    """As a replay with these costs of all stages less 1 % says."""
    given = {"f_us": 2200, "i_us": 1700, "w_us": 2300}
    less = {"forward": "f", "backward": "iw", "input gradient": "i", "weight gradient": "w"}
    for p, m in ((2, 6), (4, 8)):
        program = compile(name, p, m, communication=False)
        line = replay(program, Costs(**given, fb_us=fb, alpha_us=100))
        what_if = WhatIf(line, measured=False)
        every = {gain.change.text: gain.saves_ns for gain in what_if.gains()}
        for kind, letters in less.items():
            if (saved := every.get(f"1 % off every {kind}")) is not None:
                off = {f"{letter}_us": given[f"{letter}_us"] * 0.99 for letter in letters}
                again = replay(program, Costs(**(given | off), fb_us=fb, alpha_us=100))
                assert line.makespan_ns - saved == again.makespan_ns, (p, kind)


@pytest.mark.parametrize(
    "costs",
    [
        Costs(alpha_us=3, bandwidth_GBps=1, boundary_bytes=500_000),
        Costs(moe=MoE(layers=2)),
        Costs(moe=MoE(block="dualpipe", comm_sm_share=0.2), alpha_us=30),
    ],
    ids=["bandwidth", "moe", "shared"],
)
def test_where_orders_may_change_everything_is_replayed(costs: Costs) -> None:
    line = replay(compile("moe-1f1b-overlap", 4, 8, communication=False), costs)
    told = Explained(line)
    assert not told.what_if.from_slack
    assert sum(piece.ns for piece in told.path()) == line.makespan_ns
    gains = told.what_if.gains()
    assert gains[0].saves_ns > 0


def test_slack_is_how_much_later_a_job_may_end() -> None:
    program = compile("1f1b", 3, 4, communication=False)
    costs = Costs(f_us=1000, b_us=2000, alpha_us=11, stage={1: {"f_us": 1700}})
    work = lower(program, costs.times(program))
    graph = Graph(work)
    assert graph.makespan == replay(program, costs).makespan_ns
    for job, slack in enumerate(graph.slack):
        for more, grows in ((slack, False), (slack + 1, True)):
            later = graph.changed({job: work.duration[job] + more}, {})
            assert (max(engine.run(later).end) > graph.makespan) == grows, job


def test_other_modes() -> None:
    program = compile("1f1b", 4, 8, communication=False)
    line = replay(program, Costs(alpha_us=500), p2p="blocking", p2p_order="fused", steps=2)
    told = Explained(line)
    assert sum(piece.ns for piece in told.path()) == line.makespan_ns
    assert not told.what_if.from_slack
    assert told.what_if.gains()[0].saves_ns > 0


# Measured


def measured(line: Timeline, seed: int) -> Timeline:
    """The same actions at times that no costs give: later, longer, each rank by another clock."""
    rng = random.Random(seed)
    start, end = array("q"), array("q")
    for rank, base in enumerate(line.program.offsets[:-1]):
        now = rng.randint(0, 300)
        skew = rng.randint(-200, 200) if rank else 0
        for step in range(base, line.program.offsets[rank + 1]):
            begin = max(now, line.start_ns[step] * 2 + skew + rng.randint(0, 2000), 0)
            now = begin + rng.randint(0, 3_000_000)
            start.append(begin)
            end.append(now)
    return replace(line, start_ns=start, end_ns=end, found=Found())


@SETTINGS
@given(cases(), st.integers(0, 1000))
def test_the_graph_of_a_measured_step_gives_its_times(
    case: tuple[Program, Costs], seed: int
) -> None:
    line = measured(replay(*case), seed)
    told = Explained(line)
    assert told.measured
    work = work_of(line)
    done = engine.run(work)
    steps = len(line.program)
    assert (done.start[:steps], done.end[:steps]) == (line.start_ns, line.end_ns)
    assert sum(piece.ns for piece in told.path()) == line.makespan_ns
    for gap in told.gaps():
        assert sum(piece.ns for piece in gap.chain) == gap.ns
    for change in told.what_if.changes():
        assert told.what_if.makespan(change) == told.what_if.replayed(change), change


@pytest.mark.parametrize(
    ("late", "waits"),
    [
        (["F1"], "rank 0, action 2: 0B1 waits for rank 0, action 3: 0F1"),
        # F1 of rank 0 after B0, which needs that of rank 1, which there comes after F1.
        (["F1", "B1"], "rank 1, action 1: 1F1 waits for rank 0, action 2: 0F1"),
    ],
)
def test_an_order_that_cannot_be_is_refused(tmp_path: Path, late: list[str], waits: str) -> None:
    write(replay(compile("gpipe", 2, 2, communication=False), Costs()), tmp_path / "a.json")
    trace = json.loads((tmp_path / "a.json").read_text())
    tiles = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["args"].get("rank") == 0]
    assert [tile["name"] for tile in tiles] == ["F0", "F1", "BP0", "BP1"]
    for tile in tiles:
        if tile["name"].replace("BP", "B") in late:
            tile["ts"] += 1_000_000
    (tmp_path / "b.json").write_text(json.dumps(trace))
    told = refusal("explain", tmp_path / "b.json")
    assert told.startswith("gpipe: its ranks cannot have run their actions in this order:")
    assert waits in told


def test_a_trace_that_was_predicted_is_known_as_such(tmp_path: Path) -> None:
    line = replay(compile("zbv", 2, 4, communication=False), Costs(alpha_us=50))
    write(line, tmp_path / "a.json")
    told = Explained(read(tmp_path / "a.json"))
    assert not told.measured
    assert told.path() == Explained(line).path()


# The command


def test_explain_draws_the_path_into_the_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("explain", "1f1b", "-p", 2, "-m", 2, "--alpha", 100, "-o", "e.json", "--json")
    assert done.stderr == "wrote e.json\n"
    told = json.loads(done.stdout)
    events = json.loads((tmp_path / "e.json").read_text())["traceEvents"]
    tracks = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    drawn = [e for e in events if e["ph"] == "X" and tracks[e["pid"], e["tid"]] == "critical path"]
    assert [(e["args"]["action"], e["ts"], e["dur"]) for e in drawn] == [
        (piece["action"], piece["start_us"], piece["end_us"] - piece["start_us"])
        for piece in told["critical_path"]
    ]
    assert [e["name"] for e in drawn] == [
        "F0", "transfer", "F0", "BP0", "F1", "BP1", "transfer", "BP1"
    ]  # fmt: skip
    assert sum(e["ph"] == "s" and e["name"] == "critical path" for e in events) == 2
    again = run("explain", "e.json", "--json")
    assert json.loads(again.stdout)["critical_path"] == told["critical_path"]


def test_explain_in_the_terminal() -> None:
    shown = run("explain", "1f1b", "-p", 2, "-m", 2, "--alpha", 100, "--top", 2, width=100).stdout
    assert shown.splitlines() == [
        "1f1b: predicted, makespan 9.200 ms, bubble ratio 34.78%",
        "critical path: 6 actions 9.000 ms, transfers 200.000 us; nothing that is not on it helps",
        "rank  from   to       waits     works",
        "   0   0F0  0F0              1.000 ms",
        "   1   1F0  1B1  100.000 us  6.000 ms",
        "   0   0B1  0B1  100.000 us  2.000 ms",
        "",
        "why ranks wait",
        "rank      idle   warm-up      wait     latency     drain",
        "   0  3.200 ms            3.000 ms  200.000 us          ",
        "   1  3.200 ms  1.100 ms                        2.100 ms",
        "",
        "the longest gaps, and what happened meanwhile",
        "rank 0, 2.200 ms before 0B0: 1F0 100.000 us, 1B0 2.000 ms, transfer 100.000 us",
        "rank 1, 2.100 ms at its end: transfer 100.000 us, 0B1 2.000 ms",
        "",
        "what would help, from slack",
        "what                                           buys  of the makespan",
        "the link of ranks 0 and 1 twice as fast  100.000 us           1.087%",
        "1 % off every backward                    60.000 us           0.652%",
    ]


def test_people_read_pairs_by_their_halves_and_programs_in_torchs_form() -> None:
    """The waits of DualPipeV on two ranks, from its figure at unit times with FB = 3."""
    told = ("dualpipev", "-p", 2, "-m", 6)
    shown = run("explain", *told).stdout
    assert "rank 0, 1.000 ms before 3F2/0B0: 2F2/1B0 1.000 ms\n" in shown
    shown += run("run", "-s", *told, "--explain", "--no-trace").stdout
    assert "rank 0 at 10.000 ms: 1.000 ms  3F2/0B0 waits for 2F2 of rank 1\n" in shown
    assert "OVERLAP" not in shown
    data = json.loads(run("explain", *told, "--json").stdout)
    assert "(3F2;0B0)OVERLAP_F_B" in [gap["before"] for gap in data["gaps"]]


def test_refusals(tmp_path: Path) -> None:
    model = ("--model-layers", 8, "--hidden", 64, "--seq", 8, "--flops", 1)
    assert (
        refusal("explain", "x.json", *model)
        .splitlines()[-1]
        .endswith("x.json has times of its own; leave the model out")
    )


@pytest.mark.parametrize(
    "options",
    [
        ["moe-1f1b-bad-overlap", "-p", "2", "-m", "3"],
        ["1f1b", "-p", "3", "-m", "4", "--alpha", "500", "--p2p", "blocking"],
        ["zb-h2", "-p", "3", "-m", "5", "--steps", "2", "--optimizer", "100"],
    ],
    ids=lambda options: options[0],
)
def test_the_path_of_run_is_as_long_as_the_step(options):
    told = json.loads(run("run", "--json", "--no-trace", "-s", *options).stdout)
    path = told["critical_path"]
    assert path[0]["start_us"] == 0
    assert [piece["end_us"] for piece in path[:-1]] == [piece["start_us"] for piece in path[1:]]
    assert path[-1]["end_us"] == told["makespan_us"]


def test_a_measured_trace_has_no_barriers_read_from_its_file(tmp_path: Path) -> None:
    profiles = Path(__file__).parent.parent / "examples" / "profiles" / "dualpipev"
    assert run("import", profiles, "-o", tmp_path / "run.json").exit_code == 0
    told = run("explain", tmp_path / "run.json", width=100).stdout
    assert "  between  " in told
    assert "barrier" not in told
