"""Chrome traces as found: tracegen's own come back equal, others are read or refused."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from command import run
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import programs

import tracegen
from tracegen import drawn, registry
from tracegen.ir import Program
from tracegen.moe import MoE
from tracegen.readers.chrome import read_any
from tracegen.readers.warn import Warnings

ODD = Path(__file__).parent / "data" / "odd_traces" / "json"
TRACE = '{"traceEvents":[...]}'

Costs = tracegen.Costs
COSTS = {
    "default": Costs(),
    "uneven": Costs(f_us=1000, i_us=1.5, w_us=700.125, alpha_us=3.217),
    "no weight": Costs(w_us=0, alpha_us=2),
    "no input": Costs(i_us=0, w_us=2, activation_bytes=1e6, w_share=0.25),
    "bandwidth": Costs(bandwidth_GBps=1, boundary_bytes=1e6, alpha_us=1),
    "jitter": Costs(jitter=0.1, seed=7, stage={1: {"f_us": 1300}}),
}
COMPUTE = ["attn_f_us", "mlp_f_us", "attn_b_us", "mlp_b_us", "attn_wgrad_us", "mlp_wgrad_us"]
COMMUNICATION = ["disp_f_us", "comb_f_us", "disp_b_us", "comb_b_us"]
MOE = MoE(**dict.fromkeys(COMPUTE, 100.0), **dict.fromkeys(COMMUNICATION, 40.0))


def slice_(name: str, ts: object, dur: object = 1, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 0, **more}


def written(tmp_path: Path, events: object) -> Path:
    """A trace file of that text, or of those events."""
    path = tmp_path / "trace.json"
    text = events if isinstance(events, str) else json.dumps(events)
    path.write_text(text, encoding="utf-8")
    return path


def rows(line: tracegen.Timeline) -> dict[str, list[tuple[str, int, int]]]:
    """The rows beside the ranks': thread -> (name, start, end) of its slices, in ns."""
    assert line.found is not None
    return {
        row.name: list(zip(row.labels, row.start_ns, row.end_ns, strict=True))
        for row in line.found.rows
    }


def said(line: tracegen.Timeline) -> list[str]:
    assert line.found is not None
    return line.found.warnings


def unequal(line: tracegen.Timeline, again: tracegen.Timeline) -> list[str]:
    """The fields in which two timelines differ."""
    names = [f.name for f in fields(line) if f.compare]
    return [name for name in names if getattr(line, name) != getattr(again, name)]


def assert_comes_back(line: tracegen.Timeline, path: Path) -> None:
    tracegen.write(line, path)
    again = tracegen.read(path)
    assert unequal(line, again) == []
    assert said(again) == []
    assert again.program.recipe == line.program.recipe
    assert list(drawn.arrows(again)) == list(drawn.arrows(line))
    assert drawn.counters(again) == drawn.counters(line)


@pytest.mark.parametrize("name", registry.shipped())
@pytest.mark.parametrize("costs", COSTS)
def test_own_trace_comes_back_equal(name: str, costs: str, tmp_path: Path) -> None:
    program = tracegen.compile(name)
    assert_comes_back(tracegen.replay(program, COSTS[costs]), tmp_path / "a.json.gz")


@pytest.mark.parametrize(
    "mode",
    [
        {"p2p": "blocking"},
        {"p2p": "blocking", "p2p_order": "fused"},
        {"steps": 3},
        {"steps": 2, "sync": True},
        {"dispatch": "dynamic"},
    ],
    ids=str,
)
def test_own_trace_of_another_mode_comes_back_equal(mode: dict[str, Any], tmp_path: Path) -> None:
    program = tracegen.compile("1f1b", 4, 8)
    costs = Costs(alpha_us=10, optimizer_us=50, grad_sync_us=20)
    assert_comes_back(tracegen.replay(program, costs, **mode), tmp_path / "a.json")


def test_own_trace_with_kernels_comes_back_equal(tmp_path: Path) -> None:
    line = tracegen.replay(tracegen.compile("dualpipev", 4, 10), Costs(moe=MOE))
    assert_comes_back(line, tmp_path / "a.json")


@given(programs(), st.sampled_from(list(COSTS)))
@settings(max_examples=60, deadline=None)
def test_any_program_comes_back_equal(
    tmp_path_factory: pytest.TempPathFactory, program: Program, costs: str
) -> None:
    if costs == "jitter" and program.num_stages < 2:
        costs = "default"
    path = tmp_path_factory.mktemp("any") / "a.json"
    assert_comes_back(tracegen.replay(program, COSTS[costs]), path)


def test_what_was_read_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in registry.shipped():
        line = tracegen.replay(tracegen.compile(name), COSTS["no weight"])
        a, b = tmp_path / "a.json", tmp_path / "b.json"
        tracegen.write(line, a)
        tracegen.write(tracegen.read(a), b)
        assert a.read_bytes() == b.read_bytes()


T11, T21 = "process 1 / thread 1", "process 2 / thread 1"
A2, B3 = ("A", 0, 1000), ("B", 2000, 3000)
READ: dict[str, tuple[dict[str, list[tuple[str, int, int]]], list[str]]] = {
    "01_overlap_x": (
        {T11: [("A", 3000, 6776), ("B", 5000, 7000)]},
        [
            f"{T11}: 'A' (3.000 to 6.776 us) and 'B' (5.000 to 7.000 us) cross: one begins inside "
            "the other and ends outside; both are kept"
        ],
    ),
    "02_overlap_be": (
        {T11: [("A", 0, 10000), ("B", 5000, 15000)]},
        [
            f"{T11}: 'A' (0.000 to 10.000 us) and 'B' (5.000 to 15.000 us) cross: one begins "
            "inside the other and ends outside; both are kept"
        ],
    ),
    "04_float_touch": ({T11: [("A", 100, 300), ("B", 300, 400), ("C", 400, 500)]}, []),
    "05_nested_same_start": ({T11: [("parent", 0, 10000), ("child", 0, 5000)]}, []),
    "06_ts_strings": ({T11: [("A", 10000, 15500)]}, []),
    "08_tid0": (
        {
            "process 0 / thread 0": [("r0t0", 0, 5000)],
            "process 0 / thread 1": [("r0t1", 0, 5000)],
            "process 1 / thread 0": [("r1t0", 0, 5000)],
            T11: [("r1t1", 3000, 8000)],
            "process 2 / thread 0": [("r2t0", 0, 5000)],
            "process 2 / thread 2": [("r2t2", 3000, 8000)],
        },
        [],
    ),
    "10_tid_over32": (
        {
            "process 1 / thread 7168000000": [("A", 0, 5000)],
            "process 1 / thread 7168000001": [("B", 3000, 8000)],
        },
        [],
    ),
    "12_sort_idx_str": ({T11: [("A", 0, 5000)]}, []),
    "40_no_dur": (
        {T11: [("B", 5000, 6000)]},
        ["event 0: 'A' has no dur: it is unfinished, and left out"],
    ),
    "42_neg_ts": (
        {T11: [("A", 0, 2000), ("B", 11000, 12000)]},
        ["its times begin at -5.000 us; they are counted from there"],
    ),
    "43_zero_dur_same": ({T11: [("C", 5000, 8000), ("A", 5000, 5000), ("B", 5000, 5000)]}, []),
    "44_unmatched": (
        {T11: [("B", 6000, 7000)]},
        [
            f"event 0: B begins 'A' on {T11} and no E ends it: it is unfinished, and left out",
            "event 1: E ends 'Z' on process 1 / thread 2, where no such slice is open; it is left "
            "out",
        ],
    ),
    "51_bare_array": ({T11: [A2, B3]}, []),
    "52_bare_array_noclose": (
        {T11: [A2, B3]},
        ["the file is cut off: its closing bracket is missing"],
    ),
    "53_bare_array_trailing_comma": (
        {T11: [A2, B3]},
        ["the file is cut off: its closing bracket is missing"],
    ),
    "55_dict_noclose": (
        {T11: [A2, B3]},
        [
            "the file is cut off: its closing bracket is missing",
            "the file is cut off: its last closing brace is missing",
        ],
    ),
    "57_dict_trailing_comma": ({T11: [A2, B3]}, []),
    "60_meta_before": ({T11: [A2, B3]}, []),
    "61_bom": ({T11: [A2, B3]}, []),
    "68_empty_events": ({}, []),
    "72_bad_utf8": (
        {T11: [("a\ufffd\ufffdb", 0, 1000)]},
        ["byte 26 is not UTF-8; such bytes are shown as \ufffd"],
    ),
    "75_unicode": ({T11: [("\u524d\u5411 0 \u2192 \u0416 \U0001f680", 0, 1000)]}, []),
    "78_ns_unit": ({T11: [("A", 1_000_000, 1_500_000)]}, []),
    "81_unsorted": ({T11: [("P", 0, 10000), ("A", 0, 1000), ("B", 5000, 6000)]}, []),
    "82_counter_ok": ({T11: [("A", 0, 5000)]}, []),
    "83_counter_multi": ({}, []),
    "95_slices_1ns": (
        {T11: [("A", 0, 1001), ("B", 1000, 2000)]},
        [
            f"{T11}: 'A' (0.000 to 1.001 us) and 'B' (1.000 to 2.000 us) cross: one begins inside "
            "the other and ends outside; both are kept"
        ],
    ),
}
REFUSED = {
    "48_nan": "event 0: ts is nan; expected a finite number of microseconds",
    "50_inf": "event 0: dur is inf; expected a finite number of microseconds",
    "67_empty": f"it is empty; expected a Chrome trace, {TRACE} or an array of events",
}
ARROWS: dict[str, tuple[list[tuple[str, str, str]], list[str]]] = {
    "21_flow_hexstr": ([(f"{T11}: A", f"{T21}: B", "dep")], []),
    "22_flow_nonhexstr": ([(f"{T11}: A", f"{T21}: B", "dep")], []),
    "23_flow_dupid": (
        [(f"{T11}: A", f"{T21}: B", "dep"), (f"{T11}: C", f"{T21}: D", "dep")],
        ["event 6: the flow 'dep', id 1, uses an id again; the next end belongs to it"],
    ),
    "25_flow_nobp": (
        [(f"{T11}: A", f"{T21}: B2", "dep")],
        ["event 4: the flow 'dep', id 1, has no bp, so that it ends at the next slice, 'B2'"],
    ),
    "27_flow_diffname": (
        [],
        [
            "event 2: the flow 'a', id 1, has no end; no arrow is drawn",
            "event 3: the flow 'b', id 1, has no beginning before it; no arrow is drawn",
        ],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_odd_trace_is_read(name: str) -> None:
    line = read_any(ODD / f"{name}.json")
    assert (rows(line), said(line)) == READ[name]


def test_gzipped_odd_trace_is_read() -> None:
    assert rows(read_any(ODD / "65_gz.json.gz")) == {T11: [A2, B3]}


@pytest.mark.parametrize("name", ARROWS)
def test_odd_arrows_are_told_apart(name: str) -> None:
    found = read_any(ODD / f"{name}.json").found
    assert found is not None
    assert (found.other_arrows, found.warnings) == ARROWS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_odd_trace_is_refused(name: str) -> None:
    path = ODD / f"{name}.json"
    with pytest.raises(tracegen.TracegenError) as refusal:
        read_any(path)
    assert str(refusal.value) == f"{path}: {REFUSED[name]}"


def test_no_odd_trace_is_forgotten() -> None:
    known = {*READ, *REFUSED, *ARROWS, "65_gz"}
    assert {path.name.split(".")[0] for path in ODD.iterdir()} - {"README"} == known


def test_counters_of_one_and_of_two_values() -> None:
    for name, series in (
        ("82_counter_ok", [("process 1 / mem mb", [0, 5000], [1, 2])]),
        (
            "83_counter_multi",
            [
                ("process 1 / mem act", [0, 5000], [1, 2]),
                ("process 1 / mem w", [0, 5000], [2, 3]),
            ],
        ),
    ):
        counters = drawn.counters(read_any(ODD / f"{name}.json"))
        assert [(one.name, one.ns, one.values) for one in counters] == series


def test_a_trace_without_actions_is_refused_by_name(tmp_path: Path) -> None:
    path = written(tmp_path, [slice_("matmul", 0), slice_("copy", 3)])
    with pytest.raises(tracegen.TracegenError) as refusal:
        tracegen.read(path)
    assert str(refusal.value) == (
        f"{path}: it holds 2 slices, such as 'matmul' on process 0 / thread 0, and none says which "
        "action it is; expected args stage, op and microbatch, names like 2F0, or `tracegen import "
        "--name-pattern`"
    )


REFUSALS = {
    "5": "it begins with '5'; expected a Chrome trace, " + TRACE + " or an array of events",
    "  \n": "it is empty; expected a Chrome trace, " + TRACE + " or an array of events",
    '{"a":1}': "it has no traceEvents; expected a Chrome trace, "
    + TRACE
    + " or an array of events",
    '{"traceEvents":5}': "traceEvents is no list: '5}'; expected a Chrome trace, "
    + TRACE
    + " or an array of events",
    '{"traceEvents":[],"traceEvents":[]}': "traceEvents is there twice; keep the one that is meant",
    '[{"ph":"X" "ts":1}]': "event 0, line 1, column 12: it is no JSON at '\"ts\":1}]': "
    "Expecting ',' delimiter",
    "[" * 100_000: "event 0, line 1, column 2: it is nested too deeply",
    '[{"ph":"X","ts":' + "9" * 5000 + "}]": "event 0, line 1, column 2: it is no JSON at "
    '\'{"ph":"X","t\': a number is too long',
    '[{"ph":"X","ts":"abc","dur":1}]': "event 0: ts is 'abc'; expected microseconds, a number",
    '[{"ph":"X","ts":true,"dur":1}]': "event 0: ts is True; expected microseconds, a number",
    '[{"ph":"X","ts":"NaN","dur":1}]': "event 0: ts is NaN; expected a finite number of "
    "microseconds",
    '[{"ph":"X","ts":1e300,"dur":1}]': "event 0: ts is 1e+300 us; a trace of more than 146 years "
    "is not read",
    '[{"ph":"C","name":"m","ts":1,"args":{"v":NaN}}]': "event 0: m v is nan; expected a finite "
    "number",
    '[{"ph":"X","ts":1,"dur":1,"pid":{}}]': "event 0: its ph, pid, tid, name or id is a list or an "
    "object; expected a number or text",
    '[{"ph":"X","ts":1,"dur":1,"pid":1.5}]': "event 0: pid is 1.5; expected a number or text",
    '[{"ph":"X","ts":0,"dur":1,"name":"0F5000000"}]': "a slice is of microbatch 5000000, in a "
    "trace of 1 actions; microbatches are numbered from 0 in each step",
}


@pytest.mark.parametrize("text", REFUSALS, ids=lambda text: text[:30])
def test_malformed_trace_is_refused(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(tracegen.TracegenError) as refusal:
        read_any(path)
    assert str(refusal.value) == f"{path}: {REFUSALS[text]}"


REMARKS = {
    '[5,{"ph":"X","name":"0F0","ts":0,"dur":1},"x",null,[]]': [
        "event 0 is a number, not an object",
        "event 2 is text, not an object",
        "event 4 is a list, not an object",
    ],
    '[{"ph":"X","name":"0F0","ts":0,"dur":1},{"ph":"Q"},{"ts":1}]': [
        "event 1 has ph 'Q', none of Chrome's",
        "event 2 has no ph; it is left out",
    ],
    '[{"ph":"X","name":"0F0","ts":1,"ts":0,"dur":1}]': [
        "event 0: it has 'ts' twice; the last one counts"
    ],
    '[{"ph":"X","name":"0F0","ts":0,"dur":1,"args":[1]}]': [
        "event 0: args is a list, no object; left out"
    ],
    '[{"ph":"X","name":"0F0","ts":0,"dur":1},{"ph":"X","name":"0F1","ts":3,"dur":-1}]': [
        "event 1: '0F1' has dur -1, less than 0: left out"
    ],
    '[{"ph":"X","name":"0F0","ts":0,"dur":1},{"ph":"X","name":"0F1","ts":3,"d': [
        "the file is cut off: event 1, line 1, column 41 is not complete; what comes before is "
        "read",
        "the file is cut off: its closing bracket is missing",
    ],
    '[{"ph":"X","name":"0F0","ts":0,"dur":1}] and more': [
        "line 1, column 42: what follows the trace is not looked at"
    ],
    '[{"ph":"X","name":"0F0","ts":0,"dur":1},{"ph":"s","name":"a","ts":0}]': [
        "event 1: the flow 'a' has no id; no arrow is drawn"
    ],
    '[{"ph":"X","name":"0F0","ts":0,"dur":1},{"ph":"C","name":"m","ts":0,"args":{"v":null}}]': [
        "event 1: m v is None: left out"
    ],
}


@pytest.mark.parametrize("text", REMARKS, ids=lambda text: text[40:80])
def test_odd_event_is_read_past_with_a_remark(text: str, tmp_path: Path) -> None:
    line = tracegen.read(written(tmp_path, text))
    assert (str(line.program.ranks[0][0]), said(line)) == ("0F0", REMARKS[text])
    assert (list(line.start_ns), list(line.end_ns)) == ([0], [1000])


def test_ambiguous_arrows_are_not_drawn(tmp_path: Path) -> None:
    ends = [("s", 0), ("s", 1), ("f", 2), ("f", 3)]
    events = [slice_("a", ts, tid=tid) for tid in (0, 1) for ts in range(4)]
    flow = {"name": "d", "pid": 0, "id": 7, "bp": "e"}
    events += [{"ph": ph, "ts": ts, "tid": int(ph == "f"), **flow} for ph, ts in ends]
    found = read_any(written(tmp_path, events)).found
    assert found is not None
    assert found.other_arrows == []
    assert found.warnings == [
        "event 9: the flow 'd', id 7, begins again before it has ended; it is open what ends which",
        "event 10: the flow 'd', id 7, could belong to several beginnings; no arrow is drawn",
        "event 11: the flow 'd', id 7, could belong to several beginnings; no arrow is drawn",
    ]


def test_gzip_is_known_by_its_bytes_and_not_by_the_name(tmp_path: Path) -> None:
    data = json.dumps([slice_("0F0", 0)]).encode()
    for name, content, remark in (
        ("a.json", gzip.compress(data), ["it is gzipped, though its name does not end in .gz"]),
        ("b.json.gz", data, ["it is not gzipped, though its name ends in .gz"]),
        ("c.json.gz", gzip.compress(data), []),
    ):
        (tmp_path / name).write_bytes(content)
        assert said(tracegen.read(tmp_path / name)) == remark


def test_cut_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 5000)[:-12])
    with pytest.raises(tracegen.TracegenError, match="its gzip data is broken or cut off"):
        tracegen.read(path)


def test_epoch_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    text = (
        '[{"ph":"X","name":"0F0","ts":1700000000000000.123,"dur":1.001},'
        '{"ph":"X","name":"0F1","ts":1700000000000001.124,"dur":0.001}]'
    )
    line = tracegen.read(written(tmp_path, text))
    assert (list(line.start_ns), list(line.end_ns)) == ([0, 1001], [1001, 1002])
    assert said(line) == []


def test_begin_and_end_are_matched_by_name_and_nesting(tmp_path: Path) -> None:
    def half(ph: str, ts: float, **name: str) -> dict[str, Any]:
        return {"ph": ph, "ts": ts, "pid": 0, "tid": 0, **name}

    events = [
        half("B", 0, name="0F0"),
        half("B", 1, name="inner"),
        half("E", 2),
        half("E", 3, name="0F0"),
        half("B", 3, name="0B0"),
        half("E", 5),
    ]
    line = tracegen.read(written(tmp_path, events))
    assert [str(step) for step in line.program.ranks[0]] == ["0F0", "0B0"]
    assert list(line.start_ns) == [0, 3000]
    assert rows(line) == {"process 0 / thread 0": [("inner", 1000, 2000)]}


@pytest.mark.parametrize("op", [["F"], {"F": 1}])
def test_an_op_that_is_no_text_says_nothing(op: object, tmp_path: Path) -> None:
    args = {"op": op, "backward_op": op, "stage": 3, "microbatch": 3}
    begun = [slice_("0F0", 0, ph=half, args=args) for half in "BE"]
    begun[1]["ts"] = 1
    pair = slice_("F1", 1, args={"op": "F", "backward_op": op, "stage": 0, "microbatch": 1})
    line = tracegen.read(written(tmp_path, [*begun, pair, slice_("0F2", 2, args=args)]))
    assert [str(step) for step in line.program.ranks[0]] == ["0F0", "0F1", "0F2"]


def test_args_of_other_tools(tmp_path: Path) -> None:
    args = {"stage_id": "1", "type": "x", "op": "Backward", "mb": 4.0, "rank": 1}
    line = tracegen.read(written(tmp_path, [slice_("k", 0, args=args), slice_("0F4", 0)]))
    assert [[str(step) for step in stream] for stream in line.program.ranks] == [["0F4"], ["1B4"]]


@pytest.mark.parametrize(
    ("pattern", "events", "ranks"),
    [
        (
            r"S(?P<stage>\d+) (?P<op>\w+) mb (?P<mb>\d+)",
            [slice_("S0 forward mb 2", 0), slice_("S1 bwd mb 2", 0, tid=1)],
            [["0F2"], ["1B2"]],
        ),
        (
            r"(?P<op>fwd|bwd)_(?P<mb>\d+)",
            [slice_("fwd_3", 0, tid=1), slice_("fwd_3", 1, tid=2), slice_("bwd_3", 2, tid=2)],
            [["0F3"], ["1F3", "1B3"]],
        ),
    ],
)
def test_name_pattern(
    pattern: str, events: list[dict[str, Any]], ranks: list[list[str]], tmp_path: Path
) -> None:
    line = tracegen.read(written(tmp_path, events), pattern)
    assert [[str(step) for step in stream] for stream in line.program.ranks] == ranks


def test_names_of_pippy(tmp_path: Path) -> None:
    """Its recorder says F or B, stage, microbatch; accumulation and barriers are no actions."""
    names = ["F_0,1", "B_0,1", "A_0,1", "S_0,1", "F_0,1,0", "xF_0,1"]
    line = tracegen.read(written(tmp_path, [slice_(name, at) for at, name in enumerate(names)]))
    assert [str(step) for step in line.program.ranks[0]] == ["0F1", "0B1"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (
            "(",
            "--name-pattern '(' is no regular expression: missing ), unterminated subpattern at "
            "position 0",
        ),
        (
            "(?P<op>x)",
            "--name-pattern '(?P<op>x)' has no group mb; write it as "
            r"(?P<stage>\d+)(?P<op>[FBIW])(?P<mb>\d+)",
        ),
    ],
)
def test_bad_name_pattern(pattern: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(tracegen.TracegenError) as refusal:
        tracegen.read(written(tmp_path, [slice_("0F0", 0)]), pattern)
    assert str(refusal.value) == message


def torch_dump(program: Program) -> dict[str, Any]:
    """What torch's `_dump_chrometrace` writes of a schedule."""
    return {
        "traceEvents": [
            {
                "name": str(step),
                "cat": "computation",
                "ph": "X",
                "pid": rank,
                "tid": rank,
                "ts": at,
                "dur": 1,
            }
            for rank, stream in enumerate(program.ranks)
            for at, step in enumerate(stream)
        ]
    }


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zbv", "dualpipev"])
def test_dump_of_torch_is_read_out_of_the_box(name: str, tmp_path: Path) -> None:
    program = tracegen.compile(name)
    line = tracegen.read(written(tmp_path, torch_dump(program)))
    compute = program.compute_only()
    assert line.program.ranks == compute.ranks
    assert line.program.placement == compute.placement
    assert line.program.num_microbatches == compute.num_microbatches
    communication = sum(len(row) for row in rows(line).values())
    assert communication == len(program) - len(compute)


def test_what_torch_dumps_is_what_the_tests_think(tmp_path: Path) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    program = tracegen.compile("1f1b", 2, 2)
    read = schedules._Action.from_str
    rows_ = {rank: [read(str(step)) for step in s] for rank, s in enumerate(program.ranks)}
    schedules._dump_chrometrace(rows_, str(tmp_path / "torch.json"))
    dumped = json.loads((tmp_path / "torch.json").read_text())
    ours = torch_dump(program)
    for event in [*dumped["traceEvents"], *ours["traceEvents"]]:
        event.pop("cat")
    assert dumped == ours


def test_a_rank_missing_is_said(tmp_path: Path) -> None:
    events = [
        event
        for event in torch_dump(tracegen.compile("1f1b", 4, 4))["traceEvents"]
        if event["pid"] != 2
    ]
    line = tracegen.read(written(tmp_path, events))
    assert [len(stream) > 0 for stream in line.program.ranks] == [True, True, False, True]
    assert said(line) == ["rank 2 has no slices"]
    assert line.program.placement.ranks == (0, 1, 2, 3)


def test_a_trace_cut_anywhere_is_read_or_refused(tmp_path: Path) -> None:
    line = tracegen.replay(tracegen.compile("1f1b", 2, 2), COSTS["no weight"])
    path = tmp_path / "whole.json"
    tracegen.write(line, path)
    text = path.read_text()
    tiles = len(line.program)
    for end in range(1, len(text) - 4, 7):
        path = written(tmp_path, text[:end])
        try:
            read = read_any(path)
        except tracegen.TracegenError:
            continue
        assert said(read)[0].startswith("the file is cut off")
        assert len(read.program) <= tiles


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(
        ["0F0", "1B2", "X", "f", "rank 3", "pipeline", "1", "0x1f", "\ud83d", "\x00"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
EVENT_KEYS = ["ph", "pid", "tid", "ts", "dur", "name", "args", "id", "cat", "bp"]
KEYS = [*EVENT_KEYS, "stage", "microbatch", "op", "rank"]
LIKELY = st.fixed_dictionaries(
    {
        "ph": st.sampled_from("XBECMstf"),
        "ts": st.integers(-3, 9) | st.floats(0, 9),
        "dur": st.just(1),
        "pid": st.just(0),
        "tid": st.integers(0, 2),
        "id": st.integers(0, 2),
        "name": st.sampled_from(["0F0", "0B0", "1F0", "2F1", "thread_name", "a"]),
        "args": st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
    }
)
EVENTS = st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=9) | LIKELY, max_size=12)


@given(EVENTS | st.dictionaries(st.sampled_from(["traceEvents", "metadata"]), VALUES | EVENTS))
@settings(max_examples=300, deadline=None)
def test_whatever_it_holds_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, trace: object
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace.json"
    path.write_text(json.dumps(trace), encoding="utf-8")
    try:
        line = read_any(path)
    except tracegen.TracegenError:
        return
    "".join(said(line)).encode()
    assert tracegen.diff(line, line).same
    if line.program.num_ranks:
        tracegen.write(line, path)
        assert tracegen.read(path).program.ranks == line.program.ranks


def test_many_slips_of_a_kind_make_few_remarks() -> None:
    warnings = Warnings()
    for number in range(100):
        warnings.add("slips", f"slip {number}")
    assert warnings.texts() == ["slip 0", "slip 1", "slip 2", "and 97 more slips"]


def test_a_changed_trace_keeps_what_holds_its_ranks(tmp_path: Path) -> None:
    line = tracegen.replay(tracegen.compile("zb-h1"), Costs(optimizer_us=10), steps=2)
    tracegen.write(line, tmp_path / "a.json")
    trace = json.loads((tmp_path / "a.json").read_text())
    first = next(event for event in trace["traceEvents"] if event["ph"] == "X")
    first["dur"] -= 1
    again = tracegen.read(written(tmp_path, trace))
    assert again.makespan_ns == line.makespan_ns
    assert again.busy_ns == [line.busy_ns[0] - 1000, *line.busy_ns[1:]]


def test_a_trace_without_names_is_still_as_replayed(tmp_path: Path) -> None:
    line = tracegen.replay(tracegen.compile("1f1b", 4, 8), Costs(optimizer_us=10))
    tracegen.write(line, tmp_path / "a.json")
    trace = json.loads((tmp_path / "a.json").read_text())
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    again = tracegen.read(written(tmp_path, trace))
    assert (again.held, again.makespan_ns) == (line.held, line.makespan_ns)


def test_an_arrow_at_what_took_its_tiles_place_is_the_tiles(tmp_path: Path) -> None:
    line = tracegen.replay(tracegen.compile("1f1b", 4, 8), Costs(alpha_us=10), p2p="blocking")
    tracegen.write(line, tmp_path / "a.json")
    trace = json.loads((tmp_path / "a.json").read_text())
    of_rank = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["tid"] == 1]
    tile, message = (next(e for e in of_rank if e["name"] == name) for name in ("F5", "XF5"))
    tile["ts"], message["ts"] = message["ts"], tile["ts"]
    tile["dur"], message["dur"] = message["dur"], tile["dur"]
    again = tracegen.read(written(tmp_path, trace))
    assert again.found is not None
    assert again.found.other_arrows == []
    assert len(again.found.arrows) == len(list(drawn.arrows(line)))


BLOCKING = {"p2p": "blocking"}
SLOW_LINKS = tracegen.Costs(alpha_us=10, bandwidth_GBps=1, boundary_bytes=1e5)


@pytest.mark.parametrize(
    ("name", "costs", "mode"),
    [
        ("1f1b", tracegen.Costs(alpha_us=10), BLOCKING),
        ("1f1b", SLOW_LINKS, BLOCKING | {"p2p_order": "fused"}),
        ("zbv", SLOW_LINKS, BLOCKING),
        ("dualpipe", tracegen.Costs(replica_sync_us=7, optimizer_us=3, alpha_us=5), BLOCKING),
        ("chimera", tracegen.Costs(replica_sync_us=7, grad_sync_us=2, optimizer_us=3), {}),
    ],
)
def test_what_held_the_ranks_of_an_edited_trace_is_read_from_its_slices(
    name: str, costs: tracegen.Costs, mode: dict[str, str], tmp_path: Path
) -> None:
    """One tile is a little shorter, so that no replay gives it; what held ranks is as it was."""
    line = tracegen.replay(tracegen.compile(name, 4, 8), costs, **mode)
    tracegen.write(line, tmp_path / "a.json")
    trace = json.loads((tmp_path / "a.json").read_text())
    next(event for event in trace["traceEvents"] if event["name"] == "F5")["dur"] -= 0.5
    (tmp_path / "b.json").write_text(json.dumps(trace))
    edited = tracegen.read(tmp_path / "b.json")
    assert edited.end_ns != line.end_ns
    assert edited.held == [[one for one in held if one.end_ns > one.start_ns] for held in line.held]


@pytest.mark.parametrize("block", ["none", "pair", "dualpipe"])
def test_the_kernels_of_an_edited_trace_are_drawn_from_its_slices(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile is a little shorter; the rows of kernels are drawn as they were."""
    monkeypatch.chdir(tmp_path)
    program = tracegen.compile("moe-1f1b-bad-overlap", 4, 8)
    line = tracegen.replay(program, tracegen.Costs(moe=MoE(layers=2, block=block)))
    tracegen.write(line, "a.json")
    trace = json.loads(Path("a.json").read_text())
    next(event for event in trace["traceEvents"] if event["name"] == "F5")["dur"] -= 0.5
    Path("b.json").write_text(json.dumps(trace))
    assert tracegen.read("b.json").kernels is None  # what they waited for is not known
    drawn_rows = []
    for name in ("a", "b"):
        assert run("show", f"{name}.json", "--svg", f"{name}.svg", "--width", 1500).exit_code == 0
        text = Path(f"{name}.svg").read_text()
        drawn_rows.append(re.findall(r">(?:compute|comm)</text>\n(.*?)</g>", text, re.DOTALL))
    assert len(drawn_rows[0]) == 8
    assert all("title" in row for row in drawn_rows[0])
    assert drawn_rows[0] == drawn_rows[1]
