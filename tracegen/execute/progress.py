"""Where each rank is, in memory that the launcher shares: who hangs, and who only waits."""

from __future__ import annotations

from collections.abc import MutableSequence
from dataclasses import dataclass

from tracegen.ir import Program

# The last of a process that has said itself why it ends.
SETUP, COMPUTING, WAITING, BETWEEN_STEPS, DONE, TOLD = range(6)
WIDTH = 2  # numbers a rank: changes so far, and position << 3 | state


@dataclass(frozen=True, slots=True)
class Progress:
    """One process's two numbers in the shared row."""

    row: MutableSequence[int]
    process: int

    def set(self, state: int, position: int = 0) -> None:
        at = WIDTH * self.process
        self.row[at + 1] = position << 3 | state
        self.row[at] += 1

    def tell(self) -> None:
        """It has said why it ends, or ends for another's sake."""
        self.set(TOLD, self.position)

    @property
    def changes(self) -> int:
        return self.row[WIDTH * self.process]

    @property
    def state(self) -> int:
        return self.row[WIDTH * self.process + 1] & 7

    @property
    def position(self) -> int:
        """The step of the program that it is at, numbered through all ranks."""
        return self.row[WIDTH * self.process + 1] >> 3


def unshared(process: int = 0) -> Progress:
    """A row that nobody watches."""
    return Progress([0] * (WIDTH * (process + 1)), process)


def where(program: Program, progress: Progress) -> str:
    """Where a process is, in words."""
    if progress.state in (COMPUTING, WAITING):
        step = progress.position
        rank = program.rank_of_step(step)
        doing = "in" if progress.state == COMPUTING else "waiting for the input of"
        return f"{doing} {program.ranks[rank][step - program.offsets[rank]]}"
    return "between steps" if progress.state == BETWEEN_STEPS else "outside the steps"
