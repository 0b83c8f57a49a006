"""Reading a torch profiler's trace of a GPU run against `json.loads` of the same file.

    python benchmarks/profiles.py [--megabytes 30 100 300]

The file is of one rank, gzipped, as public ones are: host operators with their shapes, Python's
frames, launches from two threads, kernels on 300 streams with their arguments, NCCL's among them,
flows with negative ids and flows that end nowhere, and microseconds since 1970. Both are whole
processes; `json.loads` does nothing with what it has parsed.
"""

from __future__ import annotations

import argparse
import gzip
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import TRACEGEN, run, table

LOADS = "import gzip, json, sys; json.loads(gzip.open(sys.argv[1]).read())"
HOST, AUTOGRAD, STREAMS, MICROBATCHES, LAUNCHES = 1166, 21433, 300, 8, 200
HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [{"id": 0, "name": "made", "computeMajor": 9, "numSms": 132}],
  "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 64},
  "traceEvents": [
"""
EVENT = '  {{\n    "ph": "{ph}", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},\n'
SPAN = EVENT + '    "ts": {ts}, "dur": {dur},\n    "args": {{\n      {args}\n    }}\n  }}'
FLOW = EVENT + '    "id": {number}, "ts": {ts}, "bp": "e"\n  }}'
SHAPES = (
    '"External id": {number}, "Concrete Inputs": ["", "", ""], "Input type": ["c10::BFloat16", '
    '"c10::BFloat16", ""], "Input Dims": [[4096, 7168], [18432, 7168], []]'
)
OF_KERNEL = (
    '"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": {tid}, '
    '"correlation": {number}, "registers per thread": 168, "shared memory": 213344, '
    '"blocks per SM": 1.0, "grid": [132, 1, 1], "block": [384, 1, 1]'
)


def launch(number: int, ts: int, dice: random.Random) -> Iterator[str]:
    """An operator that launches a kernel."""
    host = {"ph": "X", "pid": HOST, "tid": HOST, "ts": ts}
    yield SPAN.format(
        **host, cat="cpu_op", name="aten::linear", dur=63, args=SHAPES.format(number=number)
    )
    frame = "torch/nn/modules/module.py(1553): _wrapped_call_impl"
    for depth in range(2):
        about = f'"Python parent id": {number}, "Python id": {number + depth}'
        yield SPAN.format(**host, cat="python_function", name=frame, dur=80, args=about)
    thread, stream = (HOST, AUTOGRAD)[number % 2], dice.randrange(STREAMS)
    call = {**host, "tid": thread, "ts": ts + 3}
    about = f'"External id": {number}, "cbid": 211, "correlation": {number}'
    yield SPAN.format(**call, cat="cuda_runtime", name="cudaLaunchKernel", dur=6, args=about)
    flow = {"cat": "ac2g", "name": "ac2g", "number": number if number % 9 else -number}
    yield FLOW.format(**{**call, **flow, "ph": "s"})
    name = "void gemm<7168u, 4096u>(float*)" if number % 20 else "ncclDevKernel_SendRecv(...)"
    kernel = {"pid": 0, "tid": stream, "ts": ts + 5000}
    about = OF_KERNEL.format(number=number, tid=stream)
    yield SPAN.format(**kernel, ph="X", cat="kernel", name=name, dur=25, args=about)
    yield FLOW.format(**{**kernel, **flow, "ph": "f"})


def write(path: Path, megabytes: float) -> None:
    """A file of that many megabytes before it is zipped."""
    dice, ts, number, written, actions = random.Random(0), 1_740_461_679_471_809, 0, 0, 0
    with gzip.open(path, "wt", compresslevel=1) as file:
        file.write(HEAD)
        while written < megabytes * 1e6 or actions % (2 * MICROBATCHES):
            parts, start = [], ts
            for _ in range(LAUNCHES):
                number += 1
                parts += launch(number, ts, dice)
                ts += 30
            op = "FB"[actions // MICROBATCHES % 2]
            name = f"PP:0{op}{actions % MICROBATCHES}"
            span = {"ts": start, "dur": ts - start - 1, "args": f'"External id": {number}'}
            marks = {"ph": "X", "cat": "user_annotation", "name": name, "pid": HOST, "tid": HOST}
            parts.append(SPAN.format(**marks, **span))
            actions += 1
            written += file.write(",\n".join(parts) + ",\n")
        file.write('  {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", ')
        file.write(f'"ts": {ts}}}\n  ],\n  "traceName": "made.json"\n}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, nargs="+", default=[30, 100, 300])
    asked = parser.parse_args()
    rows = [
        ["MB", "MB zipped", "json.loads s", "MiB", "tracegen import s", "MiB", "time", "memory"]
    ]
    with tempfile.TemporaryDirectory() as folder:
        for megabytes in asked.megabytes:
            path = Path(folder, "rank0.pt.trace.json.gz")
            write(path, megabytes)
            loads = run([sys.executable, "-c", LOADS, str(path)])
            reads = run([*TRACEGEN, "import", str(path), "-o", str(Path(folder, "out.json"))])
            assert loads
            assert reads
            assert "this is gpipe" in reads.output, reads.output
            rows.append(
                [
                    f"{megabytes:g}",
                    f"{path.stat().st_size / 1e6:.1f}",
                    *(f"{loads.cpu_s:.2f}", f"{loads.peak_bytes / 2**20:.0f}"),
                    *(f"{reads.cpu_s:.2f}", f"{reads.peak_bytes / 2**20:.0f}"),
                    f"{reads.cpu_s / loads.cpu_s:.2f}",
                    f"{reads.peak_bytes / loads.peak_bytes:.2f}",
                ]
            )
    sys.stdout.write(table(rows) + "\n")


if __name__ == "__main__":
    main()
