"""Slots in the order that a schedule has them -> actions: the rule that numbers them."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, repeat

from tracegen.errors import BrokenSchedule
from tracegen.ir import (
    MICROBATCH_SHIFT,
    NO_MATE,
    NUMBER,
    STAGE_MASK,
    STAGE_SHIFT,
    Action,
    Kind,
    Stream,
    encode,
)
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.order import Cell, OldestW, Order, OverlapSlot, Slot

# Gives the code of a cell's next action, NO_MATE past the last microbatch.
Maker = Callable[[], int]


def number(order: Order) -> Stream:
    """Give each slot its microbatch: the n-th forward of a stage is its n-th microbatch.

    Backwards (B and I together) count the same way; a W takes the oldest I of
    its stage that has none yet. Slots past a stage's last microbatch are left
    out, so a short batch runs the order of a longer one.

    Raises:
        BrokenSchedule: if a W stands where no I is owed one, or something else is no cell.
    """
    try:
        cells = set(order)
    except TypeError:
        raise BrokenSchedule("a list stands in its order; join lists by +") from None
    return _Numbering(cells).stream(order)


class _Numbering:
    """The counters of one rank: turns each distinct cell into a call that gives its next code.

    Kept apart from the loop over the order, which so has one call a slot, mostly of an
    iterator: a rank of a long run has hundreds of thousands of slots and a dozen distinct ones.
    """

    def __init__(self, cells: Iterable[Cell | Action]) -> None:
        slots = [slot for cell in cells for slot in _slots(cell)]
        self.kinds = {(slot.stage.index, slot.kind) for slot in slots}
        self.counters: dict[tuple[int, Kind | None], Maker] = {}
        # The codes of weight gradients that are owed, in the order of their I: of all stages
        # and of each, where cells are that take from there.
        self.owed: deque[int] | None = (
            deque() if any(isinstance(c, OldestW) for c in cells) else None
        )
        self.owed_of: dict[int, deque[int]] = {
            stage: deque() for stage, kind in self.kinds if kind is Kind.BACKWARD_WEIGHT
        }
        self.makers = {cell: self.makers_of(cell) for cell in cells}

    def stream(self, order: Order) -> Stream:
        if not any(make_mate for _, make_mate in self.makers.values()):
            alone = {cell: make for cell, (make, _) in self.makers.items()}
            made = [make() for make in map(alone.__getitem__, order)]
            codes = array("q", made if NO_MATE not in made else filter(NO_MATE.__ne__, made))
            return Stream(codes, array("q", [NO_MATE]) * len(codes))
        nothing = repeat(NO_MATE).__next__
        pair = {cell: (make, mate or nothing) for cell, (make, mate) in self.makers.items()}
        made = [make() for make in chain.from_iterable(map(pair.__getitem__, order))]
        codes, mates = array("q", made[::2]), array("q", made[1::2])
        if NO_MATE not in codes:
            return Stream(codes, mates)
        # Of a pair past the last microbatch of one half, the other may be left.
        pairs = [(c, m) if c != NO_MATE else (m, c) for c, m in zip(codes, mates, strict=True)]
        pairs = [pair for pair in pairs if pair[0] != NO_MATE]
        return Stream(array("q", [code for code, _ in pairs]), array("q", [m for _, m in pairs]))

    def makers_of(self, cell: Cell | Action) -> tuple[Maker, Maker | None]:
        match cell:
            case Action():
                return repeat(cell.code).__next__, None
            case OldestW():
                return self.payer(), None
            case Slot():
                return self.maker(cell), None
            case OverlapSlot():
                return self.maker(cell.forward), self.maker(cell.backward)
        raise BrokenSchedule(f"{cell!r} is no cell; use slots such as stage.F, pairs or Actions")

    def maker(self, slot: Slot) -> Maker:
        stage = slot.stage.index
        if slot.kind is Kind.BACKWARD_WEIGHT:
            return self.payer(stage)
        count = self.counter(slot)
        queues = [q for q in (self.owed, self.owed_of.get(stage)) if q is not None]
        if slot.kind is not Kind.BACKWARD_INPUT or not queues:
            return count

        owe, *others = [queue.append for queue in queues]

        def make() -> int:
            code = count()
            owed = -1 - stage if code == NO_MATE else code - INPUT + WEIGHT
            owe(owed)
            for other in others:
                other(owed)
            return code

        return make

    def counter(self, slot: Slot) -> Maker:
        """Gives the codes of a stage's slots of a kind; a B and an I of a stage count together."""
        stage, batch, number = slot.stage.index, slot.stage.microbatches, NUMBER[slot.kind]
        both = {(stage, Kind.FULL_BACKWARD), (stage, Kind.BACKWARD_INPUT)}
        if slot.kind.starts_backward and both <= self.kinds:
            count = self.counters.setdefault((stage, None), _codes(stage, 0, batch))
            return lambda: code + number if (code := count()) != NO_MATE else NO_MATE
        return self.counters.setdefault((stage, slot.kind), _codes(stage, number, batch))

    def payer(self, stage: int | None = None) -> Maker:
        """Gives the oldest W that is owed, of a stage or of any."""
        queue = self.owed if stage is None else self.owed_of[stage]
        assert queue is not None
        in_two = bool(self.owed_of) and self.owed is not None
        oldest = queue.popleft

        def pay() -> int:
            if not queue:
                raise BrokenSchedule(
                    f"a W{'' if stage is None else f' of stage {stage}'} stands where no I is "
                    "owed one; put it after an I"
                )
            code = oldest()
            if in_two:  # near the front of the other
                of = -1 - code if code < 0 else code >> STAGE_SHIFT & STAGE_MASK
                other = self.owed if stage is not None else self.owed_of.get(of)
                if other is not None:
                    other.remove(code)
            return code if code > NO_MATE else NO_MATE

        return pay


def _slots(cell: Cell | Action) -> tuple[Slot, ...]:
    if isinstance(cell, OverlapSlot):
        return cell.forward, cell.backward
    return (cell,) if isinstance(cell, Slot) else ()


def _codes(stage: int, kind: int, batch: range) -> Maker:
    """The codes of a kind of a stage for its microbatches, then NO_MATE again and again."""
    first, last = encode(stage, kind, batch.start), encode(stage, kind, batch.stop)
    return chain(range(first, last, 1 << MICROBATCH_SHIFT), repeat(NO_MATE)).__next__
