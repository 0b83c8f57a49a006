"""An explanation for the terminal, as plain data, and drawn into the trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from rich.table import Table
from rich.text import Text

from tracegen import metrics
from tracegen.analysis.explain import Explained, Gap, Piece
from tracegen.analysis.what_if import Gain
from tracegen.deps import NOTHING
from tracegen.ir import KIND_MASK, MICROBATCH_SHIFT, NO_MATE
from tracegen.layout import LETTERS, PAIR_LETTERS, Arrow, Layout, layout
from tracegen.metrics import readable, us
from tracegen.shape import Row, Shape, Slice
from tracegen.view import duration

RUNS = 12  # of the path, in the terminal
PIECES = 6  # of a chain
CRITICAL = "critical path"


def heading(told: Explained, path: list[Piece]) -> Iterator[Text]:
    """What the makespan is made of."""
    line = told.line
    moving = sum(piece.ns for piece in path if piece.step == NOTHING)
    running = line.makespan_ns - moving
    how = "measured" if told.measured else "predicted"
    if line.hangs:
        how = "it ends in a deadlock"
    count = sum(piece.step != NOTHING for piece in path)
    yield Text(
        f"{line.program.name}: {how}, makespan {duration(line.makespan_ns)}, "
        f"bubble ratio {metrics.bubble_ratio(line):.2%}"
    )
    what = "kernels" if line.kernels is not None else "actions"
    between = "transfers"
    if told.measured or any(line.held) or line.collectives:
        between += " and the host" if told.measured else " and what else holds ranks"
    yield Text(
        f"critical path: {count} {what} {duration(running)}, {between} {duration(moving)}; "
        "nothing that is not on it helps"
    )


def runs(path: list[Piece]) -> list[list[Piece]]:
    """The path cut where it goes to another rank; a transfer is of the rank that waits."""
    found: list[list[Piece]] = []
    for piece in path:
        if found and found[-1][0].rank == piece.rank:
            found[-1].append(piece)
        else:
            found.append([piece])
    return found


def path_table(path: list[Piece]) -> Table:
    """The path, a line for each stay on a rank; the middle of a long one is left out."""
    table = _table("rank", "from", "to", "waits", "works")
    every = runs(path)
    half = RUNS // 2
    for number, run in enumerate(every):
        if half <= number < len(every) - half and len(every) > RUNS + 1:
            if number == half:
                table.add_row("..", f"{len(every) - 2 * half} more", "", "", "")
            continue
        actions = [piece for piece in run if piece.step != NOTHING]
        waits = sum(piece.ns for piece in run if piece.step == NOTHING)
        names = [readable(at.action) for at in (actions[0], actions[-1])] if actions else ["", ""]
        works = duration(sum(piece.ns for piece in actions)) if actions else ""
        table.add_row(str(run[0].rank), *names, duration(waits) if waits else "", works)
    return table


def gap_texts(gaps: list[Gap], count: int) -> Iterator[Text]:
    """The longest gaps, each with what happened meanwhile."""
    longest = sorted(gaps, key=lambda gap: (-gap.ns, gap.start_ns, gap.rank))[:count]
    for gap in longest:
        before = f"before {readable(gap.before)}" if gap.before else "at its end"
        yield Text(f"rank {gap.rank}, {duration(gap.ns)} {before}: {chain_text(gap.chain)}")


def chain_text(chain: list[Piece]) -> str:
    """A chain in words, its ends if it is long."""
    parts = [f"{readable(piece.action)} {duration(piece.ns)}" for piece in chain if piece.ns]
    if len(parts) > PIECES + 1:
        half = PIECES // 2
        parts = [*parts[:half], f"{len(parts) - PIECES} more", *parts[-half:]]
    return ", ".join(parts) or "nothing"


def gain_table(gains: list[Gain], whole: int, count: int) -> Table:
    """What the best changes buy."""
    table = _table("what", "buys", "of the makespan")
    table.columns[0].justify, table.columns[0].no_wrap = "left", False
    for gain in gains[:count]:
        if gain.saves_ns > 0:
            share = f"{gain.saves_ns / whole:.3%}"
            table.add_row(gain.change.text, duration(gain.saves_ns), share)
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def as_data(told: Explained, path: list[Piece], gains: list[Gain]) -> dict[str, Any]:
    """All of it as plain data; times in us."""
    return {
        **metrics.summary(told.line),
        "measured": told.measured,
        "critical_path": [piece_as_data(piece) for piece in path],
        "gaps": [
            {
                "rank": gap.rank,
                "start_us": us(gap.start_ns),
                "end_us": us(gap.end_ns),
                "before": gap.before,
                "chain": [piece_as_data(piece) for piece in gap.chain],
            }
            for gap in told.gaps()
        ],
        "what_if": [{"change": gain.change.text, "saves_us": us(gain.saves_ns)} for gain in gains],
        "what_if_from": "slack" if told.what_if.from_slack else "replay",
    }


def piece_as_data(piece: Piece) -> dict[str, Any]:
    """A piece of a path as plain data: rank, action, start and end in µs."""
    return {
        "rank": piece.rank,
        "action": piece.action,
        "start_us": us(piece.start_ns),
        "end_us": us(piece.end_ns),
    }


def drawn(told: Explained, path: list[Piece]) -> Layout:
    """The trace with a row for the critical path, and arrows along it from rank to rank."""
    shown = layout(told.line)
    row = Row(CRITICAL, CRITICAL, lambda: _slices(told, path))
    arrows = shown.arrows
    return replace(
        shown,
        rows=[*shown.rows, row],
        arrows=lambda: (arrow for each in (arrows(), _arrows(told, path)) for arrow in each),
    )


_SHAPE = Shape("critical", ("rank", "action"))


def _slices(told: Explained, path: list[Piece]) -> Iterator[Slice]:
    for piece in path:
        if piece.ns:
            name = piece.action if piece.step == NOTHING else _letters(told, piece.step)
            yield piece.start_ns, piece.end_ns, name, _SHAPE, (piece.rank, piece.action)


def _letters(told: Explained, step: int) -> str:
    """What the tile of a step is called, so that it has the tile's colour."""
    program = told.line.program
    rank = program.rank_of_step(step)
    stream, at = program.ranks[rank], step - program.offsets[rank]
    code, mate = stream.codes[at], stream.mates[at]
    number = code >> MICROBATCH_SHIFT
    if mate == NO_MATE:
        return f"{LETTERS[code & KIND_MASK]}{number}"
    return f"F{number}{PAIR_LETTERS[mate & KIND_MASK]}{mate >> MICROBATCH_SHIFT}"


def _arrows(told: Explained, path: list[Piece]) -> Iterator[Arrow]:
    start, end = told.line.start_ns, told.line.end_ns
    steps = [piece for piece in path if piece.step != NOTHING]
    tiles = [piece for piece in steps if end[piece.step] > start[piece.step]]
    for a, b in pairwise(tiles):
        if a.rank != b.rank:
            yield a.rank, start[a.step], b.rank, start[b.step], CRITICAL, "critical"
