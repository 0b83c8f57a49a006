"""Start the ranks as processes of this machine and watch over them; no torch in this process.

Whatever goes wrong with one of them, all are gone soon after, and one message
says which rank it was, in which action, and why.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from typing import Any, NoReturn

from tracegen.errors import ExecuteError
from tracegen.execute.options import Options, slices
from tracegen.execute.progress import COMPUTING, DONE, SETUP, WIDTH, Progress, where
from tracegen.ir import Program

# How long to wait for what the other ranks have to say after the first failure: the rank
# whose connection broke may report before the one that broke it.
GRACE_S = 1.0
POLL_S = 0.2
# Building, joining and comparing may take this long without a sign of life, at least.
SETUP_S = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What a process reports of its end.

    Attributes:
        cause: in words.
        plain: whether the words stand for themselves: the request cannot be carried out,
            and every rank would say the same.
        secondary: whether it only lost touch with another rank.
    """

    cause: str
    plain: bool = False
    secondary: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """What each process is to do.

    Attributes:
        name: of a function of worker.TASKS.
        program, options: for all alike.
    """

    name: str
    program: Program
    options: Options

    @property
    def processes(self) -> int:
        alone = self.options.share_gpu or self.name == "calibrate"
        return 1 if alone else self.program.num_ranks * self.options.ep


def run(task: Task) -> Any:
    """Do the task in processes of its own; what the first one found.

    Raises:
        ExecuteError: if the model does not fit the program, or any of them fails, is killed
            or hangs; all are gone then.
        KeyboardInterrupt: likewise, with the message that says where they were.
    """
    if under_torchrun():
        raise ExecuteError(
            "under torchrun (RANK and WORLD_SIZE are set) only run --execute without --share-gpu "
            "can be done; leave torchrun out"
        )
    num_slices = max(slices(task.program)) + 1
    if task.options.model is None:
        task.options.layers_of(num_slices)
    program = replace(task.program, memo={})
    with _started(replace(task, program=program)) as watch:
        return watch.result()


@contextmanager
def _started(task: Task) -> Iterator[Watch]:
    context, count = mp.get_context("spawn"), task.processes
    address = f"127.0.0.1:{_port(task.options.port)}"
    row = RawArray("q", WIDTH * count)
    watch = Watch(task, row)
    try:
        with _no_interrupt():  # the ranks inherit this; we end them ourselves
            for number in range(count):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_child,
                    args=(number, count, address, task, row, theirs),
                    daemon=True,
                )
                process.start()
                theirs.close()
                watch.processes.append(process)
                watch.pipes.append(ours)
        yield watch
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted: {watch.whereabouts()}") from None
    finally:
        watch.end()


def _child(
    number: int, count: int, address: str, task: Task, row: Any, pipe: connection.Connection
) -> None:
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # we say ourselves who went first
    from tracegen.execute.worker import main

    main(number, count, address, task, Progress(row, number), pipe)


def _port(wanted: int) -> int:
    """The port asked for, or one that is free.

    Raises:
        ExecuteError: if it is in use.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            raise ExecuteError(
                f"port {wanted} cannot be had: {reason}; leave --port out for a free one"
            ) from None
        return int(probe.getsockname()[1])


@contextmanager
def _no_interrupt() -> Iterator[None]:
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class Watch:
    """The processes, what they said, and since when nothing has moved."""

    task: Task
    row: Any
    processes: list[BaseProcess] = field(default_factory=list)
    pipes: list[connection.Connection] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    finished: bool = False
    found: Any = None
    moved: tuple[int, ...] = ()
    since: float = 0.0

    def result(self) -> Any:
        """Wait for the first process's result, and for all to end well."""
        self.since = time.monotonic()
        while not self.finished:
            self._listen(POLL_S)
            if self.failures:
                self._listen_for(GRACE_S)
                raise ExecuteError(self._message())
            if hung := self._hung():
                raise ExecuteError(hung)
        return self.found

    def end(self) -> None:
        """End every process, and see that it is gone."""
        deadline = time.monotonic() + (2.0 if self.finished else 0.0)
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self.processes:
            if process.is_alive():
                process.kill()
        for process in self.processes:
            process.join(5.0)
        for pipe in self.pipes:
            pipe.close()

    def whereabouts(self) -> str:
        """Where every rank is."""
        return "; ".join(
            f"{self._name(number)} {self._where(number)}" for number in range(len(self.processes))
        )

    def _listen_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and len(self.gone) < len(self.pipes):
            self._listen(min(left, POLL_S))

    def _listen(self, seconds: float) -> None:
        left = [n for n in range(len(self.processes)) if n not in self.gone]
        sources: list[Any] = [
            *(self.pipes[n] for n in left),
            *(self.processes[n].sentinel for n in left),
        ]
        connection.wait(sources, seconds)
        for number in left:
            ended = not self.processes[number].is_alive()  # before its last words are looked for
            if (said := _last_words(self.pipes[number])) is not None:
                self._hear(number, said)
            if ended:
                self.gone.add(number)
                code = self.processes[number].exitcode
                if number not in self.failures and code != 0 and not self.finished:
                    self.failures[number] = Failure(_ended(code))

    def _hear(self, number: int, said: Any) -> None:
        if isinstance(said, Failure):
            self.failures[number] = said
        else:
            self.finished, self.found = True, said[0]

    def _message(self) -> str:
        """The failure that explains the others."""
        number, failure = min(
            self.failures.items(), key=lambda item: (item[1].secondary, not item[1].plain, item[0])
        )
        if failure.plain:
            return failure.cause
        return f"{self._name(number)} failed {self._where(number)}: {failure.cause}"

    def _hung(self) -> str | None:
        """A message if nothing has moved for too long."""
        ranks = [Progress(self.row, number) for number in range(len(self.processes))]
        moved, now = tuple(rank.changes for rank in ranks), time.monotonic()
        if moved != self.moved:
            self.moved, self.since = moved, now
            return None
        limit = self.task.options.hang_s
        if any(rank.state in (SETUP, DONE) for rank in ranks):
            limit = max(SETUP_S, 6 * limit)
        if now - self.since < limit:
            return None
        busy = [n for n, rank in enumerate(ranks) if rank.state == COMPUTING]
        busy = busy or [n for n, rank in enumerate(ranks) if rank.state == SETUP]
        if not busy:
            return f"nothing has moved for {limit:g} s: {self.whereabouts()}"
        first, *more = (hangs(self._name(n), self._where(n), limit) for n in busy)
        return "; ".join([first, *more])

    def _name(self, number: int) -> str:
        if len(self.processes) == 1 and self.task.program.num_ranks > 1:
            return "the process"
        rank, shard = divmod(number, self.task.options.ep)
        return f"rank {rank}{f', expert shard {shard},' if self.task.options.ep > 1 else ''}"

    def _where(self, number: int) -> str:
        return where(self.task.program, Progress(self.row, number))


def hangs(name: str, at: str, limit_s: float) -> str:
    """What is said of a rank that does not go on."""
    return f"{name} hangs {at}: no progress for {limit_s:g} s (--hang-timeout for slower actions)"


def _last_words(pipe: connection.Connection) -> Any:
    try:
        return pipe.recv() if pipe.poll() else None
    except (EOFError, OSError):
        return None


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"ended with exit code {code}"


def leave() -> NoReturn:
    """End this process, one of torchrun's, with exit code 0.

    At Python's own end threads of torch's may still run, and then the process aborts now and
    again: torchrun takes that for a failure and ends the others, which may still write.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def under_torchrun() -> bool:
    """Whether this process is one of those that torchrun started."""
    return {"RANK", "WORLD_SIZE"} <= os.environ.keys()
