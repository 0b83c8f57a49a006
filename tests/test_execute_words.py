"""What is printed of an execution, of timelines made up for it; no torch."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

import tracegen
from tracegen import Costs
from tracegen.analysis import sweep
from tracegen.cli import main
from tracegen.cli.execute import figures, warn_of_turns
from tracegen.errors import ExecuteError
from tracegen.execute import launch
from tracegen.execute.measure import Spread
from tracegen.execute.options import Options


def printed(line: tracegen.Timeline, predicted: tracegen.Timeline, spread: Spread) -> list[str]:
    line.config["executed"] = {
        "measuring_share": 0.001,
        "clock_uncertainty_us": 0,
        "device": "cpu",
    }
    found: Any = SimpleNamespace(
        line=line,
        predicted=predicted,
        spread=spread,
        broken_waits=[],
        outcome=SimpleNamespace(verdict=None),
    )
    console = Console(width=140, record=True, file=StringIO())
    for figure in figures(found):
        console.print(figure)
    return [text.rstrip() for text in console.export_text().splitlines()]


def replayed(f: float, i: float, w: float) -> tracegen.Timeline:
    program = tracegen.compile("zb-h1", 2, 4, communication=False)
    return tracegen.replay(program, Costs(f_us=f, i_us=i, w_us=w))


def test_a_share_of_what_is_tiny_is_a_time_instead() -> None:
    """I of a first stage, which is all but empty: 2.5 us measured, 185 us predicted."""
    steps = Spread([100_000, 110_000], 100_000, 110_000, (1, 8_000))
    lines = printed(replayed(1000, 2.5, 10), replayed(1100, 185, 9), steps)
    row = {" ".join(text.split()[:3]): " ".join(text.split()[3:]) for text in lines}
    assert row["stage 0 F"] == "1.000 ms 1.100 ms +10.0%"
    assert row["stage 0 I"] == "0.003 ms 0.185 ms +182.500 us"
    assert row["stage 0 W"] == "0.010 ms 0.009 ms -10.0%"


@pytest.mark.parametrize(
    ("makespans", "straggler", "said"),
    [
        ([100_000, 110_000], (1, 8_000), "in the slowest, rank 1 computed 8.000 us longer than"),
        ([100_000, 110_000], (0, 0), "in the slowest, no rank computed longer than"),
        ([100_000, 110_000], (0, -5), "in the slowest, no rank computed longer than"),
    ],
)
def test_the_slowest_step(makespans: list[int], straggler: tuple[int, int], said: str) -> None:
    spread = Spread(makespans, 100_000, 110_000, straggler)
    first, *_ = printed(replayed(1, 1, 1), replayed(1, 1, 1), spread)
    assert first == (
        f"steps            2 measured: p50 100.000 us, p95 110.000 us; {said} it mostly does"
    )


def test_of_one_step_there_is_no_slowest() -> None:
    first, *_ = printed(
        replayed(1, 1, 1), replayed(1, 1, 1), Spread([100_000], 100_000, 100_000, (0, 0))
    )
    assert first == "steps            1 measured: p50 100.000 us, p95 100.000 us"


TURNS = ": an action's time has that of others in it\n"


@pytest.mark.parametrize(
    ("cores", "processes", "options", "said"),
    [
        (2, 2, Options(), ""),
        (2, 4, Options(), f"warning: 4 processes take turns on 2 cores{TURNS}"),
        (1, 2, Options(), f"warning: 2 processes take turns on 1 core{TURNS}"),
        (
            6,
            2,
            Options(threads=4),
            f"warning: 2 processes of 4 threads take turns on 6 cores{TURNS}",
        ),
        (8, 2, Options(threads=4), ""),
        (2, 1, Options(threads=4), ""),
        (2, 4, Options(device="cuda"), ""),
    ],
)
def test_fewer_cores_than_threads_are_told(
    cores: int,
    processes: int,
    options: Options,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sweep, "cores", lambda: cores)
    warn_of_turns(processes, options, quiet=False)
    assert capsys.readouterr() == ("", said)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_time_to_hang_is_more_than_none(seconds: float) -> None:
    with pytest.raises(ExecuteError) as caught:
        Options(hang_s=seconds)
    assert str(caught.value) == f"hang_s = {seconds}: use more than 0 seconds"


@pytest.mark.parametrize("task", ["share", "calibrate", "run"])
def test_torchruns_processes_start_none_of_their_own(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would start all ranks, and those would wait for a store that torchrun does not serve."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ExecuteError) as caught:
        launch.run(launch.Task(task, tracegen.compile("1f1b", 2, 2), Options()))
    assert str(caught.value) == (
        "under torchrun (RANK and WORLD_SIZE are set) only run --execute without --share-gpu can "
        "be done; leave torchrun out"
    )


@pytest.mark.parametrize("command", ["run -s 1f1b -p 1 --execute", "calibrate -s 1f1b -p 1"])
@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("no/x.json", "cannot be written: there is no folder no"),
        ("folder", "cannot be written: Is a directory"),
        ("loop.json", "cannot be written: a loop of symbolic links"),
    ],
)
def test_a_target_is_refused_before_an_execution_not_after(
    command: str, target: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("loop.json").symlink_to("loop.json")
    refused = CliRunner().invoke(main, [*command.split(), "-o", target])
    assert refused.stderr == f"Error: {target}: {why}\n"
    assert refused.exit_code == 2


def test_so_is_a_name_that_is_no_traces() -> None:
    pytest.importorskip("torch")
    refused = CliRunner().invoke(main, ["run", "-s", "1f1b", "--execute", "-o", "x.txt"])
    assert refused.stderr == (
        "Error: x.txt: a trace's name ends in .json or .json.gz or .pftrace\n"
    )
