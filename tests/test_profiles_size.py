"""Large profiles: memory in proportion to what is kept of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# VmHWM, not getrusage: that counts what the process that started this one held.
CODE = """
import sys
from tracegen.profiles import kineto
from tracegen.readers.warn import Warnings
(found,) = kineto.read(sys.argv[1], Warnings())
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(status["VmHWM"].split()[0], len(found.windows), len(found.kernels.start))
"""


def write(path: Path, megabytes: float) -> tuple[int, int]:
    """A profile of a GPU of that size: its actions, its kernels."""
    actions = kernels = written = 0
    now = 1_790_000_000_000_000
    with path.open("w") as file:
        head = {"schemaVersion": 1, "distributedInfo": {"rank": 0}, "host_name": "n"}
        file.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        while written < megabytes * 1_000_000:
            first = now
            rows = []
            for _ in range(300):
                now += 20
                kernels += 1
                rows += [
                    f'{{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": -5, "tid": 1, '
                    f'"ts": {now}, "dur": 10, "args": {{"External id": {kernels}, '
                    '"Input Dims": [[1024, 1024], [1024, 1024]]}}',
                    f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": -5, '
                    f'"tid": 1, "ts": {now + 2}, "dur": 5, "args": {{"correlation": {kernels}}}}}',
                    f'{{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": '
                    f'{kernels % 300}, "ts": {now + 90}, "dur": 15.123, "args": {{"stream": 7, '
                    f'"correlation": {kernels}}}}}',
                    f'{{"ph": "s", "id": {kernels}, "pid": -5, "tid": 1, "ts": {now + 2}, '
                    '"cat": "ac2g", "name": "ac2g"}',
                ]
            op, mb = ("F", actions % 8) if actions % 16 < 8 else ("B", actions % 8)
            rows.append(
                f'{{"ph": "X", "cat": "user_annotation", "name": "PP:0{op}{mb}", "pid": -5, '
                f'"tid": 1, "ts": {first}, "dur": {now - first + 10}, "args": {{}}}}'
            )
            actions += 1
            text = ",\n".join(rows)
            file.write(("" if written == 0 else ",\n") + text)
            written += len(text) + 2
        file.write('\n], "traceName": "made"}\n')
    return actions, kernels


def measured(path: Path) -> tuple[float, int, int]:
    """Memory in MB, actions and kernels read."""
    said = subprocess.check_output([sys.executable, "-c", CODE, str(path)], text=True).split()
    return int(said[0]) / 1024, int(said[1]), int(said[2])


def tiny(folder: Path, made: Callable[[Path, float], tuple[int, int]]) -> Path:
    """A profile that is next to nothing: what it takes is the reader itself."""
    path = folder / "tiny.json"
    made(path, 1e-6)
    return path


def write_graphs(path: Path, megabytes: float) -> tuple[int, int]:
    """The same of replays of a CUDA graph of 16 actions with 300 kernels each."""
    kernels = replays = written = 0
    now = 1_790_000_000_000_000
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [\n')
        while written < megabytes * 1_000_000:
            rows = []
            for node in range(16 * 300):
                now += 20
                action = f"PP:0{'FB'[node // 2400]}{node // 300 % 8}"
                rows.append(
                    f'{{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": {node}, '
                    f'"ts": {now}, "dur": 15.123, "args": {{"stream": {node}, "correlation": '
                    f'{replays}, "graph id": 3, "graph node id": {node + 1}, "name": "{action}"}}}}'
                )
            kernels += len(rows)
            text = ",\n".join(rows)
            file.write(("" if written == 0 else ",\n") + text)
            written += len(text) + 2
            replays += 1
        file.write('\n], "traceName": "made"}\n')
    return 16 * replays, kernels


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_ten_megabytes_of_replayed_graphs(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    actions, _ = write_graphs(path, 10)
    base = measured(tiny(tmp_path, write_graphs))[0]
    megabytes, found, _ = measured(path)
    assert found == actions
    assert megabytes - base < 40


@pytest.mark.nightly
def test_a_hundred_megabytes_of_replayed_graphs_do_not_take_their_size(tmp_path: Path) -> None:
    """200 bytes of a kernel's text leave 150 at most while its actions are made."""
    small, large = tmp_path / "a.json", tmp_path / "b.json"
    write_graphs(small, 10)
    actions, kernels = write_graphs(large, 100)
    base, *_ = measured(small)
    megabytes, found, _ = measured(large)
    assert found == actions
    assert megabytes - base < 150 * kernels / 1e6


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_ten_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    size = write(path, 10)
    base = measured(tiny(tmp_path, write))[0]
    megabytes, *found = measured(path)
    assert tuple(found) == size
    assert megabytes - base < 40


@pytest.mark.nightly
def test_a_hundred_megabytes_do_not_take_their_size(tmp_path: Path) -> None:
    small, large = tmp_path / "a.json", tmp_path / "b.json"
    write(small, 10)
    size = write(large, 100)
    base, *_ = measured(small)
    megabytes, *found = measured(large)
    assert tuple(found) == size
    assert megabytes - base < 60
