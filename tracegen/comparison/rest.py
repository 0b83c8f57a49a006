"""What differs beside the actions: configuration, arrows, counters, figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from tracegen import drawn, metrics
from tracegen.checks import is_number
from tracegen.comparison.model import Change, Tolerance, changed, equal
from tracegen.comparison.steps import Matching
from tracegen.deps import NOTHING
from tracegen.found import Arrows
from tracegen.recompute import begins
from tracegen.shape import Series
from tracegen.timeline import Timeline

COSTS = "costs."
# The facts of a measurement, which no second one repeats; what it measured is compared as times.
MEASURED = "executed"
_SIZES = ("schedule", "p", "m", "v", "stages")
# Where stages are and what runs through them is another matter if these differ.
_PLACING = ("p", "v", "stages", "placement")
# What a trace states that is no figure of its tiles.
_NO_FIGURES = (*_SIZES, "schema_version")


def own(line: Timeline) -> bool:
    """Whether tracegen made it, so that it says what it was made of."""
    return line.found is None or line.found.own


def configuration(
    golden: Timeline, new: Timeline, moved: bool, tolerance: Tolerance
) -> list[Change]:
    """What they were made of, as far as both say it.

    Args:
        golden: the one that is right.
        new: the other.
        moved: whether actions moved between ranks, which says where stages are.
        tolerance: costs may be as far apart as durations; in order alone they are not compared.
    """
    both = own(golden) and own(new)
    a, b = _made_of(golden, both), _made_of(new, both)
    changes = [
        change
        for change in changed(a, b)
        if not (change.where.startswith(COSTS) and _near(change.golden, change.new, tolerance))
    ]
    if not any(change.where in _PLACING for change in changes):
        if not moved:
            changes += _stage_ranks(golden, new)
        if both:
            changes += _chains(_stated_chains(golden), _stated_chains(new))
    return changes


def _stage_ranks(golden: Timeline, new: Timeline) -> Iterator[Change]:
    ranks = golden.program.placement.ranks, new.program.placement.ranks
    for stage, (x, y) in enumerate(zip(*ranks, strict=False)):
        if x != y:
            yield Change(f"rank of stage {stage}", x, y)


def _stated_chains(line: Timeline) -> Any:
    stated = {} if line.found is None else line.found.of_program
    return stated.get("chains", [list(chain) for chain in line.program.placement.chains])


def _chains(golden: Any, new: Any) -> Iterator[Change]:
    """Chains through other stages, each with the first of them."""
    lists = all(isinstance(one, list) for one in (golden, new, *_inner(golden), *_inner(new)))
    if not lists or len(golden) != len(new):
        if not equal(golden, new):
            yield Change("chains", golden, new)
        return
    for number, (a, b) in enumerate(zip(golden, new, strict=True)):
        if not equal(a, b):
            both = enumerate(zip_longest(a, b))
            at, (x, y) = next((at, pair) for at, pair in both if not equal(*pair))
            x, y = ("none" if stage is None else f"stage {stage}" for stage in (x, y))
            yield Change(f"chain {number}", a, b, f"chain {number}, place {at}: {x} -> {y}")


def _inner(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _made_of(line: Timeline, both_own: bool) -> dict[str, Any]:
    program = line.program
    said: dict[str, Any] = {"p": program.num_ranks, "m": program.num_microbatches}
    if program.num_ranks:
        said |= {"v": program.stages_per_rank, "stages": program.num_stages}
    if both_own:
        said = {"schedule": program.name, **said, "placement": program.placement.name}
        said["forward_only"] = _forward_only(line)
        said |= {"costs": line.costs.in_force(), **line.config}
        said.pop(MEASURED, None)
    return said


def _forward_only(line: Timeline) -> Any:
    made = (line.source or line.program).forward_only
    return made if line.found is None else line.found.of_program.get("forward_only", made)


def _near(golden: Any, new: Any, tolerance: Tolerance) -> bool:
    """Whether two costs are as near as durations must be."""
    if tolerance.ordered_only:
        return True
    if isinstance(golden, list) and isinstance(new, list) and len(golden) == len(new):
        return all(_near(a, b, tolerance) for a, b in zip(golden, new, strict=True))
    both = is_number(golden) and is_number(new)
    return both and abs(new - golden) <= tolerance.share * abs(golden)


def recomputations(
    golden: Timeline, new: Timeline, matching: Matching, tolerance: Tolerance
) -> list[Change]:
    """Actions as long as before of which another part is recomputation, alike ones as one."""
    if tolerance.ordered_only or (golden.recomputed_ns is None and new.recomputed_ns is None):
        return []
    begin_a, begin_b = begins(golden), begins(new)
    alike: dict[tuple[int, int], list[int]] = {}
    for a, b in enumerate(matching.new_of):
        if b == NOTHING or golden.end_ns[a] - golden.start_ns[a] != new.end_ns[b] - new.start_ns[b]:
            continue
        x, y = begin_a[a] - golden.start_ns[a], begin_b[b] - new.start_ns[b]
        if abs(x - y) > tolerance.share * x:
            alike.setdefault((x, y), []).append(a)
    changes = []
    for (x, y), steps in alike.items():
        first, count = step_text(golden, steps[0]), len(steps)
        who = f"{first} recomputes" if count == 1 else f"{count} actions like {first} recompute"
        text = f"{who} for {y / 1000:.3f} us instead of {x / 1000:.3f} us"
        at_ns = golden.start_ns[steps[0]]
        changes.append(Change(f"recomputation of {first}", x / 1000, y / 1000, text, at_ns))
    return changes


def arrows(golden: Timeline, new: Timeline, matching: Matching) -> tuple[list[Change], int]:
    """Arrows that one has and the other has not; and how many lack an end there, or moved."""
    before, after = _step_arrows(golden), _step_arrows(new)
    changes = list(_other_arrows(golden, new))
    if matching.identical and before == after:
        return changes, 0
    new_of, golden_of = matching.new_of, matching.golden_of(len(new.program))
    gone, come = Counter(before), Counter[tuple[int, int, str]]()
    for source, target, name in after:
        come[golden_of[source], golden_of[target], name] += 1
    follows = 0
    for arrow, count in (gone - come).items():
        source, target, name = arrow
        unmatched = NOTHING in (new_of[source], new_of[target])
        if unmatched or source in matching.rearranged or target in matching.rearranged:
            follows += count
        else:
            changes.append(_arrow(golden, source, target, name, "missing"))
    for source, target, name in after:
        a, b = golden_of[source], golden_of[target]
        if come[a, b, name] <= gone[a, b, name]:
            continue
        come[a, b, name] -= 1
        if NOTHING in (a, b) or a in matching.rearranged or b in matching.rearranged:
            follows += 1
        else:
            changes.append(_arrow(new, source, target, name, "added"))
    return changes, follows


def _step_arrows(line: Timeline) -> Arrows:
    if line.found is not None:
        return line.found.arrows
    return Arrows.of((source, target, name) for _, source, _, target, name in drawn.arrows(line))


def _arrow(line: Timeline, source: int, target: int, name: str, what: str) -> Change:
    ends = f"{step_text(line, source)} -> {step_text(line, target)}"
    gone = what == "missing"
    text = f"arrow {ends} ({name}) is {what}"
    at_ns = line.start_ns[target]
    return Change(f"arrow {name}", ends if gone else None, None if gone else ends, text, at_ns)


def step_text(line: Timeline, step: int) -> str:
    """`2F0 on rank 1`."""
    program = line.program
    rank = program.rank_of_step(step)
    return f"{program.ranks[rank][step - program.offsets[rank]]} on rank {rank}"


def _other_arrows(golden: Timeline, new: Timeline) -> Iterator[Change]:
    """Of traces that were read, arrows that touch other rows."""
    if golden.found is None or new.found is None:
        return
    before, after = Counter(golden.found.other_arrows), Counter(new.found.other_arrows)
    for some, others, what in ((before, after, "missing"), (after, before, "added")):
        for (source, target, name), count in (some - others).items():
            ends = f"{source} -> {target}"
            times = f" ({count} times)" if count > 1 else ""
            a, b = (ends, None) if what == "missing" else (None, ends)
            yield Change(f"arrow {name}", a, b, f"arrow {name!r} {ends} is {what}{times}")


def counters(golden: Timeline, new: Timeline, tolerance: Tolerance) -> tuple[list[Change], int]:
    """Counters that differ; and how many do only since their rank's actions do.

    What both sides' actions make of a counter is no change of its own: how far their times may
    be apart has been asked of the actions.

    Args:
        golden: the one that is right.
        new: the other.
        tolerance: of samples' times.
    """
    before = {series.name: series for series in drawn.counters(golden)}
    after = {series.name: series for series in drawn.counters(new)}
    changes: list[Change] = []
    follows = 0
    for name in [*before, *(name for name in after if name not in before)]:
        a, b = before.get(name), after.get(name)
        if a is None or b is None:
            what = f"counter {name} is {'added' if a is None else 'missing'}"
            changes.append(Change(f"counter {name}", None if a is None else name, b and name, what))
        elif not _alike(a, b, tolerance, golden.makespan_ns):
            if _derived(golden, a) and _derived(new, b):
                follows += 1
            else:
                changes.append(_sample(a, b))
    return changes, follows


def _alike(a: Series, b: Series, tolerance: Tolerance, makespan_ns: int) -> bool:
    if tolerance.text == "exact":
        return a.ns == b.ns and equal(a.values, b.values)
    if not equal(a.values, b.values):
        return False
    apart = tolerance.share * makespan_ns
    return tolerance.ordered_only or all(
        abs(x - y) <= apart for x, y in zip(a.ns, b.ns, strict=True)
    )


def _derived(line: Timeline, series: Series) -> bool:
    """Whether a counter is what the actions of its rank make of it."""
    p = line.program.num_ranks
    for rank in range(p):
        if own(line) and drawn.rank_name(rank, p) == series.track:
            held = drawn.held(line, rank)
            if held.key == series.key:
                return held.ns == series.ns and equal(held.values, series.values)
    return False


def _sample(a: Series, b: Series) -> Change:
    """The first sample that differs."""
    samples_a, samples_b = (
        list(zip(a.ns, a.values, strict=True)),
        list(zip(b.ns, b.values, strict=True)),
    )
    at = next(
        (i for i, (x, y) in enumerate(zip(samples_a, samples_b, strict=False)) if not equal(x, y)),
        min(len(samples_a), len(samples_b)),
    )
    x = samples_a[at] if at < len(samples_a) else None
    y = samples_b[at] if at < len(samples_b) else None
    differ = sum(not equal(s, t) for s, t in zip(samples_a, samples_b, strict=False))
    differ += abs(len(samples_a) - len(samples_b))
    more = f", and {differ - 1} more samples" if differ > 1 else ""
    ns = (x or y or (0, 0))[0]
    if x is not None and y is not None and x[0] == y[0]:
        text = f"counter {a.name}: {y[1]} instead of {x[1]} at {ns / 1000:.3f} us{more}"
    else:
        text = f"counter {a.name}: {_shown(y)} instead of {_shown(x)}{more}"
    return Change(f"counter {a.name}", x and x[1], y and y[1], text, ns)


def _shown(sample: tuple[int, float] | None) -> str:
    return "no sample" if sample is None else f"{sample[1]} at {sample[0] / 1000:.3f} us"


def figures(golden: Timeline, new: Timeline) -> tuple[list[Change], int]:
    """Figures that the traces state differently though it does not follow from their tiles."""
    if not (own(golden) and own(new)) or not (golden.program.num_ranks and new.program.num_ranks):
        return [], 0
    a, b = _stated(golden), _stated(new)
    of_tiles_a, of_tiles_b = metrics.summary(golden), metrics.summary(new)
    changes: list[Change] = []
    follows = 0
    for key in [*a, *(key for key in b if key not in a)]:
        if key in _NO_FIGURES or equal(a.get(key), b.get(key)):
            continue
        if equal(a.get(key), of_tiles_a.get(key)) and equal(b.get(key), of_tiles_b.get(key)):
            follows += 1
        else:
            changes += changed({key: a.get(key)}, {key: b.get(key)}, "figure ")
    return changes, follows


def _stated(line: Timeline) -> dict[str, Any]:
    return metrics.summary(line) if line.found is None else line.found.stated
