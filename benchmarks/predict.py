"""Prediction, not restatement: calibrate on one schedule, predict others, execute those, compare.

    python benchmarks/predict.py                      # p = 2, one thread a rank: a minute or two
    python benchmarks/predict.py --ranks 4 --hidden 256

The costs come from executing one schedule at one m: the median of each op of each
stage, the latency of a hand-over and what a rank spends between two actions. With
them other schedules of as many stages are replayed at another m, and then executed:
the error is of the replay's makespan against the median measured one. On a machine
with fewer idle cores than ranks the figures say little.
"""

from __future__ import annotations

import os
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


@click.command()
@click.option("--ranks", "p", default=2, help="Not more than there are idle cores.")
@click.option("--layers", default=8)
@click.option("--hidden", default=192)
@click.option("--sequence", default=128)
@click.option("--microbatch-size", default=4)
@click.option("--device", default="cpu")
@click.option("--steps", "measure_steps", default=15)
@click.option("--only", help="One of the calibrated schedules.")
def main(p: int, only: str | None, **sizes: Any) -> None:
    """Print the table."""
    options = Options(warmup_steps=3, check=False, **sizes)
    click.echo(f"p = {p}, {os.cpu_count()} cores, {options}", err=True)
    click.echo("| calibrated on | predicted | measured, median | p95 | replay | error |")
    click.echo("|---|---|---:|---:|---:|---:|")
    worst = 0.0
    for name, others in CASES:
        if only in (None, name):
            worst = max(worst, *_rows(name, others, p, options))
    click.echo(f"\nlargest error {worst:.1%}")


def _rows(name: str, others: tuple[str, ...], p: int, options: Options) -> list[float]:
    start = tracegen.compile(name, p, 4 * p, communication=False)
    found = calibrate.in_place(start, options)
    errors = []
    for other in others:
        program = tracegen.compile(other, p, 6 * p, communication=False)
        predicted = tracegen.replay(program, found.costs.for_program(program)).makespan_ns
        outcome = run(Task("run", add_communication(program), options))
        spread = measured(program, outcome).spread
        error = predicted / spread.p50_ns - 1
        errors.append(abs(error))
        click.echo(
            f"| {name}, m = {4 * p} | {other}, m = {6 * p} | {spread.p50_ns / 1e6:.1f} ms "
            f"| {spread.p95_ns / 1e6:.1f} ms | {predicted / 1e6:.1f} ms | {error:+.1%} |",
        )
    return errors


if __name__ == "__main__":
    main()
