"""Ten million actions, compiled, validated, replayed and measured, with costs per stage.

    python benchmarks/ten_million.py [--ranks 256] [--microbatches 9728]

Summary only; an F, B, I or W counts as an action, a pair as two.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from measure import TRACEGEN, run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--microbatches", type=int, default=9728)
    asked = parser.parse_args()
    stages = 2 * asked.ranks
    with tempfile.TemporaryDirectory() as folder:
        costs = Path(folder) / "costs.toml"
        each = [1000 + s % 7 * 10 for s in range(stages)]
        costs.write_text(f"f_us = {each}\nb_us = {[2 * us for us in each]}\n")
        took = run(
            [
                *TRACEGEN,
                *("run", "-s", "dualpipev", "-p", str(asked.ranks), "-m", str(asked.microbatches)),
                *("--costs", str(costs), "--no-trace", "--json"),
            ]
        )
    assert took is not None
    figures = json.loads(took.output)
    sys.stdout.write(
        f"wall {took.wall_s:.1f} s, CPU {took.cpu_s:.1f} s, "
        f"peak {took.peak_bytes / 2**30:.2f} GiB; "
        f"makespan {figures['makespan_us']:.3f} us, bubble ratio {figures['bubble_ratio']:.6f}\n"
    )


if __name__ == "__main__":
    main()
