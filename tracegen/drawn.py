"""What a trace shows beside its tiles, as it was read or else as it follows from the steps."""

from __future__ import annotations

from collections.abc import Iterator

from tracegen import memory, metrics
from tracegen.alike import alike
from tracegen.deps import NOTHING, neighbours, waits
from tracegen.ir import NO_MATE, STAGE_MASK, STAGE_SHIFT, Program
from tracegen.shape import Series
from tracegen.timeline import Timeline, as_number

ACTIVATION, GRADIENT = "activation", "gradient"

# rank and step that it leaves, rank and step that it reaches, what it carries
Arrow = tuple[int, int, int, int, str]


def rank_name(rank: int, num_ranks: int) -> str:
    """`rank 03`: as wide as the last, so that text order is rank order."""
    return f"rank {rank:0{len(str(num_ranks - 1))}d}"


def arrows(line: Timeline) -> Iterator[Arrow]:
    """Every arrow from tile to tile.

    Of a trace that was read, those it has; else one for every transfer between
    ranks both of whose tiles take time.
    """
    program = line.program
    if line.found is not None:
        for source, target, name in line.found.arrows:
            yield program.rank_of_step(source), source, program.rank_of_step(target), target, name
        return
    needs, empty = waits(program), line.empty
    before, after = _other_ranks(program)
    for rank, stream in enumerate(program.ranks):
        base = program.offsets[rank]
        steps = slice(base, base + len(stream))
        sorts, numbers = alike(stream)
        last = [code if mate == NO_MATE else mate for code, mate in sorts]
        from_before = [before[code >> STAGE_SHIFT & STAGE_MASK] for code, _ in sorts]
        from_after = [after[code >> STAGE_SHIFT & STAGE_MASK] for code in last]
        rows = zip(numbers, needs.forward[steps], needs.backward[steps], strict=True)
        for step, (number, forward, backward) in enumerate(rows, base):
            if step in empty:
                continue
            other = from_before[number]
            if forward != NOTHING and other != NOTHING and forward not in empty:
                yield other, forward, rank, step, ACTIVATION
            other = from_after[number]
            if backward != NOTHING and other != NOTHING and backward not in empty:
                yield other, backward, rank, step, GRADIENT


def _other_ranks(program: Program) -> tuple[list[int], list[int]]:
    """By stage, the rank of its previous and of its next stage; NOTHING where that is its own."""
    ranks = program.placement.ranks

    def of(neighbour: list[int]) -> list[int]:
        return [
            NOTHING if other < 0 or ranks[other] == ranks[stage] else ranks[other]
            for stage, other in enumerate(neighbour)
        ]

    previous, following = neighbours(program)
    return of(previous), of(following)


def counters(line: Timeline) -> list[Series]:
    """Every counter: of a trace that was read, those it has; else what each rank holds."""
    if line.found is not None:
        return line.found.counters
    ranks = range(line.program.num_ranks)
    return [
        *(held(line, rank) for rank in ranks),
        *(memory_of(line, rank) for rank in ranks if line.costs.memory),
        *_limit(line),
    ]


def memory_of(line: Timeline, rank: int) -> Series:
    """All that a rank holds, in bytes, with its weights and what belongs to them."""
    samples = list(memory.over_time(line, rank))
    name = f"{rank_name(rank, line.program.num_ranks)} memory"
    return Series(name, "bytes", [ns for ns, _ in samples], [value for _, value in samples])


def _limit(line: Timeline) -> list[Series]:
    """The limit that the timeline is held against, as a line from its start to its end."""
    if (said := line.config.get("memory_limit")) is None:
        return []
    text, at = said
    most = memory.limit(text, at, line.costs).size
    unit = "bytes" if memory.counts_bytes(line.costs) else "activations"
    return [Series("memory limit", unit, [0, line.makespan_ns], [as_number(most)] * 2)]


def held(line: Timeline, rank: int) -> Series:
    """What a rank holds: a sample wherever it changes, in activations, or bytes where known."""
    unit = "bytes" if line.costs.in_bytes else "activations"
    samples = list(metrics.activations(line, rank))
    name = rank_name(rank, line.program.num_ranks)
    return Series(name, unit, [ns for ns, _ in samples], [value for _, value in samples])
