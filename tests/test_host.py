"""A rank on a CPU as a device of its own, by what the kernel says of the process."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from execute_team import Team

FAULTS = """
import resource, sys
import torch
from tracegen.execute.host import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.zeros(2**18) for _ in range(64)]  # 1 MiB each, as a step's activations
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(step(), step(), step())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_a_step_finds_the_memory_that_the_one_before_freed() -> None:
    """By the kernel's own count: 64 MiB are 16384 pages of 4 KiB, each a fault when it is new."""
    kept, given_back = (
        [
            int(n)
            for n in subprocess.run(
                [sys.executable, "-c", FAULTS, how], capture_output=True, check=True, text=True
            ).stdout.split()
        ]
        for how in ("kept", "given back")
    )
    assert kept[0] > 1000
    assert (kept[1] < kept[0] / 4, kept[2] < kept[0] / 100) == (True, True)
    assert given_back[1] > given_back[0] / 2  # what glibc does by itself, once its blocks grow


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
        each = len(here) // len(found)
        assert [len(share) for share in found] == [each] * len(found)
        assert len({core for share in found for core in share}) == each * len(found)
