"""What a process of an execution does, from its start to its end."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing import connection, parent_process
from typing import Any

import torch
from torch import distributed as dist

from tracegen.errors import ExecuteError, TracegenError
from tracegen.execute.job import run_job
from tracegen.execute.launch import Failure, Task, hangs
from tracegen.execute.outcome import Outcome
from tracegen.execute.peers import Peers
from tracegen.execute.progress import COMPUTING, DONE, Progress, where
from tracegen.execute.session import Session, World

# The launcher, or a thread under torchrun, ends processes that hang; the limit of each
# message and collective only backs them up. A rank may wait for many actions of others.
TIMEOUT_S = 300.0
POLL_S = 0.5
# Under torchrun nobody else tells whose failure came first: one that only lost touch
# with another rank holds back, so that the other's message comes alone.
HOLD_BACK_S = 2.0


def main(
    number: int,
    count: int,
    address: str,
    task: Task,
    progress: Progress,
    pipe: connection.Connection,
) -> None:
    """Do the task and report: what was found, or why not, as the last thing said."""
    _end_with_parent()
    torch.set_num_threads(task.options.threads)
    try:
        found = TASKS[task.name](task, World(number, count, number, address), progress)
    except BaseException as error:
        pipe.send(failure(error))
        os._exit(1)
    if number == 0:
        pipe.send((found,))
    sys.stdout.flush()
    os._exit(0)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _run(task: Task, world: World, progress: Progress) -> Outcome | None:
    session = Session.open(world, task.options.device, TIMEOUT_S)
    return run_job(session, task.program, task.options, progress)


def _share(task: Task, world: World, progress: Progress) -> Outcome:
    from tracegen.execute.shared import run_shared

    return run_shared(task.program, task.options, progress)


def _calibrate(task: Task, world: World, progress: Progress) -> Any:
    from tracegen.execute.alone import measure_stages

    return measure_stages(task.program, task.options, progress)


TASKS: dict[str, Callable[[Task, World, Progress], Any]] = {
    "run": _run,
    "share": _share,
    "calibrate": _calibrate,
}


def run_under_torchrun(task: Task) -> Outcome | None:
    """The task as one of torchrun's processes: the outcome on world rank 0, None elsewhere.

    Raises:
        ExecuteError: naming this rank, the action and the cause, or the rank that is gone.
        SystemExit: where another process of this host has named its own.
    """
    world = World.of_torchrun()
    assert world is not None
    torch.set_num_threads(task.options.threads)
    peers = Peers.of(task, world)
    progress = peers.progress
    peers.speak_when_ended()
    _end_when_hung(task, progress)
    try:
        session = Session.open(world, task.options.device, TIMEOUT_S)
        peers.forget_file()
        found = run_job(session, task.program, task.options, progress)
        session.close()
        return found
    except Exception as error:
        said, at = failure(error), where(task.program, progress)
        if said.secondary:
            time.sleep(HOLD_BACK_S)
        lost = peers.whereabouts() if said.secondary else ""
        if said.secondary and peers.another_told():
            raise SystemExit(2) from None
        progress.tell()
        if said.plain:
            raise ExecuteError(said.cause) from None
        rank = world.rank // task.options.ep
        more = f"; {lost}" if lost else ""
        raise ExecuteError(f"rank {rank} failed {at}: {said.cause}{more}") from None
    finally:
        peers.forget_file()


def _end_when_hung(task: Task, progress: Progress) -> None:
    """End this process, and with it torchrun all others, if it stays in one action too long."""
    limit = task.options.hang_s
    rank = progress.process // task.options.ep

    def watch() -> None:
        seen, since = -1, time.monotonic()
        while progress.state != DONE:
            if progress.changes != seen or progress.state != COMPUTING:
                seen, since = progress.changes, time.monotonic()
            elif time.monotonic() - since > limit:
                at = where(task.program, progress)
                progress.tell()
                sys.stderr.write(f"Error: {hangs(f'rank {rank}', at, limit)}\n")
                sys.stderr.flush()
                os._exit(2)
            time.sleep(POLL_S)

    threading.Thread(target=watch, daemon=True).start()


def failure(error: BaseException) -> Failure:
    """An error as the launcher tells it: one line, with the place in the user's file."""
    if isinstance(error, TracegenError):
        return Failure(str(error), plain=True)
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f"{os.sep}torch{os.sep}" not in f.filename]
    place = f" ({os.path.basename(ours[-1].filename)}:{ours[-1].lineno})" if ours else ""
    return Failure(f"{type(error).__name__}: {text}{place}", secondary=_lost_touch(error, text))


def _lost_touch(error: BaseException, text: str) -> bool:
    """Whether the error is torch.distributed's own, which another rank's end brings about."""
    return isinstance(error, dist.DistError) or any(
        word in text for word in ("gloo", "Gloo", "NCCL", "Connection closed by peer")
    )
