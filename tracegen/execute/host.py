"""What makes a rank on a CPU a device of its own: its cores, and memory that it keeps."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

# mallopt(3)
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
NEVER = -1
TOP_PAD_BYTES = 64 * 2**20

TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/"


def keep_to_own_cores(number: int, count: int, threads: int) -> None:
    """Give this process, the number-th of count on this host, its share of the cores.

    The system wakes the thread that takes a message in where the sender runs, and there it stands
    behind the sender's compute for a time slice: every hand-over is then milliseconds
    late, in one step and not in the next.

    Nothing is done where a share has fewer cores than `threads`, nor where the system cannot.
    """
    try:
        cores = sorted(os.sched_getaffinity(0), key=_neighbourhood)
        each = len(cores) // count
        if each >= threads:
            os.sched_setaffinity(0, cores[number * each : (number + 1) * each])
    except (AttributeError, OSError):
        return


def _neighbourhood(core: int) -> tuple[int, int, int]:
    """A key that puts the hardware threads of one core together, and the cores of one socket."""
    try:
        socket, physical = (
            int(Path(TOPOLOGY.format(core), name).read_text())
            for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):
        socket = physical = 0
    return socket, physical, core


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
