"""A second computation of every mode of replay, for the tests: each rank as far as it can go.

It knows nothing of the package but the text form of an action. No clock, no
heap, no graph: each rank goes as far as the times that are known allow, again
and again; when none can, the transfer that came first to its link takes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from oracle import Case, Part, parts, waits_of

MESSAGE = re.compile(r"(\d+)(SEND|RECV)_([FB])(\d+)")

Key = tuple[int, Part]


@dataclass
class Machine:
    """Ranks, links and how long things take.

    Attributes:
        case: rows of one step, with SEND and RECV where they block.
        lasts: (step, action or pair in text form) -> its time.
        latency: (from rank, to rank) -> a transfer's latency.
        occupied: (from rank, to rank, lower stage) -> how long its bytes take the link.
        steps, sync, blocking: the mode.
        tails: by rank, what follows each step: (what, stage, time); what is
            REDUCE_GRAD, SUM_REPLICAS or OPTIMIZER.
    """

    case: Case
    lasts: Callable[[int, str], int]
    latency: Callable[[int, int], int]
    occupied: Callable[[int, int, int], int]
    steps: int = 1
    sync: bool = False
    blocking: bool = False
    tails: Sequence[Sequence[tuple[str, int, int]]] = ()
    # (rank, place in its list) -> start and end
    spans: list[list[tuple[str, int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        case = self.case
        self.sources = waits_of(case)
        self.lists = [[*self.program(rank)] for rank in range(len(case.rows))]
        self.at = [0] * len(case.rows)
        self.free = [0] * len(case.rows)
        self.spans = [[] for _ in case.rows]
        self.made: dict[Key, int] = {}
        self.there: dict[Key, int] = {}
        self.queue: list[tuple[int, bool, int, Key, tuple[int, int]]] = []
        self.link_free: dict[tuple[int, int], int] = {}
        self.posts: dict[object, dict[int, int]] = {}
        self.next, self.before = {}, {}
        for chain in case.chains:
            for a, b in pairwise(chain):
                self.next[a], self.before[b] = b, a

    def program(self, rank: int):  # type: ignore[no-untyped-def]
        for step in range(self.steps):
            for text in self.case.rows[rank]:
                yield step, text, -1, 0
            tail = self.tails[rank] if self.tails else ()
            if self.sync:
                for one in tail:
                    if one[0] != "OPTIMIZER":
                        yield step, *one
                yield step, "GATE", 0, 0
                for one in tail:
                    if one[0] == "OPTIMIZER":
                        yield step, *one
                yield step, "GATE", 1, 0
            else:
                for one in tail:
                    yield step, *one

    def run(self) -> bool:
        """Whether all finish."""
        while True:
            known = None
            while known != (known := (list(self.at), sum(map(len, self.posts.values())))):
                for rank in range(len(self.lists)):
                    self.forward(rank)
            if not self.queue:
                return all(at == len(row) for at, row in zip(self.at, self.lists, strict=True))
            self.grant()

    def grant(self) -> None:
        """The transfer that came first takes its link; of equals a forward, then a lower stage."""
        first = min(self.queue)
        self.queue.remove(first)
        ready, _, _, key, (a, b) = first
        start = max(ready, self.link_free.get((a, b), 0))
        self.link_free[a, b] = start + self.occupied(a, b, self.lower(key))
        self.there[key] = self.link_free[a, b] + self.latency(a, b)

    def lower(self, key: Key) -> int:
        stage, kind, _ = key[1]
        return stage if kind == "F" else self.before[stage]

    def forward(self, rank: int) -> None:
        """Do the rank's next action if the times it needs are known."""
        if self.at[rank] == len(self.lists[rank]):
            return
        step, text, stage, lasts = self.lists[rank][self.at[rank]]
        free = self.free[rank]
        if text in ("GATE", "SUM_REPLICAS"):
            end = self.meet(rank, step, text, stage, lasts)
            start = free
        elif stage >= 0:
            start, end = free, free + lasts
        elif "SEND" in text or "RECV" in text:
            start, end = free, self.message(rank, step, text)
        else:
            start = self.ready(rank, step, text)
            end = None if start is None else start + self.lasts(step, text)
        if end is None:
            return
        if text != "GATE":
            self.spans[rank].append((text, start, end))
        self.free[rank] = end
        self.at[rank] += 1
        if stage < 0 and text not in ("GATE",):
            self.hand_over(rank, step, text, end)

    def meet(self, rank: int, step: int, text: str, which: int, lasts: int) -> int | None:
        if text == "GATE":
            whom, group = range(len(self.lists)), which
        else:
            place = next(c.index(which) for c in self.case.chains if which in c)
            whom = [self.case.rank_of[chain[place]] for chain in self.case.chains]
            group = 10 + place
        posts = self.posts.setdefault((step, group), {})
        posts.setdefault(rank, self.free[rank])
        return max(posts.values()) + lasts if set(posts) == set(whom) else None

    def message(self, rank: int, step: int, text: str) -> int | None:
        ends = []
        for stage, what, kind, mb in MESSAGE.findall(text):
            here = int(stage)
            ahead = (what, kind) in (("SEND", "F"), ("RECV", "B"))
            there = self.next[here] if ahead else self.before[here]
            key = (step, min(here, there, key=self.place), kind, int(mb))
            posts = self.posts.setdefault(key, {})
            posts.setdefault(rank, self.free[rank])
            a, b = self.case.rank_of[here], self.case.rank_of[there]
            if what == "RECV":
                a, b = b, a
            low = here if ahead else there
            both = max(posts.values()) if len(posts) == 2 else None
            ends.append(
                None if both is None else both + self.latency(a, b) + self.occupied(a, b, low)
            )
        return None if None in ends else max(ends)  # type: ignore[type-var]

    def place(self, stage: int) -> int:
        return next(chain.index(stage) for chain in self.case.chains if stage in chain)

    def ready(self, rank: int, step: int, text: str) -> int | None:
        now = self.free[rank]
        inside = {(s, "I" if k == "B" else k, m) for s, k, m in parts(text)}
        for part in parts(text):
            for need in self.sources(part):
                key = (step, _plain(need[0]))
                if key[1] in inside:
                    continue
                if self.case.rank_of[key[1][0]] == rank:
                    known = self.made.get(key)
                elif self.blocking:
                    known = now
                else:
                    known = self.there.get(key)
                if known is None:
                    return None
                now = max(now, known)
        return now

    def hand_over(self, rank: int, step: int, text: str, end: int) -> None:
        for part in parts(text):
            stage, kind, _ = part
            key = (step, _plain(part))
            self.made[key] = end
            to = self.next.get(stage) if kind == "F" else self.before.get(stage)
            if kind == "W" or to is None or self.case.rank_of[to] == rank or self.blocking:
                continue
            link = (rank, self.case.rank_of[to])
            self.queue.append((end, kind != "F", stage, key, link))


def _plain(part: Part) -> Part:
    """The same of B and I, which make the same result."""
    stage, kind, mb = part
    return stage, "I" if kind == "B" else kind, mb
