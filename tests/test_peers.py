"""Processes that torchrun starts on one host know where the others were; no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tracegen
from tracegen.execute.launch import Task
from tracegen.execute.options import Options
from tracegen.execute.peers import Peers
from tracegen.execute.progress import COMPUTING

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux's /proc")

CHILD = """
import os, signal, sys
from types import SimpleNamespace
import tracegen
from tracegen.execute.launch import Task
from tracegen.execute.options import Options
from tracegen.execute.peers import Peers
from tracegen.execute.progress import COMPUTING

rank, size, position, how = map(int, sys.argv[1:])
task = Task("run", tracegen.compile("1f1b", size, 4, communication=False), Options())
peers = Peers.of(task, SimpleNamespace(rank=rank, size=size))
peers.progress.set(COMPUTING, position)
if how == 0:
    peers.progress.tell()
    sys.exit(2)
if how == signal.SIGTERM:
    peers.speak_when_ended()
    print("ready", flush=True)
    while True:
        signal.pause()
os.kill(os.getpid(), how)
"""


@pytest.fixture(autouse=True)
def children_of_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As torchrun has it: the processes have one parent, and one port."""
    monkeypatch.setattr(os, "getppid", os.getpid)
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def here(rank: int, size: int) -> Peers:
    program = tracegen.compile("1f1b", size, 4, communication=False)
    world: Any = SimpleNamespace(rank=rank, size=size)
    return Peers.of(Task("run", program, Options()), world)


def child(*args: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(one: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it said on stderr."""
    said = one.communicate(timeout=60)[1]
    return one.returncode, said


def test_who_is_killed_was_last_seen_in_its_action() -> None:
    """Rank 1 of two with four microbatches runs 1F0 1B0 1F1 1B1 .. behind the eight of rank 0."""
    peers = here(0, 2)
    assert ended(child(1, 2, 8 + 2, signal.SIGKILL)) == (-signal.SIGKILL, "")
    assert peers.lost() == [1]
    assert peers.whereabouts() == "rank 1 is gone; it was last seen in 1F1"


def test_who_has_said_why_it_ends_is_not_lost() -> None:
    peers = here(0, 2)
    assert ended(child(1, 2, 8, 0)) == (2, "")
    assert (peers.lost(), peers.whereabouts(), peers.another_told()) == ([], "", True)


def test_of_those_that_are_ended_the_first_tells() -> None:
    """Rank 0 is killed, and then torchrun ends ranks 1 and 2."""
    left = [child(rank, 3, 0, signal.SIGTERM) for rank in (1, 2)]
    for one in left:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    assert ended(child(0, 3, 3, signal.SIGKILL)) == (-signal.SIGKILL, "")
    for one in left:
        one.terminate()
    told = (143, "Error: rank 0 is gone; it was last seen in 0B0\n")
    assert [ended(one) for one in left] == [told, (143, "")]


def test_the_file_has_no_name_once_all_have_it(tmp_path: Path) -> None:
    peers = here(0, 1)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    peers.forget_file()
    peers.progress.set(COMPUTING, 1)
    assert list(tmp_path.iterdir()) == []


def test_without_a_place_for_the_file_each_knows_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    peers = here(1, 2)
    peers.progress.set(COMPUTING, 1)
    assert (peers.lost(), peers.whereabouts()) == ([], "")
