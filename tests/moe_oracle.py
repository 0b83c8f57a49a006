"""A second computation of MoE replays, for the tests, from the table of kernels alone.

It knows nothing of the package but the text form of an action: every wait is an
edge of a graph, and the times are the longest paths, found by relaxing all edges
until nothing moves. Where kernels share the device, or links are limited, time
runs on by 1 ns after the other. Slow on purpose.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

# kernel, layer, stage, microbatch
Node = tuple[str, int, int, int]
Part = tuple[int, str, int]

ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
COMMUNICATION = ("dispF", "combF", "combB", "dispB")


class Stuck(Exception):
    """The kernels wait for each other."""


@dataclass(frozen=True)
class Case:
    """A program and its costs.

    Attributes:
        rows: the steps of each rank, as text.
        rank_of: of each stage.
        chains: stages in forward order.
        layers: of each stage.
        block, after: the block order; whether mlpW comes after mlpF.
        ns: of each kernel by (name, stage, layer).
        latency: of a hand-over between ranks.
        share: of the device that communication takes.
        moves: ns that the boundary above a stage occupies a link; none if links are not limited.
    """

    rows: Sequence[Sequence[str]]
    rank_of: Sequence[int]
    chains: Sequence[Sequence[int]]
    layers: int
    block: str
    after: bool
    ns: Mapping[tuple[str, int, int], int]
    latency: int = 0
    share: Fraction = Fraction(0)
    moves: Sequence[int] = ()


@dataclass
class Graph:
    """Who waits for whom, and the streams.

    Attributes:
        streams: the nodes of each (rank, communication?) in order.
        waits: node -> [(who must have ended, how much earlier, the hand-over it is or None)].
    """

    streams: dict[tuple[int, bool], list[Node]] = field(default_factory=dict)
    waits: dict[Node, list[tuple[Node, int, object]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def action(part: Part, layers: int) -> list[Node]:
    """An action's kernels, one after the other."""
    stage, kind, mb = part
    up, down = range(layers), range(layers - 1, -1, -1)
    names = {
        "F": ["attnF", "dispF", "mlpF", "combF"],
        "B": ["combB", "mlpB", "mlpW", "dispB", "attnB", "attnW"],
        "I": ["combB", "mlpB", "dispB", "attnB"],
        "W": ["mlpW", "attnW"],
    }[kind]
    return [(name, layer, stage, mb) for layer in (up if kind == "F" else down) for name in names]


def pair(
    f: Part, b: Part, layers: int, block: str, after: bool
) -> tuple[list[Node], list[Node], list[list[Node]]]:
    """A pair's compute and communication order; for lockstep also its steps."""
    compute, communication, steps = [], [], []

    def of(name: str, layer: int) -> list[Node]:
        stage, kind, mb = f if name[-1] == "F" else b
        return [] if name[-1] == "W" and kind == "I" else [(name, layer, stage, mb)]

    for k in range(layers):
        l, j = k, layers - 1 - k
        four = [
            (of("attnF", l), of("combB", j)),
            (of("mlpB", j), of("dispF", l)),
            (of("mlpW", j) + of("mlpF", l), of("dispB", j)),
            (of("attnB", j) + of("attnW", j), of("combF", l)),
        ]
        if after and block != "lockstep":
            four[2] = (of("mlpF", l) + of("mlpW", j), of("dispB", j))
        for beside, communicates in four:
            compute += beside
            communication += communicates
            steps.append(beside + communicates)
    return compute, communication, steps


def graph(case: Case) -> Graph:
    """Every wait of section 6, each kernel's and each block's."""
    found = Graph()
    step_of: dict[Node, list[Node]] = {}
    whole: dict[Node, bool] = {}
    for rank, row in enumerate(case.rows):
        compute: list[Node] = []
        communication: list[Node] = []
        found.streams[rank, False], found.streams[rank, True] = compute, communication
        fence: list[Node] = []
        for text in row:
            parts = [(int(s), k, int(mb)) for s, k, mb in ACTION.findall(text)]
            before = compute[-1:] + communication[-1:]
            nodes, closed = _step(case, parts, compute, communication, found)
            for node in nodes:
                step_of[node], whole[node] = nodes, closed
                must = fence + (before if closed else [])
                found.waits[node] += [(other, 0, None) for other in must]
            fence = nodes if closed else fence
    for stream in found.streams.values():
        for a, b in pairwise(stream):
            found.waits[b].append((a, 0, None))
    _table(case, found, step_of, whole)
    return found


def _step(
    case: Case, parts: list[Part], compute: list[Node], communication: list[Node], found: Graph
) -> tuple[list[Node], bool]:
    """Append a step's kernels to the streams; whether it begins and ends as one."""
    if case.block == "none" or len(parts) == 1:
        nodes = [node for part in parts for node in action(part, case.layers)]
        compute += [node for node in nodes if node[0] not in COMMUNICATION]
        communication += [node for node in nodes if node[0] in COMMUNICATION]
        if case.block == "none":
            for a, b in pairwise(nodes):
                found.waits[b].append((a, 0, None))
        return nodes, case.block == "none"
    f, b = parts
    first, second, steps = pair(f, b, case.layers, case.block, case.after)
    compute += first
    communication += second
    if case.block == "lockstep":
        for one, two in pairwise(steps):
            for node in two:
                found.waits[node] += [(other, 0, None) for other in one]
    return first + second, case.block != "dualpipe"


def _table(
    case: Case, found: Graph, step_of: dict[Node, list[Node]], whole: dict[Node, bool]
) -> None:
    """The column "waits for", and the hand-overs from stage to stage."""
    last = case.layers - 1
    behind = {a: b for chain in case.chains for a, b in pairwise(chain)}
    before = {b: a for a, b in behind.items()}
    inner = {
        "dispF": "attnF", "mlpF": "dispF", "combF": "mlpF", "mlpB": "combB",
        "dispB": "mlpB", "attnB": "dispB", "mlpW": "mlpB", "attnW": "attnB",
    }  # fmt: skip
    for node in [node for node in step_of if node[0] in inner]:
        found.waits[node].append(((inner[node[0]], *node[1:]), 0, None))
    for node in step_of:
        name, l, stage, mb = node
        if name == "attnF" and l > 0:
            found.waits[node].append((("combF", l - 1, stage, mb), 0, None))
        elif name == "combB" and l < last:
            found.waits[node].append((("attnB", l + 1, stage, mb), 0, None))
        elif name == "attnF" and stage in before:
            _hand_over(case, found, ("combF", last, before[stage], mb), node, step_of, whole)
        elif name == "combB" and stage in behind:
            _hand_over(case, found, ("attnB", 0, behind[stage], mb), node, step_of, whole)
        elif name == "combB":
            own = ("combF", last, stage, mb)
            if own not in step_of[node]:  # a pair of a microbatch with itself: no wait inside
                found.waits[node].append((own, 0, None))


def _hand_over(
    case: Case,
    found: Graph,
    made: Node,
    taken: Node,
    step_of: dict[Node, list[Node]],
    whole: dict[Node, bool],
) -> None:
    """A result leaves when its block has ended if that is closed; a closed block waits as one."""
    a, b = case.rank_of[made[2]], case.rank_of[taken[2]]
    sources = step_of[made] if whole[made] else [made]
    targets = step_of[taken] if whole[taken] else [taken]
    over = (a, b, made[0] != "combF", made[2], made[3]) if a != b and case.moves else None
    for source in sources:
        for target in targets:
            found.waits[target].append((source, case.latency if a != b else 0, over))


Times = dict[Node, tuple[int, int]]


def longest_paths(case: Case) -> Times:
    """When each kernel runs, by relaxing all waits until nothing moves."""
    found = graph(case)
    lasts = {node: case.ns[node[0], node[2], node[1]] for s in found.streams.values() for node in s}
    start = dict.fromkeys(lasts, 0)
    longest = sum(lasts.values()) + case.latency * len(lasts)
    moved = True
    while moved:
        moved = False
        for node in lasts:
            for source, lag, _over in found.waits[node]:
                ready = start[source] + lasts[source] + lag
                if ready > longest:
                    raise Stuck
                if ready > start[node]:
                    start[node], moved = ready, True
    return {node: (start[node], start[node] + lasts[node]) for node in lasts}


def tick_by_tick(case: Case) -> Times:
    """When each kernel runs, 1 ns after the other: also where they share the device or a link."""
    return _Ticking(case).run()


class _Ticking:
    def __init__(self, case: Case) -> None:
        self.case, self.graph, self.now = case, graph(case), 0
        self.start: dict[Node, int] = {}
        self.end: dict[Node, int] = {}
        self.left: dict[Node, Fraction] = {}
        # Hand-overs on limited links: when each was asked for, when it is through.
        self.asked: dict[tuple, int] = {}
        self.through: dict[tuple, int] = {}
        self.carries: dict[tuple, set[Node]] = defaultdict(set)
        for waits in self.graph.waits.values():
            for source, _, over in waits:
                if over is not None:
                    self.carries[over].add(source)

    def run(self) -> Times:
        count = sum(map(len, self.graph.streams.values()))
        idle = 0
        while len(self.end) < count:
            while self.settle():
                pass
            idle = idle + 1 if not self.left else 0
            if idle > 1000:
                raise Stuck
            self.pass_one_ns()
        return {node: (self.start[node], self.end[node]) for node in self.end}

    def settle(self) -> bool:
        """End and start what can end and start now; whether anything did."""
        changed = False
        for node in [node for node, left in self.left.items() if left <= 0]:
            self.end[node] = self.now
            del self.left[node]
            changed = True
        for stream in self.graph.streams.values():
            ahead = next((node for node in stream if node not in self.end), None)
            if ahead is not None and ahead not in self.left and self.ready(ahead):
                name, layer, stage, _ = ahead
                self.start[ahead] = self.now
                self.left[ahead] = Fraction(self.case.ns[name, stage, layer])
                changed = True
        if not changed:
            self.serve_links()
        return changed

    def ready(self, node: Node) -> bool:
        for source, lag, over in self.graph.waits[node]:
            if source not in self.end:
                return False
            since = self.end[source] if over is None else self.through.get(over, 10**9)
            if since + lag > self.now:
                return False
        return True

    def serve_links(self) -> None:
        for over, sources in self.carries.items():
            if over not in self.asked and all(source in self.end for source in sources):
                self.asked[over] = self.now
        free: dict[tuple[int, int], int] = {}
        for over in sorted(self.through, key=self.through.__getitem__):
            free[over[:2]] = self.through[over]
        waiting = [over for over in self.asked if over not in self.through]
        for over in sorted(waiting, key=lambda over: (self.asked[over], over[2:])):
            _, _, backward, stage, _ = over
            boundary = stage if not backward else self.below(stage)
            begin = max(free.get(over[:2], 0), self.asked[over])
            self.through[over] = free[over[:2]] = begin + self.case.moves[boundary]

    def below(self, stage: int) -> int:
        return next(a for chain in self.case.chains for a, b in pairwise(chain) if b == stage)

    def pass_one_ns(self) -> None:
        for (rank, communicates), stream in self.graph.streams.items():
            for node in stream:
                if node in self.left:
                    other = self.graph.streams[rank, True]
                    beside = not communicates and any(o in self.left for o in other)
                    self.left[node] -= 1 - self.case.share if beside else 1
        self.now += 1
