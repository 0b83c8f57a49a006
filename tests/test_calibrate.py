"""What ops cost, from measurements to the costs of a program."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracegen
from tracegen.costs import Costs
from tracegen.execute.calibrate import Calibration, joined
from tracegen.execute.measure import quantile
from tracegen.execute.op_costs import PAIR, OpCosts
from tracegen.ir import B, F, I, W
from tracegen.passes.split import split_backward
from tracegen.passes.validate import validate

TINY = ["--hidden", "8", "--heads", "2", "--seq", "4", "--vocab", "16", "--microbatch-size", "1"]


def known(stages: int, **more: Any) -> OpCosts:
    """F 1, B 3, I 2, W 1.5 ms on every stage, splitting so costing half a ms."""
    ns = {F: 1_000_000, B: 3_000_000, I: 2_000_000, W: 1_500_000}
    return OpCosts({(kind, s): of for kind, of in ns.items() for s in range(stages)}, **more)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zbv", "dualpipe", "dualpipev"])
def test_each_action_gets_its_own_median(name: str) -> None:
    program = tracegen.compile(name, 4, 8, communication=False)
    costs = known(program.num_stages)
    line = tracegen.replay(program, costs.for_program(program))
    for step, ns in enumerate(
        end - start for start, end in zip(line.start_ns, line.end_ns, strict=True)
    ):
        rank = program.rank_of_step(step)
        action = str(program.ranks[rank][step - program.offsets[rank]])
        expected = {"F": 1_000_000, "B": 3_000_000, "I": 2_000_000, "W": 1_500_000}
        if "OVERLAP" in action:
            halves = action[1:].partition(")")[0].split(";")
            assert ns == sum(expected[next(c for c in h if c.isalpha())] for h in halves)
        else:
            assert ns == expected[next(c for c in action if c.isalpha())]


def test_a_pairs_own_median_is_used() -> None:
    program = tracegen.compile("dualpipev", 2, 6, communication=False)
    costs = known(4)
    ns = {**costs.ns, **{(PAIR[B], s): 3_600_000 for s in range(4)}}
    line = tracegen.replay(program, OpCosts(ns).for_program(program))
    spans = {e - s for s, e in zip(line.start_ns, line.end_ns, strict=True)}
    assert 3_600_000 in spans
    assert 4_000_000 not in spans


def test_medians_come_back_from_a_replay_of_them() -> None:
    """Measured on what they predict, they are what they were."""
    program = tracegen.compile("zbv", 4, 8, communication=False)
    costs = known(8)
    gap_ns = {op: 5_000 + at for at, op in enumerate(costs.ns)}
    costs = replace(costs, gap_ns=gap_ns, alpha_ns=70_000)
    line = tracegen.replay(program, costs.for_program(program))
    again = OpCosts.of_steps(program, [(line.start_ns, line.end_ns)])
    assert again.ns == {op: ns + gap_ns[op] for op, ns in costs.ns.items() if op[0] != B}
    assert again.alpha_ns == 70_000
    predicted = tracegen.replay(program, again.for_program(program)).makespan_ns
    assert predicted == pytest.approx(line.makespan_ns, rel=1e-4)


def test_an_op_that_was_not_met_follows_from_the_others() -> None:
    only = OpCosts({(F, 0): 10, (I, 0): 5, (W, 0): 4})
    assert only.of(B, 0) == 9
    assert OpCosts({(B, 0): 9}).of(W, 0) == 4
    assert OpCosts({(B, 0): 9, (I, 0): 5}).of(W, 0) == 4
    assert OpCosts({(PAIR[B], 0): 30, (F, 0): 8}).of(B, 0) == 22
    assert OpCosts({}).of(F, 0) is None


def test_what_splitting_costs() -> None:
    assert known(1).split_ratio(0) == pytest.approx(3.5 / 3)
    assert OpCosts({(B, 0): 3}).split_ratio(0) is None


@pytest.mark.parametrize("name", ["zbv", "dualpipev", "zb-h1", "1f1b"])
def test_backwards_joined_and_split_are_sound_programs(name: str) -> None:
    program = tracegen.compile(name, 4, 10, communication=False)
    assert not any("I" in str(s) or "W" in str(s) for r in joined(program).ranks for s in r)
    validate(joined(program))
    validate(split_backward(program))


def test_the_toml_gives_the_costs_again(tmp_path: Path) -> None:
    from tracegen.cli.calibrate import table, text

    program = tracegen.compile("zb-h1", 2, 4, communication=False)
    found = Calibration(known(2, alpha_ns=9000), "cpu", True, {0: 64, 1: 0})
    written = text(found, found.for_program(program), program)
    (tmp_path / "c.toml").write_text(written)
    costs = Costs.from_toml(tmp_path / "c.toml")
    assert costs.alpha_us == 9
    assert costs.boundary_bytes == [64, 0]
    assert tracegen.replay(program, costs).makespan_ns > 0
    assert tomllib.loads(written)["stage"]["1"] == {
        "f_us": 1000.0,
        "b_us": 3000.0,
        "i_us": 2000.0,
        "split_us": 500.0,
    }
    assert "# (I + W) / B = 1.167" in written
    assert table(found, program).row_count == 1


def test_one_file_has_the_costs_of_full_backwards_and_of_split_ones(tmp_path: Path) -> None:
    """Whichever schedule was measured: B 3 ms, I 2 ms, W 1.5 ms."""
    from tracegen.cli.calibrate import text

    program = tracegen.compile("1f1b", 2, 4, communication=False)
    found = Calibration(known(2), "cpu", alone=True)
    (tmp_path / "c.toml").write_text(text(found, found.for_program(program), program))
    costs = Costs.from_toml(tmp_path / "c.toml")
    for name, expected in (
        ("1f1b", {"F": 1_000_000, "B": 3_000_000}),
        ("zb-h1", {"F": 1_000_000, "I": 2_000_000, "W": 1_500_000}),
    ):
        line = tracegen.replay(tracegen.compile(name, 2, 4, communication=False), costs)
        lasts = {
            (str(action)[1], end - start)
            for action, start, end in zip(
                (action for rank in line.program.ranks for action in rank),
                line.start_ns,
                line.end_ns,
                strict=True,
            )
        }
        assert lasts == set(expected.items())


def test_quantiles_are_values_that_occurred() -> None:
    assert quantile(list(range(1, 21)), 0.5) == 10
    assert quantile(list(range(1, 21)), 0.95) == 19
    assert quantile([7], 0.95) == 7


def test_lateness_is_told_from_what_a_rank_spends_between() -> None:
    program = tracegen.compile("1f1b", 2, 1, communication=False)
    # rank 0: F 0-10, B 45-55 (its gradient was there at 40); rank 1: F 13-20, B 21-40
    start, end = array("q", [0, 45, 13, 21]), array("q", [10, 55, 20, 40])
    costs = OpCosts.of_steps(program, [(start, end)])
    assert costs.gap_ns == {(F, 1): 1}
    assert costs.alpha_ns == 4  # F came 3 after its input, B 5 after its gradient


def test_what_one_rank_took_is_predicted_whole() -> None:
    """A makespan is a sum, so skewed times and gaps add up to it; one slow step does not."""
    program = tracegen.compile("1f1b", 1, 4, communication=False)  # F B F B F B F B
    took, gap = [10, 21, 11, 20, 30, 60, 9, 19], [1, 2, 1, 2, 5, 9, 1]
    steps = []
    for slower in (1, 1, 7):
        start = array("q", [0])
        for ns, after in zip(took, gap, strict=False):
            start.append(start[-1] + (ns + after) * slower)
        steps.append(
            (start, array("q", [s + ns * slower for s, ns in zip(start, took, strict=True)]))
        )
    measured = steps[0][1][-1]
    costs = OpCosts.of_steps(program, steps)
    predicted = tracegen.replay(program, costs.for_program(program)).makespan_ns
    assert predicted == pytest.approx(measured + costs.gap(B, 0), abs=len(took))


@pytest.mark.parametrize("alone", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_the_command_measures_and_a_replay_reads(tmp_path: Path, alone: bool) -> None:
    pytest.importorskip("torch")
    target = tmp_path / "costs.toml"
    args = ["-s", "zbv", "-p", "2", "-m", "4", "-o", str(target), *TINY, "--measure-steps", "2"]
    run = [sys.executable, "-m", "tracegen"]
    ran = subprocess.run(
        [*run, "calibrate", *args, *["--alone"] * alone],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    assert "(I+W)/B" in ran.stdout
    costs = tomllib.loads(target.read_text())
    assert set(costs["stage"]) == {"0", "1", "2", "3"}
    assert ("activation_bytes" in costs) == alone
    first = costs["stage"]["0"]
    assert first["i_us"] < first["b_us"] - first["i_us"]  # torch's I is empty there
    again = subprocess.run(
        [*run, "run", "-s", "zbv", "-p", "2", "-m", "6", "--costs", str(target)]
        + ["--json", "--no-trace"],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert json.loads(again.stdout)["makespan_us"] > 0
