"""Does a rank's action list as it stands, action by action.

Waiting happens in front of the compute action that needs what is coming: its RECV
was posted where it stands. Of a pair both inputs are waited for, as replay has it;
on a single stream its forward then runs before its backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tracegen.errors import ExecuteError
from tracegen.execute import private
from tracegen.execute.clock import Device, Event, Recorder
from tracegen.execute.progress import COMPUTING, WAITING, Progress
from tracegen.execute.stages import Model
from tracegen.execute.transport import Message, Transport
from tracegen.ir import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    NO_MATE,
    RECV_B,
    RECV_F,
    SEND_B,
    SEND_F,
    STAGE_MASK,
    STAGE_SHIFT,
    Program,
    decode,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT

Spot = tuple[int, int]  # stage, microbatch


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a tensor that a stage takes or gives."""

    size: torch.Size
    dtype: torch.dtype


@dataclass
class Runner:
    """One rank: its modules, what it holds between actions, and what it has noted.

    Attributes:
        program: with SEND and RECV.
        modules: the rank's stages.
        outputs: the shape of every stage's output.
        shard: which of the ep shards of the data this process runs.
        gate: see Options.
        losses: of the microbatches whose last stage is here.
    """

    program: Program
    rank: int
    model: Model
    modules: Mapping[int, nn.Module]
    outputs: Mapping[int, Shape]
    transport: Transport
    device: Device
    recorder: Recorder
    progress: Progress
    shard: int = 0
    gate: str = "comm"
    losses: dict[int, Tensor] = field(default_factory=dict)
    _saved: dict[Spot, tuple[Tensor, Tensor]] = field(default_factory=dict)
    _owed: dict[Spot, tuple[Any, ...]] = field(default_factory=dict)
    _here: dict[Message, Tensor] = field(default_factory=dict)
    _outgoing: dict[Message, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream, self.base = self.program.ranks[self.rank], self.program.offsets[self.rank]
        self.owner = self.program.placement.ranks
        self.previous, self.following = self.program.placement.neighbours()
        self.backward = not self.program.forward_only
        self._do = {
            FORWARD: self._forward,
            FULL: self._full,
            INPUT: self._input,
            WEIGHT: self._weight,
        }

    def begin_step(self) -> None:
        """Forget the step before, its gradients too."""
        for held in (self.losses, self._saved, self._owed, self._here, self._outgoing):
            held.clear()
        for module in self.modules.values():
            module.zero_grad(set_to_none=True)
        self.recorder.start_step()

    def run(self) -> None:
        """The whole step."""
        for at in range(len(self.stream)):
            self.do(at)
        self.transport.finish()

    def ready(self, at: int) -> bool:
        """Whether everything has been posted that the step waits for."""
        return all(map(self.transport.arrived, self._messages(at)))

    def do(self, at: int) -> None:
        """One step of the stream.

        Raises:
            ExecuteError: if the program does not hold what the step needs.
        """
        with self.device.stream(), torch.set_grad_enabled(self.backward):
            self._do_one(at)

    def _do_one(self, at: int) -> None:
        code, mate = self.stream.codes[at], self.stream.mates[at]
        kind = code & KIND_MASK
        if kind <= WEIGHT:
            self._compute(at, code, mate)
            return
        self.progress.set(COMPUTING, self.base + at)
        for message in (code, mate):  # two where a SEND and a RECV are one action
            if message != NO_MATE:
                self._communicate(message)

    def _communicate(self, code: int) -> None:
        kind = code & KIND_MASK
        if kind in (SEND_F, SEND_B):
            self._send(code, forward=kind == SEND_F)
        elif kind in (RECV_F, RECV_B):
            self._receive(code, forward=kind == RECV_F)
        # The actions of a whole stage are for sharded parameters, and ours are whole, or for
        # what comes after the step: replicas are summed there.

    def _compute(self, at: int, code: int, mate: int) -> None:
        wait = self._wait(at)
        self.progress.set(COMPUTING, self.base + at)
        start = self.recorder.mark()
        self._do[code & KIND_MASK](_spot(code))
        if mate != NO_MATE:
            self._do[mate & KIND_MASK](_spot(mate))
        self.recorder.note(code, mate, wait, start, self.recorder.mark())

    def _wait(self, at: int) -> Event | None:
        """Wait for what comes from other ranks; the event from when on, if on the stream."""
        if not (messages := self._messages(at)):
            return None
        self.progress.set(WAITING, self.base + at)
        for message in messages:
            if not self.transport.arrived(message):
                raise ExecuteError(f"{self.stream[at]} has no RECV before it")
        if self.gate == "dag":
            for message in messages:
                self.transport.wait_on_host(message)
        event = None if self.gate == "dag" else self.recorder.mark()
        for message in messages:
            self._here[message] = self.transport.wait(message)
        return event

    def _messages(self, at: int) -> list[Message]:
        """What the step needs of other ranks."""
        messages = []
        for code in (self.stream.codes[at], self.stream.mates[at]):
            if code == NO_MATE or code & KIND_MASK >= WEIGHT:
                continue
            forward, (stage, microbatch) = code & KIND_MASK == FORWARD, _spot(code)
            source = (self.previous if forward else self.following)[stage]
            if source >= 0 and self.owner[source] != self.rank:
                messages.append(Message(forward, stage, microbatch))
        return messages

    def _forward(self, spot: Spot) -> None:
        stage, microbatch = spot
        if self.previous[stage] < 0:
            given = self.model.example(microbatch, self.shard)
        else:
            given = self._take(Message(True, stage, microbatch)).detach()
            given.requires_grad_(self.backward and given.is_floating_point())
        output = self.modules[stage](given)
        if output._is_view():  # torch's split detaches outputs in place, which a view refuses
            output = output.clone()
        if self.following[stage] < 0:
            output = self.model.loss(output, microbatch, self.shard)
            self.losses[microbatch] = output.detach().clone()
        else:
            self._give(Message(True, self.following[stage], microbatch), output.detach())
        if self.backward:
            self._saved[spot] = (given, output)

    def _full(self, spot: Spot) -> None:
        given, output, grad = self._opened(spot)
        self._give_back(spot, private.backward_full(output, grad, given))

    def _input(self, spot: Spot) -> None:
        given, output, grad = self._opened(spot)
        if self.previous[spot[0]] < 0:  # nobody waits for this gradient: all is left to W
            self._owed[spot] = (given, output, grad)
            return
        parameters = self.modules[spot[0]].parameters()
        of_input, rest = private.backward_input(output, grad, given, parameters)
        self._owed[spot] = (rest,)
        self._give_back(spot, of_input)

    def _weight(self, spot: Spot) -> None:
        owed = self._owed.pop(spot, None)
        if owed is None:
            raise ExecuteError(f"{spot[0]}W{spot[1]}: no I of it has run, or its W has already")
        if len(owed) == 1:
            private.backward_weight(self.modules[spot[0]].parameters(), owed[0])
        else:
            given, output, grad = owed
            private.backward_full(output, grad, given)

    def _opened(self, spot: Spot) -> tuple[Tensor, Tensor, Tensor | None]:
        """What F left, and the gradient of its output (None for a loss)."""
        if spot not in self._saved:
            raise ExecuteError(f"the backward of {spot[0]}F{spot[1]} runs before it, or twice")
        given, output = self._saved.pop(spot)
        if self.following[spot[0]] < 0:
            return given, output, None
        return given, output, self._take(Message(False, *spot))

    def _give_back(self, spot: Spot, grad: Tensor | None) -> None:
        stage, microbatch = spot
        if self.previous[stage] < 0:
            return
        if grad is None:
            raise ExecuteError(f"stage {stage} gives its input no gradient")
        self._give(Message(False, self.previous[stage], microbatch), grad)

    def _take(self, message: Message) -> Tensor:
        return self._here.pop(message)

    def _give(self, message: Message, tensor: Tensor) -> None:
        """Hand over to a stage of this rank, or leave it for the SEND."""
        mine = self.owner[message.stage] == self.rank
        (self._here if mine else self._outgoing)[message] = tensor

    def _send(self, code: int, forward: bool) -> None:
        stage, microbatch = _spot(code)
        to = (self.following if forward else self.previous)[stage]
        message = Message(forward, to, microbatch)
        if message not in self._outgoing:
            raise ExecuteError(f"{decode(code)} stands where there is nothing to send")
        self.transport.send(message, self._outgoing.pop(message), self.owner[to])

    def _receive(self, code: int, forward: bool) -> None:
        stage, microbatch = _spot(code)
        source = (self.previous if forward else self.following)[stage]
        shape = self.outputs[source if forward else stage]
        buffer = torch.empty(shape.size, dtype=shape.dtype, device=self.device.torch_device)
        self.transport.receive(Message(forward, stage, microbatch), buffer, self.owner[source])


def _spot(code: int) -> Spot:
    return code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
