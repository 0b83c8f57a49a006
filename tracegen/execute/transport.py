"""How a result gets from the rank that made it to the rank that needs it.

Messages are matched by what they carry. On gloo that is the tag, so the order in
which the two sides post does not matter; NCCL has no tags and matches in order,
a link at a time, so `check_order` refuses a program whose two sides differ.
Each direction between ranks has a group of its own: on NCCL a pair of ranks has
one stream a group, and a receive that waits there must not hold up a send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from tracegen.errors import ExecuteError
from tracegen.execute.clock import Device
from tracegen.ir import KIND_MASK, Program, decode
from tracegen.passes.messages import RECEIVES, SENDS, neighbour, other_end


@dataclass(frozen=True, slots=True)
class Message:
    """What a result is for: the forward or backward of a microbatch on stage `stage`."""

    forward: bool
    stage: int
    microbatch: int


class Transport(Protocol):
    """Sends and receives of one rank."""

    def send(self, message: Message, tensor: Tensor, to: int) -> None:
        """Begin to send; the tensor is kept until it has gone."""

    def receive(self, message: Message, buffer: Tensor, source: int) -> None:
        """Begin to receive into the buffer."""

    def wait(self, message: Message) -> Tensor:
        """What was received, once it is there: for the current stream, not the host, on a GPU."""

    def wait_on_host(self, message: Message) -> None:
        """Hold the host until the message is there."""

    def arrived(self, message: Message) -> bool:
        """Whether its receive was posted, and `wait` need not hold up whoever calls it for ever."""

    def finish(self) -> None:
        """Hold the host until all that was sent has gone."""


@dataclass
class Links:
    """Messages between processes, by torch.distributed.

    Attributes:
        world_rank: the process of a rank of the pipe.
        rank: our rank of the pipe.
        up, down: the groups of messages to higher and to lower ranks.
        num_microbatches: m, of which tags are made.
    """

    world_rank: Callable[[int], int]
    rank: int
    up: Any
    down: Any
    num_microbatches: int
    sending: list[tuple[Any, Tensor]] = field(default_factory=list)
    coming: dict[Message, tuple[Any, Tensor]] = field(default_factory=dict)

    def send(self, message: Message, tensor: Tensor, to: int) -> None:
        tensor = tensor.contiguous()
        group = self.up if to > self.rank else self.down
        work = dist.isend(tensor, self.world_rank(to), group=group, tag=self._tag(message))
        self.sending.append((work, tensor))

    def receive(self, message: Message, buffer: Tensor, source: int) -> None:
        group = self.down if source > self.rank else self.up
        work = dist.irecv(buffer, self.world_rank(source), group=group, tag=self._tag(message))
        self.coming[message] = (work, buffer)

    def wait(self, message: Message) -> Tensor:
        work, buffer = self.coming.pop(message)
        work.wait()
        return buffer

    def wait_on_host(self, message: Message) -> None:
        # gloo's wait holds the host anyhow, and its is_completed() stays False until then.
        work, buffer = self.coming[message]
        while buffer.is_cuda and not work.is_completed():
            pass

    def arrived(self, message: Message) -> bool:
        return message in self.coming

    def finish(self) -> None:
        for work, _ in self.sending:
            work.wait()
        self.sending.clear()

    def warm_up(self, links: Iterable[tuple[int, int]], device: torch.device) -> None:
        """Send one number along each link, one link after another, on all ranks at once.

        NCCL connects two ranks when they first exchange something, and holds both until
        then: in the program's own order they could wait for each other in a cycle.
        """
        number = torch.zeros(1, device=device)
        for source, target in sorted(links):
            group = self.up if target > source else self.down
            if self.rank == source:
                dist.send(number, self.world_rank(target), group=group)
            if self.rank == target:
                dist.recv(number, self.world_rank(source), group=group)

    def _tag(self, message: Message) -> int:
        return 2 * (message.stage * self.num_microbatches + message.microbatch) + message.forward


@dataclass
class Mailbox:
    """Messages between ranks that are streams of one process: the tensor itself is handed over.

    All ranks share one box, which `of` gives each its view of. A receive copies
    nothing, so its time on a link is nothing; the receiving stream waits for what
    the sending stream had queued up to then.
    """

    device: Device
    box: dict[Message, tuple[Any, Tensor]] = field(default_factory=dict)
    posted: set[Message] = field(default_factory=set)

    def of(self, device: Device) -> Mailbox:
        return Mailbox(device, self.box)

    def send(self, message: Message, tensor: Tensor, to: int) -> None:
        event = self.device.event()
        event.record()
        self.box[message] = (event, tensor)

    def receive(self, message: Message, buffer: Tensor, source: int) -> None:
        """What is sent lands in the box."""
        self.posted.add(message)

    def wait(self, message: Message) -> Tensor:
        event, tensor = self.box.pop(message)
        self.posted.remove(message)
        self.device.waits_for(event)
        if tensor.is_cuda:
            # The allocator may not hand its memory out again before this stream has read it.
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return tensor

    def wait_on_host(self, message: Message) -> None:
        event, tensor = self.box[message]
        if tensor.is_cuda:
            event.synchronize()

    def arrived(self, message: Message) -> bool:
        return message in self.posted and message in self.box

    def finish(self) -> None:
        """Nothing is under way."""


def links_of(program: Program) -> set[tuple[int, int]]:
    """(from rank, to rank) wherever the program sends something."""
    return {
        (rank, neighbour(program, code))
        for rank, stream in enumerate(program.ranks)
        for _, code in stream.halves()
        if code & KIND_MASK in SENDS
    }


def check_order(program: Program) -> None:
    """For NCCL: are the messages of each link received in the order in which they are sent?

    Raises:
        ExecuteError: naming the first that is not.
    """
    sent: dict[tuple[int, int], list[int]] = {}
    received: dict[tuple[int, int], list[int]] = {}
    for rank, stream in enumerate(program.ranks):
        for _, code in stream.halves():
            if code & KIND_MASK in SENDS:
                sent.setdefault((rank, neighbour(program, code)), []).append(code)
            elif code & KIND_MASK in RECEIVES:
                received.setdefault((neighbour(program, code), rank), []).append(code)
    for link, messages in sent.items():
        for code, awaited in zip(messages, received.get(link, []), strict=False):
            if other_end(program, code) != awaited:
                raise ExecuteError(
                    f"{program.name}: rank {link[0]} sends {decode(code)} where rank {link[1]} "
                    f"does {decode(awaited)}; NCCL matches messages in order, "
                    "use the order of torch's lowering (--p2p-order torch)"
                )
