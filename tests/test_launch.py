"""Processes of ranks: whatever goes wrong, all are gone, and one message says what it was."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch

import tracegen
from tests.command import children_of
from tests.execute_team import SMALL
from tracegen.cli import main
from tracegen.errors import ExecuteError
from tracegen.execute import launch, session
from tracegen.execute.custom import own_model
from tracegen.execute.launch import Failure, Watch
from tracegen.execute.measure import measured
from tracegen.execute.options import Options
from tracegen.execute.progress import COMPUTING, WAITING, Progress, unshared, where
from tracegen.execute.session import device_of
from tracegen.execute.shared import run_shared

HERE = Path(__file__).parent
STAGES = HERE / "failing_stages.py"
TINY = ["--hidden", "8", "--heads", "2", "--seq", "4", "--vocab", "16", "--microbatch-size", "1"]
LONG_S = 200  # no whole run takes as long
QUICK = ["--warmup-steps", "1", "--measure-steps", "2", "--dtype", "float64"]


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "tracegen", *args]


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pids: Iterable[int], seconds: float = 60.0) -> bool:
    """Whether none of them lives, at the latest after so many seconds."""
    deadline, pids = time.monotonic() + seconds, list(pids)
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


def run_failing(function: str, folder: Path, *more: str) -> tuple[str, int, set[int]]:
    """(stderr, exit code, every child that was seen) of a run with failing stages."""
    args = ("run", "-s", "1f1b", "-p", "2", "-m", "2", "--execute", "-o", "out.json", "-q")
    process = subprocess.Popen(
        command(*args, "--model", f"{STAGES}:{function}", *more),
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    seen: set[int] = set()
    deadline = time.monotonic() + LONG_S
    while process.poll() is None and time.monotonic() < deadline:
        seen |= set(children_of(process.pid))
        time.sleep(0.05)
    return process.communicate(timeout=60)[1], process.returncode, seen


def hanging(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A run with two ranks, once its rank 1 hangs in 1F0."""
    args = ("run", "-s", "1f1b", "-p", "2", "-m", "2", "--execute", *more)
    mark = folder.with_name(f"{folder.name} hangs")
    process = subprocess.Popen(
        command(*args, "--model", f"{STAGES}:hangs", "--hang-timeout", str(LONG_S)),
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "HANGS": str(mark)},
    )
    deadline = time.monotonic() + LONG_S
    while not mark.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raises", "rank 1 failed in 1F0: ValueError: out of luck (failing_stages.py:30)"),
        ("killed", "rank 1 failed in 1F0: killed by SIGKILL"),
        pytest.param(
            "exits",
            "rank 1 failed in 1F0: ended with exit code 7",
            marks=pytest.mark.nightly,
        ),
        (
            "hangs",
            "rank 1 hangs in 1F0: no progress for 6 s (--hang-timeout for slower actions)",
        ),
    ],
)
def test_one_failing_rank_ends_all(function: str, message: str, tmp_path: Path) -> None:
    limit = "6" if function == "hangs" else str(LONG_S)
    said, code, seen = run_failing(function, tmp_path, "--hang-timeout", limit)
    assert said == f"Error: {message}\n"
    assert code == 2
    assert len(seen) >= 2
    assert gone(seen)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    process = hanging(tmp_path, "-o", "out.json")
    seen = children_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1].splitlines()
    said = [text for text in said if "take turns" not in text]  # as on one core
    assert said[0] == "executing on cpu, processes: 2"
    assert said[1].startswith("interrupted: rank 0 ")
    assert said[1].endswith("; rank 1 in 1F0")
    assert len(said) == 2
    assert process.returncode == 130
    assert gone(seen)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_a_launcher_that_is_killed_leaves_no_rank(tmp_path: Path) -> None:
    process = hanging(tmp_path, "-q", "--no-trace")
    seen = children_of(process.pid)
    assert len(seen) >= 2
    process.kill()
    process.communicate()
    assert gone(seen)


def refusal(*args: str) -> str:
    """The one message of a request that cannot be carried out."""
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2, result.output
    return result.stderr.splitlines()[-1]


EXECUTE = ("run", "-s", "1f1b", "-p", "2", "-m", "2", "--execute", "-q", "--no-trace")


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refusal(*EXECUTE, "--port", str(port)) == (
            f"Error: port {port} cannot be had: Address already in use; "
            "leave --port out for a free one"
        )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--layers", "1"), "1 layers are too few for 2 stages; use 2 or more"),
        (("--hidden", "9"), "hidden = 9 is no multiple of heads = 4"),
        (("--ep", "2", "--experts", "3"), "experts = 3 is no multiple of ep = 2"),
        (
            ("--ep", "2", "--share-gpu"),
            "ep > 1 takes a process for each expert group; leave --share-gpu out",
        ),
        (("--measure-steps", "0"), "measure_steps = 0: use 1 or more"),
        (
            ("--split", "1,2,3"),
            "split 1,2,3: it says 6 layers in 3 stages; expected 6 in 2, 1 or more each",
        ),
        (("--split", "1,x"), "--split 1,x: expected the layers of each stage, such as 2,2,1"),
    ],
)
def test_options_that_contradict_each_other(args: tuple[str, ...], message: str) -> None:
    assert refusal(*EXECUTE, *args) == f"Error: {message}"


def test_options_of_an_execution_go_with_execute() -> None:
    assert refusal("run", "-s", "1f1b", "--seq", "8") == "Error: --seq goes with --execute"


@pytest.mark.parametrize("option", ["--f", "--steps", "--costs"])
def test_options_of_a_replay_do_not(option: str) -> None:
    assert refusal(*EXECUTE, option, "2") == (
        f"Error: {option} says how to replay; leave it or --execute out"
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nowhere.py:f", "model 'nowhere.py:f': there is no file nowhere.py"),
        (f"{STAGES}:f", f"model '{STAGES}:f': {STAGES} has no function f"),
        (
            f"{STAGES}:no_stages",
            f"{STAGES}:no_stages returned str; expected FILE.py:FUNCTION, where FUNCTION() "
            "returns (stages, example) or (stages, example, loss): a list of torch modules, the "
            "input of one microbatch, and loss(output, microbatch)",
        ),
    ],
)
def test_a_model_that_is_none(model: str, message: str) -> None:
    with pytest.raises(ExecuteError) as caught:
        own_model(Options(model=model), 2, 2, torch.device("cpu"))
    assert str(caught.value).startswith(message)


def test_cuda_asked_for_and_absent() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ExecuteError) as caught:
        device_of("cuda", 0)
    assert str(caught.value).startswith("device cuda: no GPU is visible")
    assert str(caught.value).endswith("use --device cpu")


def test_more_ranks_than_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ExecuteError) as caught:
        device_of("cuda", 1)
    assert str(caught.value) == (
        "device cuda: there are more ranks than devices on this host, 1; one device a rank, or "
        "--share-gpu for all ranks as streams of one"
    )


def test_nccl_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "device_of", lambda name, rank: session.Cpu())
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    with pytest.raises(ExecuteError, match=r"^device cuda: torch .* has no NCCL$"):
        session.Session.open(session.World(0, 1, 0, "127.0.0.1:1"), "cuda", 1.0)


def test_the_failure_that_explains_the_others_is_told() -> None:
    program = tracegen.compile("1f1b", 2, 2)
    watch = Watch(launch.Task("run", program, Options()), [0] * 4)
    watch.processes = [None, None]  # type: ignore[list-item]
    Progress(watch.row, 1).set(COMPUTING, program.offsets[1])
    watch.failures = {
        0: Failure("RuntimeError: Connection closed by peer", secondary=True),
        1: Failure("ValueError: mine"),
    }
    assert watch._message() == "rank 1 failed in 1RECV_F0: ValueError: mine"


def test_where_a_rank_is() -> None:
    program = tracegen.compile("1f1b", 2, 2, communication=False)
    progress = Progress([0] * 4, 1)
    assert where(program, progress) == "outside the steps"
    progress.set(WAITING, program.offsets[1] + 1)
    assert where(program, progress) == "waiting for the input of 1B0"


def test_a_run_writes_both_tilings_one_above_the_other(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    args = ("run", "-s", "zbv", "-p", "2", "-m", "4", "--execute", "-o", str(target), *TINY, *QUICK)
    ran = subprocess.run(
        command(*args), capture_output=True, text=True, check=False, timeout=LONG_S
    )
    assert ran.returncode == 0, ran.stderr
    for word in ("makespan", "predicted", "stage 3 W", "measuring", "check", "p95"):
        assert word in ran.stdout
    trace = json.loads(target.read_text())
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(names.values()) == ["pipeline", "predicted", "waiting"]
    tiles = {
        name: [e for e in events if e["ph"] == "X" and names[e["pid"]] == name]
        for name in names.values()
    }
    assert len(tiles["pipeline"]) == 4 * 4 * 3
    assert {e["name"] for e in tiles["pipeline"]} >= {e["name"] for e in tiles["predicted"]}
    executed = trace["metadata"]["executed"]
    assert executed["steps_measured"] == 2
    assert executed["gradient_error"] < 1e-10
    assert executed["broken_waits"] == []
    assert trace["metadata"]["schedule"] == "zbv"


def test_a_measured_trace_is_read_again(tmp_path: Path) -> None:
    program = tracegen.compile("dualpipev", 2, 4)
    options = replace(Options(**SMALL), share_gpu=True)
    line = measured(program, run_shared(program, options, unshared())).line
    tracegen.write(line, tmp_path / "a.json")
    again = tracegen.read(tmp_path / "a.json")
    assert again.program.ranks == line.program.ranks
    assert again.start_ns == line.start_ns
    assert again.end_ns == line.end_ns
    assert again.config["executed"] == line.config["executed"]


def test_own_stages_with_a_loss_of_their_own() -> None:
    options = replace(Options(model=f"{STAGES}:sound", measure_steps=1), share_gpu=True)
    program = tracegen.compile("dualpipe", 2, 4)
    outcome = run_shared(program, options, unshared())
    assert outcome.verdict is not None
    assert outcome.verdict.good
    assert outcome.verdict.whole_loss > 1  # (0 - 0)^2, (0 - 1)^2, (0 - 2)^2, .. on the average


@pytest.mark.nightly
def test_under_torchrun(tmp_path: Path) -> None:
    args = ["-s", "zbv", "-p", "2", "-m", "4", "--execute", "-o", "out.json", *TINY, *QUICK]
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        + ["-m", "tracegen", "run", *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("makespan") == 2  # the figures, once; and the table's row
    assert json.loads((tmp_path / "out.json").read_text())["metadata"]["p"] == 2


def test_a_process_of_torchruns_does_not_wait_for_pythons_own_end(tmp_path: Path) -> None:
    """There torch's threads may abort it, and torchrun then ends the rank that still writes."""
    stages = Path(STAGES).read_text()
    (tmp_path / "model.py").write_text(f"{stages}\nimport atexit\n\natexit.register(os.abort)\n")
    args = ["-s", "1f1b", "-p", "2", "-m", "4", "--execute", "-o", "out.json", "-q"]
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        + ["-m", "tracegen", "run", *args, "--model", "model.py:sound", *QUICK],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads((tmp_path / "out.json").read_text())["metadata"]["p"] == 2


@pytest.mark.nightly
def test_under_torchrun_those_that_are_left_tell_which_rank_was_killed(tmp_path: Path) -> None:
    args = ["-s", "1f1b", "-p", "2", "-m", "2", "--execute", "-o", "out.json"]
    ran = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        + ["-m", "tracegen", "run", *args, "--model", f"{STAGES}:killed"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LONG_S,
        cwd=tmp_path,
    )
    assert ran.returncode != 0
    assert ran.stderr.count("Error: rank") == 1
    assert "Error: rank 1 is gone; it was last seen in 1F0\n" in ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_neither_help_nor_replay_imports_torch(tmp_path: Path) -> None:
    script = (
        "import sys; from click.testing import CliRunner; from tracegen.cli import main\n"
        "for args in (['--help'], ['run', '--help'], ['calibrate', '--help'], "
        f"['run', '-s', 'zbv', '-o', {str(tmp_path / 'x.json')!r}]):\n"
        "    assert CliRunner().invoke(main, args).exit_code == 0, args\n"
        "import tracegen.execute.launch, tracegen.execute.measure, tracegen.execute.calibrate\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=LONG_S)


def test_help_says_what_has_not_run_on_a_gpu() -> None:
    for name in ("run", "calibrate"):
        said = " ".join(CliRunner().invoke(main, [name, "--help"]).output.split())
        assert "not been run on a GPU" in said
