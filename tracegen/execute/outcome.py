"""What an execution found, as plain data: no torch, so that the launcher can read it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from tracegen.errors import ExecuteError

NO_WAIT = -1


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step of one rank, in the order in which it ran.

    Attributes:
        codes, mates: the actions, as in a Stream.
        wait_ns: when the rank began to wait in a communication operator, NO_WAIT if it did not.
        start_ns, end_ns: of the action, on the host's monotonic clock.
        uncertainty_ns: how far the device's clock may be off the host's.
    """

    codes: array[int]
    mates: array[int]
    wait_ns: array[int]
    start_ns: array[int]
    end_ns: array[int]
    uncertainty_ns: int


@dataclass(frozen=True, slots=True)
class Offset:
    """Another host's monotonic clock against ours: add `ns` to its times to have ours.

    Attributes:
        uncertainty_ns: half the shortest round trip; 0 where the clock is the same.
    """

    ns: int = 0
    uncertainty_ns: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far the executed step is from the whole model's.

    Attributes:
        loss, whole_loss: of the step.
        gradient_error: the largest `difference` of any parameter of any stage.
        worst: that parameter, as `stage 3: 0.qkv`.
        bound: what the error may be.
    """

    loss: float
    whole_loss: float
    gradient_error: float
    worst: str
    bound: float

    @property
    def loss_error(self) -> float:
        return abs(self.loss - self.whole_loss) / max(abs(self.whole_loss), 1e-30)

    @property
    def good(self) -> bool:
        return self.gradient_error <= self.bound and self.loss_error <= self.bound

    def insist(self) -> None:
        """Raises ExecuteError unless loss and gradients are right."""
        if self.good:
            return
        raise ExecuteError(
            f"not what the whole model gives: loss {self.loss:.9g} against {self.whole_loss:.9g}, "
            f"gradients off by {self.gradient_error:.2g} at {self.worst}; the bound is "
            f"{self.bound:g} (stages with dropout or batch statistics need --no-check)"
        )

    def __str__(self) -> str:
        return (
            f"loss {self.loss:.6g} and all gradients as the whole model's: off by "
            f"{self.loss_error:.1e} and {self.gradient_error:.1e}, bound {self.bound:g}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an execution found.

    Attributes:
        steps: of every measured step, the times of every rank (of expert shard 0).
        offsets: of every rank's clock to that of rank 0.
        verdict: on loss and gradients; None if they were not checked.
        measuring_ns: what measuring takes an action, at most.
        peak_bytes: the device memory allocated, by rank; None on a CPU.
        about: of the machine, for the trace's metadata.
    """

    steps: list[list[StepTimes]]
    offsets: list[Offset]
    verdict: Verdict | None
    measuring_ns: int
    peak_bytes: list[int] | None
    about: dict[str, Any]
