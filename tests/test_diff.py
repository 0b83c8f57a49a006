"""diff: every mutation of a golden is reported as exactly that, and no re-serialisation is."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tracegen
from tracegen.cli import main
from tracegen.comparison import report
from tracegen.comparison.model import Difference, What, equal
from tracegen.comparison.words import action, describe, effect

Trace = dict[str, Any]
Costs = tracegen.Costs


@functools.cache
def line() -> tracegen.Timeline:
    program = tracegen.compile("dualpipev", 4, 10)
    return tracegen.replay(program, Costs(alpha_us=3, w_us=700))


@functools.cache
def golden_text() -> str:
    from tracegen.emit import chunks
    from tracegen.layout import layout

    return "".join(chunks(layout(line())))


def golden() -> Trace:
    trace: Trace = json.loads(golden_text())
    return trace


def tiles(trace: Trace) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def of_kind(trace: Trace, phases: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] in phases]


@pytest.fixture
def difference(tmp_path: Path) -> Callable[..., Difference]:
    """The difference of a changed golden trace."""

    def of(trace: Trace, times: str = "exact") -> Difference:
        (tmp_path / "golden.json").write_text(golden_text())
        (tmp_path / "new.json").write_text(json.dumps(trace))
        return tracegen.diff(tmp_path / "golden.json", tmp_path / "new.json", times)

    return of


def reported(found: Difference) -> list[str]:
    """Everything that is reported, ungrouped."""
    beside = [*found.arrows, *found.counters, *found.rows, *found.figures]
    lines = [describe(found, change) for change in found.steps]
    shifted = [f"{action(found.golden, c.golden)} only follows" for c in found.shifted]
    return [*map(str, found.configuration), *lines, *map(str, beside), *shifted]


def test_the_same_is_no_difference(difference: Callable[..., Difference]) -> None:
    found = difference(golden())
    assert found.same
    assert not found
    assert list(report.text(found)) == ["same: 141 actions on 4 ranks agree"]


def test_a_dropped_action_is_missing(difference: Callable[..., Difference]) -> None:
    for number in range(len(tiles(golden()))):
        trace = golden()
        tile = tiles(trace)[number]
        trace["traceEvents"].remove(tile)
        found = difference(trace)
        (text,) = reported(found)
        step = found.steps[0].golden
        assert found.golden.start_ns[step] == round(tile["ts"] * 1000)
        assert text.startswith(f"{action(found.golden, step)} is missing (rank ")


def test_an_added_action_is_added(difference: Callable[..., Difference]) -> None:
    trace = golden()
    extra = copy.deepcopy(tiles(trace)[0])
    extra["args"]["microbatch"] = 9
    extra["args"]["stage"] = 3
    extra["ts"] = line().makespan_ns / 1000
    trace["traceEvents"].append(extra)
    assert reported(difference(trace)) == ["3F9 is added (rank 0, action 38, at 60954.000 us)"]


def swap(a: dict[str, Any], b: dict[str, Any]) -> None:
    """Two tiles change places: what they are, not when."""
    for key in ("name", "cat", "args"):
        a[key], b[key] = b[key], a[key]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (3, 4, "0F3 (rank 0, action 3) and 0F4 (action 4) changed places"),
        (0, 35, "0F0 (rank 0, action 0) and 0W9 (action 35) changed places"),
        (10, 15, "7F1 (rank 0, action 10) and 7W2 (action 15) changed places"),
        (20, 21, "(0F9;7B5)OVERLAP_F_B (rank 0, action 20) and 7F6 (action 21) changed places"),
    ],
)
def test_two_swapped_actions_changed_places(
    first: int, second: int, text: str, difference: Callable[..., Difference]
) -> None:
    trace = golden()
    of_rank = [tile for tile in tiles(trace) if tile["tid"] == 1]
    swap(of_rank[first], of_rank[second])
    found = difference(trace)
    names = [action(found.golden, step) for step in (first, second)]
    assert reported(found) == [
        f"{names[0]} (rank 0, action {first}) and {names[1]} (action {second}) changed places"
    ], text


def test_one_moved_action_is_one_out_of_order() -> None:
    program = tracegen.compile("1f1b", 4, 8, communication=False)
    steps = list(program.ranks[0])
    steps[3:3] = [steps.pop(1)]
    moved = program.with_ranks([tracegen.ir.Stream.of(steps), *program.ranks[1:]])
    found = tracegen.diff(tracegen.replay(program), tracegen.replay(moved))
    assert [describe(found, change) for change in found.steps] == [
        "0F1 moved from rank 0, action 1 to action 3, 2000.000 us later"
    ]
    assert not found.arrows


@pytest.mark.parametrize("late_us", [0.001, 0.5, 400, 999, 1001, 2500, 20000])
@pytest.mark.parametrize("number", [0, 5, 20, 33, 35, 36, 70, 100, 140])
def test_a_late_action_is_late_of_itself(
    number: int, late_us: float, difference: Callable[..., Difference]
) -> None:
    trace = golden()
    tile = tiles(trace)[number]
    tile["ts"] = round(tile["ts"] + late_us, 3)
    found = difference(trace)
    assert len(reported(found)) == 1
    (change,) = found.steps
    late_ns = found.new.start_ns[change.new] - found.golden.start_ns[change.golden]
    assert late_ns == round(late_us * 1000)
    text = describe(found, change)
    if change.what is What.DELAYED:
        assert f"starts {late_us:.3f} us later of itself" in text
    else:  # it found an idle place further back
        assert change.what is What.REORDERED
        assert text.endswith(f", {late_us:.3f} us later")


def test_a_longer_action_lasts_longer(difference: Callable[..., Difference]) -> None:
    trace = golden()
    tiles(trace)[5]["dur"] += 0.5
    assert reported(difference(trace)) == [
        "0F5 lasts 1000.500 us instead of 1000.000 us (rank 0, action 5, at 5000.000 us)"
    ]


@pytest.mark.parametrize(
    ("name", "costs", "steps"),
    [
        ("moe-1f1b-bad-overlap", Costs(moe=tracegen.MoE()), 1),
        ("zb-h1", Costs(optimizer_us=10), 2),
        ("zb-h1", Costs(activation_bytes=5, memory={"weight_bytes": 3}), 1),
    ],
)
def test_figures_that_only_some_have_are_no_configuration(
    name: str, costs: Costs, steps: int, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    tracegen.write(tracegen.replay(tracegen.compile(name), costs, steps=steps), path)
    trace = json.loads(path.read_text())
    before = tracegen.read(path)
    tiles(trace)[5]["dur"] -= 1
    path.write_text(json.dumps(trace))
    found = tracegen.diff(before, tracegen.read(path))
    assert (found.configuration, len(found.steps), found.figures) == ([], 1, [])


def test_a_stage_on_another_rank_moved(tmp_path: Path) -> None:
    made = tracegen.replay(tracegen.compile("interleaved-1f1b", 4, 8, 2))
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    tracegen.write(made, a)
    trace = json.loads(a.read_text())
    moved = [tile for tile in tiles(trace) if tile["args"]["stage"] == 6]
    for tile in moved:
        tile["tid"] = 2
    for args in (True, False):
        if args:
            for tile in moved:
                tile["args"]["rank"] = 1
        b.write_text(json.dumps(trace))
        assert reported(tracegen.diff(a, b)) == ["stage 6 moved from rank 2 to rank 1 (16 actions)"]


def test_a_trace_whose_stage_moved_can_be_drawn_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    tracegen.write(tracegen.replay(tracegen.compile("1f1b", 3, 4), Costs(alpha_us=3)), path)
    trace = json.loads(path.read_text())
    for tile in tiles(trace):
        if tile["args"]["stage"] == 1:
            tile["tid"], tile["args"]["rank"] = 3, 2
    path.write_text(json.dumps(trace))
    for command in (["show", "--html", str(tmp_path / "x.html")], ["explain"]):
        found = CliRunner().invoke(main, [command[0], str(path), *command[1:]])
        assert found.exit_code == 0, found.output


def test_a_removed_arrow_is_missing(difference: Callable[..., Difference]) -> None:
    count = len(of_kind(golden(), "s"))
    assert count == 120
    for number in range(count):
        trace = golden()
        ends = of_kind(trace, "sf")[2 * number : 2 * number + 2]
        for end in ends:
            trace["traceEvents"].remove(end)
        (text,) = reported(difference(trace))
        assert text.startswith("arrow ")
        assert text.endswith(f" ({ends[0]['name']}) is missing")


def test_half_an_arrow_is_no_arrow(difference: Callable[..., Difference]) -> None:
    for phase in "sf":
        trace = golden()
        trace["traceEvents"].remove(of_kind(trace, phase)[17])
        (text,) = reported(difference(trace))
        assert text.endswith("is missing")


def test_a_changed_sample_is_a_changed_counter(difference: Callable[..., Difference]) -> None:
    for number in range(len(of_kind(golden(), "C"))):
        trace = golden()
        sample = of_kind(trace, "C")[number]
        was = sample["args"]["activations"]
        sample["args"]["activations"] = was + 1
        assert reported(difference(trace)) == [
            f"counter {sample['name']} activations: {was + 1} instead of {was} at "
            f"{sample['ts']:.3f} us"
        ]


def test_a_changed_figure_is_a_changed_figure(difference: Callable[..., Difference]) -> None:
    trace = golden()
    trace["otherData"]["makespan_us"] = trace["metadata"]["makespan_us"] = 1.5
    assert reported(difference(trace)) == ["figure makespan_us: 60954.0 -> 1.5"]


def test_a_changed_setting_is_a_changed_configuration(
    difference: Callable[..., Difference],
) -> None:
    trace = golden()
    for about in ("otherData", "metadata"):
        trace[about]["costs"]["alpha_us"] = 4
        trace[about]["mine"] = "new"
    found = difference(trace)
    assert reported(found)[:2] == ["costs.alpha_us: 3 -> 4", "mine: none -> new"]


Change = Callable[[Trace], str | bytes]


def _shuffled(trace: Trace) -> str:
    random.Random(5).shuffle(trace["traceEvents"])
    return json.dumps(trace)


def _other_ids(trace: Trace) -> str:
    for event in of_kind(trace, "sf"):
        event["id"] = hex(event["id"] * 7 + 1)
    return json.dumps(trace)


def _as_text(trace: Trace) -> str:
    for event in trace["traceEvents"]:
        event |= {key: str(event[key]) for key in ("ts", "dur", "pid", "tid") if key in event}
    return json.dumps(trace)


def _begin_and_end(trace: Trace) -> str:
    events = []
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            events.append(event)
            continue
        where = {"pid": event["pid"], "tid": event["tid"]}
        rest = {key: value for key, value in event.items() if key != "dur"}
        events += [rest | {"ph": "B"}, where | {"ph": "E", "ts": event["ts"] + event["dur"]}]
    return json.dumps(trace | {"traceEvents": events})


def _other_tool(trace: Trace) -> str:
    for about in ("otherData", "metadata"):
        trace[about]["tool_version"] = "99.1"
    return json.dumps(trace)


SAME: dict[str, Change] = {
    "sorted keys": lambda trace: json.dumps(trace, sort_keys=True),
    "indented": lambda trace: json.dumps(trace, indent=3),
    "compact": lambda trace: json.dumps(trace, separators=(",", ":")),
    "events in another order": _shuffled,
    "events backwards": lambda trace: json.dumps(
        trace | {"traceEvents": trace["traceEvents"][::-1]}
    ),
    "gzipped": lambda trace: gzip.compress(json.dumps(trace).encode()),
    "other ids of arrows": _other_ids,
    "numbers as text": _as_text,
    "begin and end": _begin_and_end,
    "written by another version": _other_tool,
    "metadata last": lambda trace: json.dumps(dict(reversed(trace.items()))),
    "metadata once": lambda trace: json.dumps(
        {key: value for key, value in trace.items() if key != "metadata"}
    ),
    "byte order mark": lambda trace: b"\xef\xbb\xbf" + json.dumps(trace).encode(),
    "UTF-16": lambda trace: json.dumps(trace).encode("utf-16"),
    "display unit": lambda trace: json.dumps(trace | {"displayTimeUnit": "ms"}),
    "no closing brace": lambda trace: json.dumps(dict(reversed(trace.items())))[:-1],
    "an event of another kind": lambda trace: json.dumps(
        trace | {"traceEvents": [*trace["traceEvents"], {"ph": "I", "ts": 3, "name": "here"}]}
    ),
}


@pytest.mark.parametrize("form", SAME)
def test_serialised_otherwise_is_no_difference(form: str, tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(golden_text())
    new = SAME[form](golden())
    b.write_bytes(new if isinstance(new, bytes) else new.encode())
    assert reported(tracegen.diff(a, b)) == []
    assert tracegen.read(b).program == line().program


def test_a_replay_is_no_different_from_its_trace(tmp_path: Path) -> None:
    for name in ("trace.json", "trace.json.gz"):
        tracegen.write(line(), tmp_path / name)
        assert tracegen.diff(tmp_path / name, line()).same
        assert tracegen.diff(line(), tmp_path / name).same


def test_what_a_slow_action_makes_late_only_follows() -> None:
    program = tracegen.compile("1f1b", 4, 8)
    slow = Costs(stage={2: {"microbatch": {3: {"f_us": 1500}}}})
    found = tracegen.diff(tracegen.replay(program), tracegen.replay(program, slow))
    assert [describe(found, change) for change in found.steps] == [
        "2F3 lasts 1500.000 us instead of 1000.000 us (rank 2, action 5, at 11000.000 us)"
    ]
    assert list(map(str, found.configuration)) == [
        "costs.stage: none -> {'2': {'microbatch': {'3': {'f_us': 1500}}}}"
    ]
    assert found.shifted
    assert found.follows.keys() == {"counters", "figures"}
    assert [found.arrows, found.counters, found.rows, found.figures] == [[], [], [], []]


def test_the_report_in_full() -> None:
    program = tracegen.compile("1f1b", 2, 3)
    slow = Costs(stage={1: {"microbatch": {1: {"f_us": 1500}}}})
    found = tracegen.diff(tracegen.replay(program), tracegen.replay(program, slow))
    assert "\n".join(report.text(found)) == (
        """\
different: 1 longer or shorter, 1 configuration, 5 that only follow
the first: 1F1 lasts 1500.000 us instead of 1000.000 us (rank 1, action 2, at 4000.000 us)

configuration
  costs.stage: none -> {'1': {'microbatch': {'1': {'f_us': 1500}}}}

first divergence on each rank
  rank 0: 0B1 only follows: it starts 500.000 us later (rank 0, action 4)
  rank 1: 1F1 lasts 1500.000 us instead of 1000.000 us (rank 1, action 2, at 4000.000 us)

changes
  1F1 lasts 1500.000 us instead of 1000.000 us (rank 1, action 2, at 4000.000 us)

what follows from these
  5 other starts by +500.000 us, as what they wait for moved
  2 counters with them
  6 figures with them

effect
  makespan 12000.000 -> 12500.000 us (+4.2 %)
  bubble ratio 25.00 % -> 26.00 %
  bubble overhead 33.33 % -> 35.14 %
  span rate 25.00 % -> 28.00 %"""
    )


def test_a_later_link_is_said_once_and_the_rest_follows() -> None:
    program = tracegen.compile("1f1b", 4, 8)
    a, b = (tracegen.replay(program, Costs(alpha_us=alpha)) for alpha in (0, 5))
    found = tracegen.diff(a, b)
    assert list(map(str, found.configuration)) == ["costs.alpha_us: 0 -> 5"]
    assert found.steps == []
    assert found.shifted


def test_pairs_that_are_split_or_joined() -> None:
    joined = tracegen.compile("dualpipev", 2, 4)
    rank = list(joined.compute_only().ranks[0])
    at = next(i for i, step in enumerate(rank) if isinstance(step, tracegen.Overlap))
    pair = rank[at]
    assert isinstance(pair, tracegen.Overlap)
    apart = joined.compute_only().with_ranks(
        [
            tracegen.ir.Stream.of([*rank[:at], pair.forward, pair.backward, *rank[at + 1 :]]),
            joined.compute_only().ranks[1],
        ]
    )
    a, b = tracegen.replay(joined), tracegen.replay(apart)
    first, second = tracegen.diff(a, b, "order-only"), tracegen.diff(b, a, "order-only")
    assert [describe(first, c) for c in first.steps] == [
        f"{pair} is no longer one block (rank 0, action {at}, at {a.start_ns[at] / 1000:.3f} us)"
    ]
    assert [describe(second, c) for c in second.steps] == [
        f"{pair} is one block now (rank 0, action {at}, at {a.start_ns[at] / 1000:.3f} us)"
    ]


@pytest.mark.parametrize(
    ("other", "first"),
    [
        (("dualpipev", 4, 12), ["m: 10 -> 12"]),
        (("zbv", 4, 10), ["schedule: dualpipev -> zbv"]),
        (("1f1b", 8, 10), ["schedule: dualpipev -> 1f1b", "p: 4 -> 8", "v: 2 -> 1"]),
        (("gpipe", 1, 1), ["schedule: dualpipev -> gpipe", "p: 4 -> 1", "m: 10 -> 1"]),
    ],
)
def test_other_sizes_and_schedules_are_compared_as_far_as_they_can_be(
    other: tuple[str, int, int], first: list[str]
) -> None:
    new = tracegen.replay(tracegen.compile(*other), Costs(alpha_us=3, w_us=700))
    for a, b in ((line(), new), (new, line())):
        found = tracegen.diff(a, b)
        assert not found.same
        assert list(report.text(found))[3] == "configuration"
    found = tracegen.diff(line(), new)
    assert list(map(str, found.configuration))[: len(first)] == first


def test_tolerance_is_on_a_duration_of_itself_and_on_a_start_of_the_makespan() -> None:
    program = tracegen.compile("1f1b", 4, 8)
    a = tracegen.replay(program)
    makespan_us = a.makespan_ns / 1000
    for us, percent, same in ((1040, "4%", True), (1041, "4%", False), (1040, "3.9%", False)):
        b = replace(a, end_ns=a.end_ns[:])
        b.end_ns[3] = b.start_ns[3] + us * 1000
        found = tracegen.diff(a, b, percent)
        assert (not found.steps) is same, (us, percent)
    for late_us, same in ((makespan_us * 0.05, True), (makespan_us * 0.05 + 1, False)):
        b = replace(a, start_ns=a.start_ns[:], end_ns=a.end_ns[:])
        b.start_ns[40] += round(late_us * 1000)
        b.end_ns[40] += round(late_us * 1000)
        assert (not tracegen.diff(a, b, "5%").steps) is same


def test_order_only_looks_at_no_time() -> None:
    program = tracegen.compile("zbv", 4, 8)
    a = tracegen.replay(program)
    b = tracegen.replay(program, Costs(f_us=1700, i_us=300, alpha_us=9))
    assert tracegen.diff(a, b, "order-only").same
    assert not tracegen.diff(a, b, "50%").same


def test_counters_are_as_near_as_the_actions_that_make_them() -> None:
    program = tracegen.compile("1f1b", 4, 8)
    # Where a forward ends as a backward does, one sample becomes two when one of them is late.
    a, b = tracegen.replay(program), tracegen.replay(program, Costs(rank={1: {"slowdown": 1.1}}))
    assert tracegen.diff(a, b, "order-only").same
    assert not tracegen.diff(a, b, "20%").counters


@pytest.mark.parametrize("times", ["5", "x%", "-5%", "nan%", "", "5 %"])
def test_times_that_are_none(times: str) -> None:
    with pytest.raises(tracegen.TracegenError) as refusal:
        tracegen.diff(line(), line(), times)
    assert str(refusal.value) == (
        f"times {times!r}: expected exact, order-only or a percentage such as 5%"
    )


def test_nan_never_passes(tmp_path: Path) -> None:
    a = line()
    peaks = {key: [math.nan, *values[1:]] for key, values in a.peak_activations.items()}
    broken = replace(a, peak_activations=peaks)
    assert not tracegen.diff(a, broken).same
    assert not tracegen.diff(broken, a).same
    assert not tracegen.diff(broken, broken).same
    assert not equal([{"a": math.nan}], [{"a": math.nan}])
    for old, new in (('"ts":0.000', '"ts":NaN'), ('"activations":1', '"activations":NaN')):
        path = tmp_path / "nan.json"
        path.write_text(golden_text().replace(old, new, 1))
        for sides in ((path, a), (a, path), (path, path)):
            with pytest.raises(tracegen.TracegenError, match="finite number"):
                tracegen.diff(*sides)


MUTATIONS = ["drop", "swap", "delay", "longer", "arrow", "counter"]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_mutation_of_any_schedule(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["1f1b", "zbv", "interleaved-1f1b", "dualpipe", "chimera"]))
    weight = data.draw(st.sampled_from([0, 700]))
    made = tracegen.replay(tracegen.compile(name), Costs(w_us=weight, alpha_us=2))
    folder = tmp_path_factory.mktemp("mutation")
    a, b = folder / "a.json", folder / "b.json"
    tracegen.write(made, a)
    trace = json.loads(a.read_text())
    mutation = data.draw(st.sampled_from(MUTATIONS))
    number = data.draw(st.integers(0, len(tiles(trace)) - 1))
    tile = tiles(trace)[number]
    row = [other for other in tiles(trace) if other["tid"] == tile["tid"]]
    expected = {
        "drop": What.MISSING, "swap": What.SWAPPED, "delay": What.DELAYED, "longer": What.DURATION
    }.get(mutation)  # fmt: skip
    if mutation == "drop":
        trace["traceEvents"].remove(tile)
    elif mutation == "swap":
        at = row.index(tile)
        swap(row[at], row[at - 1])
    elif mutation == "delay":
        tile["ts"] = round(tile["ts"] + tile["dur"] / 2, 3)
    elif mutation == "longer":
        tile["dur"] += 0.001
    elif mutation == "arrow":
        at = 2 * data.draw(st.integers(0, len(of_kind(trace, "s")) - 1))
        for end in of_kind(trace, "sf")[at : at + 2]:
            trace["traceEvents"].remove(end)
    else:
        sample = data.draw(st.sampled_from(of_kind(trace, "C")))
        sample["args"]["activations"] += 1
    b.write_text(json.dumps(trace))
    found = tracegen.diff(a, b)
    assert len(reported(found)) == 1, reported(found)
    assert [change.what for change in found.steps] == ([] if expected is None else [expected])
    assert len(found.arrows) == (mutation == "arrow")
    assert len(found.counters) == (mutation == "counter")


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["diff", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    """A golden trace, and one in which 0F5 is missing."""
    a, b = tmp_path / "golden.json", tmp_path / "new.json"
    a.write_text(golden_text())
    trace = golden()
    trace["traceEvents"].remove(tiles(trace)[5])
    b.write_text(json.dumps(trace))
    return a, b


def test_exit_codes_and_text(traces: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = traces
    assert run(a, a) == (0, "same: 141 actions on 4 ranks agree\n", "")
    code, out, err = run(a, b)
    assert code == 1
    assert out.splitlines()[:7] == [
        "different: 1 missing",
        "the first: 0F5 is missing (rank 0, action 5, at 5000.000 us)",
        "",
        "first divergence on each rank",
        "  rank 0: 0F5 is missing (rank 0, action 5, at 5000.000 us)",
        "",
        "changes",
    ]
    assert err.startswith(f"{b}: event ")
    assert run(a, b, "--quiet")[2] == ""
    assert run(a, tmp_path / "no.json") == (
        2,
        "",
        f"Error: {tmp_path / 'no.json'}: No such file or directory; expected a Chrome trace, "
        '{"traceEvents":[...]} or an array of events\n',
    )
    assert run(a, b, "--times", "5")[0] == 2


def test_json_report(traces: tuple[Path, Path]) -> None:
    code, out, _ = run(*traces, "--format", "json")
    data = json.loads(out)
    assert code == 1
    assert (data["schema_version"], data["same"], data["times"]) == (1, False, "exact")
    assert data["actions"] == [
        {
            "change": "missing",
            "golden": {
                "action": "0F5", "rank": 0, "index": 5, "start_us": 5000.0, "end_us": 6000.0
            },
            "new": None,
            "text": "0F5 is missing (rank 0, action 5, at 5000.000 us)",
        }
    ]  # fmt: skip
    assert data["follows"]["starts"] == 0
    assert data["first"][0]["rank"] == 0


def test_github_annotations(traces: tuple[Path, Path]) -> None:
    code, out, _ = run(*traces, "--format", "github")
    lines = out.splitlines()
    where = f"file={traces[0]},title=tracegen diff"
    assert code == 1
    assert lines[0].startswith(f"::error {where}::different: 1 missing%0A")
    assert "%25" in lines[0]
    assert lines[1] == f"::error {where}::0F5 is missing (rank 0, action 5, at 5000.000 us)"
    assert lines[2] == "different: 1 missing"
    same = run(traces[0], traces[0], "--format", "github")
    assert same[1].startswith("::notice ")


def test_overlay_has_both_tilings_and_a_marker_at_every_difference(
    traces: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "overlay.json"
    assert run(*traces, "--overlay", out)[0] == 1
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(names.values()) == ["golden", "new", "what differs"]
    count = {
        name: sum(e["ph"] == "X" and e["pid"] == pid for e in events) for pid, name in names.items()
    }
    assert count == {"golden": 141, "new": 140, "what differs": 0}
    markers = [event for event in events if event["ph"] == "i"]
    assert [(m["name"], m["tid"], m["ts"]) for m in markers] == [("missing 0F5", 1, 5000)]


def test_overlay_is_a_trace_itself(tmp_path: Path) -> None:
    program = tracegen.compile("1f1b", 4, 8)
    slow = Costs(stage={2: {"microbatch": {3: {"f_us": 1500}}}})
    from tracegen.comparison.overlay import write

    found = tracegen.diff(tracegen.replay(program), tracegen.replay(program, slow))
    write(found, tmp_path / "o.json")
    events = json.loads((tmp_path / "o.json").read_text())["traceEvents"]
    assert sum(event["ph"] == "i" for event in events) == len(found.steps) + len(found.shifted)


def test_traces_of_other_tools_are_compared(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    events = [
        {"ph": "X", "name": f"{s}{op}{mb}", "ts": 7e9 + t, "dur": 1, "pid": s, "tid": 9}
        for t, (s, op, mb) in enumerate([(0, "F", 0), (1, "F", 0), (1, "B", 0), (0, "B", 0)])
    ]
    a.write_text(json.dumps(events))
    moved = [event | {"ts": event["ts"] + 123456} for event in events]
    b.write_text(json.dumps(moved))
    assert tracegen.diff(a, b).same
    b.write_text(json.dumps(moved[:2] + moved[3:]))
    assert reported(tracegen.diff(a, b)) == ["1B0 is missing (rank 1, action 1, at 2.000 us)"]


def test_traces_without_actions_are_compared_by_their_rows(tmp_path: Path) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    slices = [{"ph": "X", "name": n, "ts": t, "dur": 1} for n, t in (("x", 0), ("y", 2))]
    a.write_text(json.dumps(slices))
    assert run(a, a) == (0, "same: 0 actions on 0 ranks agree\n", "")
    b.write_text(json.dumps(slices[:1]))
    assert run(a, b)[:2] == (
        1,
        "different: 1 other row\n\nchanges\n  row process 0 / thread 0: 1 slices missing; the "
        "first 'y' at 2.000 us\n",
    )


def test_work_grows_with_the_traces_and_no_faster() -> None:
    """Counted in calls, which are the same on any machine."""
    import cProfile

    def calls(m: int) -> int:
        program = tracegen.compile("1f1b", 8, m)
        a = tracegen.replay(program)
        b = tracegen.replay(program, Costs(stage={0: {"microbatch": {0: {"f_us": 1500}}}}))
        with cProfile.Profile() as profile:
            found = tracegen.diff(a, b)
            "\n".join(report.text(found))
        assert len(found.shifted) > 10 * m
        return sum(entry.callcount for entry in profile.getstats())

    calls(100)
    assert calls(2000) < 11 * calls(200)


def test_nan_among_a_tiles_arguments_is_refused(tmp_path: Path) -> None:
    line = tracegen.replay(tracegen.compile("1f1b", 2, 2))
    tracegen.write(line, tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    (tmp_path / "b.json").write_text(text.replace('"wait_us":1000.000', '"wait_us":NaN', 1))
    number = next(
        at
        for at, event in enumerate(json.loads(text)["traceEvents"])
        if event.get("args", {}).get("wait_us") == 1000
    )
    with pytest.raises(tracegen.TracegenError) as error:
        tracegen.diff(tmp_path / "a.json", tmp_path / "b.json")
    assert str(error.value) == (
        f"{tmp_path / 'b.json'}: event {number}: args: wait_us: nan; expected a finite number"
    )


def changed_trace(
    made: tracegen.Timeline, tmp_path: Path, change: Callable[[Trace], object]
) -> tuple[Difference, Difference]:
    """What differs in its trace after a change: from the trace as it was, and from itself."""
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    tracegen.write(made, a)
    trace = json.loads(a.read_text())
    change(trace)
    b.write_text(json.dumps(trace))
    return tracegen.diff(a, b), tracegen.diff(made, b)


def with_optimizer() -> tracegen.Timeline:
    return tracegen.replay(tracegen.compile("zb-h1"), Costs(optimizer_us=10), steps=2)


def test_the_effect_counts_what_holds_a_rank_beside_its_tiles(tmp_path: Path) -> None:
    def drop(trace: Trace) -> None:
        weights = [tile for tile in tiles(trace) if tile["args"]["op"] == "W"]
        trace["traceEvents"].remove(weights[len(weights) // 2])

    made = with_optimizer()
    for found in changed_trace(made, tmp_path, drop):
        assert reported(found) == ["2W0 is missing (rank 2, action 7, at 10000.000 us)"]
        after = effect(found)
        assert "makespan_us" not in after
        busy = sum(made.busy_ns)
        whole = made.program.num_ranks * made.makespan_ns
        assert after["bubble_ratio"] == (1 - busy / whole, 1 - (busy - 1_000_000) / whole)


def test_the_effect_of_an_optimizer_step_that_takes_longer(tmp_path: Path) -> None:
    def lengthen(trace: Trace) -> None:
        last = max(tiles(trace), key=lambda tile: tile["ts"] + tile["dur"])
        assert last["name"] == "Opt"
        last["dur"] += 5

    for found in changed_trace(with_optimizer(), tmp_path, lengthen):
        (text,) = reported(found)
        assert text.startswith("row pipeline / rank ")
        a, b = effect(found)["makespan_us"]
        assert b == a + 5


def test_the_effect_counts_kernels(tmp_path: Path) -> None:
    made = tracegen.replay(tracegen.compile("dualpipev", 4, 10), Costs(moe=tracegen.MoE()))

    def drop(name: str) -> Callable[[Trace], None]:
        def change(trace: Trace) -> None:
            found = [tile for tile in tiles(trace) if tile["name"] == name]
            trace["traceEvents"].remove(found[0])

        return change

    for found in changed_trace(made, tmp_path, drop("F3")):
        assert [change.what for change in found.steps] == [What.MISSING]
        assert effect(found) == {}
    for found in changed_trace(made, tmp_path, drop("attn_F3")):
        assert len(found.rows) == 1
        assert effect(found).keys() == {"bubble_ratio", "bubble_overhead", "span_rate"}

    def drop_all(trace: Trace) -> None:
        drop("F3")(trace)
        rows = {tile["pid"] for tile in tiles(trace) if "kernel" in tile["args"]}
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e["pid"] not in rows]

    for found in changed_trace(made, tmp_path, drop_all):
        assert effect(found) == {}


def test_rows_of_one_label_are_told_apart_by_their_arguments(tmp_path: Path) -> None:
    made = tracegen.replay(tracegen.compile("chimera"), Costs(replica_sync_us=7))

    def trade(trace: Trace) -> None:
        first, second, *_ = (t for t in tiles(trace) if (t["tid"], t["name"]) == (1, "SUM"))
        first["args"], second["args"] = second["args"], first["args"]

    for found in changed_trace(made, tmp_path, trade):
        assert reported(found) == [
            "row pipeline / rank 0: slices in another order; the first 'SUM' "
            "(stage 0, op SUM_REPLICAS) at 30000.000 us"
        ]
    assert all(found.same for found in changed_trace(made, tmp_path, lambda trace: None))


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("forward_only", True, "forward_only: False -> True"),
        ("chains", [[0, 2, 1, 3]], "chain 0, place 1: stage 1 -> stage 2"),
        ("chains", [[0, 1], [2, 3]], "chains: [[0, 1, 2, 3]] -> [[0, 1], [2, 3]]"),
        ("chains", [[0, 1, 2]], "chain 0, place 3: stage 3 -> none"),
        ("chains", 5, "chains: [[0, 1, 2, 3]] -> 5"),
        ("stage_ranks", [0, 1, 3, 2], "rank of stage 2: 2 -> 3"),
    ],
)
def test_what_the_metadata_says_of_the_program_is_configuration(
    key: str, value: object, text: str, tmp_path: Path
) -> None:
    def restate(trace: Trace) -> None:
        for about in ("otherData", "metadata"):
            trace[about] |= {key: value, "mine": "new"}

    made = tracegen.replay(tracegen.compile("1f1b", 4, 8))
    for found in changed_trace(made, tmp_path, restate):
        assert {text, "mine: none -> new"} <= set(map(str, found.configuration))


@pytest.mark.parametrize(
    ("name", "costs", "mode", "names", "text"),
    [
        (
            "chimera",
            Costs(replica_sync_us=7),
            {},
            ("BP7", "SUM"),
            "7B7 (rank 0, action 13, at 21000.000 us) and SUM (at 30000.000 us) changed places",
        ),
        (
            "1f1b",
            Costs(alpha_us=10),
            {"p2p": "blocking"},
            ("F5", "XF5"),
            "0F5 (rank 0, action 7, at 17140.000 us) and XF5 (at 18140.000 us) changed places",
        ),
    ],
)
def test_an_action_and_what_else_held_its_rank_changed_places(
    name: str,
    costs: Costs,
    mode: dict[str, Any],
    names: tuple[str, str],
    text: str,
    tmp_path: Path,
) -> None:
    made = tracegen.replay(tracegen.compile(name, 4, 8), costs, **mode)

    def change(trace: Trace) -> None:
        of_rank = [tile for tile in tiles(trace) if tile["tid"] == 1]
        first, second = (next(t for t in of_rank if t["name"] == n) for n in names)
        swap(first, second)

    for found in changed_trace(made, tmp_path, change):
        assert reported(found) == [text]
    for times in ("order-only", "99%"):
        assert reported(tracegen.diff(made, tmp_path / "b.json", times)) == [text], times


def test_what_holds_a_rank_stands_elsewhere_whatever_the_times(tmp_path: Path) -> None:
    """Rank 0 ends with 7F7 7B7 0B2 0B3 and the sums of its two stages; one is moved up by three."""
    made = tracegen.replay(tracegen.compile("chimera", 4, 8), Costs(replica_sync_us=7))

    def early(trace: Trace) -> None:
        of_rank = [tile for tile in tiles(trace) if tile["tid"] == 1]
        of_rank.sort(key=lambda tile: tile["ts"])
        at = next(at for at, tile in enumerate(of_rank) if tile["name"] == "SUM")
        of_rank[at]["ts"] = of_rank[at - 3]["ts"]
        for tile in of_rank[at - 3 : at]:
            tile["ts"] += of_rank[at]["dur"]

    changed_trace(made, tmp_path, early)
    for times in ("order-only", "99%"):
        assert reported(tracegen.diff(made, tmp_path / "b.json", times)) == [
            "row pipeline / rank 0: 'SUM' stands behind 7F7 instead of behind 0B3"
        ]
