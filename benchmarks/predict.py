"""Prediction, not restatement: costs of one schedule at one m, the time of others at another m.

    python benchmarks/predict.py              # p = 2, one thread a rank: eight minutes
    python benchmarks/predict.py --ranks 4 --hidden 256

Executes some schedules for their costs: what each op of each stage takes, the latency of a
hand-over and what a rank spends between two actions. With them other schedules of as many
stages are replayed at another m, and held against their own execution. A shared machine
drifts within seconds, and one core more than the other: so the same processes run a step of
every schedule in turns, each round in another order, and each round's costs predict; the
median of the predictions is held against the median step. (Costs that are medians know no step in
which one rank was slow, and predict too little.) On a machine with fewer idle cores than ranks
the figures say little.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import click

import tracegen
from tracegen.execute.calibrate import joined
from tracegen.execute.measure import Measurement, measured
from tracegen.execute.op_costs import OpCosts
from tracegen.execute.options import Options
from tracegen.execute.outcome import Outcome
from tracegen.ir import Program
from tracegen.passes.communication import add_communication
from tracegen.passes.split import split_backward

# What is executed for the costs, at m = 4p, and what is predicted at 6p: schedules with as
# many stages, since a stage is the model's share of one.
CASES = {
    "1f1b": ("gpipe", "eager-1f1b", "zb-h1", "zb-h2"),
    "zb-h1": ("1f1b", "gpipe", "zb-h2"),
    "dualpipev": ("zbv", "interleaved-1f1b", "looped-bfs", "v-half"),
    "zbv": ("dualpipev", "interleaved-zb", "interleaved-1f1b"),
}
LIMIT_S = 300


@click.command(help=f"\b\n{__doc__}".replace("\n\n", "\n\n\b\n"))
@click.option("--ranks", "p", default=2, help="Not more than there are idle cores.")
@click.option("--layers", default=8)
@click.option("--hidden", default=128)
@click.option("--sequence", default=64)
@click.option("--microbatch-size", default=4)
@click.option("--device", default="cpu")
@click.option("--rounds", "measure_steps", default=60, help="Of a step of each schedule.")
@click.option("--only", help="One of the calibrated schedules.")
def main(p: int, only: str | None, **sizes: Any) -> None:
    options = Options(warmup_steps=2, check=False, **sizes)
    click.echo(f"p = {p}, {os.cpu_count()} cores, {options}", err=True)
    cases = {name: others for name, others in CASES.items() if only in (None, name)}
    calibrated = {name: [*ways(name, p)] for name in cases}
    predicted = {
        name: tracegen.compile(name, p, 6 * p, communication=False)
        for name in dict.fromkeys(other for others in cases.values() for other in others)
    }
    programs = [*(way for of_name in calibrated.values() for way in of_name), *predicted.values()]
    found = dict(zip(map(id, programs), executed(programs, p, options), strict=True))
    click.echo("| costs of | predicted | measured | fastest to slowest | replay | error |")
    click.echo("|---|---|---:|---:|---:|---:|")
    errors = []
    for name, others in cases.items():
        of_rounds = [
            OpCosts.merged([found[id(way)][number].costs for way in calibrated[name]])
            for number in range(options.measure_steps)
        ]
        for other in others:
            program = predicted[other]
            took = [one.line.makespan_ns for one in found[id(program)]]
            replayed = [
                tracegen.replay(program, costs.for_program(program)).makespan_ns
                for costs in of_rounds
            ]
            errors.append(median(replayed) / median(took) - 1)
            click.echo(
                f"| {name}, m = {4 * p} | {other}, m = {6 * p} | {median(took) / 1e6:.0f} ms "
                f"| {min(took) / 1e6:.0f} to {max(took) / 1e6:.0f} ms "
                f"| {median(replayed) / 1e6:.0f} ms | {errors[-1]:+.1%} |"
            )
    within = sum(abs(error) <= 0.05 for error in errors)
    click.echo(f"\n{within} of {len(errors)} within 5 %, largest error {max(map(abs, errors)):.1%}")


def ways(name: str, p: int) -> Iterator[Program]:
    """The schedule, and the same with its backwards split, or joined: as `calibrate` has them."""
    program = tracegen.compile(name, p, 4 * p, communication=False)
    yield program
    for other in (split_backward(program), joined(program)):
        if other.ranks != program.ranks:
            yield other


def executed(programs: Sequence[Program], p: int, options: Options) -> list[list[Measurement]]:
    """By program, its step of each round, all by the same p processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    context = mp.get_context("spawn")
    whole = [replace(add_communication(program), memo={}) for program in programs]
    ours, theirs = context.Pipe(duplex=False)
    team = [
        context.Process(target=member, args=(rank, p, address, whole, options, theirs), daemon=True)
        for rank in range(p)
    ]
    for process in team:
        process.start()
    theirs.close()
    outcomes: list[Outcome] = ours.recv()
    for process in team:
        process.join()
    return [
        [measured(program, replace(outcome, steps=[step])) for step in outcome.steps]
        for program, outcome in zip(programs, outcomes, strict=True)
    ]


def member(
    rank: int, p: int, address: str, programs: list[Program], options: Options, pipe: Any
) -> None:
    """One of the processes; the first tells what all of them measured."""
    import torch

    from tracegen.execute.job import about, make_runner
    from tracegen.execute.progress import unshared
    from tracegen.execute.session import Place, Session, World

    torch.set_num_threads(options.threads)
    session = Session.open(World(rank, p, rank, address), options.device, LIMIT_S)
    place = Place.of(session, p, 1)
    runners = [make_runner(program, options, place, unshared(rank)) for program in programs]
    steps: list[list[Any]] = [[] for _ in programs]
    turns = list(zip(runners, steps, strict=True))
    order = random.Random(0)
    for number in range(options.warmup_steps + options.measure_steps):
        order.shuffle(turns)
        for runner, of_program in turns:
            session.barrier()
            runner.begin_step()
            runner.run()
            times = runner.recorder.read()
            runner.begin_step()  # what the step holds is free for the next one's
            if number >= options.warmup_steps:
                of_program.append(times)
    gathered, offsets = session.gather(steps), session.offsets()
    if gathered is not None and offsets is not None:
        about_it = about(session.device, p)
        pipe.send(
            [
                Outcome([*zip(*of_ranks, strict=True)], offsets, None, 0, None, about_it)
                for of_ranks in zip(*gathered, strict=True)
            ]
        )
    session.barrier()
    session.close()


if __name__ == "__main__":
    main()
