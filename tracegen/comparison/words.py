"""A difference in words: one line a change, the first on each rank, the effect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tracegen import metrics
from tracegen.comparison.model import Difference, StepChange, What
from tracegen.comparison.rest import MEASURED
from tracegen.deps import NOTHING
from tracegen.layout import KERNELS
from tracegen.timeline import FREED_AT, Timeline


def action(line: Timeline, step: int) -> str:
    """A step in PyTorch's text form."""
    program = line.program
    rank = program.rank_of_step(step)
    return str(program.ranks[rank][step - program.offsets[rank]])


def place(line: Timeline, step: int) -> str:
    """`rank 2, action 5`."""
    rank = line.program.rank_of_step(step)
    return f"rank {rank}, action {step - line.program.offsets[rank]}"


def us(ns: int) -> str:
    """Nanoseconds as microseconds, for people."""
    return f"{ns / 1000:.3f} us"


def describe(found: Difference, change: StepChange) -> str:
    """A change of an action, in a line."""
    a, b = found.golden, found.new
    if change.what is What.ADDED:
        return f"{action(b, change.new)} is added ({place(b, change.new)}, {_at(b, change.new)})"
    name = action(a, change.golden)
    here = f"{place(a, change.golden)}, {_at(a, change.golden)}"
    if change.what is What.MISSING:
        return f"{name} is missing ({here})"
    if change.what is What.STAGE_MOVED:
        return _stage_moved(found, change)
    if change.what is What.MOVED:
        return f"{name} moved from {place(a, change.golden)} to {place(b, change.new)}"
    if change.what is What.SWAPPED and change.beside:
        return f"{name} ({here}) and {change.beside} ({_at(b, change.new)}) changed places"
    if change.what is What.SWAPPED:
        other, ends = action(a, change.other), place(a, change.other).split(", ")[1]
        return f"{name} ({place(a, change.golden)}) and {other} ({ends}) changed places"
    if change.what is What.REORDERED:
        later = b.start_ns[change.new] - a.start_ns[change.golden]
        to = place(b, change.new).split(", ")[1]
        when = f", {_late(later)}" if later and not found.tolerance.ordered_only else ""
        return f"{name} moved from {place(a, change.golden)} to {to}{when}"
    if change.what is What.SPLIT:
        return f"{name} is no longer one block ({here})"
    if change.what is What.JOINED:
        pair = action(b, change.new)
        return f"{pair} is one block now ({place(b, change.new)}, {_at(b, change.new)})"
    return f"{name} {_timing(found, change)} ({here})"


def _stage_moved(found: Difference, change: StepChange) -> str:
    a, b = found.golden.program, found.new.program
    rank, to = a.rank_of_step(change.golden), b.rank_of_step(change.new)
    step = a.ranks[rank][change.golden - a.offsets[rank]]
    first = step.forward if hasattr(step, "forward") else step
    stage = getattr(first, "stage", None)
    return f"stage {stage} moved from rank {rank} to rank {to} ({change.actions} actions)"


def _timing(found: Difference, change: StepChange) -> str:
    a, b, said = found.golden, found.new, []
    later = b.start_ns[change.new] - a.start_ns[change.golden]
    lasts = [
        line.end_ns[step] - line.start_ns[step]
        for line, step in ((a, change.golden), (b, change.new))
    ]
    if change.what is What.DURATION:
        said.append(f"lasts {us(lasts[1])} instead of {us(lasts[0])}")
    if change.what is What.DELAYED or change.other != NOTHING:
        said.append(f"starts {_late(later)} of itself")
    return " and ".join(said)


def _late(ns: int) -> str:
    return f"{us(abs(ns))} {'later' if ns >= 0 else 'earlier'}"


def _at(line: Timeline, step: int) -> str:
    return f"at {us(line.start_ns[step])}"


def grouped(found: Difference) -> list[tuple[str, int, StepChange]]:
    """(line, how many changes it stands for, the first): alike changes of many put into one.

    Alike are durations of one op of one stage that changed from one value to another.
    """
    groups: dict[object, list[StepChange]] = defaultdict(list)
    for change in found.steps:
        groups[_alike(found, change) or change].append(change)
    lines = []
    for group in groups.values():
        first = group[0]
        if len(group) < 3 or first.what is not What.DURATION:
            lines += [(describe(found, change), change.actions, change) for change in group]
            continue
        name = action(found.golden, first.golden)
        said = _timing(found, first).replace("lasts", "last").replace("starts", "start")
        text = f"{len(group)} actions like {name} ({place(found.golden, first.golden)}) {said}"
        lines.append((text, len(group), first))
    return lines


def _alike(found: Difference, change: StepChange) -> object:
    if change.what is not What.DURATION or change.other != NOTHING:
        return None
    a, b = found.golden, found.new
    lasts = a.end_ns[change.golden] - a.start_ns[change.golden]
    now = b.end_ns[change.new] - b.start_ns[change.new]
    name = action(a, change.golden).split(")")[0].rstrip("0123456789")
    return name.split(";")[0].rstrip("0123456789"), lasts, now


def firsts(found: Difference) -> list[tuple[int, StepChange, bool]]:
    """(rank, its first change, whether that only follows), for every rank with one."""
    first: dict[int, tuple[int, bool, StepChange]] = {}
    for follows, changes in ((False, found.steps), (True, _first_shifts(found))):
        for change in changes:
            for rank, ns in _touched(found, change):
                if rank not in first or (ns, follows) < first[rank][:2]:
                    first[rank] = (ns, follows, change)
    return [(rank, change, follows) for rank, (_, follows, change) in sorted(first.items())]


def _first_shifts(found: Difference) -> Iterator[StepChange]:
    """The first change of each rank that only follows: they stand by rank and time."""
    offsets, rank = found.golden.program.offsets, -1
    for change in found.shifted:
        if rank < 0 or change.golden >= offsets[rank + 1]:
            rank = found.golden.program.rank_of_step(change.golden)
            yield change


def _touched(found: Difference, change: StepChange) -> Iterator[tuple[int, int]]:
    """(rank, when) of the ranks that a change is on."""
    if change.golden != NOTHING:
        line = found.golden
        yield line.program.rank_of_step(change.golden), line.start_ns[change.golden]
    if change.new != NOTHING:
        line = found.new
        yield line.program.rank_of_step(change.new), line.start_ns[change.new]


def first_line(found: Difference, change: StepChange, follows: bool) -> str:
    """The first change of a rank, in a line."""
    if not follows:
        return describe(found, change)
    a, b = found.golden, found.new
    later = b.start_ns[change.new] - a.start_ns[change.golden]
    name = action(a, change.golden)
    return f"{name} only follows: it starts {_late(later)} ({place(a, change.golden)})"


def shift_line(found: Difference) -> str:
    """What only follows, in a line."""
    a, b = found.golden, found.new
    late = [b.start_ns[c.new] - a.start_ns[c.golden] for c in found.shifted]
    low, high = min(late) / 1000, max(late) / 1000
    by = f"{low:+.3f} us" if low == high else f"{low:+.3f} to {high:+.3f} us"
    who = "1 other start by" if len(late) == 1 else f"{len(late)} other starts by"
    return f"{who} {by}, as what they wait for moved"


def effect(found: Difference) -> dict[str, tuple[float, float]]:
    """The figures of both that differ: name -> (golden, new). Times are in us.

    What cannot be known of one is left out.
    """
    a, b = found.golden, found.new
    if not (a.program.num_ranks and b.program.num_ranks):
        return {}
    times: dict[str, tuple[float, float]] = {
        "makespan_us": (metrics.us(a.makespan_ns), metrics.us(b.makespan_ns)),
        "bubble_ratio": (metrics.bubble_ratio(a), metrics.bubble_ratio(b)),
        "bubble_overhead": (metrics.bubble_overhead(a), metrics.bubble_overhead(b)),
        "span_rate": (metrics.span_rate(a), metrics.span_rate(b)),
    }
    both = times if _lacks_kernels(a) == _lacks_kernels(b) else {}
    for at in FREED_AT:
        peaks = (a.peak_activations[at], b.peak_activations[at])
        both[f"peak_{at}"] = (max(peaks[0], default=0), max(peaks[1], default=0))
    return {name: pair for name, pair in both.items() if pair[0] != pair[1]}


def _lacks_kernels(line: Timeline) -> bool:
    """Whether a trace has lost the kernels that its figures are made of."""
    if line.costs.moe is None or line.kernels is not None or MEASURED in line.config:
        return False
    rows = [] if line.found is None else line.found.rows
    return not any(row.name.startswith(f"{KERNELS} / ") for row in rows)
