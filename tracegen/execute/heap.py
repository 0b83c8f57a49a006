"""Keeps on a CPU the memory that a step frees, as torch's allocator does on a GPU.

glibc gives large blocks back to the system as they are freed, and the next step pays a page
fault for every page of them again: most in schedules that hold most, so that an op
would cost more in one schedule than in another.
"""

from __future__ import annotations

import ctypes

# mallopt(3)
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
NEVER = -1
TOP_PAD_BYTES = 64 * 2**20


def keep_freed_memory() -> None:
    """From now on freed memory stays in this process; nothing where the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(MMAP_MAX, 0)  # all from the heap,
    mallopt(ARENA_MAX, 1)  # the one that grows without a limit,
    mallopt(TRIM_THRESHOLD, NEVER)  # which is never cut,
    mallopt(TOP_PAD, TOP_PAD_BYTES)  # and grows in large steps
