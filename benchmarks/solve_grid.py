"""`solve` over a grid: never worse than a named schedule, how often better, how often proven.

    python benchmarks/solve_grid.py [--placement loop] [--solver] [--jobs 2] [--csv FILE] [p ...]

p in 2..8, m in p, 2p, 3p, 4p, the cost triples of the Zero Bubble papers and stages that differ,
latency 0 and 1, limits p, 1.5p and 2p stage activations (of p stages a model), makespan and
span; all by the heuristics alone, or with --solver by OR-tools too. Exits with 1 if any
answer is worse than a named schedule that keeps the same limit.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import Pool

from tracegen.analysis.normalise import OneModel
from tracegen.analysis.solve.exact import Effort
from tracegen.analysis.solve.named import PLACES, STAGES_PER_RANK
from tracegen.analysis.solve.problem import Objective, Problem, problem_of
from tracegen.analysis.solve.search import best_order
from tracegen.costs import Costs
from tracegen.memory import Limit

TRIPLES = ((1, 1, 1), (10, 9, 8), (9, 8, 10), (14, 13, 11))
UNEVEN = "uneven"
LIMITS = (1.0, 1.5, 2.0)
WORK = 4.0  # of the solver, at each point


@dataclass(frozen=True)
class Point:
    """One question of the grid; the limit is in multiples of p."""

    placement: str
    p: int
    m: int
    costs: str
    alpha: int
    limit: float
    objective: str


@dataclass(frozen=True)
class Row:
    """What came of it, times in us; `named` is the best schedule that keeps the limit."""

    point: Point
    value: float
    bound: float
    named: float | None
    named_is: str
    source: str
    seconds: float


def points(placements: list[str], ranks: list[int]) -> Iterator[Point]:
    costs = [*(",".join(map(str, t)) for t in TRIPLES), UNEVEN]
    for place, p, times in product(placements, ranks, range(1, 5)):
        if place == "bidirectional" and (p % 2 or times * p % 2):
            continue
        for c, alpha, limit, objective in product(costs, (0, 1), LIMITS, ("makespan", "span")):
            yield Point(place, p, times * p, c, alpha, limit, objective)


def problem(point: Point) -> Problem:
    """The question of a point."""
    p = point.p
    if point.costs == UNEVEN:
        # A heavy last stage, a light first, and no two neighbours alike.
        f = [10 + (3 * s) % 4 + 4 * (s == p - 1) - 3 * (s == 0) for s in range(p)]
        given = Costs(f_us=f, i_us=[t - 1 for t in f], w_us=[t - s % 3 for s, t in enumerate(f)])
    else:
        f_us, i_us, w_us = map(float, point.costs.split(","))
        given = Costs(f_us=f_us, i_us=i_us, w_us=w_us)
    given = given.override(alpha_us=point.alpha)
    placement = PLACES[point.placement](p, STAGES_PER_RANK[point.placement])
    source = OneModel(given, p)
    size = point.limit * p / source.unit(placement)
    limit = Limit(size, "freed_at_weight", f"{point.limit:g}p")
    objective = Objective(point.objective)
    return problem_of(placement, point.m, source.costs(placement), objective, limit)


def solved(asked: tuple[Point, bool]) -> Row:
    point, solver = asked
    began = time.perf_counter()
    answer = best_order(problem(point), Effort(work=WORK), use_solver=solver)
    seconds = time.perf_counter() - began
    fit = [(one.value, one.schedule) for one in answer.named if one.fits and one.value is not None]
    named, name = min(fit, default=(None, ""))
    return Row(
        point,
        answer.value_ns / 1000,
        answer.bound_ns / 1000,
        None if named is None else named / 1000,
        name,
        answer.source,
        seconds,
    )


def table(rows: list[Row]) -> Iterator[str]:
    """By placement, objective and limit: how many points, and how they came out."""
    yield "placement      objective  limit  points  worse  better   by up to  proven   gap  seconds"
    keys = dict.fromkeys((r.point.placement, r.point.objective, r.point.limit) for r in rows)
    for place, objective, limit in keys:
        here = [
            r
            for r in rows
            if (r.point.placement, r.point.objective, r.point.limit) == (place, objective, limit)
        ]
        known = [r for r in here if r.named is not None]
        worse = sum(r.value > (r.named or 0) for r in known)
        better = sum(r.value < (r.named or 0) for r in known)
        most = max((1 - r.value / r.named for r in known if r.named), default=0.0)
        proven = sum(r.value == r.bound for r in here)
        gap = max(r.value / r.bound - 1 for r in here)
        each = sum(r.seconds for r in here) / len(here)
        yield (
            f"{place:<14} {objective:<9} {limit:>5g}p {len(here):>7} {worse:>6} {better:>7} "
            f"{most:>11.1%} {proven:>7} {gap:>5.1%} {each:>8.2f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ranks", nargs="*", type=int, default=[])
    parser.add_argument("--placement", action="append")
    parser.add_argument("--solver", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="only every n-th point")
    parser.add_argument("--csv")
    args = parser.parse_args()
    placements = args.placement or ["loop", "v"]
    asked = [(one, args.solver) for one in points(placements, args.ranks or list(range(2, 9)))]
    asked = asked[:: args.every]
    rows = []
    with Pool(args.jobs) as pool:
        for row in pool.imap(solved, asked, chunksize=4):
            rows.append(row)
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{len(rows)} of {len(asked)}")
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*asdict(rows[0].point), *list(asdict(rows[0]))[1:]])
            for row in rows:
                data = asdict(row)
                writer.writerow([*data.pop("point").values(), *data.values()])
    sys.stdout.write("\n".join([*table(rows), ""]))
    return int(any(r.named is not None and r.value > r.named for r in rows))


if __name__ == "__main__":
    sys.exit(main())
