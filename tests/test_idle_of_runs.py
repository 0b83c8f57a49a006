"""Idle time of a run whose waits are known: explained alike, however it is read.

Two ranks run 1F1B with three microbatches, a forward in 100 us and a backward in 200. Rank 1 sleeps
from 750 to 1050, rank 0 from 625 to 665; what happens besides stands beside each time.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from command import run

from tests import profiles_made as made
from tests.perfetto import processor
from tests.profiles_made import info, write
from tracegen import Timeline, attribution, compile, emit, metrics, read
from tracegen.analysis.explain import Explained
from tracegen.analysis.what_if import WhatIf
from tracegen.attribution import Cause
from tracegen.blame import blockers, causes
from tracegen.execute.measure import measured
from tracegen.execute.outcome import Offset, Outcome, StepTimes
from tracegen.ir import Stream, parse

# By rank: action, when its rank came to its receive (-1: none, or not known), start and end, in us.
STEPS = (
    (
        ("0F0", -1, 0, 100),
        ("0F1", -1, 100, 200),
        ("0B0", 205, 425, 625),  # made at 410: 210 of waiting, 15 on its way
        ("0F2", -1, 665, 765),  # it slept
        ("0B1", 770, 775, 975),  # made at 750, while 0F2 ran: 5 of its own, 5 in the receive
        ("0B2", 980, 1361, 1561),  # made at 1351: 376 of waiting, 10 on its way
    ),
    (
        ("1F0", 0, 110, 210),
        ("1B0", -1, 210, 410),
        ("1F1", 420, 450, 550),  # made at 200: 10 of its own, 30 in the receive
        ("1B1", -1, 550, 750),
        ("1F2", 1050, 1051, 1151),  # made at 765; it slept until 1050
        ("1B2", -1, 1151, 1351),
    ),
)
IDLE = [
    {"wait": 586, "latency": 30, "between": 45},
    {"warm-up": 110, "latency": 30, "between": 311, "drain": 210},
]
# Where only the tiles are known, a result that is late was on its way until the rank went on.
BY_TILES = [
    {"wait": 586, "latency": 25, "between": 50},
    {"warm-up": 110, "wait": 15, "latency": 286, "between": 40, "drain": 210},
]


def totals(line: Timeline) -> list[dict[str, int]]:
    found = [attribution.totals(line, rank) for rank in range(line.program.num_ranks)]
    return [{str(cause): ns // 1000 for cause, ns in one.items()} for one in found]


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The run as torch.profiler would have it, with an annotation on each kernel."""
    for rank, steps in enumerate(STEPS):
        spans = []
        for action, began, start, end in steps:
            if began >= 0:
                received = action.replace("F", "RECV_F").replace("B", "RECV_B")
                spans.append(("nccl_recv", f"PP:{received}", began, start))
            spans.append(("gemm", f"PP:{action}", start, end))
        events = []
        for node, (kernel, name, start, end) in enumerate(spans):
            event, _ = made._kernel(kernel, 40 + node, start, end, 9, True)
            event["args"] |= {"name": name, "graph node id": node + 1}
            events.append(event)
        about = info(rank, 2, {"mesh_pp": [0, 1]})
        path = tmp_path / "run" / f"rank{rank}.json"
        path.parent.mkdir(exist_ok=True)
        write(path, events, host_name="n", **about)
    return tmp_path / "run"


def of_another_tool(path: Path, name: str) -> Path:
    """The run as slices whose names say what they are, and nothing else does."""
    events = [
        {
            "ph": "X",
            "pid": 0,
            "tid": rank,
            "ts": start,
            "dur": end - start,
            "name": name.format(stage=action[0], op=action[1], mb=action[2]),
        }
        for rank, steps in enumerate(STEPS)
        for action, _, start, end in steps
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def causes_shown(*args: object) -> list[str]:
    """The table of causes of a command."""
    found = run(*args, width=120)
    assert found.exit_code == 0, found.output
    return found.stdout.partition("why ranks wait\n")[2].partition("\n\n")[0].rstrip().splitlines()


def test_the_idle_time_of_a_profile_is_what_was_planted(profile: Path) -> None:
    line = read(profile)
    assert totals(line) == IDLE
    assert [one for rank in (0, 1) for one in attribution.idle(line, rank) if one.at == "1F2"] == [
        attribution.Part(750_000, 1_051_000, Cause.BETWEEN, "1F2")
    ]
    spent = Counter(part.cause for part in attribution.idle(line, 0) if part.at == "0B1")
    assert spent == {Cause.BETWEEN: 1, Cause.LATENCY: 1}


def test_every_command_explains_it_alike(profile: Path, tmp_path: Path) -> None:
    traces = [tmp_path / "a.json", tmp_path / "b.pftrace", tmp_path / "c.json", tmp_path / "d.json"]
    told = causes_shown("import", profile, "-o", traces[0])
    assert len(told) == 3
    emit.write(read(profile), traces[1])
    assert run("explain", profile, "-o", traces[2]).exit_code == 0
    assert run("explain", traces[0], "-o", traces[3]).exit_code == 0
    shown = run("show", profile).stdout
    whole = run("explain", profile).stdout
    for trace in traces:
        assert totals(read(trace)) == IDLE
        assert causes_shown("explain", trace) == told
        assert causes_shown("import", trace, "-o", tmp_path / "again.json") == told
        assert run("explain", trace).stdout == whole
        assert run("show", trace).stdout == shown
        assert run("check", trace).exit_code == run("check", profile).exit_code == 0
    for trace in traces[:2]:  # the others have rows of their own
        done = run("diff", profile, trace)
        assert done.exit_code == 0, done.output
    assert causes_shown("explain", profile) == told


def test_stats_blame_what_the_others_blame(profile: Path, tmp_path: Path) -> None:
    processor.require_processor()
    assert run("import", profile, "-o", tmp_path / "a.json").exit_code == 0
    found = json.loads(run("stats", tmp_path / "a.json", "--json").stdout)
    assert [row["idle"] for row in found["ranks"]] == [661_000, 661_000]
    waits = {(row["rank"], row["wait"], row["waited_for"]) for row in found["waits"]}
    assert waits == {
        (0, 225_000, "1B0"),
        (0, 40_000, None),
        (0, 10_000, "1B1"),
        (0, 386_000, "1B2"),
        (1, 110_000, "0F0"),
        (1, 40_000, "0F1"),
        (1, 301_000, None),
    }


@pytest.mark.parametrize("recorded", [True, False])
def test_an_execution_is_explained_as_its_profile_is(recorded: bool) -> None:
    program = compile("1f1b", 2, 3, communication=False)
    times = []
    for steps in STEPS:
        actions = Stream.of(parse(action) for action, *_ in steps)
        of_rank = [
            array("q", [ns if ns < 0 else 1000 * ns for ns in one])
            for one in list(zip(*steps, strict=True))[1:]
        ]
        times.append(StepTimes(actions.codes, actions.mates, *of_rank, 0))
    about = {"recorded": "here"} if recorded else {}
    line = measured(program, Outcome([times], [Offset()] * 2, None, 0, None, about)).line
    assert totals(line) == IDLE


@pytest.mark.parametrize("name", ["{stage}{op}{mb}", "{op}_{stage},{mb}"])
def test_a_trace_of_another_tool_has_no_barriers(name: str, tmp_path: Path) -> None:
    trace = of_another_tool(tmp_path / "theirs.json", name)
    assert totals(read(trace)) == BY_TILES
    told = causes_shown("import", trace, "-o", tmp_path / "a.json")
    assert "barrier" not in told[0]
    assert causes_shown("explain", trace) == told
    assert causes_shown("explain", tmp_path / "a.json") == told


def test_the_same_by_a_pattern(tmp_path: Path) -> None:
    trace = of_another_tool(tmp_path / "theirs.json", "stage {stage}: {op} of {mb}")
    pattern = r"stage (?P<stage>\d+): (?P<op>\w) of (?P<mb>\d+)"
    assert totals(read(trace, pattern)) == BY_TILES
    told = causes_shown("import", trace, "--name-pattern", pattern, "-o", tmp_path / "a.json")
    assert causes_shown("explain", tmp_path / "a.json") == told
    refused = run("show", trace)
    assert refused.exit_code == 2
    assert "`tracegen import --name-pattern`" in refused.stderr


def test_the_chains_and_the_path_say_the_same(profile: Path) -> None:
    line = read(profile)
    told = Explained(line)
    gaps = {gap.before: gap for gap in told.gaps()}
    pieces = [(piece.action, piece.ns // 1000) for piece in gaps["1F1"].chain]
    assert pieces == [("between", 10), ("transfer", 30)]
    assert [piece.action for piece in gaps["1F2"].chain] == ["between"]
    path = told.path()
    assert sum(piece.ns for piece in path) == line.makespan_ns
    steps = [piece.step for piece in path if piece.step >= 0]
    assert list(metrics.critical_path(line)) == steps
    assert " ".join(piece.action for piece in path) == (
        "0F0 transfer 1F0 1B0 between transfer 1F1 1B1 between 1F2 1B2 transfer 0B2"
    )
    what_if = WhatIf(line, measured=True)
    assert what_if.graph is not None
    assert what_if.graph.makespan == line.makespan_ns
    for change in what_if.changes():
        assert what_if.makespan(change) == what_if.replayed(change)


def test_a_pair_that_waits_inside_is_not_held_by_what_comes_later() -> None:
    """1F1 and 0's B0 as one: torch's runtime takes the forward's input first."""
    rows = ("0F0 0F1 0F2 0B0 0B1 0B2", "1F0 (1F1;1B0)OVERLAP_F_B 1F2 1B1 1B2")
    program = compile("gpipe", 2, 3, communication=False)
    streams = tuple(Stream.of(map(parse, row.split())) for row in rows)
    program = replace(program, ranks=streams, recipe={})
    start = [0, 100, 200, 700, 900, 1100, 110, 260, 560, 660, 860]
    end = [100, 200, 300, 900, 1100, 1300, 210, 560, 660, 860, 1060]
    for inside in (True, False):
        found = blockers(program, start, end, pairs_wait_inside=inside)
        assert found[7] == -1  # 0F1 was there before the rank was free
    waiting = [-1] * 11
    waiting[7] = 215
    assert blockers(program, start, end, waiting, True)[7] == 1
    waiting[7] = 250
    assert blockers(program, start, end, waiting, True)[7] == -1


def test_what_came_before_the_rank_was_free_is_no_cause(profile: Path) -> None:
    line = read(profile)
    at = {str(step): n for n, step in enumerate(s for r in line.program.ranks for s in r)}
    assert line.blocker[at["1F1"]] == at["0F1"]
    assert causes(line)[at["1F1"]] == -1
    assert causes(line)[at["0B2"]] == at["1B2"]
