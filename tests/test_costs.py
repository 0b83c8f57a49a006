"""Costs: what is given where, rounded once, and what is said of those that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tracegen
from tracegen.costs import Costs
from tracegen.errors import CostError
from tracegen.ir import Program, parse


def ns(costs: Costs, *steps: str, name: str = "1f1b", p: int = 4, m: int = 8) -> list[int]:
    """How long steps last."""
    times = costs.times(tracegen.compile(name, p, m))
    return [times.duration(parse(step).code) for step in steps]  # type: ignore[union-attr]


# b = i + w, each rounded once


@pytest.mark.parametrize(
    ("given", "f", "i", "w"),
    [
        ({}, 1_000_000, 1_000_000, 1_000_000),
        ({"f_us": 0.1}, 100, 1_000_000, 1_000_000),
        ({"b_us": 3000}, 1_000_000, 1_500_000, 1_500_000),
        ({"i_us": 5}, 1_000_000, 5_000, 1_000_000),
        ({"w_us": 5}, 1_000_000, 1_000_000, 5_000),
        ({"b_us": 3000, "i_us": 1000}, 1_000_000, 1_000_000, 2_000_000),
        ({"b_us": 3000, "w_us": 3000}, 1_000_000, 0, 3_000_000),
        ({"b_us": 3000, "i_us": 1000, "w_us": 2000}, 1_000_000, 1_000_000, 2_000_000),
        ({"f_us": 1 / 3, "i_us": 2 / 3, "w_us": 0.013}, 333, 667, 13),
        ({"b_us": 1 / 3}, 1_000_000, 167, 167),  # each half is rounded: B lasts 334 ns
        ({"b_us": 0.3, "i_us": 0.1}, 1_000_000, 100, 200),  # 0.3 - 0.1 is not 0.2 in floats
        ({"f_us": 0.0004, "i_us": 0.0006, "w_us": 0}, 0, 1, 0),
        ({"f_us": 0, "b_us": 0}, 0, 0, 0),
    ],
)
def test_the_halves_of_a_backward(given: dict[str, float], f: int, i: int, w: int) -> None:
    assert ns(Costs(**given), "1F0", "1I0", "1W0", "1B0") == [f, i, w, i + w]


def test_one_number_a_stage() -> None:
    costs = Costs(f_us=[1, 2, 3, 4], b_us=[10, 20, 30, 40], w_us=1)
    assert ns(costs, "0F0", "3F7", "0I0", "3I0", "3W0") == [1000, 4000, 9000, 39000, 1000]


def test_a_pair_lasts_its_halves_unless_told() -> None:
    def pair(costs: Costs, f: str = "3F5", b: str = "4B2") -> int:
        times = costs.times(tracegen.compile("dualpipev", 4, 8))
        return times.duration(parse(f).code, parse(b).code)  # type: ignore[union-attr]

    assert pair(Costs(f_us=1, i_us=2, w_us=3)) == 6000
    assert pair(Costs(f_us=1, i_us=2, w_us=3), b="4I2") == 3000
    assert pair(Costs(fb_us=2.5)) == 2500
    assert pair(Costs(fb_us=[1, 2, 3, 4, 5, 6, 7, 8])) == 4000  # of the forward's stage
    assert pair(Costs(fb_us=1, stage={3: {"fb_us": 9}, 4: {"fb_us": 7}})) == 9000
    assert pair(Costs(fb_us=1, microbatch={5: {"fb_us": 8}, 2: {"fb_us": 7}})) == 8000
    assert pair(Costs(f_us=1, i_us=2, w_us=3, microbatch={2: {"scale": 2}})) == 11000


# Per stage, per microbatch, both, per link: as TOML

TOML = """
f_us = 1
i_us = 2
w_us = 3
alpha_us = 4
bandwidth_GBps = 5
boundary_bytes = [100, 200, 300]
activation_bytes = 1024
w_share = 0.25

[stage.1]
f_us = 10
[stage.2]
b_us = 50
[stage.1.microbatch.3]
f_us = 13
[microbatch.3]
f_us = 30
[microbatch.4]
scale = 1.5
[link."1-2"]
alpha_us = 9
[link."2-1"]
bandwidth_GBps = 50
"""


def test_the_nearest_cost_counts(tmp_path: Path) -> None:
    (tmp_path / "costs.toml").write_text(TOML)
    costs = Costs.from_toml(tmp_path / "costs.toml")
    assert ns(costs, "0F0", "1F0", "0F3", "1F3", "0F4", "1F4") == [
        1000,
        10000,
        30000,  # microbatch 3 everywhere
        13000,  # and on stage 1
        1500,
        15000,  # half as much again, on stage 1 too
    ]
    assert ns(costs, "2I0", "2W0", "2B4", "3B3") == [25000, 25000, 75000, 5000]
    times = costs.times(tracegen.compile("1f1b", 4, 8))
    assert [times.latency(link) for link in ((0, 1), (1, 2), (2, 1))] == [4000, 9000, 4000]
    assert [times.occupancy(*at) for at in (((0, 1), 0), ((1, 2), 1), ((2, 1), 1))] == [20, 40, 4]


def test_options_go_before_the_file() -> None:
    file = Costs.from_dict({"f_us": 1, "i_us": 2, "w_us": 3, "stage": {"1": {"f_us": 9}}})
    assert ns(file.override(f_us=5, alpha_us=None), "0F0", "1F0", "0I0") == [5000, 9000, 2000]
    assert ns(file.override(b_us=8), "0I0", "0W0") == [4000, 4000]
    assert ns(file.override(b_us=8, w_us=1), "0I0", "0W0") == [7000, 1000]
    assert ns(Costs(b_us=8).override(i_us=1, w_us=2), "0B0") == [3000]
    assert ns(Costs(b_us=8).override(i_us=1), "0B0", "0W0") == [8000, 7000]


def test_a_cost_of_zero_is_a_cost() -> None:
    """Zero bytes of activations are zero, not one unit of them."""
    line = tracegen.replay(tracegen.compile("1f1b", 2, 4), Costs(activation_bytes=0, f_us=0))
    assert line.peak_activations["freed_at_weight"] == [0, 0]
    assert ns(Costs(stage={1: {"f_us": 0, "w_us": 0}}), "1F0", "1W0", "1I0") == [0, 0, 1_000_000]


def test_activations_in_bytes_and_in_units() -> None:
    program = tracegen.compile("zb-h1", 2, 4)
    held = tracegen.replay(program, Costs(w_share=0.25)).peak_activations
    assert held == {"freed_at_input": [2, 1.25], "freed_at_weight": [2, 2]}
    held = tracegen.replay(program, Costs(activation_bytes=[100, 200])).peak_activations
    assert held == {"freed_at_input": [200, 200], "freed_at_weight": [200, 400]}
    own = Costs(stage={0: {"activation_bytes": 7}, 1: {"activation_bytes": 5}})
    assert own.in_bytes
    assert own.activations(2) == [7, 5]


def test_costs_survive_being_written_down() -> None:
    costs = Costs.from_dict(
        {"b_us": [3, 4, 5, 6], "stage": {"1": {"microbatch": {"3": {"scale": 2}}}}}
    )
    assert Costs.from_dict(costs.given()) == costs
    program = tracegen.compile("1f1b", 4, 8)
    again = Costs.from_dict(costs.in_force())
    assert tracegen.replay(program, again).end_ns == tracegen.replay(program, costs).end_ns


# What is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"f_us": -1}, "f_us = -1 is no cost; use a finite number, 0 or more"),
        ({"f_us": float("nan")}, "f_us = nan is no cost; use a finite number, 0 or more"),
        ({"alpha_us": float("inf")}, "alpha_us = inf is no cost; use a finite number, 0 or more"),
        ({"w_us": True}, "w_us = True is no cost; use a finite number, 0 or more"),
        ({"w_us": "3"}, "w_us = '3' is no cost; use a finite number, 0 or more"),
        ({"alpha_us": [1]}, "alpha_us = [1] is no cost; use a finite number, 0 or more"),
        ({"w_share": [0.5]}, "w_share = [0.5] is no cost; use a finite number, 0 or more"),
        ({"f_us": [1, [2]]}, "f_us = [2] is no cost; use a finite number, 0 or more"),
        ({"f_us": 2e18}, "f_us = 2e+18 is more than any cost; 10**18 is the most"),
        (
            {"f_us": 10**400},
            "f_us = a number of hundreds of digits is more than any cost; 10**18 is the most",
        ),
        ({"w_share": 1.5}, "w_share = 1.5 is more than the whole; use 0 to 1"),
        (
            {"bandwidth_GBps": 0},
            "bandwidth_GBps = 0 would never end; leave it out for no limit",
        ),
        (
            {"b_us": 5, "i_us": 6},
            "b_us = 5 is less than its half i_us = 6; b = i + w",
        ),
        (
            {"b_us": 5, "i_us": 2, "w_us": 2},
            "b_us = 5 is not i_us + w_us = 4; give two of the three",
        ),
        ({"f_us": [1, 2], "w_us": [1]}, "costs for [1, 2] stages; give one a stage of each"),
        ({"stage": 3}, "stage is no table; write it as [stage.NUMBER]"),
        ({"link": {"0-1": 3}}, 'link is no table; write it as [link."0-1"]'),
        (
            {"stage": {1: {"microbatch": {"f_us": 1}}}},
            "stage 1 microbatch is no table; write it as [stage.1.microbatch.NUMBER]",
        ),
        ({"stage": {"one": {}}}, "stage 'one': expected a number"),
        ({"stage": {"01": {}}}, "stage '01': expected a number"),
        ({"microbatch": {-1: {}}}, "microbatch -1: expected a number"),
        ({"link": {"3": {}}}, "link '3': expected <from rank>-<to rank>, such as 0-1"),
        (
            {"microbatch": {1: {"alpha_us": 3}}},
            "microbatch 1: no cost 'alpha_us'; there are f_us, b_us, i_us, w_us, split_us, "
            "fb_us, r_us, scale",
        ),
        (
            {"stage": {1: {"f_us": -1}}},
            "stage 1: f_us = -1 is no cost; use a finite number, 0 or more",
        ),
        (
            {"stage": {1: {"microbatch": {2: {"w_us": "x"}}}}},
            "stage 1 microbatch 2: w_us = 'x' is no cost; use a finite number, 0 or more",
        ),
        (
            {"link": {"0-1": {"bandwidth_GBps": 0}}},
            "link 0-1: bandwidth_GBps = 0 would never end; leave it out for no limit",
        ),
    ],
)
def test_costs_that_are_none(given: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError) as error:
        Costs(**given)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"f_us": [1, 2]}, "f_us has 2 numbers; there are 4 stages"),
        ({"f_us": []}, "f_us has 0 numbers; there are 4 stages"),
        ({"activation_bytes": [1]}, "activation_bytes has 1 numbers; there are 4 stages"),
        ({"boundary_bytes": [1]}, "boundary_bytes has 1 numbers; 4 stages have 3 boundaries"),
        ({"stage": {4: {"f_us": 1}}}, "stage 4 has costs; the last stage is 3"),
        ({"microbatch": {8: {"f_us": 1}}}, "microbatch 8 has costs; the last microbatch is 7"),
        (
            {"stage": {0: {"microbatch": {8: {"f_us": 1}}}}},
            "microbatch 8 has costs; the last microbatch is 7",
        ),
        ({"link": {"0-4": {"alpha_us": 1}}}, "link '0-4': there is none; ranks are 0 to 3"),
        ({"link": {"1-1": {"alpha_us": 1}}}, "link '1-1': there is none; ranks are 0 to 3"),
        (
            {"stage": {2: {"b_us": 1, "i_us": 2}}},
            "stage 2: b_us = 1 is less than its half i_us = 2; b = i + w",
        ),
        (
            {"stage": {2: {"microbatch": {3: {"b_us": 1, "w_us": 2}}}}},
            "stage 2 microbatch 3: b_us = 1 is less than its half w_us = 2; b = i + w",
        ),
        (
            {"stage": {2: {"activation_bytes": 5}}},
            "stage 2 has activation_bytes and stage 0 has not; give those of all stages",
        ),
        ({"f_us": 1e17}, "the times exceed 2**63 ns, 292 years; use smaller costs"),
        ({"f_us": 9e14}, "the times exceed 2**63 ns, 292 years; use smaller costs"),
        (
            {"bandwidth_GBps": 1e-300, "boundary_bytes": 1e18},
            "the times exceed 2**63 ns, 292 years; use smaller costs",
        ),
    ],
)
def test_costs_that_do_not_fit_the_program(given: dict[str, Any], message: str) -> None:
    program: Program = tracegen.compile("1f1b", 4, 8)
    with pytest.raises(CostError) as error:
        tracegen.replay(program, Costs(**given))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f = 3", "no cost 'f'; there are f_us, i_us, w_us, fb_us, alpha_us, b_us, "),
        ("f_us = ", "it is not TOML: Invalid value (at end of document)"),
        ("f_us = nan", "f_us = nan is no cost; use a finite number, 0 or more"),
        ("f_us = 1979-05-27", "f_us = datetime.date(1979, 5, 27) is no cost; use a finite"),
        (f"f_us = {'9' * 5000}", "it is not TOML: "),
        (f"f_us = {'[' * 5000}", "it is not TOML: "),
        ("[[stage]]", "stage is no table; write it as [stage.NUMBER]"),
    ],
)
def test_files_that_hold_no_costs(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "costs.toml"
    path.write_text(text)
    with pytest.raises(CostError) as error:
        Costs.from_toml(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    with pytest.raises(CostError) as error:
        Costs.from_toml(path)
    assert str(error.value) == f"{path}: No such file or directory; expected a TOML file of costs"
    path.write_bytes(b"\xff\xfef_us")
    with pytest.raises(CostError) as error:
        Costs.from_toml(path)
    assert str(error.value).startswith(f"{path}: it is not TOML: 'utf-8' codec can't decode")


def test_what_splitting_costs_is_on_top_of_w_where_a_backward_is_split() -> None:
    """ZB-H1's W lasts w + split, and 1F1B's B as before: i + w."""
    costs = Costs(f_us=1, i_us=2, w_us=3, stage={1: {"split_us": 0.5}})
    for name, expected in (("1f1b", {"F": 1, "B": 5}), ("zb-h1", {"F": 1, "I": 2, "W": 3.5})):
        line = tracegen.replay(tracegen.compile(name, 2, 4, communication=False), costs)
        steps = zip(line.program.ranks[1], line.start_ns[line.program.offsets[1] :], strict=False)
        ends = line.end_ns[line.program.offsets[1] :]
        lasts = {
            (str(action)[1], (end - start) / 1000)
            for (action, start), end in zip(steps, ends, strict=True)
        }
        assert lasts == set(expected.items())


def test_a_part_of_a_stage_has_its_part_of_what_splitting_costs() -> None:
    from tracegen.analysis.normalise import OneModel

    source = OneModel(Costs(f_us=2, i_us=2, w_us=2, split_us=1.0), 4)
    assert source.costs(tracegen.compile("zbv", 4, 8).placement).split_us == 0.5


def test_splitting_may_save_something_but_not_more_than_w() -> None:
    saves = Costs(f_us=1, i_us=2, w_us=3, split_us=-1)
    line = tracegen.replay(tracegen.compile("zb-h1", 1, 1, communication=False), saves)
    assert line.makespan_ns == 5000
    with pytest.raises(CostError, match=r"^split_us = -4 is more than w_us = 3 can save"):
        tracegen.replay(line.program, Costs(f_us=1, i_us=2, w_us=3, split_us=-4))
