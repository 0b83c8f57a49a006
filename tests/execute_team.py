"""Processes that stay: one torch.distributed world a p, which runs many cases."""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

SMALL = {
    "hidden": 8,
    "heads": 2,
    "vocab": 16,
    "sequence": 4,
    "microbatch_size": 1,
    "warmup_steps": 0,
    "measure_steps": 1,
}
LIMIT_S = 300.0


class Team:
    """p processes with an open session; `run` calls a function in all of them at once."""

    def __init__(self, size: int) -> None:
        # Bound until the end, so that nobody else is given the port; only who says so may share it.
        self.held = socket.socket()
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("127.0.0.1", 0))
        port = self.held.getsockname()[1]
        context = mp.get_context("spawn")
        self.pipes: list[connection.Connection] = []
        self.processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_member, args=(rank, size, f"127.0.0.1:{port}", theirs), daemon=True
            )
            process.start()
            self.processes.append(process)
            self.pipes.append(ours)

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What function(session, *args) gives in each process.

        Raises:
            AssertionError: with the first traceback.
        """
        for pipe in self.pipes:
            pipe.send((function, args))
        said = []
        for rank, pipe in enumerate(self.pipes):
            ready = connection.wait([pipe, *(p.sentinel for p in self.processes)], LIMIT_S)
            gone = [number for number, p in enumerate(self.processes) if not p.is_alive()]
            assert pipe in ready, f"process {rank} does not answer; those gone: {gone}"
            said.append(pipe.recv())
        for good, value in said:
            assert good, value
        return [value for _, value in said]

    def end(self) -> None:
        for pipe in self.pipes:
            with suppress(OSError):
                pipe.send(None)
        for process in self.processes:
            process.join(5)
            process.kill()
        self.held.close()


def _member(rank: int, size: int, address: str, pipe: connection.Connection) -> None:
    import torch

    from tracegen.execute.session import Session, World

    torch.set_num_threads(1)
    session = Session.open(World(rank, size, rank, address), "cpu", LIMIT_S)
    while (order := pipe.recv()) is not None:
        function, args = order
        try:
            pipe.send((True, function(session, *args)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    os._exit(0)


def execute(session: Any, program: Any, options: Any) -> Any:
    """The outcome of a program on the session: of process 0."""
    from tracegen.execute.job import run_job
    from tracegen.execute.progress import unshared

    return run_job(session, program, options, unshared(session.world.rank))


def execute_all(session: Any, programs: list[Any], options: Any) -> list[Any]:
    """The verdict on each program, and what its events say each rank ran, in order."""
    found = []
    for program in programs:
        outcome = execute(session, program, options)
        found.append(outcome and (outcome.verdict, outcome.steps[-1], outcome.offsets))
    return found


FAULTS = ("w dropped", "w twice", "wrong target", "stages swapped", "replicas apart")


def execute_with(session: Any, fault: str, program: Any, options: Any) -> Any:
    """The outcome with something wrong in it."""
    from unittest.mock import patch

    from tracegen.execute import job, runner

    make = job.make_runner
    weight = runner.Runner._weight

    def faulty(*args: Any) -> Any:
        made = make(*args)
        if fault == "wrong target":
            loss = made.model.loss
            made.model = _replace(made.model, loss=lambda out, mb, of: loss(out, max(mb, 1), of))
        if fault == "stages swapped":
            made.modules = {s: made.model.build({1: 2, 2: 1}.get(s, s)) for s in made.modules}
        return made

    def weight_with_fault(self: Any, spot: tuple[int, int]) -> None:
        before = {p: p.grad for m in self.modules.values() for p in m.parameters()}
        before = {p: None if g is None else g.clone() for p, g in before.items()}
        weight(self, spot)
        if spot[1] != 1:
            return
        for parameter, was in before.items():
            if fault == "w dropped":
                parameter.grad = was
            if fault == "w twice" and parameter.grad is not None:
                parameter.grad = 2 * parameter.grad - (0 if was is None else was)

    replicas = (lambda *a: lambda: None) if fault == "replicas apart" else job.sum_over_processes
    with (
        patch.object(job, "make_runner", faulty),
        patch.object(job, "sum_over_processes", replicas),
        patch.object(runner.Runner, "_weight", weight_with_fault),
    ):
        return execute(session, program, options)


def _replace(model: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(model, **changes)


def offset_to_next(session: Any) -> Any:
    """The exchange of clocks between processes 0 and 1, whose clocks are one."""
    import torch

    from tracegen.execute.axis import offset_to

    return offset_to(1, session.control, torch.device("cpu"))
