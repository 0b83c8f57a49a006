"""Memory beyond activations, and limits on it: small cases with the sums written out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import programs
from test_blocking import built, compiled, run

import tracegen
from tracegen import drawn, memory, metrics
from tracegen.cli import main
from tracegen.costs import Costs
from tracegen.drawn import held
from tracegen.engine import replay
from tracegen.errors import CostError
from tracegen.ir import Program
from tracegen.timeline import FREED_AT

SETTINGS = settings(max_examples=150, deadline=None, derandomize=True)

# A stage: 100 of weights, 50 of gradients, 400 of optimizer state; 10 a microbatch's activations.
SIZES = {"weight_bytes": 100, "gradient_bytes": 50, "optimizer_bytes": 400}
COSTS = Costs(activation_bytes=10, memory=SIZES)


def check(*args: str) -> Result:
    return CliRunner().invoke(main, ["check", *args])


def test_weights_and_what_belongs_to_them_are_there_throughout() -> None:
    """1F1B, p = 4: rank r holds 550 and 4 - r activations of 10."""
    line = replay(compiled("1f1b", 4, 8), COSTS)
    held = memory.peak_bytes(line.program, line.costs)
    assert held == {at: [590, 580, 570, 560] for at in FREED_AT}
    assert metrics.summary(line)["peak_memory_bytes"] == held
    assert line.peak_activations["freed_at_weight"] == [40, 30, 20, 10]
    assert "peak_memory_bytes" not in metrics.summary(replay(line.program, Costs()))


def test_replicas_count() -> None:
    """A rank of two stages holds the weights of both, whether of one pipe or of two that cross."""
    for name in ("interleaved-1f1b", "dualpipe", "chimera"):
        program = compiled(name, 4, 8)
        assert memory.resident(program, COSTS) == [1100] * 4
    one_each = {"weight_bytes": [1, 2, 3, 4]}
    costs = Costs(activation_bytes=0, memory=one_each)
    assert memory.resident(compiled("1f1b", 4, 8), costs) == [1, 2, 3, 4]


def test_what_a_split_backward_keeps_for_w() -> None:
    """Activations of 10, of which 4 stay until W (w_share 0.4), and 3 that I adds.

    F0 I0 F1 I1 W0 W1, freed at input: 10, 4 + 3 = 7, 17, 14, 7, 0; freed at weight: 10, 10 + 3,
    23, 26, 13, 0.
    """
    program = built(2, "0F0 0I0 0F1 0I1 0W0 0W1")
    costs = Costs(activation_bytes=10, w_share=0.4, memory={"w_stash_bytes": 3})
    assert memory.peak_bytes(program, costs) == {"freed_at_input": [17], "freed_at_weight": [26]}
    line = replay(program, costs)
    assert list(memory.over_time(line, 0)) == [
        (0, 10),
        (2_000_000, 17),  # I0 gives 6 back and adds 3 as F1 takes 10
        (4_000_000, 14),
        (5_000_000, 7),
        (6_000_000, 0),
    ]


@given(program=programs(max_ranks=4, max_microbatches=4), stash=st.integers(0, 5))
@SETTINGS
def test_the_counter_tops_at_the_peak_and_ends_where_it_began(program: Program, stash: int) -> None:
    costs = Costs(activation_bytes=10, memory={**SIZES, "w_stash_bytes": stash})
    line = replay(program, costs)
    peaks = memory.peak_bytes(line.program, costs)
    assert peaks is not None
    for rank, base in enumerate(memory.resident(program, costs)):
        samples = list(memory.over_time(line, rank))
        assert samples[-1][1] == base
        assert max(value for _, value in samples) <= peaks["freed_at_input"][rank]
    assert all(a <= b for a, b in zip(*(peaks[at] for at in FREED_AT), strict=True))


def test_bytes_of_weights_need_bytes_of_activations() -> None:
    program = compiled("1f1b", 2, 2)
    costs = Costs(memory=SIZES)
    with pytest.raises(CostError) as caught:
        metrics.summary(replay(program, costs))
    assert str(caught.value) == (
        "[memory] gives bytes, but those of activations are missing; add activation_bytes"
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            {"weights": 1},
            "memory: no size 'weights'; there are weight_bytes, gradient_bytes, "
            "optimizer_bytes, w_stash_bytes",
        ),
        (
            {"weight_bytes": -1},
            "memory: weight_bytes = -1 is no cost; use a finite number, 0 or more",
        ),
        ([1], "memory is no table; write it as [memory]"),
    ],
)
def test_sizes_that_are_none(sizes: dict[str, float], message: str) -> None:
    with pytest.raises(CostError) as caught:
        Costs(memory=sizes)
    assert str(caught.value) == message
    with pytest.raises(CostError):
        memory.resident(compiled("1f1b", 4, 4), Costs(memory={"weight_bytes": [1, 2]}))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GiB", 80 * 2**30),
        ("80 GiB", 80 * 2**30),
        ("80gb", 80 * 10**9),
        ("1.5MB", 1.5e6),
        ("17", 17),
        ("512B", 512),
    ],
)
def test_limits(text: str, size: float) -> None:
    assert memory.limit(text, "weight", COSTS).size == size


@pytest.mark.parametrize(
    ("text", "costs", "message"),
    [
        (
            "lots",
            COSTS,
            "memory limit 'lots': expected a number of stage activations, or of bytes, "
            "such as 6 or 80GiB",
        ),
        (
            "-1",
            COSTS,
            "memory limit '-1': expected a number of stage activations, or of bytes, "
            "such as 6 or 80GiB",
        ),
        (
            "80GiB",
            Costs(),
            "memory limit 80GiB: the costs say nothing of bytes; give "
            "--activation-bytes, or a limit in stage activations, such as 6",
        ),
    ],
)
def test_limits_that_are_none(text: str, costs: Costs, message: str) -> None:
    with pytest.raises(CostError) as caught:
        memory.limit(text, "weight", costs)
    assert str(caught.value) == message


def test_check_names_the_first_action_that_breaks_it() -> None:
    """ZB-H2, p = 4, m = 8: rank 0 begins with 7 forwards. 6 are too few for the seventh."""
    size = ["zb-h2", "-p", "4", "-m", "8"]
    assert check(*size, "--memory-limit", "7").exit_code == 0
    done = check(*size, "--memory-limit", "6")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[0] == (
        "zb-h2: rank 0, action 6: 0F6 makes it hold 7 stage activations (freed at weight); "
        "the limit is 6"
    )
    verdict = json.loads(check(*size, "--memory-limit", "6", "--json").stdout)
    assert not verdict["sound"]
    assert verdict["problems"][0].startswith("rank 0, action 6: 0F6")


def test_the_limit_is_at_w_unless_at_i(tmp_path: Path) -> None:
    """F0 I0 F1 I1 W0 W1: one activation at a time until I, two until W."""
    order = tmp_path / "late.csv"
    order.write_text("0F0,0I0,0F1,0I1,0W0,0W1\n")
    size = [str(order), "--memory-limit", "1"]
    assert check(*size, "--memory-at", "input").exit_code == 0
    assert check(*size).exit_code == 1
    assert "rank 0, action 2: 0F1 makes it hold 2" in check(*size, "--memory-at", "weight").stdout


def test_check_in_bytes_from_a_file(tmp_path: Path) -> None:
    costs = tmp_path / "costs.toml"
    costs.write_text(
        "activation_bytes = 1073741824\n"
        "[memory]\nweight_bytes = 4294967296\noptimizer_bytes = [0, 0, 0, 8589934592]\n"
    )
    args = ["1f1b", "-p", "4", "-m", "8", "--costs", str(costs)]
    # Rank 0: 4 + 4 GiB; rank 3: 4 + 8 + 1.
    assert check(*args, "--memory-limit", "13GiB").exit_code == 0
    done = check(*args, "--memory-limit", "12GiB")
    assert done.exit_code == 1
    assert done.stdout == (
        "1f1b: rank 3, action 0: 3F0 makes it hold 13958643712 bytes (freed at weight); "
        "the limit is 12GiB\n"
    )


def test_memory_at_needs_a_limit() -> None:
    done = check("1f1b", "--memory-at", "input")
    assert done.exit_code == 2
    assert "--memory-at is about a limit; add --memory-limit" in done.stderr


def test_run_warns_and_draws_the_limit(tmp_path: Path) -> None:
    first, again = tmp_path / "a.json", tmp_path / "b.json"
    text = "-s 1f1b -p 4 -m 8 --links --activation-bytes 1e9 --memory-limit 3GB --memory-at input"
    done = run(*text.split(), "-o", str(first))
    assert done.exit_code == 0
    assert (
        "over the memory limit: rank 0, action 3: 0F3 makes it hold 4000000000 bytes "
        "(freed at input); the limit is 3GB"
    ) in done.stderr
    events = json.loads(first.read_text())["traceEvents"]
    limit = [(e["ts"], e["args"]) for e in events if e.get("name") == "memory limit"]
    assert limit == [(0, {"bytes": 3000000000}), (33000, {"bytes": 3000000000})]
    assert run("--like", str(first), "-o", str(again)).exit_code == 0
    assert first.read_bytes() == again.read_bytes()


def test_memory_has_a_counter(tmp_path: Path) -> None:
    line = replay(compiled("1f1b", 2, 2), COSTS)
    names = [series.name for series in drawn.counters(line)]
    assert names == ["rank 0 bytes", "rank 1 bytes", "rank 0 memory bytes", "rank 1 memory bytes"]
    assert drawn.counters(line)[2].values[0] == 560
    tracegen.write(line, tmp_path / "trace.json")
    read = tracegen.read(tmp_path / "trace.json")
    assert [series.name for series in drawn.counters(read)] == names


def test_a_counter_of_bytes_says_so_whichever_way_they_are_given() -> None:
    program = tracegen.compile("1f1b", 2, 4, communication=False)
    by_stage = {str(stage): {"activation_bytes": 10} for stage in range(2)}
    for costs in (Costs(activation_bytes=10), Costs(stage=by_stage)):
        series = held(tracegen.replay(program, costs), 0)
        assert (series.key, max(series.values)) == ("bytes", 20)
