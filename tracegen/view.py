"""Timeline -> terminal: the tiling and its figures, as rich renderables.

Every rank is a line, time runs across. A tile shows its microbatch where that
fits; without colour its kind's letter fills it, and where most tiles are too
narrow for the number beside the letter, numbers have a line of their own.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from math import ceil

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.table import Table
from rich.text import Text

from tracegen import metrics
from tracegen.held import Held
from tracegen.ir import KIND_MASK, MICROBATCH_SHIFT, NO_MATE, UNSHARD
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT
from tracegen.kernels import COMMUNICATION
from tracegen.memory import peak_bytes
from tracegen.moe import Kernel
from tracegen.timeline import Timeline

PAIR, RECOMPUTE = "pair", "recompute"
DISPATCH, COMBINE = "dispatch", "combine"
GATHER, REDUCE = "gather", "reduce"

# kind -> the letter and the fill of its tiles without colour, its colour, and its name.
KINDS: dict[int | str, tuple[str, str, str, str]] = {
    FORWARD: ("F", "-", "black on #e8c34a", "forward"),
    FULL: ("B", "=", "white on #c8402f", "backward"),
    INPUT: ("I", "~", "white on #3f8fc6", "input gradient"),
    WEIGHT: ("W", "+", "white on #2e8b67", "weight gradient"),
    RECOMPUTE: ("R", "^", "black on #d98bb5", "recomputation"),
    PAIR: ("FB", "#", "white on #6a6ad0", "overlapped pair"),
    DISPATCH: ("d", ":", "black on #9fd3b0", "dispatch"),
    COMBINE: ("c", ".", "black on #d9c7a0", "combine"),
    GATHER: ("u", ":", "black on #9fd3b0", "unshard"),
    REDUCE: ("r", ".", "black on #d9c7a0", "reduce gradients"),
}

# On a terminal of 16 colours: the nearest of those would be greys and two yellows.
STANDARD: dict[int | str, str] = {
    FORWARD: "black on yellow",
    FULL: "white on red",
    INPUT: "white on blue",
    WEIGHT: "black on green",
    RECOMPUTE: "black on bright_magenta",
    PAIR: "white on magenta",
    DISPATCH: "black on cyan",
    COMBINE: "black on white",
    GATHER: "black on cyan",
    REDUCE: "black on white",
}

MAX_RANKS = 48

# A terminal of fewer columns gets the figures in a narrower form.
NARROW = 72


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile on the screen: columns [left, right), its kind and what may stand in it."""

    left: int
    right: int
    kind: int | str
    labels: tuple[str, ...]


# start_ns, end_ns, kind, labels
Span = tuple[int, int, int | str, tuple[str, ...]]


def scale(line: Timeline, width: int) -> int:
    """How many columns the makespan takes: a whole number for the commonest tile if that fits."""
    makespan = line.makespan_ns
    spans = Counter(end - start for start, end in zip(line.start_ns, line.end_ns, strict=True))
    spans.pop(0, None)
    if not spans or not makespan:
        return width
    unit = max(spans, key=lambda ns: (spans[ns], -ns))
    whole = width * unit // makespan
    return min(width, ceil(makespan * whole / unit)) if whole else width


def tiles(line: Timeline, rank: int, columns: int) -> list[Tile]:
    """The tiles of a rank that are a column wide or more, and, between, the commonest kind."""
    stream, base = line.program.ranks[rank], line.program.offsets[rank]

    def found() -> Iterator[Span]:
        for step, (code, mate) in enumerate(zip(stream.codes, stream.mates, strict=True), base):
            kind: int | str = code & KIND_MASK if mate == NO_MATE else PAIR
            start = line.start_ns[step]
            if line.recomputed_ns is not None and (until := line.recomputed_ns[step]) > start:
                half = code if mate == NO_MATE else mate
                yield start, until, RECOMPUTE, _labels(RECOMPUTE, half, NO_MATE)
                start = until
            yield start, line.end_ns[step], kind, _labels(kind, code, mate)

    return _on_screen(found(), line.makespan_ns, columns)


def communication(line: Timeline, rank: int, columns: int) -> list[Tile]:
    """What the rank's communication stream runs in the same way; none without one."""
    if line.kernels is None:
        return _on_screen(
            (
                (one.start_ns, one.end_ns, GATHER if _gathers(one) else REDUCE, ("", ""))
                for one in (line.collectives[rank] if line.collectives else ())
            ),
            line.makespan_ns,
            columns,
        )
    dispatch = (Kernel.DISP_F, Kernel.DISP_B)
    return _on_screen(
        (
            (k.start_ns, k.end_ns, DISPATCH if k.kernel in dispatch else COMBINE, ("", ""))
            for k in line.kernels.of_stream(rank, COMMUNICATION)
        ),
        line.makespan_ns,
        columns,
    )


def _gathers(one: Held) -> bool:
    return one.code & KIND_MASK == UNSHARD


def _on_screen(spans: Iterable[Span], makespan_ns: int, columns: int) -> list[Tile]:
    wide: list[Tile] = []
    thin: dict[int, Counter[int | str]] = {}
    whole = max(1, makespan_ns)
    for start, end, kind, labels in spans:
        left, right = start * columns // whole, end * columns // whole
        if right > left:
            wide.append(Tile(left, right, kind, labels))
        elif end > start:
            thin.setdefault(left, Counter())[kind] += end - start
    taken = {column for tile in wide for column in range(tile.left, tile.right)}
    for column, kinds in thin.items():
        if column not in taken and 2 * sum(kinds.values()) * columns >= whole:
            wide.append(Tile(column, column + 1, kinds.most_common(1)[0][0], ("", "")))
    return sorted(wide, key=lambda tile: tile.left)


def _labels(kind: int | str, code: int, mate: int) -> tuple[str, ...]:
    """What a tile may say, the fullest first."""
    number = str(code >> MICROBATCH_SHIFT)
    letter = KINDS[kind][0]
    if mate == NO_MATE:
        return f"{letter}{number}", number, ""
    other = "B" if mate & KIND_MASK == FULL else "I"
    return (
        f"F{number}{other}{mate >> MICROBATCH_SHIFT}",
        f"{number}/{mate >> MICROBATCH_SHIFT}",
        number,
        "",
    )


def colours(console: Console) -> Mapping[int | str, str] | None:
    """The colour of each kind on a terminal; None where it shows none."""
    if console.color_system is None or console.no_color:
        return None
    if console.color_system in ("standard", "windows"):
        return STANDARD
    return {kind: colour for kind, (_, _, colour, _) in KINDS.items()}


class Tiling:
    """The ranks below each other, time across, scaled to the console's width."""

    def __init__(self, line: Timeline) -> None:
        self.line = line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        p = self.line.program.num_ranks
        shades = colours(console)
        digits = len(str(p - 1))
        margin = len("rank ") + digits + 1
        columns = scale(self.line, max(8, options.max_width - margin - 1))
        shown = p if p <= MAX_RANKS else MAX_RANKS - 1
        rows = [tiles(self.line, rank, columns) for rank in range(shown)]
        two_lines = shades is None and 2 * sum(map(_is_tight, chain(*rows))) > sum(map(len, rows))
        for rank, row in enumerate(rows):
            yield _row(f"rank {rank:>{digits}} ", row, shades)
            if self.line.kernels is not None or self.line.collectives:
                beside = communication(self.line, rank, columns)
                yield _row("comm".ljust(margin), beside, shades)
            if two_lines:
                yield _numbers(" " * margin, row)
        if shown < p:
            yield Text(f"... and {p - shown} more ranks")
        yield _axis(margin, columns, self.line.makespan_ns)
        yield from _legend(self.line, shades, options.max_width)


def _row(name: str, row: list[Tile], shades: Mapping[int | str, str] | None) -> Text:
    text, at = Text(name, no_wrap=True, overflow="crop"), 0
    for tile in row:
        text.append(" " * (tile.left - at))
        text.append(*_face(tile, shades))
        at = tile.right
    return text


def _is_tight(tile: Tile) -> bool:
    return tile.right - tile.left < len(tile.labels[0])


def _numbers(margin: str, row: list[Tile]) -> Text:
    """The microbatch numbers that fit under their tiles."""
    text, at = Text(margin, no_wrap=True, overflow="crop"), 0
    for tile in row:
        width = tile.right - tile.left
        text.append(" " * (tile.left - at))
        text.append(next(x for x in (*tile.labels[1:], "") if len(x) <= width).ljust(width))
        at = tile.right
    text.rstrip()
    return text


def _face(tile: Tile, shades: Mapping[int | str, str] | None) -> tuple[str, Style | None]:
    width = tile.right - tile.left
    letter, fill = KINDS[tile.kind][:2]
    if shades is not None:
        label = next(label for label in (*tile.labels[1:], "") if len(label) <= width)
        if tile.kind == PAIR and len(tile.labels[0]) < width:
            label = tile.labels[0]
        return label.center(width), Style.parse(shades[tile.kind])
    label = next(x for x in (tile.labels[0] or letter, letter[:1]) if len(x) <= width)
    return label.ljust(width, fill), None


def _axis(margin: int, columns: int, makespan_ns: int) -> Text:
    end = duration(makespan_ns)
    return Text(" " * margin + "0" + end.rjust(max(len(end) + 1, columns - 1)), no_wrap=True)


def _legend(line: Timeline, shades: Mapping[int | str, str] | None, width: int) -> Iterator[Text]:
    """What the tiles are, in as few lines as that takes."""
    present = {
        code & KIND_MASK if mate == NO_MATE else PAIR
        for stream in line.program.ranks
        for code, mate in zip(stream.codes, stream.mates, strict=True)
    }
    if line.kernels is not None:
        present |= {DISPATCH, COMBINE}
    if line.recomputed_ns is not None:
        present.add(RECOMPUTE)
    present |= {GATHER if _gathers(one) else REDUCE for ran in line.collectives for one in ran}
    text = Text()
    for kind, (letter, fill, _, name) in KINDS.items():
        if kind not in present:
            continue
        entry = Text(f"{letter}{fill}")
        if shades is not None:
            entry = Text().append(f" {letter} ", shades[kind])
        entry.append(f" {name}")
        if text and len(text) + len(entry) + 3 > width:
            yield text
            text = Text()
        text.append("   " if text else "").append_text(entry)
    yield text


def duration(ns: int) -> str:
    """A time in the unit that people would say it in: ns, us, ms or s."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns} ns"


def figures(line: Timeline, width: int) -> Iterator[Text | Table]:
    """The figures under the tiling, for a terminal so wide; the README says what each means."""
    yield Text(f"makespan         {duration(line.makespan_ns)}")
    if (steady := line.steady_step_ns) is not None:
        yield Text(f"steady step      {duration(round(steady))}   of {line.program.num_steps}")
    bubble = (
        f"bubble           ratio {metrics.bubble_ratio(line):.2%}",
        f"overhead {metrics.bubble_overhead(line):.2%}",
        f"span rate {metrics.span_rate(line):.2%}",
    )
    yield Text(("\n" + " " * 17 if width < NARROW else "   ").join(bubble))
    times = {"busy": line.busy_ns, "idle": line.idle_ns}
    if line.kernels is not None or line.collectives:
        times |= {"comm busy": line.comm_busy_ns, "exposed": line.exposed_ns}
    ranks = range(min(line.program.num_ranks, MAX_RANKS))
    more = ["..."] if line.program.num_ranks > MAX_RANKS else []
    columns = {"rank": [*map(str, ranks), *more]}
    columns |= {name: [duration(of[rank]) for rank in ranks] for name, of in times.items()}
    size = amount if line.costs.in_bytes else "{:g}".format
    for at, peaks in line.peak_activations.items():
        columns[f"peak, {at.replace('_', ' ')}"] = [size(peaks[rank]) for rank in ranks]
    yield from stacked(columns, width)
    if line.overlap_ratio is not None:
        yield Text(f"overlap          {line.overlap_ratio:.2%} of communication beside computation")
    yield Text(f"peaks are {'of' if line.costs.in_bytes else 'in stage'} activations")
    if (held := peak_bytes(line.program, line.costs)) is not None:
        most = {at: max(held[at]) for at in held}
        yield Text(
            "memory           at most "
            + ", ".join(f"{amount(most[at])} {at.replace('_', ' ')}" for at in most)
            + f" (rank {held['freed_at_weight'].index(most['freed_at_weight'])})"
        )


def stacked(columns: Mapping[str, Sequence[str]], width: int) -> Iterator[Table]:
    """Columns as a table, or as several, each with the first column, where that is too wide."""
    gap, titles = 2, {name: name for name in columns}

    def wide(name: str) -> int:
        return gap + max(map(len, [*titles[name].split("\n"), *columns[name]]))

    if sum(map(wide, columns)) - gap > width:
        titles = {name: textwrap.fill(name, max(9, *map(len, columns[name]))) for name in columns}
    if sum(map(wide, columns)) - gap > width:
        gap = 1
    first, *rest = columns
    while rest:
        here, room = [first], width + gap - wide(first)
        while rest and (len(here) == 1 or wide(rest[0]) <= room):
            here.append(rest.pop(0))
            room -= wide(here[-1])
        table = Table(box=None, pad_edge=False, header_style="", padding=(0, gap - 1, 0, 1))
        for name in here:
            table.add_column(titles[name], justify="right", no_wrap=True)
        for cells in zip_longest(*(columns[name] for name in here), fillvalue=""):
            table.add_row(*cells)
        yield table


def amount(size: float) -> str:
    """Bytes for people: in the largest unit of which there is one."""
    units = ["bytes", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.4g} {units[0]}"


def heading(line: Timeline) -> Text:
    """What the timeline is of, in a line."""
    program = line.program
    text = (
        f"{program.name}   p={program.num_ranks} m={program.num_microbatches} "
        f"v={program.stages_per_rank}   {program.num_stages} stages, "
        f"{program.placement.name} placement"
    )
    return Text(text + ("   forward only" if program.forward_only else ""), no_wrap=True)
