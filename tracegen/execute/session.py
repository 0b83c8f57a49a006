"""This process among all that execute: its rank, its device and its groups."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist

from tracegen.errors import ExecuteError
from tracegen.execute.axis import offsets
from tracegen.execute.clock import Cpu, Cuda, Device
from tracegen.execute.experts import Shard
from tracegen.execute.host import keep_freed_memory, keep_to_own_cores
from tracegen.execute.outcome import Offset


@dataclass(frozen=True, slots=True)
class World:
    """Where this process stands, as torchrun's environment says it.

    Attributes:
        rank, size: among all processes.
        local_rank: among those of this host.
        address: host:port of the rendezvous; None for torchrun's own.
    """

    rank: int
    size: int
    local_rank: int
    address: str | None = None

    @classmethod
    def of_torchrun(cls) -> World | None:
        """What torchrun put into the environment, or None outside it."""
        if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
            return None
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        return cls(rank, size, int(os.environ.get("LOCAL_RANK", rank)))

    @property
    def local_size(self) -> int:
        """The processes of this host; 0 where nobody says."""
        return self.size if self.address else int(os.environ.get("LOCAL_WORLD_SIZE", 0))


def device_of(name: str, local_rank: int) -> Device:
    """The device of a process.

    Raises:
        ExecuteError: if CUDA is asked for and there is none, or not one for each process.
    """
    if name == "cpu":
        keep_freed_memory()
        return Cpu()
    if not torch.cuda.is_available():
        built = "" if torch.backends.cuda.is_built() else f"; torch {torch.__version__} has no CUDA"
        raise ExecuteError(f"device cuda: no GPU is visible{built}; use --device cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise ExecuteError(
            f"device cuda: there are more ranks than devices on this host, {count}; one device a "
            "rank, or --share-gpu for all ranks as streams of one"
        )
    torch.cuda.set_device(local_rank)
    return Cuda(local_rank)


@dataclass
class Session:
    """An open torch.distributed world.

    World rank w is expert shard w mod ep of rank w div ep of the pipe.

    Attributes:
        control: a gloo group of all, for objects.
        timeout: of every collective and message.
        groups: those made so far; every process makes the same ones in the same order.
    """

    world: World
    device: Device
    control: Any
    timeout: timedelta
    groups: dict[tuple[str, tuple[int, ...]], Any] = field(default_factory=dict)

    @classmethod
    def open(cls, world: World, device_name: str, timeout_s: float) -> Session:
        """Join the world. Raises ExecuteError where it cannot be joined."""
        device = device_of(device_name, world.local_rank)
        backend = "nccl" if device_name == "cuda" else "gloo"
        if backend == "nccl" and not dist.is_nccl_available():
            raise ExecuteError(f"device cuda: torch {torch.__version__} has no NCCL")
        timeout, how = timedelta(seconds=timeout_s), dict[str, Any]()
        if world.address is not None:
            how["init_method"] = f"tcp://{world.address}"
        if device_name == "cpu" and world.local_rank < world.local_size:
            keep_to_own_cores(world.local_rank, world.local_size, torch.get_num_threads())
        try:
            dist.init_process_group(
                backend,
                rank=world.rank,
                world_size=world.size,
                timeout=timeout,
                **how,
            )
        except (RuntimeError, ValueError) as error:
            if "EADDRINUSE" in str(error) or "address already in use" in str(error):
                raise ExecuteError(
                    f"port {(world.address or 'of torchrun').rpartition(':')[2]} is in use; "
                    "leave --port out for a free one"
                ) from None
            raise
        control = dist.group.WORLD
        if backend != "gloo":
            control = dist.new_group(backend="gloo", timeout=timeout)
        return cls(world, device, control, timeout)

    def close(self) -> None:
        self.groups.clear()
        dist.destroy_process_group()

    def group(self, label: str, ranks: tuple[int, ...]) -> Any:
        """A group of world ranks, made by all processes at once."""
        if (label, ranks) not in self.groups:
            self.groups[label, ranks] = dist.new_group(list(ranks), timeout=self.timeout)
        return self.groups[label, ranks]

    def gather(self, item: Any) -> list[Any] | None:
        """What every process has, on world rank 0; None elsewhere."""
        got: list[Any] | None = [None] * self.world.size if self.world.rank == 0 else None
        dist.gather_object(item, got, group=self.control)
        return got

    def barrier(self) -> None:
        dist.barrier(group=self.control)

    def offsets(self) -> list[Offset] | None:
        """On world rank 0, every process's clock against ours; None elsewhere."""
        return offsets(self.control, torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class Place:
    """A process's part in the pipe.

    Attributes:
        rank: of the pipe.
        shard: which expert shard, and its group.
        ep: how many shards.
    """

    session: Session
    rank: int
    ep: int
    shard: Shard

    @classmethod
    def of(cls, session: Session, num_ranks: int, ep: int) -> Place:
        """Raises ExecuteError if there are not num_ranks * ep processes."""
        if session.world.size != num_ranks * ep:
            raise ExecuteError(
                f"{num_ranks} ranks{f' of {ep} expert shards' * (ep > 1)} are {num_ranks * ep} "
                f"processes; there are {session.world.size}"
            )
        rank, index = divmod(session.world.rank, ep)
        shard = Shard()
        if ep > 1:
            for r in range(num_ranks):
                group = session.group("experts", tuple(range(r * ep, (r + 1) * ep)))
                if r == rank:
                    shard = Shard(index, ep, group)
        return cls(session, rank, ep, shard)

    def world_rank(self, rank: int) -> int:
        """The process of our shard that is a rank of the pipe."""
        return rank * self.ep + self.shard.index

    def group(self, label: str, ranks: tuple[int, ...]) -> Any:
        """A group of ranks of the pipe in our shard, made by all processes at once."""
        made = [
            self.session.group(label, tuple(rank * self.ep + e for rank in ranks))
            for e in range(self.ep)
        ]
        return made[self.shard.index]
