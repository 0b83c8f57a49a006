"""Why a step takes as long as it does: its critical path, and the chain behind every gap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tracegen import blame
from tracegen.analysis.what_if import WhatIf, predicted
from tracegen.deps import NOTHING
from tracegen.timeline import Timeline

TRANSFER, BETWEEN = "transfer", "between"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the critical path, or of the chain behind a gap.

    Attributes:
        start_ns, end_ns: when.
        rank: of the action; of a transfer, the rank that waits for it.
        action: in text form, a kernel as attnF2 of 0F2; "transfer" from rank to rank, "between"
            for what else held a rank: of a measured one, its host.
        step: of the program; NOTHING for what lies between.
    """

    start_ns: int
    end_ns: int
    rank: int
    action: str
    step: int = NOTHING

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Gap:
    """Time in which a rank stood still, and what happened meanwhile so that it could go on.

    Attributes:
        rank: that stood still.
        start_ns, end_ns: when.
        before: the action that it then did, "" if it had none left.
        chain: in order; their lengths add up to the gap's.
    """

    rank: int
    start_ns: int
    end_ns: int
    before: str
    chain: list[Piece]

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


class Explained:
    """A timeline explained.

    Attributes:
        line: the timeline; of a replay's that was edited, with what each step waited for as its
            times now say.
        measured: whether no costs give its times.
        what_if: it, under changes.
    """

    def __init__(self, line: Timeline) -> None:
        again = predicted(line)
        self.measured = again is None
        if again is None and not blame.is_measured(line):
            blocker = blame.blockers(line.program, line.start_ns, line.end_ns)
            line = replace(line, blocker=blocker)
        self.line = line if again is None else again
        self.what_if = WhatIf(self.line, self.measured)
        self._ranks = self.what_if.rank_of
        self._firsts, self._causes = set(line.program.offsets), blame.causes(self.line)

    def path(self) -> list[Piece]:
        """The critical path: pieces from 0 to the makespan without a gap between them."""
        line = self.line
        if line.kernels is not None:
            return list(self._kernel_path())
        if not len(line.end_ns):
            return []
        last = max(range(len(line.end_ns)), key=line.end_ns.__getitem__)
        pieces = self._back(last, 0)
        if line.end_ns[last] < line.makespan_ns:
            end = line.end_ns[last]
            pieces.append(Piece(end, line.makespan_ns, self._ranks[last], BETWEEN))
        return pieces

    def gaps(self) -> Iterator[Gap]:
        """Every gap of every rank with its chain; none with kernels, which overlap."""
        line = self.line
        if line.kernels is not None or not len(line.end_ns):
            return
        last = max(range(len(line.end_ns)), key=line.end_ns.__getitem__)
        for rank, stream in enumerate(line.program.ranks):
            base, free = line.program.offsets[rank], 0
            for step in range(base, base + len(stream)):
                start = line.start_ns[step]
                if start > free:
                    chain = self._back(step, free)[:-1]
                    yield Gap(rank, free, start, str(stream[step - base]), chain)
                free = max(free, line.end_ns[step])
            if free < line.end_ns[last]:
                yield Gap(rank, free, line.end_ns[last], "", self._back(last, free))

    def cause(self, step: int) -> int:
        """The step at whose end this one could start, a transfer later; NOTHING at the start."""
        if (blocker := self._causes[step]) != NOTHING:
            return blocker
        return NOTHING if step in self._firsts else step - 1

    def _back(self, step: int, since: int) -> list[Piece]:
        """The chain that ends with a step, from a time on; the step itself is its last piece."""
        line, found = self.line, list[Piece]()
        now = line.end_ns[step]
        while True:
            start = min(line.start_ns[step], now)
            found.append(Piece(max(start, since), max(now, since), *self._named(step), step))
            now = start
            source = self.cause(step)
            if now <= since or source == NOTHING:
                if now > since:
                    found.append(Piece(since, now, self._ranks[step], BETWEEN))
                break
            if (end := line.end_ns[source]) < now:
                found += self._between(step, max(end, since), now)
                now = max(end, since)
            if now <= since:
                break
            step = source
        return found[::-1]

    def _between(self, step: int, since: int, until: int) -> Iterator[Piece]:
        """What lies before a step, last first: its input on its way, and its rank's own time."""
        line, rank, received = self.line, self._ranks[step], until
        blocker = line.blocker[step]
        if blocker != NOTHING and self._ranks[blocker] != rank:
            received = min(max(blame.receiving_ns(line, step), since), until)
        if received < until:
            yield Piece(received, until, rank, TRANSFER)
        if since < received:
            yield Piece(since, received, rank, BETWEEN)

    def _named(self, step: int) -> tuple[int, str]:
        rank, program = self._ranks[step], self.line.program
        return rank, str(program.ranks[rank][step - program.offsets[rank]])

    def _kernel_path(self) -> Iterator[Piece]:
        kernels = self.line.kernels
        assert kernels is not None
        if not len(kernels):
            return
        firsts = {row.start for row in kernels.parts.rows}
        at = max(range(len(kernels)), key=kernels.end_ns.__getitem__)
        found = []
        while True:
            span = kernels[at]
            action = self._named(span.step)[1]
            name = f"{span.kernel.label}{span.layer} of {action}"
            found.append(Piece(span.start_ns, span.end_ns, span.rank, name, span.step))
            source = span.blocker if span.blocker != NOTHING else at - 1
            if span.blocker == NOTHING and at in firsts:
                break
            if (end := kernels.end_ns[source]) < span.start_ns:
                found.append(Piece(end, span.start_ns, span.rank, TRANSFER))
            at = source
        yield from reversed(found)
