"""Dynamic dispatch: against a second dispatcher, and what a slow rank does under both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from golden import SHIPPED
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Case, Part, waits_of
from strategies import programs
from test_blocking import assert_sums, compiled, run

import tracegen
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.errors import ScheduleError
from tracegen.ir import Program
from tracegen.passes.validate import validate
from tracegen.repeat import step_of

SETTINGS = settings(max_examples=200, deadline=None, derandomize=True)


def second(
    program: Program, lasts: dict[str, int], latency: int, steps: int = 1
) -> list[list[str]]:
    """By rank, the order in which idle ranks take ready actions: time by time, all ranks looked at.

    For times above 0, so that nothing that ends is ready before it begins.
    """
    place, m = program.placement, program.num_microbatches
    rows = [[str(step) for step in stream] for stream in program.ranks]
    sources = waits_of(Case(rows, place.ranks, place.chains, m))
    todo: list[set[tuple[int, Part]]] = []
    for stream in program.ranks:
        actions = [step for row in [stream] for step in row]
        halves = [h for a in actions for h in (getattr(a, "forward", a), getattr(a, "backward", a))]
        parts = {(h.stage, str(h.kind), h.microbatch) for h in halves}
        todo.append({(step, part) for step in range(steps) for part in parts})
    there: dict[tuple[int, Part, int], int] = {}
    free = [0] * program.num_ranks
    found: list[list[str]] = [[] for _ in todo]
    now = 0
    while any(todo):
        for rank, open_ in enumerate(todo):
            if free[rank] > now or not open_:
                continue
            current = min(step for step, _ in open_)
            ready = [
                part
                for step, part in open_
                if step == current
                and all(
                    any(there.get((step, one, rank), now + 1) <= now for one in need)
                    for need in sources(part)
                )
            ]
            if not ready:
                continue
            part = min(
                ready,
                key=lambda one: ("BIFW".index(one[1]) // 2 * 2 + (one[1] == "W"), one[2], one[0]),
            )
            open_.remove((current, part))
            stage, kind, mb = part
            found[rank].append(f"{stage}{kind}{mb}")
            free[rank] = now + lasts[kind]
            for other in range(len(todo)):
                late = 0 if other == rank else latency
                there[current, part, other] = free[rank] + late
        times = [*free, *there.values()]
        now = min((time for time in times if time > now), default=now + 1)
    return found


times = st.fixed_dictionaries({kind: st.integers(1, 6) for kind in "FIW"})


@given(
    program=programs(max_ranks=4, max_microbatches=4),
    lasts=times,
    latency=st.integers(0, 4),
    steps=st.integers(1, 2),
)
@SETTINGS
def test_a_second_dispatcher_agrees(
    program: Program, lasts: dict[str, int], latency: int, steps: int
) -> None:
    lasts = {**lasts, "B": lasts["I"] + lasts["W"]}
    us = {f"{kind.lower()}_us": lasts[kind] / 1000 for kind in "FIW"}
    line = replay(program, Costs(**us, alpha_us=latency / 1000), dispatch="dynamic", steps=steps)
    mine = [[str(action) for action in stream] for stream in line.program.ranks]
    assert mine == second(program, lasts, latency, steps)
    validate(line.program)
    assert_sums(line)


@given(program=programs(max_ranks=4, max_microbatches=4), data=st.data())
@SETTINGS
def test_what_it_finds_is_a_static_order_of_the_same_times(program: Program, data: Any) -> None:
    """With links that queue, noise and a slow rank: no rank is idle beside what is ready."""
    number = st.integers(1, 9)
    costs = Costs(
        f_us=data.draw(number),
        b_us=data.draw(number),
        alpha_us=data.draw(st.integers(0, 3)),
        bandwidth_GBps=data.draw(st.sampled_from([None, 0.001])),
        boundary_bytes=data.draw(number),
        rank={0: {"slowdown": 1.5}},
        jitter=0.2,
        optimizer_us=1,
        replica_sync_us=1,
    )
    found = replay(program, costs, dispatch="dynamic")
    static = replay(step_of(found.program, 0), costs)
    assert (found.start_ns, found.end_ns) == (static.start_ns, static.end_ns)
    assert found.makespan_ns <= sum(found.busy_ns) + sum(found.idle_ns)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_schedule_can_be_dispatched(name: str) -> None:
    for p, m in ((2, 4), (4, 8)):
        try:
            program = compiled(name, p, m)
        except ScheduleError:
            continue
        replay(program, Costs(f_us=1, b_us=2), dispatch="dynamic", steps=2, sync=True)


def test_pairs_are_split() -> None:
    line = replay(compiled("dualpipe", 2, 4), Costs(f_us=1, b_us=2), dispatch="dynamic")
    assert not any(";" in str(step) for stream in line.program.ranks for step in stream)


def test_by_hand() -> None:
    """Two ranks, m = 3, F = 1, B = 2. Rank 0 has nothing but F until 4, and does all three; then
    B0 4-6, ready first; rank 1 F0 1-2, then B0 2-4 (before F1, ready since 2), F1 4-5, B1 5-7, ...
    """
    line = replay(compiled("gpipe", 2, 3), Costs(f_us=1, b_us=2), dispatch="dynamic")
    assert [" ".join(map(str, stream)) for stream in line.program.ranks] == [
        "0F0 0F1 0F2 0B0 0B1 0B2",
        "1F0 1B0 1F1 1B1 1F2 1B2",
    ]
    assert line.makespan_ns == 12_000


@pytest.mark.parametrize(
    ("slowdown", "pace", "piled_up"), [(1.5, 4500, [14, 24, 43]), (3.0, 9000, [16, 29, 57])]
)
def test_a_slow_rank_sets_the_pace_under_both(
    slowdown: float, pace: int, piled_up: list[int]
) -> None:
    """Another microbatch takes the slow rank's F + B = 3 us times its slowdown, however dispatched.

    Under dynamic dispatch the ranks before it run ahead, so that what they hold grows with m.
    """
    costs = Costs(f_us=1, b_us=2, rank={3: {"slowdown": slowdown}})
    held: dict[str, list[float]] = {}
    for dispatch in ("static", "dynamic"):
        lines = [replay(compiled("1f1b", 4, m), costs, dispatch=dispatch) for m in (16, 32, 64)]
        took = [line.makespan_ns for line in lines]
        assert took[2] - took[1] == 32 * pace
        assert took[1] - took[0] == 16 * pace
        held[dispatch] = [max(line.peak_activations["freed_at_weight"]) for line in lines]
    assert held["static"] == [4, 4, 4]
    assert held["dynamic"] == piled_up


def test_the_order_can_be_saved_and_run(tmp_path: Path) -> None:
    order = tmp_path / "found.csv"
    text = "-s 1f1b -p 4 -m 8 --slow 2=1.5 --dispatch dynamic --no-trace --json"
    dynamic = run(*text.split(), "--save-order", str(order))
    assert dynamic.exit_code == 0
    static = run("-s", str(order), "--slow", "2=1.5", "--no-trace", "--json")
    assert (
        dynamic.stdout.partition('"makespan_us"')[2] == static.stdout.partition('"makespan_us"')[2]
    )
    steps = run(*text.split(), "--steps", "2", "--save-order", str(order))
    assert steps.exit_code == 2
    assert "--save-order is of one step; leave --steps out" in steps.stderr


def test_a_dynamic_trace_can_be_made_again(tmp_path: Path) -> None:
    first, again = tmp_path / "a.json", tmp_path / "b.json"
    text = "-s dualpipe -p 4 -m 8 --dispatch dynamic --slow 1=2 --steps 2"
    assert run(*text.split(), "-o", str(first)).exit_code == 0
    assert run("--like", str(first), "-o", str(again)).exit_code == 0
    assert first.read_bytes() == again.read_bytes()
    assert tracegen.read(first).program.num_steps == 2
