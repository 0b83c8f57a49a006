"""A rank on a CPU as a device of its own, by what the kernel says of the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from execute_team import Team

from tracegen.execute import host

STEPS = """
import ctypes, re, sys
import torch
from tracegen.execute.host import keep_freed_memory
torch.set_num_threads(1)
ctypes.CDLL(None).mallopt(-3, 2**17)  # M_MMAP_THRESHOLD as it is before glibc has seen any block
if sys.argv[1] == "kept":
    keep_freed_memory()
def resident():  # counted page by page; what other files of /proc say may be late
    return 1024 * int(re.search(r"Rss: +(\\d+)", open("/proc/self/smaps_rollup").read())[1])
before = resident()
for _ in range(3):
    held = [torch.zeros(2**18) for _ in range(64)]  # 1 MiB each, as a step's activations
    most = resident() - before
    del held
    print(most, resident() - before)
"""
STEP_BYTES = 64 * 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="another kernel")
@pytest.mark.parametrize("how", ["kept", "given back"])
def test_a_step_finds_the_memory_that_the_one_before_freed(how: str) -> None:
    """By the kernel's own count of what the process holds while it runs a step and after it."""
    pytest.importorskip("torch")
    allocators = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_")
    found = subprocess.run(
        [sys.executable, "-c", STEPS, how],
        env={name: of for name, of in os.environ.items() if not name.startswith(allocators)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.splitlines()
    held = [tuple(int(n) / STEP_BYTES for n in line.split()) for line in found]
    if how == "kept":
        for most, after in held:
            assert after > 0.9
            assert most < 1.5  # what was kept is used again
    else:  # as glibc does with blocks above that threshold
        assert [after < 0.5 for _, after in held] == [True] * 3


def machine(root: Path, *physical: tuple[int, list[int], int]) -> None:
    """What the kernel says of physical cores: socket, hardware threads, highest clock in kHz."""
    for socket, threads, khz in physical:
        for core in threads:
            for name, said in (
                ("topology/physical_package_id", f"{socket}"),
                ("topology/thread_siblings_list", ",".join(map(str, threads))),
                ("cpufreq/cpuinfo_max_freq", f"{khz}"),
            ):
                file = root / f"cpu{core}" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(said + "\n")


# Two sockets of two cores of two threads, numbered as Linux does on a Xeon: sockets in turn.
XEON = [(s, [2 * c + s, 2 * c + s + 4], 3_000_000) for s in (0, 1) for c in (0, 1)]
# An i9-12900K: eight performance cores of two threads, eight efficiency cores.
HYBRID = [
    *((0, [2 * c, 2 * c + 1], 5_200_000 - 200_000 * (c < 6)) for c in range(8)),
    *((0, [c], 3_900_000) for c in range(16, 24)),
]


@pytest.mark.parametrize(
    ("physical", "allowed", "count", "threads", "expected"),
    [
        (XEON, range(8), 2, 1, [[0, 4, 2, 6], [1, 5, 3, 7]]),  # a socket each
        (XEON, range(8), 4, 2, [[0, 4], [2, 6], [1, 5], [3, 7]]),  # a physical core each
        (XEON, range(8), 3, 1, [[0, 4], [2, 6], [1, 5, 3, 7]]),  # and no core is left over
        (XEON, range(8), 8, 1, [[0], [4], [2], [6], [1], [5], [3], [7]]),
        (XEON, range(8), 3, 3, []),
        (XEON, range(8), 9, 1, []),
        (XEON, [0, 4, 3], 2, 1, [[0, 4], [3]]),  # what a container or a launcher has left
        (XEON, [4], 1, 1, [[4]]),
        (XEON, [4], 2, 1, []),
        (HYBRID, range(24), 4, 1, [[4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3] for k in range(4)]),
        (HYBRID, range(24), 17, 1, []),
        (HYBRID, range(16, 24), 4, 1, [[16, 17], [18, 19], [20, 21], [22, 23]]),
    ],
)
def test_shares_of_machines(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    physical: list[tuple[int, list[int], int]],
    allowed: list[int],
    count: int,
    threads: int,
    expected: list[list[int]],
) -> None:
    machine(tmp_path, *physical)
    monkeypatch.setattr(host, "CPUS", tmp_path)
    assert host.shares(allowed, count, threads) == expected


def test_cores_of_which_the_kernel_says_nothing_are_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "CPUS", tmp_path)
    assert host.shares([5, 1, 3, 7], 2, 1) == [[1, 3], [5, 7]]


@pytest.mark.parametrize(
    ("own", "starters", "set_to"),
    [
        (range(4), range(4), [[2, 3]]),
        (range(4), range(8), []),  # as under mpirun, or torchrun --numa-binding
        (range(1), range(1), []),  # as under taskset -c 0
    ],
)
def test_a_process_that_was_bound_by_itself_stays_as_it_is(
    own: range,
    starters: range,
    set_to: list[list[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "CPUS", tmp_path)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: set(starters if pid else own), raising=False
    )
    calls: list[list[int]] = []
    monkeypatch.setattr(
        os, "sched_setaffinity", lambda pid, share: calls.append(share), raising=False
    )
    host.keep_to_own_cores(1, 2, 1)
    assert calls == set_to


@pytest.mark.parametrize(
    ("world", "environment", "local_size"),
    [
        ((1, 2, 1, "127.0.0.1:1"), {"LOCAL_WORLD_SIZE": "8"}, 2),
        ((9, 16, 1), {"LOCAL_WORLD_SIZE": "8"}, 8),
        ((9, 16, 9), {}, 0),
    ],
)
def test_how_many_share_a_host(
    world: tuple[int, int, int, str],
    environment: dict[str, str],
    local_size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from tracegen.execute.session import World

    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert World(*world).local_size == local_size


@pytest.mark.parametrize("error", [AttributeError, OSError])
def test_a_system_that_pins_nothing_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """As macOS and Windows, and a container that forbids the call."""

    def refuse(*args: object) -> None:
        raise error

    monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
    host.keep_to_own_cores(0, 1, 1)
    if error is AttributeError:
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
        host.keep_to_own_cores(0, 1, 1)


def cores(session: object) -> list[int]:
    return sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="another system")
@pytest.mark.parametrize("more", [0, 1])
def test_ranks_share_the_cores_while_there_are_enough(more: int) -> None:
    pytest.importorskip("torch")
    here = sorted(os.sched_getaffinity(0))
    if more and len(here) > 4:
        pytest.skip("too many processes")
    team = Team(len(here) + 1 if more else min(2, len(here)))
    try:
        found = team.run(cores)
    finally:
        team.end()
    if more:
        assert found == [here] * len(found)
    else:
        assert min(len(share) for share in found) >= 1
        assert len({core for share in found for core in share}) == sum(map(len, found))
