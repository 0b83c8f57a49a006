"""Which action of the new program is which of the golden one, and what their order lost.

Ranks that do the same are matched by position. Of the others, what stands in the
same place from the front and from the back is, and the rest by what it is: first
on its own rank, then on any.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field

from tracegen.comparison.model import StepChange, What
from tracegen.deps import NOTHING
from tracegen.ir import NO_MATE, STAGE_MASK, STAGE_SHIFT, Program, Stream

Key = tuple[int, int]


@dataclass(slots=True)
class Matching:
    """The actions of two programs, side by side.

    Attributes:
        new_of: by golden step, the new step that is the same action, NOTHING if there is none.
        changes: actions missing, added, moved and out of order.
        rearranged: golden steps that moved or are out of order: their times say nothing.
        identical: whether all actions are the same in the same places.
    """

    new_of: array[int]
    changes: list[StepChange] = field(default_factory=list)
    rearranged: set[int] = field(default_factory=set)
    identical: bool = False

    def golden_of(self, steps: int) -> array[int]:
        """By new step, the golden step that is the same action."""
        found = array("q", [NOTHING]) * steps
        for golden, new in enumerate(self.new_of):
            if new != NOTHING:
                found[new] = golden
        return found


@dataclass(slots=True)
class _Rank:
    """The actions of a rank that are not in the same place in both."""

    number: int
    golden: range
    new: range


def match(golden: Program, new: Program) -> Matching:
    """Match every action."""
    if golden.ranks == new.ranks:
        return Matching(array("q", range(len(golden))), identical=True)
    matching = Matching(array("q", [NOTHING]) * len(golden))
    places = [
        _same_places(matching.new_of, golden, new, rank)
        for rank in range(max(golden.num_ranks, new.num_ranks))
    ]
    lost, extra = _on_their_rank(matching, golden, new, places)
    _moved(matching, lost, extra)
    _regrouped(matching, lost, extra)
    matching.changes += [StepChange(What.MISSING, step, NOTHING) for step in lost.all()]
    matching.changes += [StepChange(What.ADDED, NOTHING, step) for step in extra.all()]
    for place in places:
        _out_of_order(matching, place)
    return matching


def _same_places(new_of: array[int], golden: Program, new: Program, rank: int) -> _Rank:
    """Match what stands in the same place from the front and the back; the rest in between."""
    a, b = _stream(golden, rank), _stream(new, rank)
    base_a, base_b = _base(golden, rank), _base(new, rank)
    if a == b:
        new_of[base_a : base_a + len(a)] = array("q", range(base_b, base_b + len(b)))
        return _Rank(rank, range(0), range(0))
    shorter = min(len(a), len(b))
    front = _common(a, b, shorter)
    back = _common_back(a, b, shorter - front)
    new_of[base_a : base_a + front] = array("q", range(base_b, base_b + front))
    if back:
        end_a, end_b = base_a + len(a), base_b + len(b)
        new_of[end_a - back : end_a] = array("q", range(end_b - back, end_b))
    return _Rank(
        rank,
        range(base_a + front, base_a + len(a) - back),
        range(base_b + front, base_b + len(b) - back),
    )


def _stream(program: Program, rank: int) -> Stream:
    return program.ranks[rank] if rank < program.num_ranks else Stream(array("q"), array("q"))


def _base(program: Program, rank: int) -> int:
    return program.offsets[min(rank, program.num_ranks)]


def _common(a: Stream, b: Stream, most: int) -> int:
    both = zip(a.codes, b.codes, a.mates, b.mates, strict=False)
    return next((at for at, (c, d, m, n) in enumerate(both) if c != d or m != n), most)


def _common_back(a: Stream, b: Stream, most: int) -> int:
    both = zip(
        reversed(a.codes), reversed(b.codes), reversed(a.mates), reversed(b.mates), strict=False
    )
    unlike = (at for at, (c, d, m, n) in enumerate(both) if c != d or m != n)
    return min(next(unlike, most), most)


class _Pool:
    """Steps without a match, by what they are: those of one kind in their order."""

    def __init__(self) -> None:
        self._of: defaultdict[Key, deque[int]] = defaultdict(deque)
        self._taken: set[int] = set()
        self._steps: list[int] = []

    def add(self, key: Key, step: int) -> None:
        self._of[key].append(step)
        self._steps.append(step)

    def take(self, key: Key) -> int:
        """A step that is this, no longer in the pool; NOTHING if there is none."""
        queue = self._of.get(key)
        if not queue:
            return NOTHING
        step = queue.popleft()
        self._taken.add(step)
        return step

    def give_back(self, key: Key, step: int) -> None:
        self._taken.discard(step)
        self._of[key].appendleft(step)

    def open_keys(self) -> list[Key]:
        """What each step that is left is."""
        return [key for key, queue in self._of.items() for _ in queue]

    def all(self) -> list[int]:
        return [step for step in self._steps if step not in self._taken]


def _on_their_rank(
    matching: Matching, golden: Program, new: Program, places: list[_Rank]
) -> tuple[_Pool, _Pool]:
    """Match what is on one rank in both; what is left of golden, and of new."""
    lost, extra = _Pool(), _Pool()
    for place in places:
        a, b = _stream(golden, place.number), _stream(new, place.number)
        base_a, base_b = _base(golden, place.number), _base(new, place.number)
        here = _Pool()
        for step in place.new:
            here.add((b.codes[step - base_b], b.mates[step - base_b]), step)
        for step in place.golden:
            key = (a.codes[step - base_a], a.mates[step - base_a])
            if (found := here.take(key)) == NOTHING:
                lost.add(key, step)
            else:
                matching.new_of[step] = found
        for step in here.all():
            extra.add((b.codes[step - base_b], b.mates[step - base_b]), step)
    return lost, extra


def _moved(matching: Matching, lost: _Pool, extra: _Pool) -> None:
    for key in lost.open_keys():
        if (found := extra.take(key)) != NOTHING:
            step = lost.take(key)
            matching.new_of[step] = found
            matching.rearranged.add(step)
            matching.changes.append(StepChange(What.MOVED, step, found))


def _regrouped(matching: Matching, lost: _Pool, extra: _Pool) -> None:
    """Pairs whose halves stand alone in the other."""
    for whole, halves, what in ((lost, extra, What.SPLIT), (extra, lost, What.JOINED)):
        for key in whole.open_keys():
            code, mate = key
            if mate == NO_MATE:
                continue
            first, second = halves.take((code, NO_MATE)), halves.take((mate, NO_MATE))
            if NOTHING in (first, second):
                for step, half in ((first, code), (second, mate)):
                    if step != NOTHING:
                        halves.give_back((half, NO_MATE), step)
                continue
            pair = whole.take(key)
            steps = (pair, first) if what is What.SPLIT else (first, pair)
            matching.changes.append(StepChange(what, *steps))


def _out_of_order(matching: Matching, place: _Rank) -> None:
    """What changed places on its rank: as swaps if that says it all, else the fewest moves."""
    steps = [
        step
        for step in place.golden
        if matching.new_of[step] != NOTHING and step not in matching.rearranged
    ]
    where = [matching.new_of[step] for step in steps]
    order = sorted(where)
    if where == order:
        return
    rank_of = {new: at for at, new in enumerate(order)}
    target = [rank_of[new] for new in where]
    wrong = [at for at, to in enumerate(target) if at != to]
    stay = _longest_rising(target)
    if all(target[target[at]] == at for at in wrong) and len(wrong) // 2 <= len(target) - len(stay):
        for at in wrong:
            matching.rearranged.add(steps[at])
            if at < target[at]:
                swapped = StepChange(What.SWAPPED, steps[at], where[at], steps[target[at]])
                matching.changes.append(swapped)
        return
    for at in range(len(target)):
        if at not in stay:
            matching.rearranged.add(steps[at])
            matching.changes.append(StepChange(What.REORDERED, steps[at], where[at]))


def _longest_rising(numbers: list[int]) -> set[int]:
    """The places of a longest rising subsequence: what need not move to put all in order."""
    ends: list[int] = []
    end_at: list[int] = []
    before = [-1] * len(numbers)
    for at, number in enumerate(numbers):
        length = bisect_left(ends, number)
        before[at] = end_at[length - 1] if length else -1
        if length == len(ends):
            ends.append(number)
            end_at.append(at)
        else:
            ends[length], end_at[length] = number, at
    stay, at = set(), end_at[-1] if end_at else -1
    while at >= 0:
        stay.add(at)
        at = before[at]
    return stay


def stage_moves(golden: Program, new: Program, changes: list[StepChange]) -> list[StepChange]:
    """The changes, with those of a stage that left its rank as a whole put into one."""
    groups: defaultdict[tuple[int, int, int], list[StepChange]] = defaultdict(list)
    for change in changes:
        if change.what is What.MOVED:
            rank = golden.rank_of_step(change.golden)
            code = golden.ranks[rank].codes[change.golden - golden.offsets[rank]]
            stage = code >> STAGE_SHIFT & STAGE_MASK
            groups[stage, rank, new.rank_of_step(change.new)].append(change)
    if not groups:
        return changes
    of_stage = [
        Counter(code >> STAGE_SHIFT & STAGE_MASK for code in stream.codes)
        for stream in golden.ranks
    ]
    whole = {
        (stage, rank, to): group[0]._replace(what=What.STAGE_MOVED, actions=len(group))
        for (stage, rank, to), group in groups.items()
        if len(group) > 1 and len(group) == of_stage[rank][stage]
    }
    gone = {change for key in whole for change in groups[key]}
    return [*whole.values(), *(change for change in changes if change not in gone)]
