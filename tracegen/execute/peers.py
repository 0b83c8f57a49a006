"""Under torchrun: where the other processes of this host are, in memory that they share.

torchrun ends all processes as soon as one is gone, and says only which signal it was. What
the one that is gone was doing, those that are left can tell.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
import tempfile
import threading
from collections.abc import MutableSequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tracegen.execute.progress import DONE, TOLD, WIDTH, Progress, where

if TYPE_CHECKING:
    from tracegen.execute.launch import Task
    from tracegen.execute.session import World

BY_TERM = 128 + signal.SIGTERM  # how a process ends that was asked to


@dataclass(frozen=True, slots=True)
class Peers:
    """All processes: of those of this host the progress and the process's id, 0 of the others.

    Attributes:
        task: what all of them do.
        process: which of them this is.
        row: as Progress has it, and behind that the ids.
        path: of the file that holds it, until all have it; None where none could be made.
    """

    task: Task
    process: int
    row: MutableSequence[int]
    path: Path | None

    @classmethod
    def of(cls, task: Task, world: World) -> Peers:
        """Those of this host, as torchrun started them: its id and its port name the file."""
        port, agent = os.environ.get("MASTER_PORT", ""), os.getppid()
        path = Path(tempfile.gettempdir()) / f"tracegen-{agent}-{port}.progress"
        size = (WIDTH + 1) * world.size
        row: MutableSequence[int] = [0] * size
        try:
            row = _shared(path, size)
        except (OSError, ValueError):
            return cls(task, world.rank, row, None)
        row[WIDTH * world.size + world.rank] = os.getpid()
        return cls(task, world.rank, row, path)

    @property
    def progress(self) -> Progress:
        return Progress(self.row, self.process)

    def forget_file(self) -> None:
        """Take the file's name away, once all have opened it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def lost(self) -> list[int]:
        """The processes of this host that are gone and have not said why."""
        ids = self.row[WIDTH * self._count :]
        return [
            number
            for number, pid in enumerate(ids)
            if pid and number != self.process and not _alive(pid)
            if Progress(self.row, number).state not in (DONE, TOLD)
        ]

    def another_told(self) -> bool:
        """Whether one of this host has said why it ends, which then is why all end."""
        others = (number for number in range(self._count) if number != self.process)
        return any(Progress(self.row, number).state == TOLD for number in others)

    def whereabouts(self) -> str:
        """Of those that are lost, what they were doing; "" where none is."""
        return "; ".join(
            f"{self._name(number)} is gone; it was last seen "
            f"{where(self.task.program, Progress(self.row, number))}"
            for number in self.lost()
        )

    def speak_when_ended(self) -> None:
        """When torchrun ends this process, let the first that is left tell who is lost.

        The main thread may be waiting inside torch, where no handler of Python's runs: the
        signal wakes a thread.
        """
        if os.name != "posix" or threading.current_thread() is not threading.main_thread():
            return
        ours, theirs = os.pipe()
        os.set_blocking(theirs, False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)

        def watch() -> None:
            while os.read(ours, 1) != bytes([signal.SIGTERM]):
                pass
            if self._is_first() and (said := self.whereabouts()):
                sys.stderr.write(f"Error: {said}\n")
                sys.stderr.flush()
            self.progress.tell()
            os._exit(BY_TERM)

        threading.Thread(target=watch, daemon=True).start()

    @property
    def _count(self) -> int:
        return len(self.row) // (WIDTH + 1)

    def _is_first(self) -> bool:
        ids, lost = self.row[WIDTH * self._count :], self.lost()
        return all(number in lost for number in range(self.process) if ids[number])

    def _name(self, number: int) -> str:
        rank, shard = divmod(number, self.task.options.ep)
        return f"rank {rank}{f', expert shard {shard},' if self.task.options.ep > 1 else ''}"


def _shared(path: Path, size: int) -> MutableSequence[int]:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    handle = os.open(path, flags, 0o600)
    try:
        os.ftruncate(handle, 8 * size)
        return cast("MutableSequence[int]", memoryview(mmap.mmap(handle, 8 * size)).cast("q"))
    finally:
        os.close(handle)


def _alive(pid: int) -> bool:
    """Whether there is such a process that has not ended; one not yet waited for has."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's now, or there is no /proc
        return True
