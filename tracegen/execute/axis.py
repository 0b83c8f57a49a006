"""One time axis for all processes: the same clock on one host, offsets between hosts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from tracegen.execute.clock import offset
from tracegen.execute.outcome import Offset

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def host() -> str:
    """What tells one host, and its clock, from another."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return os.uname().nodename


def offsets(group: Any, device: torch.device) -> list[Offset] | None:
    """On the group's first process, the clock of each against its own; None elsewhere.

    Every process of the group calls it. Those of its own host need no exchange.

    Args:
        group: of torch.distributed; None for all.
        device: where the group's backend wants its tensors.
    """
    hosts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, host(), group=group)
    found = []
    for other, theirs in enumerate(hosts):
        measured = None if theirs == hosts[0] else offset_to(other, group, device)
        found.append(measured or Offset())
    return found if dist.get_rank(group) == 0 else None


def offset_to(other: int, group: Any, device: torch.device, tries: int = 50) -> Offset | None:
    """On the group's first process the offset to another's clock, which answers; None elsewhere."""
    clock = torch.zeros(1, dtype=torch.int64, device=device)
    me = dist.get_rank(group)

    def peer(rank: int) -> int:
        return rank if group is None else dist.get_global_rank(group, rank)

    if me == 0:

        def exchange() -> int:
            dist.send(clock, peer(other), group=group)
            dist.recv(clock, peer(other), group=group)
            return int(clock.item())

        return offset(exchange, tries)
    if me == other:
        for _ in range(tries):
            dist.recv(clock, peer(0), group=group)
            clock.fill_(time.monotonic_ns())
            dist.send(clock, peer(0), group=group)
    return None
