"""Who waits for whom when nothing moves any more: the cycle, and a timeline that ends there."""

from __future__ import annotations

from functools import partial

from tracegen.clock import PENDING, Run
from tracegen.deps import NOTHING, waits
from tracegen.full_work import FullWork
from tracegen.held import Hang
from tracegen.ir import KIND_MASK, NO_MATE, SUM_REPLICAS
from tracegen.passes.messages import is_message
from tracegen.passes.validate import deadlock, where


def hangs(full: FullWork, done: Run, stuck: list[int]) -> list[Hang]:
    """The action at which each rank hangs that does."""
    ran = [job for job, end in enumerate(done.end) if end != PENDING]
    longest = max((done.end[job] - done.start[job] for job in ran), default=0)
    # Some way beyond the last thing that happened, for what hangs to be seen.
    until = max((done.end[job] for job in ran), default=0) + max(longest, 1000)
    found = []
    for rank, action in enumerate(stuck):
        if action != NOTHING:
            base, first = full.program.offsets[rank], full.first[action]
            if (start := done.start[first]) == PENDING:
                start = 0 if action == base else done.end[first - 1]
            text = str(full.program.ranks[rank][action - base])
            for_whom = where(full.program, _waited(full, done, action))
            found.append(Hang(rank, start, until, text, for_whom))
    return found


def problems(full: FullWork, done: Run, stuck: list[int]) -> list[str]:
    """The cycle of waiting actions: what a DeadlockError says, a line each."""
    ends = full.program.offsets[1:]
    stuck = [end if action == NOTHING else action for action, end in zip(stuck, ends, strict=True)]
    return deadlock(full.program, stuck, partial(_waited, full, done))


def _waited(full: FullWork, done: Run, action: int) -> int:
    """An action that a stuck one waits for, and that its rank has not come to, or not done."""
    program = full.program
    rank = program.rank_of_step(action)
    at = action - program.offsets[rank]
    code, mate = program.ranks[rank].codes[at], program.ranks[rank].mates[at]
    if is_message(code):
        ends = [full.ends[message] for message in (code, mate) if message != NO_MATE]
        return next(end for end in ends if done.start[full.first[end]] == PENDING)
    if code & KIND_MASK == SUM_REPLICAS:
        return action
    needed = waits(program).of(action)
    return next(w for w in needed if done.end[full.last[w]] == PENDING)
