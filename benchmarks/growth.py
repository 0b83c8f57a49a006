"""How time and memory grow: m, 4m, 16m and p, 4p, a whole `tracegen run` each.

python benchmarks/growth.py [--schedule dualpipev]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from measure import medians, table, tiles, tracegen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedule", default="dualpipev")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    sizes = [(16, 256), (16, 1024), (16, 4096), (64, 256), (64, 1024)]
    rows: list[list[object]] = [["p", "m", "tiles", "CPU s", "us a tile", "bytes a tile"]]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        empty = medians(
            [sys.executable, "-m", "tracegen", "run", "-q", "-s", asked.schedule, "-o", str(trace)],
            asked.runs,
        )
        for p, m in sizes:
            took = medians(
                tracegen("-s", asked.schedule, "-p", p, "-m", m, "-o", trace), asked.runs
            )
            count = tiles(trace)
            cpu, peak = took.cpu_s - empty.cpu_s, took.peak_bytes - empty.peak_bytes
            rows.append(
                [
                    p,
                    m,
                    count,
                    f"{took.cpu_s:.2f}",
                    f"{cpu / count * 1e6:.2f}",
                    f"{peak / count:.0f}",
                ]
            )
            sys.stderr.write(f"{rows[-1]}\n")
    sys.stdout.write(table(rows) + "\n\nper tile: less what the default run takes\n")


if __name__ == "__main__":
    main()
