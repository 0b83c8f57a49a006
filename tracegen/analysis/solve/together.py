"""Lower bounds for a rank with several stages: what they cost each other in room and in time.

Let a rank have room for K activations, of whichever of its stages. Of all its forwards, sorted by
their start, let T(j) be the j-th, and R(j) the j-th time at which an activation is given back.

1. T(j + K) >= R(j), both counted from 0: before the j-th of the latter at most j + K are taken.
2. The j-th of several times is no less than the j-th of what they are no less than. So T and R
   are bounded by the sorted bounds of all the rank's F and of all that gives back.
3. Before R(j) the rank has run j + 1 I, and W where those give back, none before its first I.
   Between R(k) and T(j + K) lie the starts of j - k forwards and the ends of j - k that give
   back: T(k + K) is the first that may start then.
4. Before F of microbatch n of a stage lie n of the same and n + 1 of each stage that its chain has
   on this rank before it. And if it has a later stage there, then of the n before at least
   n + 1 - K have been given back, which came after as many forwards of that stage.
5. Where all stages are of one chain, u of them: when I of microbatch k starts at the last stage,
   no I of this or a later one has been, so at most uk are given back and uk + K taken. Until
   the I of microbatch n at a stage is done, u(n + 1) are taken, u(n + 1) - K given back, and I
   run of n - k + 1 microbatches, at this stage and all later ones. What lies between is one
   after the other. The same until the rank is done, with all that it has.
"""

from __future__ import annotations

from tracegen.analysis.solve.problem import F, I, Problem, W

# By kind, stage and count, the ns at which an action can end at the soonest.
Ends = list[list[list[int]]]

UNKNOWN = -(1 << 60)


class Together:
    """A rank with several stages.

    Attributes:
        room: for how many activations it has room, of the smallest.
        until: which kind of action gives one back.
        least: by kind, the ns of the shortest of its actions.
        gives: the ns of what gives back, beside the I.
        alike: whether all stages are of one chain.
    """

    def __init__(self, problem: Problem, rank: int) -> None:
        self.problem, self.stages = problem, problem.stages_of[rank]
        self.chain = [problem.placement.chain_of_stages()[s] for s in self.stages]
        self.alike = len(set(self.chain)) == 1
        whole = problem.split and all(problem.change[I][s] >= 0 for s in self.stages)
        self.until = W if whole else I
        self.least = [min(problem.ns[kind][s] for s in self.stages) for kind in (F, I, W)]
        self.gives = self.least[W] if whole else 0
        self.room = self.total = sum(problem.count[s] for s in self.stages)
        if (
            problem.room is not None
            and (size := min(problem.change[F][s] for s in self.stages)) > 0
        ):
            self.room = max(1, min(self.total, problem.room[rank] // size))

    def raise_to(self, end: Ends) -> None:
        """Raise the bounds on when the rank's actions end."""
        if self.room < self.total:
            backs = self._backs(end)
            takes = self._takes(end, backs)
            for at, stage in enumerate(self.stages):
                self._forwards(end[F][stage], takes, at)
                ends = end[self.until][stage]
                ends[:] = [max(e, back) for e, back in zip(ends, backs, strict=False)]
        if self.alike:
            for at in range(len(self.stages)):
                self._inputs(end, at)

    def _first_input(self, end: Ends) -> int:
        return min(end[I][s][0] - self.problem.ns[I][s] for s in self.stages)

    def _backs(self, end: Ends) -> list[int]:
        """R of the module's head, by 2 and 3."""
        each, first = self.least[I] + self.gives, self._first_input(end)
        step = self.least[self.until]
        now, found = UNKNOWN, []
        for j, known in enumerate(sorted(e for s in self.stages for e in end[self.until][s])):
            now = max(known, first + (j + 1) * each, now + step)
            found.append(now)
        return found

    def _takes(self, end: Ends, backs: list[int]) -> list[int]:
        """T, by 1 to 3."""
        f, ns = self.least[F], self.problem.ns[F]
        each, first = self.least[I] + self.gives, self._first_input(end)
        step = self.least[self.until] + f
        now, since, found = UNKNOWN, UNKNOWN, []
        for j, known in enumerate(sorted(e - ns[s] for s in self.stages for e in end[F][s])):
            now = max(known, now + f)
            if (at := j - self.room) >= 0:
                since = max(backs[at], since + step)
                now = max(now, since, first + (at + 1) * each + at * f)
            found.append(now)
        return found

    def _forwards(self, ends: list[int], takes: list[int], at: int) -> None:
        """4, for the F of one stage."""
        before = self.chain[:at].count(self.chain[at])
        after = self.chain[at + 1 :].count(self.chain[at])
        ns = self.problem.ns[F][self.stages[at]]
        for n, known in enumerate(ends):
            nth = n + before * (n + 1) + after * max(0, n + 1 - self.room)
            ends[n] = max(known, takes[nth] + ns)

    def _inputs(self, end: Ends, at: int) -> None:
        """5, for the I of one stage."""
        ns, last, u = self.problem.ns[I], self.stages[-1], len(self.stages)
        each = sum(ns[s] for s in self.stages[at:])
        more = self.least[F] + self.gives
        few, many, ends = UNKNOWN, UNKNOWN, end[I][self.stages[at]]
        for n, start in enumerate(e - ns[last] for e in end[I][last]):
            few = max(few, start - n * each)
            many = max(many, start - n * (each + u * more))
            whole = many + (n + 1) * (each + u * more) - self.room * more
            ends[n] = max(ends[n], few + (n + 1) * each, whole)

    def end(self, end: Ends) -> int:
        """5, for the rank's end; of stages of one chain."""
        problem, last, u = self.problem, self.stages[-1], len(self.stages)
        kinds = [kind for kind in problem.kinds if kind != F]
        each = sum(problem.ns[kind][s] for kind in kinds for s in self.stages)
        m, f = problem.count[last], self.least[F]
        return max(
            e - problem.ns[I][last] + (m - n) * each + max(0, u * (m - n) - self.room) * f
            for n, e in enumerate(end[I][last])
        )
