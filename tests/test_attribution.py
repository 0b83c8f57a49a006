"""Idle time in parts: they add up, they name the cause, and the trace shows them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from strategies import programs
from test_blocking import HALF, assert_sums, built, compiled, run
from test_steps import as_costs, numbers

from tests.perfetto import processor
from tracegen import attribution, emit, layout_more
from tracegen.attribution import Cause
from tracegen.cli import main
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.ir import Program, Stream, parse
from tracegen.moe import MoE
from tracegen.order import loop
from tracegen.timeline import Timeline

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)


def parts(line: Timeline, rank: int) -> list[tuple[str, float, float, str, str, int]]:
    return [
        (one.cause.value, one.start_ns / 1000, one.end_ns / 1000, one.at, one.on, one.rank)
        for one in attribution.idle(line, rank)
    ]


def test_the_parts_of_1f1b() -> None:
    """F = 1, B = 2, 0.5 between two ranks: F0 0-1, F0 1.5-2.5, B0 2.5-4.5, B0 5-7, and again."""
    line = replay(compiled("1f1b", 2, 2), HALF)
    # Rank 0 does F0, F1 and waits for B0 of rank 1, made at 4.5, which is half a us on its way.
    assert parts(line, 0) == [
        ("wait", 2, 4.5, "0B0", "1B0", 1),
        ("latency", 4.5, 5, "0B0", "1B0", 1),
        ("wait", 7, 7.5, "0B1", "1B1", 1),
        ("latency", 7.5, 8, "0B1", "1B1", 1),
    ]
    assert parts(line, 1) == [
        ("warm-up", 0, 1.5, "1F0", "0F0", 0),
        ("drain", 7.5, 10, "", "", -1),
    ]


def test_the_parts_of_a_transfer() -> None:
    """Rank 0 makes 1F0 of two chains' worth at 1 and at 2; its link takes 3 us for each.

    F0 0-1, on the link 1-4, there at 4.5; F1 1-2, waits for the link until 4, on it 4-7, there
    at 7.5. Rank 1 does F0 4.5-5.5 and waits two us for F1: the link was another's until 4, before
    it began to wait; 1.5 of bytes, 0.5 of latency.
    """
    costs = Costs(f_us=1, b_us=2, alpha_us=0.5, bandwidth_GBps=1, boundary_bytes=3000)
    line = replay(built(2, "0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"), costs)
    assert parts(line, 1)[:3] == [
        ("warm-up", 0, 4.5, "1F0", "0F0", 0),
        ("bandwidth", 5.5, 7, "1F1", "0F1", 0),
        ("latency", 7, 7.5, "1F1", "0F1", 0),
    ]
    # Back: B0 8.5-10.5 and B1 10.5-12.5 on rank 1; B0's gradient is on the link 10.5-13.5,
    # B1's, made at 12.5, queues until then and arrives at 17.
    assert parts(line, 0) == [
        ("wait", 2, 10.5, "0B0", "1B0", 1),
        ("bandwidth", 10.5, 13.5, "0B0", "1B0", 1),
        ("latency", 13.5, 14, "0B0", "1B0", 1),
        ("bandwidth", 16, 16.5, "0B1", "1B1", 1),
        ("latency", 16.5, 17, "0B1", "1B1", 1),
    ]


def test_a_rank_that_waits_for_the_link() -> None:
    """As above with nothing to do on rank 1 while F1 queues: F0 takes none of its time.

    F0 of rank 0 is there at 4.5, of F1 the bytes move from 4 to 7. With F = 0.1 on stage 1 the
    rank has waited since 4.6. F2, made at 3, queues until 7: rank 1 waits since 7.6.
    """
    costs = Costs(f_us=[1, 0.1], b_us=2, alpha_us=0.5, bandwidth_GBps=1, boundary_bytes=3000)
    line = replay(compiled("gpipe", 2, 3), costs)
    assert parts(line, 1)[1:4] == [
        ("bandwidth", 4.6, 7, "1F1", "0F1", 0),
        ("latency", 7, 7.5, "1F1", "0F1", 0),
        ("bandwidth", 7.6, 10, "1F2", "0F2", 0),
    ]


def test_a_transfer_that_queues() -> None:
    """Two ranks of two stages, forwards alone. 9 us for what stage 0 hands over, 0 for the rest.

    0F0 0-1, on the link 1-10; 0F1 1-2, on it 10-19. 1F0 10-11, there at once, 2F0 11-12. For that
    rank 1 waits: until 12 for 2F0, until 19 for the link, which 0F1's bytes have.
    """
    rows = ("0F0 0F1 2F0 2F1", "1F0 3F0 1F1 3F1")
    streams = tuple(Stream.of(map(parse, row.split())) for row in rows)
    program = Program("mine", 2, loop(2, 2), streams)
    line = replay(program, Costs(f_us=1, bandwidth_GBps=1, boundary_bytes=[9000, 0, 0]))
    assert parts(line, 1)[:3] == [
        ("warm-up", 0, 10, "1F0", "0F0", 0),
        ("wait", 11, 12, "3F0", "2F0", 0),
        ("queue", 12, 19, "3F0", "2F0", 0),
    ]


@given(program=programs(max_ranks=4, max_microbatches=4), n=numbers)
@SETTINGS
def test_the_parts_add_up(program: Program, n: dict[str, Any]) -> None:
    p2p = "blocking" if n["blocking"] else "async"
    line = replay(program, as_costs(program, n), p2p=p2p, steps=n["steps"], sync=n["sync"])
    assert_sums(line)
    plain = replay(program, Costs(f_us=n["f"], b_us=n["i"], alpha_us=n["alpha"]))
    assert_sums(plain)


@pytest.mark.parametrize("block", ["none", "lockstep", "pair", "dualpipe"])
@pytest.mark.parametrize("name", ["dualpipe", "moe-1f1b-overlap", "zbv"])
def test_the_parts_add_up_beside_kernels(name: str, block: str) -> None:
    moe = MoE(layers=2, block=block, comm_sm_share=0.1)
    line = replay(compiled(name, 4, 8), Costs(moe=moe, alpha_us=30), steps=2)
    for rank in range(4):
        found = attribution.totals(line, rank)
        assert sum(found.values()) == line.idle_ns[rank]
        assert found[Cause.EXPOSED] == line.exposed_ns[rank]


def test_sums_barriers_and_the_optimizer() -> None:
    """Two ranks, F = 1, B = 2, sums of 3, the optimizer 4, a barrier: see test_steps."""
    costs = Costs(f_us=1, b_us=2, grad_sync_us=3, optimizer_us=4)
    line = replay(compiled("1f1b", 2, 1), costs, steps=2, sync=True)
    assert parts(line, 1)[:4] == [
        ("warm-up", 0, 1, "1F0", "0F0", 0),
        ("gradients", 4, 7, "1REDUCE_GRAD", "", -1),
        ("barrier", 7, 9, "1OPTIMIZER", "", -1),
        ("wait", 13, 14, "1F0", "0F0", 0),
    ]
    # Rank 1 has optimized at 7, rank 0, whose optimizer takes 4, at 10: then the next step begins.
    unequal = Costs(f_us=1, b_us=2, optimizer_us=[4, 1])
    line = replay(compiled("1f1b", 2, 1), unequal, steps=2, sync=True)
    assert parts(line, 1)[1:4] == [
        ("barrier", 4, 6, "1OPTIMIZER", "", -1),
        ("wait", 7, 11, "1F0", "0F0", 0),
        ("barrier", 14, 16, "1OPTIMIZER", "", -1),
    ]


ROWS = [
    "1f1b -p 4 -m 8 --alpha 100",
    "1f1b -p 4 -m 8 --alpha 100 --p2p blocking --steps 2 --optimizer 300 --grad-sync 200",
    "dualpipe -p 4 -m 8 --bandwidth 1 --bytes 1e6 --sync --replica-sync 50",
    "zbv -p 3 -m 6 --dispatch dynamic --slow 1=1.5",
    "moe-1f1b-overlap -p 2 -m 4",
]


@pytest.mark.parametrize("request_", ROWS)
def test_the_bubble_row_adds_up_in_perfetto(tmp_path: Path, request_: str) -> None:
    """In the real importer: nothing dropped, each rank's slices sum to its idle time."""
    trace = tmp_path / "trace.json"
    done = run("-s", *request_.split(), "--bubble-row", "--links", "--json", "-o", str(trace))
    assert done.exit_code == 0
    idle = [round(us * 1000) for us in json.loads(done.stdout)["idle_us"]]
    busy = [round(us * 1000) for us in json.loads(done.stdout)["busy_us"]]
    assert processor.import_problems(trace) == []
    found, tiles = [0] * len(idle), [0] * len(busy)
    for slice_ in processor.slices(trace):
        assert slice_["depth"] == 0
        if slice_["group_name"] == "bubbles":
            found[slice_["args"]["rank"]] += slice_["dur"]
        if slice_["group_name"] == "pipeline" and slice_["args"].get("op") in (
            *"FBIW",
            "OPTIMIZER",
        ):
            tiles[slice_["args"]["rank"]] += slice_["dur"]
    assert found == idle
    if "moe" not in request_:
        assert tiles == busy


def test_stats_count_compute_only(tmp_path: Path) -> None:
    """`tracegen stats` of a blocking trace: a SEND is no busy time, and the makespan has it."""
    trace = tmp_path / "trace.json"
    text = "-s 1f1b -p 2 -m 2 --f 1 --b 2 --alpha 0.5 --p2p blocking"
    assert run(*text.split(), "-o", str(trace)).exit_code == 0
    processor.require_processor()
    done = CliRunner().invoke(main, ["stats", str(trace), "--json"])
    assert done.exit_code == 0, done.output
    ranks = json.loads(done.stdout)["ranks"]
    assert [row["busy"] for row in ranks] == [6000, 6000]
    assert [row["idle"] for row in ranks] == [5000, 5000]


def test_links_have_rows_where_transfers_take_time(tmp_path: Path) -> None:
    costs = Costs(f_us=1, b_us=2, alpha_us=0.5)
    line = replay(compiled("1f1b", 2, 2), costs)
    target = tmp_path / "trace.json"
    emit.write(tracegen_with(line, ["links"]), target)
    events = json.loads(target.read_text())["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["rank 0", "rank 1", "rank 0 to 1", "rank 1 to 0"]
    moved = [(e["name"], e["ts"], e["dur"]) for e in events if e.get("cat") == "transfer"]
    assert moved == [("F0", 1, 0.5), ("F1", 2, 0.5), ("BP0", 4.5, 0.5), ("BP1", 7.5, 0.5)]
    emit.write(tracegen_with(replay(compiled("1f1b", 2, 2)), ["links"]), target)
    assert "links" not in target.read_text().partition("traceEvents")[2]


def test_transfers_on_their_way_at_once_have_rows_of_their_own() -> None:
    line = replay(compiled("gpipe", 2, 3), Costs(f_us=1, b_us=2, alpha_us=2.5))
    assert [row.name for row in layout_more.links(line)] == [
        "rank 0 to 1",
        "rank 0 to 1 (2)",
        "rank 0 to 1 (3)",
        "rank 1 to 0",
        "rank 1 to 0 (2)",
    ]


def tracegen_with(line: Timeline, rows: list[str]) -> Timeline:
    return replace(line, config={**line.config, "rows": rows})


def test_explain_prints_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # a sentence is a line, also where it is narrow
    text = "-s 1f1b -p 2 -m 2 --f 1 --b 2 --alpha 0.5 --no-trace --explain"
    done = run(*text.split())
    assert done.stdout[done.stdout.index("why ranks wait") :] == (
        "why ranks wait\n"
        "rank      idle   warm-up      wait   latency     drain\n"
        "   0  4.000 us            3.000 us  1.000 us          \n"
        "   1  4.000 us  1.500 us                      2.500 us\n"
        "\n"
        "the longest, but for warm-up and drain\n"
        "rank 0 at 2.000 us: 2.500 us  0B0 waits for 1B0 of rank 1\n"
        "rank 0 at 4.500 us: 500 ns  0B0 waits for the transfer of 1B0 of rank 1: latency\n"
        "rank 0 at 7.000 us: 500 ns  0B1 waits for 1B1 of rank 1\n"
        "rank 0 at 7.500 us: 500 ns  0B1 waits for the transfer of 1B1 of rank 1: latency\n"
    )
    monkeypatch.setenv("COLUMNS", "40")  # what has no room stands below
    done = run(*text.split())
    assert done.stdout[done.stdout.index("rank     busy") :].partition("\nthe longest")[0] == (
        "rank     busy     idle    input   weight\n"
        "   0 6.000 us 4.000 us        2        2\n"
        "   1 6.000 us 4.000 us        1        1\n"
        "peaks are in stage activations\n"
        "\n"
        "why ranks wait\n"
        "rank     idle  warm-up     wait  latency\n"
        "   0 4.000 us          3.000 us 1.000 us\n"
        "   1 4.000 us 1.500 us                  \n"
        "rank    drain\n"
        "   0         \n"
        "   1 2.500 us\n"
    )
    whole = json.loads(run(*text.split(), "--json").stdout)
    assert whole["idle_parts"][1][0] == {
        "cause": "warm-up",
        "start_us": 0.0,
        "end_us": 1.5,
        "at": "1F0",
        "waits_for": "0F0",
        "of_rank": 0,
    }
