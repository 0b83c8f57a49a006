"""The clocks of a pipeline's ranks, from their messages: no result arrives before it was sent.

Each message bounds how far one clock is from another's, and those of both directions enclose
it, however long a message takes either way: the truth lies in between, and the middle is off by
half of what the fastest messages take there and back. As in NTP; bounds over time as in Duda et
al., Estimating global time in distributed systems (ICDCS 1987).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf, isinf

from tracegen.errors import FileError
from tracegen.profiles.lines import Line, Point, between
from tracegen.profiles.model import RankProfile

_PER_MILLION = 1e6


@dataclass(slots=True)
class Clock:
    """A rank's clock against rank 0's: add `offset_ns + rate * (t - origin_ns)` to its t.

    Attributes:
        uncertainty_ns: how far that may be off, at any time of the profile; None if nothing
            relates the two.
    """

    offset_ns: int = 0
    rate: float = 0.0
    origin_ns: int = 0
    uncertainty_ns: int | None = 0

    def at(self, ns: int) -> int:
        """A time of this clock on rank 0's."""
        return ns + self.offset_ns + round(self.rate * (ns - self.origin_ns))


@dataclass(slots=True)
class Clocks:
    """All ranks' clocks, and what is to be said of them."""

    of_rank: list[Clock]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Pair:
    """The messages between two ranks a < b: (when sent, when received), each on its own clock."""

    forth: list[tuple[int, int]] = field(default_factory=list)
    back: list[tuple[int, int]] = field(default_factory=list)


def align(ranks: Sequence[RankProfile]) -> Clocks:
    """Relate every rank's clock to rank 0's.

    Raises:
        FileError: if the messages contradict each other at any offset and rate, or nothing
            relates clocks of different hosts.
    """
    pairs = _messages(ranks)
    if not pairs and len(ranks) > 1:
        return _unrelated(ranks, [*range(1, len(ranks))], Clocks([Clock() for _ in ranks]))
    clocks = [Clock(origin_ns=_middle(rank)) for rank in ranks]
    origin = clocks[0].origin_ns
    for clock in clocks:  # so that offsets between epochs do not eat the floats' digits
        clock.offset_ns = origin - clock.origin_ns
    base = [clock.offset_ns for clock in clocks]
    reached, loose = _rates(ranks, pairs, clocks)
    bounds = _bounds(len(ranks), pairs, clocks)
    found = Clocks(clocks)
    same = _as_one(ranks, bounds, clocks)
    for rank, clock in enumerate(clocks):
        ahead, behind = bounds[0][rank], bounds[rank][0]
        if rank == 0 or isinf(ahead) or isinf(behind):
            continue
        middle = -clock.offset_ns if same else round((ahead - behind) / 2)
        clock.offset_ns += middle
        clock.uncertainty_ns = ceil(max(ahead - middle, behind + middle)) + loose[rank] + 1
    lost = [rank for rank in range(1, len(ranks)) if _is_lost(bounds, rank)]
    if lost:
        for rank in lost:
            clocks[rank].offset_ns -= base[rank]
        found = _unrelated(ranks, lost, found)
    _say(found, ranks, same, reached)
    return found


def _messages(ranks: Sequence[RankProfile]) -> dict[tuple[int, int], _Pair]:
    """By pair of ranks, what each sent and the other received."""
    pairs: defaultdict[tuple[int, int], _Pair] = defaultdict(_Pair)
    senders = {key: rank for rank, one in enumerate(ranks) for key in one.sent}
    for rank, one in enumerate(ranks):
        for key, received in one.received.items():
            sender = senders.get(key, rank)
            if sender == rank:
                continue
            sent = ranks[sender].sent[key]
            if sender < rank:
                pairs[sender, rank].forth.append((sent, received))
            else:
                pairs[rank, sender].back.append((sent, received))
    return dict(pairs)


def _middle(rank: RankProfile) -> int:
    tiles = [tile for step in rank.steps for tile in step]
    first = min(tile.start_ns for tile in tiles)
    return (first + max(tile.end_ns for tile in tiles)) // 2


def _rates(
    ranks: Sequence[RankProfile], pairs: dict[tuple[int, int], _Pair], clocks: list[Clock]
) -> tuple[bool, list[int]]:
    """Fit lines from rank 0 outward; whether any has a rate, and by rank the ns that leaves open.

    Raises:
        FileError: if no line fits the messages of two ranks.
    """
    loose, drifts = [0] * len(ranks), False
    seen, agenda = {0}, deque([0])
    while agenda:
        near = agenda.popleft()
        for (a, b), pair in sorted(pairs.items()):
            if near not in (a, b) or not pair.forth or not pair.back:
                continue
            far = b if near == a else a
            if far in seen:
                continue
            seen.add(far)
            agenda.append(far)
            one = ranks[far].host == ranks[near].host != ""
            line = _line(pair, near == a, clocks[near], clocks[far], one)
            if line.slack_ns < -1:
                raise FileError(
                    f"{ranks[far].path}: its clock cannot be related to that of "
                    f"{ranks[near].path}: at any offset and any rate up to 1000 ppm some receive "
                    f"comes at least {-line.slack_ns / 1000:.1f} us before its send; are the "
                    "files of one run, or was a clock set during it?"
                )
            clocks[far].offset_ns += round(line.offset)
            clocks[far].rate = line.rate
            drifts = drifts or line.rate != 0
            loose[far] = loose[near] + ceil(max(0.0, line.spread_ns - line.slack_ns))
    return drifts, loose


def _line(pair: _Pair, near_is_first: bool, near: Clock, far: Clock, one_clock: bool) -> Line:
    """What to add to the far clock beyond its offset so far, over time from its origin."""
    to_far, from_far = (pair.forth, pair.back) if near_is_first else (pair.back, pair.forth)
    below: list[Point] = [
        (float(got - far.origin_ns), float(near.at(sent) - far.at(got))) for sent, got in to_far
    ]
    above: list[Point] = [
        (float(sent - far.origin_ns), float(near.at(got) - far.at(sent))) for sent, got in from_far
    ]
    return between(below, above, one_clock=one_clock)


def _bounds(
    size: int, pairs: dict[tuple[int, int], _Pair], clocks: list[Clock]
) -> list[list[float]]:
    """[a][b]: how much at most may be added to b's clock less what is added to a's.

    The shortest paths over all ranks: a bound of one pair tightens others'. With the middle of
    its bounds against rank 0 added to each, every message arrives after it was sent.

    Raises:
        FileError: if there is no such offset.
    """
    most = [[0.0 if a == b else inf for b in range(size)] for a in range(size)]
    for (a, b), pair in pairs.items():
        for sent, got in pair.forth:
            most[b][a] = min(most[b][a], clocks[b].at(got) - clocks[a].at(sent))
        for sent, got in pair.back:
            most[a][b] = min(most[a][b], clocks[a].at(got) - clocks[b].at(sent))
    for via in range(size):
        row = most[via]
        for a in range(size):
            to = most[a][via]
            if isinf(to):
                continue
            mine = most[a]
            for b in range(size):
                if to + row[b] < mine[b]:
                    mine[b] = to + row[b]
    if any(most[rank][rank] < -2 for rank in range(size)):
        raise FileError(
            "the messages between the ranks contradict each other at any offsets of their clocks: "
            "some receive comes before its send; are the files of one run?"
        )
    return most


def _is_lost(bounds: list[list[float]], rank: int) -> bool:
    return isinf(bounds[0][rank]) or isinf(bounds[rank][0])


def _as_one(ranks: Sequence[RankProfile], bounds: list[list[float]], clocks: list[Clock]) -> bool:
    """Whether all ranks are of one host, and no message contradicts that they have one clock."""
    if len({rank.host for rank in ranks}) > 1 or not ranks[0].host:
        return False
    if any(clock.rate for clock in clocks):
        return False
    shift = [-clock.offset_ns for clock in clocks]
    size = range(len(ranks))
    return all(shift[b] - shift[a] <= bounds[a][b] + 1 for a in size for b in size)


def _unrelated(ranks: Sequence[RankProfile], lost: list[int], found: Clocks) -> Clocks:
    """Ranks without messages both ways: their clocks as they are, if they are of one host.

    Raises:
        FileError: if they are of other hosts, or say none.
    """
    hosts = {ranks[rank].host for rank in (0, *lost)}
    names = ", ".join(ranks[rank].path for rank in lost[:3])
    if len(hosts) > 1 or "" in hosts:
        raise FileError(
            f"{names}: no messages both ways relate the clock to that of {ranks[0].path}, and the "
            "files do not say that they are of one host; give neighbouring ranks of one run"
        )
    for rank in lost:
        found.of_rank[rank] = Clock(uncertainty_ns=None)
    found.warnings.append(
        f"{names}: no messages both ways relate the clock to that of {ranks[0].path}; both are of "
        "one host and its clock is taken as it is"
    )
    return found


def _say(found: Clocks, ranks: Sequence[RankProfile], same: bool, drifts: bool) -> None:
    known = [one.uncertainty_ns for one in found.of_rank[1:] if one.uncertainty_ns is not None]
    if not known:
        return
    worst = max(known) / 1000
    if same:
        how = "one host's clock, which the messages do not contradict; by them alone"
    else:
        how = "aligned by the messages between ranks:"
        if len({rank.host for rank in ranks}) == 1 and ranks[0].host:
            found.warnings.append(
                "the files are of one host, but their clocks differ: receives would come before "
                "their sends; the clocks are aligned by the messages"
            )
    text = f"clocks: {how} within {worst:.1f} us"
    if drifts:
        rates = ", ".join(f"{one.rate * _PER_MILLION:+.1f}" for one in found.of_rank)
        text += f"; rates against rank 0's in ppm: {rates}"
    found.notes.append(text)
