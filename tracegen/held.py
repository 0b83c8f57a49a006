"""What holds a rank beside compute: messages that block, sums of gradients, the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from tracegen.deps import NOTHING
from tracegen.ir import KIND_MASK, NO_MATE, OPTIMIZER, Exchange, StageAction, Step, decode
from tracegen.passes.messages import is_message


@dataclass(frozen=True, slots=True)
class Held:
    """One such action with its times.

    Attributes:
        code, mate: the action; of an exchange its send and its receive.
        step: the training step, from 0.
        before: how many compute steps its rank has done before it.
        start_ns: when the rank came to it.
        met_ns: when all whom it needs had come too. Of an exchange this and the next are those
            of the message that was over last.
        end_ns: when it was over; NOTHING if it never was.
        other: the code of the other end, NOTHING where there is none.
        other_rank: the rank that came last, its own if that was itself.
        peer: the rank at the other end, its own where there is none.
        bandwidth_ns: the part of what follows `met_ns` that the bytes take; the rest is latency.
    """

    code: int
    mate: int
    step: int
    before: int
    start_ns: int
    met_ns: int
    end_ns: int
    other: int
    other_rank: int
    peer: int
    bandwidth_ns: int

    @property
    def is_message(self) -> bool:
        return is_message(self.code)

    @property
    def is_optimizer(self) -> bool:
        """Whether this is compute, and so counts as busy."""
        return self.code & KIND_MASK == OPTIMIZER

    @property
    def over(self) -> bool:
        return self.end_ns != NOTHING

    def __str__(self) -> str:
        return str(shown(self.code, self.mate))


@dataclass(frozen=True, slots=True)
class Hang:
    """An action that never came to its end, in a program that cannot finish.

    Attributes:
        rank: whose.
        start_ns, end_ns: when the rank came to it, and where the timeline ends.
        action: itself, in text form.
        waits_for: what it waits for: rank, position and text form.
    """

    rank: int
    start_ns: int
    end_ns: int
    action: str
    waits_for: str

    def __str__(self) -> str:
        return f"rank {self.rank} hangs at {self.action}, which waits for {self.waits_for}"


def shown(code: int, mate: int = NO_MATE) -> Step:
    """The action of the codes of a message, an exchange or a whole-stage action."""
    first = decode(code)
    if mate == NO_MATE:
        return first
    second = decode(mate)
    assert not isinstance(first, StageAction)
    assert not isinstance(second, StageAction)
    return Exchange(first, second)
