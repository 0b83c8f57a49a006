"""tracegen against the floor: what the fastest JSON library takes for the same events.

    python benchmarks/floor.py [--schedule dualpipev] [--ranks 64] [--microbatches 1024]

The floor is the time that orjson takes to serialise the events of the trace that
tracegen wrote, already in memory, and the time to write those bytes. tracegen is
a whole process, from the start of Python. Needs orjson.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from measure import medians, run, say, table, tiles, tracegen


def floor(trace: str, target: str) -> None:
    """Serialise and write the events of a trace; prints the CPU seconds of each."""
    import orjson

    data = orjson.loads(Path(trace).read_bytes())
    start = time.process_time()
    text = orjson.dumps(data)
    serialised = time.process_time()
    with Path(target).open("wb") as file:
        file.write(text)
    say(serialise_s=serialised - start, write_s=time.process_time() - serialised)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--floor", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--schedule", default="dualpipev")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=1024)
    asked = parser.parse_args()
    if asked.floor:
        floor(*asked.floor)
        return
    import json

    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        size = ["--schedule", asked.schedule, "-p", asked.ranks, "-m", asked.microbatches]
        ours = medians(tracegen(*size, "-o", trace))
        none = medians(tracegen(*size, "--no-trace"))
        count = tiles(trace)
        child = run([sys.executable, __file__, "--floor", str(trace), str(Path(folder) / "out")])
        assert child is not None
        found = json.loads(child.output.splitlines()[-1])
    least = found["serialise_s"] + found["write_s"]

    def row(what: str, seconds: float) -> list[object]:
        return [what, f"{seconds:.2f}", f"{seconds / count * 1e6:.2f}", f"{seconds / least:.1f}"]

    sys.stdout.write(f"{asked.schedule} p={asked.ranks} m={asked.microbatches}: {count} tiles\n\n")
    sys.stdout.write(
        table(
            [
                ["", "s", "us a tile", "times the floor"],
                row("serialise the same events (orjson)", found["serialise_s"]),
                row("write the bytes", found["write_s"]),
                row("tracegen run, whole process, by the clock", ours.wall_s),
                row("the same, CPU of both its processes", ours.cpu_s),
                row("without the trace, CPU", none.cpu_s),
            ]
        )
        + f"\n\npeak memory {ours.peak_bytes / count:.0f} bytes a tile\n"
    )


if __name__ == "__main__":
    main()
