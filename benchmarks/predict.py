"""Prediction, not restatement: calibrate on one schedule, predict others, execute those, compare.

    python benchmarks/predict.py              # p = 2, one thread a rank: a quarter of an hour
    python benchmarks/predict.py --ranks 4 --hidden 256

The costs come from executing one schedule at one m: what each op of each stage
takes, the latency of a hand-over and what a rank spends between two actions. With
them other schedules of as many stages are replayed at another m, and then executed.
A shared machine drifts within minutes, so calibrating and executing take turns, and
the error is of the median prediction against the median of the measured medians. On
a machine with fewer idle cores than ranks the figures say little.
"""

from __future__ import annotations

import os
from statistics import median
from typing import Any

import click

import tracegen
from tracegen.execute import calibrate
from tracegen.execute.launch import Task, run
from tracegen.execute.measure import measured
from tracegen.execute.options import Options
from tracegen.passes.communication import add_communication

# What is executed for the costs, at m = 4p (5p for dualpipev's), and what is predicted at
# another m: schedules with as many stages, since a stage is the model's share of one.
CASES = (
    ("1f1b", ("gpipe", "eager-1f1b", "zb-h1", "zb-h2")),
    ("zb-h1", ("1f1b", "gpipe", "zb-h2")),
    ("dualpipev", ("zbv", "interleaved-1f1b", "looped-bfs", "v-half")),
    ("zbv", ("dualpipev", "interleaved-zb", "interleaved-1f1b")),
)


@click.command(help=f"\b\n{__doc__}".replace("\n\n", "\n\n\b\n"))
@click.option("--ranks", "p", default=2, help="Not more than there are idle cores.")
@click.option("--layers", default=8)
@click.option("--hidden", default=192)
@click.option("--sequence", default=128)
@click.option("--microbatch-size", default=4)
@click.option("--device", default="cpu")
@click.option("--steps", "measure_steps", default=9)
@click.option("--rounds", default=3, help="Of calibrating and executing.")
@click.option("--only", help="One of the calibrated schedules.")
def main(p: int, only: str | None, rounds: int, **sizes: Any) -> None:
    options = Options(warmup_steps=2, check=False, **sizes)
    click.echo(f"p = {p}, {os.cpu_count()} cores, {options}", err=True)
    click.echo("| calibrated on | predicted | measured | its rounds | replay | error |")
    click.echo("|---|---|---:|---:|---:|---:|")
    worst = 0.0
    for name, others in CASES:
        if only in (None, name):
            worst = max(worst, *_rows(name, others, p, options, rounds))
    click.echo(f"\nlargest error {worst:.1%}")


def _rows(name: str, others: tuple[str, ...], p: int, options: Options, rounds: int) -> list[float]:
    start = tracegen.compile(name, p, 4 * p, communication=False)
    programs = {other: tracegen.compile(other, p, 6 * p, communication=False) for other in others}
    found: dict[str, list[tuple[float, float]]] = {other: [] for other in others}
    for _ in range(rounds):
        costs = calibrate.in_place(start, options).costs
        for other, program in programs.items():
            predicted = tracegen.replay(program, costs.for_program(program)).makespan_ns
            outcome = run(Task("run", add_communication(program), options))
            found[other].append((predicted / 1e6, measured(program, outcome).spread.p50_ns / 1e6))
    errors = []
    for other, pairs in found.items():
        predicted, took = (median(column) for column in zip(*pairs, strict=True))
        errors.append(abs(predicted / took - 1))
        each = " ".join(f"{ms:.0f}" for _, ms in pairs)
        click.echo(
            f"| {name}, m = {4 * p} | {other}, m = {6 * p} | {took:.0f} ms | {each} "
            f"| {predicted:.0f} ms | {predicted / took - 1:+.1%} |",
        )
    return errors


if __name__ == "__main__":
    main()
