"""How long a sweep takes: 1,080 points of eighteen schedules at p=16, on one core and on all.

    python benchmarks/sweep.py

Run it on an idle machine; it is no test, and no figure of it is compared.
"""

import argparse
import sys
import time

from tracegen.analysis.compare import schedules
from tracegen.analysis.grid import Base, axes, points
from tracegen.analysis.measure import Figures, Size
from tracegen.analysis.sweep import cores, sweep
from tracegen.costs import Costs

# The same programs under other costs, and other programs each: what a program costs to make is
# then most of it.
GRIDS = {
    "m=64, 60 costs": "m=64 f/b=0.3,0.4,0.5,0.6,0.8,1 alpha=0,10,20,50,100,200,300,400,500,1000",
    "m=5..64, one cost": "m=5..64",
}


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    names = schedules(None)
    for title, text in GRIDS.items():
        grid = points(names, list(axes([f"p=16 {text}"])), Size("", 16, 64))
        for jobs in sorted({1, cores()}):
            start = time.perf_counter()
            found = sweep(grid, Base(Costs()), jobs)
            took = time.perf_counter() - start
            possible = sum(isinstance(row, Figures) for row in found)
            sys.stdout.write(
                f"{title}: {len(grid)} points, {possible} possible, on {jobs} cores: {took:.1f} s\n"
            )


if __name__ == "__main__":
    main()
