"""What makes a rank on a CPU a device of its own: its cores, and memory that it keeps."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable
from itertools import chain, groupby, pairwise
from pathlib import Path

# mallopt(3)
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
NEVER = -1
TOP_PAD_BYTES = 64 * 2**20

CPUS = Path("/sys/devices/system/cpu")
# A core's highest clock as a share of the fastest's: efficiency cores stay at 0.9 or below, and
# of equal cores the favoured ones are at most 6 % above the others.
ALIKE = 0.92


def keep_to_own_cores(number: int, count: int, threads: int) -> None:
    """Give this process, the number-th of count on this host, its share of the cores.

    The system wakes the thread that takes a message in where the sender runs, and there it stands
    behind the sender's compute for a time slice: every hand-over is then milliseconds
    late, in one step and not in the next.

    Nothing is done where a share has fewer cores than `threads`, where whoever started this
    process has bound it already, nor where the system cannot.
    """
    try:
        allowed = os.sched_getaffinity(0)
        bound = allowed != os.sched_getaffinity(os.getppid())
        if not bound and (found := shares(allowed, count, threads)):
            os.sched_setaffinity(0, found[number])
    except (AttributeError, OSError):
        return


def shares(allowed: Iterable[int], count: int, threads: int) -> list[list[int]]:
    """The allowed cores in count shares of at least `threads`; none where they do not go round.

    Two processes share a physical core only where there are more of them than of those. A core
    much slower than others is in no share.
    """
    fast = _fast(allowed)
    physical = [list(group) for _, group in groupby(sorted(fast, key=_place), key=_core)]
    for units in (physical, [[core] for group in physical for core in group]):
        ends = [len(units) * k // count for k in range(count + 1)]
        found = [list(chain(*units[a:b])) for a, b in pairwise(ends)]
        if min(map(len, found)) >= threads:
            return found
    return []


def _fast(allowed: Iterable[int]) -> list[int]:
    clock = {core: _number(core, "cpufreq/cpuinfo_max_freq") for core in allowed}
    return [core for core, of in clock.items() if of >= ALIKE * max(clock.values())]


def _core(core: int) -> tuple[int, int]:
    """The socket and the physical core that a hardware thread is of."""
    of = "topology/thread_siblings_list"
    return _number(core, "topology/physical_package_id"), _number(core, of, core)


def _place(core: int) -> tuple[int, int, int]:
    """A key that puts the hardware threads of one core together, and the cores of one socket."""
    return *_core(core), core


def _number(core: int, name: str, unknown: int = 0) -> int:
    """The first number of a file of the kernel's on a core."""
    try:
        found = re.match(r"-?\d+", (CPUS / f"cpu{core}" / name).read_text())
    except OSError:
        return unknown
    return int(found[0]) if found else unknown


def keep_freed_memory() -> None:
    """From now on freed memory stays in this process, as torch's allocator has it on a GPU.

    glibc gives large blocks back to the system as they are freed, and the next step pays a
    page fault for every page of them again: most in schedules that hold most, so that
    an op would cost more in one schedule than in another. Nothing is done where the C
    library is another.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(MMAP_MAX, 0)  # all from the heap,
    mallopt(ARENA_MAX, 1)  # the one that grows without a limit,
    mallopt(TRIM_THRESHOLD, NEVER)  # which is never cut,
    mallopt(TOP_PAD, TOP_PAD_BYTES)  # and grows in large steps
