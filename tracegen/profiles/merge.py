"""The ranks of a pipeline, each on its own clock -> one measured Timeline."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracegen import compiler, drawn, metrics, torch_csv
from tracegen.errors import FileError, ProgramError
from tracegen.execute.measure import broken_waits, measured
from tracegen.execute.outcome import Offset, Outcome, StepTimes
from tracegen.found import Arrows, Found, Row
from tracegen.ir import (
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    Placement,
    Program,
    Stream,
)
from tracegen.layout import PIPELINE, layout
from tracegen.passes.validate import validate
from tracegen.profiles.clocks import Clock, align
from tracegen.profiles.model import RankProfile, Tile
from tracegen.readers.warn import Warnings
from tracegen.timeline import Timeline

Steps = list[list[list[Tile]]]


def merge(
    ranks: Sequence[RankProfile],
    name: str,
    about: dict[str, Any],
    warnings: Warnings,
    complete: bool = True,
) -> Timeline:
    """One timeline of all ranks: the step of median makespan among those of the usual order.

    Beside it stands what replay predicts from what its own ops take.

    Args:
        ranks: in the order of the pipeline.
        name: of the program, where it is no schedule known by name.
        about: for the trace's metadata.
        warnings: where what is odd is noted.
        complete: whether all ranks of the pipeline are there.

    Raises:
        FileError: if the ranks did not run the same steps, or their clocks cannot be related.
    """
    by_step = _by_step(ranks)
    clocks = align(ranks)
    for text in clocks.warnings:
        warnings.add("clocks", text)
    steps = _usual(by_step, warnings)
    streams = [_stream(tiles) for tiles in steps[0]]
    program = _program(streams, name, warnings, complete)
    times = [
        [_times(tiles, clock) for tiles, clock in zip(step, clocks.of_rank, strict=True)]
        for step in steps
    ]
    worst = max((one.uncertainty_ns or 0 for one in clocks.of_rank), default=0)
    offsets = [Offset(0, one.uncertainty_ns or 0) for one in clocks.of_rank]
    outcome = Outcome(times, offsets, None, 0, None, {**about, "recorded": about["profile"]})
    line = _measured(program, outcome)
    _say_waits(ranks, line, warnings)
    if early := broken_waits(line, 2, pairs_wait_inside=True):
        raise FileError(
            f"{ranks[0].path}: on the common time axis {early[0]}; are the files of one run?"
        )
    line.config["executed"].update(_clock_facts(clocks.of_rank, worst, clocks.notes))
    return replace(line, found=_found(line, warnings))


def _found(line: Timeline, warnings: Warnings) -> Found:
    """What its trace will show beside the tiles, and what is odd."""
    rows = []
    for row in layout(replace(line, beside=None)).rows:
        if row.process != PIPELINE and (slices := list(row.slices())):
            start, end = (
                array("q", [one[0] for one in slices]),
                array("q", [one[1] for one in slices]),
            )
            rows.append(Row(f"{row.process} / {row.name}", start, end, [one[2] for one in slices]))
    return Found(
        own=True,
        arrows=Arrows.of((s, t, name) for _, s, _, t, name in drawn.arrows(line)),
        counters=drawn.counters(line),
        rows=rows,
        stated=metrics.summary(line),
        warnings=warnings.texts(),
    )


def _measured(program: Program, outcome: Outcome) -> Timeline:
    """The median step; of a program that is not whole, without a prediction."""
    if program.memo.get("valid"):
        return measured(program, outcome).line
    program.memo["valid"] = True  # so that its costs are taken; a replay of it says nothing
    line = measured(program, outcome).line
    del program.memo["valid"]
    del line.config["executed"]["predicted_makespan_us"]
    return replace(line, beside=None)


def _say_waits(ranks: Sequence[RankProfile], line: Timeline, warnings: Warnings) -> None:
    """Say how long pairs wait inside themselves, where that is more than a hundredth of all."""
    inside = [max(rank.waits_inside_ns, default=0) for rank in ranks]
    worst = max(range(len(inside)), key=inside.__getitem__)
    if inside[worst] > line.makespan_ns / 100:
        warnings.add(
            "pairs",
            f"overlapped pairs of rank {worst} wait up to {inside[worst] / 1e6:.3f} ms of a step "
            "inside them, between their forward and their backward's input; a pair is one tile, so "
            "this counts as busy",
        )


def _clock_facts(clocks: Sequence[Clock], worst: int, notes: list[str]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "clock_offsets_us": [one.offset_ns / 1000 for one in clocks],
        "clock_uncertainty_us": worst / 1000,
        "clocks": notes,
    }
    if any(one.rate for one in clocks):
        facts["clock_rates_ppm"] = [round(one.rate * 1e6, 3) for one in clocks]
    return facts


def _by_step(ranks: Sequence[RankProfile]) -> Steps:
    """By step, the tiles of every rank.

    Raises:
        FileError: if they have not as many steps.
    """
    counts = [len(rank.steps) for rank in ranks]
    if len(set(counts)) > 1:
        most, least = counts.index(max(counts)), counts.index(min(counts))
        raise FileError(
            f"{ranks[most].path} holds {max(counts)} steps and {ranks[least].path} "
            f"{min(counts)}; profile the same steps on every rank"
        )
    return [[rank.steps[number] for rank in ranks] for number in range(counts[0])]


def _usual(steps: Steps, warnings: Warnings) -> Steps:
    """The steps that ran the most frequent order."""

    def order(step: list[list[Tile]]) -> tuple[tuple[tuple[int, int], ...], ...]:
        return tuple(tuple((tile.code, tile.mate) for tile in tiles) for tiles in step)

    orders = [order(step) for step in steps]
    actions = Counter({one: sum(map(len, one)) for one in orders})
    usual = max(Counter(orders).items(), key=lambda item: (item[1], actions[item[0]]))[0]
    kept = [step for step, of_step in zip(steps, orders, strict=True) if of_step == usual]
    if len(kept) < len(steps):
        warnings.add(
            "steps",
            f"{len(steps) - len(kept)} of {len(steps)} steps ran another order, or are not whole, "
            "and are left out",
        )
    return kept


def _stream(tiles: list[Tile]) -> Stream:
    return Stream(
        array("q", [tile.code for tile in tiles]), array("q", [tile.mate for tile in tiles])
    )


def _times(tiles: list[Tile], clock: Clock) -> StepTimes:
    times = StepTimes(array("q"), array("q"), array("q"), array("q"), array("q"), 0)
    for tile in tiles:
        times.codes.append(tile.code)
        times.mates.append(tile.mate)
        times.wait_ns.append(-1 if tile.wait_ns < 0 else clock.at(tile.wait_ns))
        times.start_ns.append(clock.at(tile.start_ns))
        times.end_ns.append(clock.at(tile.end_ns))
    return times


def _program(streams: list[Stream], name: str, warnings: Warnings, complete: bool) -> Program:
    """What ran, under the name of the shipped schedule that it is, if it is one."""
    problem = ""
    if complete:
        text = "".join(",".join(map(str, stream)) + "\n" for stream in streams)
        try:
            program = validate(torch_csv.from_text(text, name))
        except ProgramError as error:
            problem = str(error)
        else:
            known = compiler.recognise(program)
            recipe = {"schedule": known[0]} if known else {}
            return replace(program, name=known[0] if known else name, recipe=recipe)
    warnings.add(
        "parts", f"what the files hold is no whole program: {problem or 'ranks are missing'}"
    )
    owner: dict[int, int] = {}
    batches: dict[int, set[int]] = {}
    for rank, stream in enumerate(streams):
        for _, code in stream.halves():
            stage = code >> STAGE_SHIFT & STAGE_MASK
            owner.setdefault(stage, rank)
            batches.setdefault(stage, set()).add(code >> MICROBATCH_SHIFT)
    number = 1 + max(owner)
    places = tuple(owner.get(stage, 0) for stage in range(number))
    m = 1 + max(mb for of_stage in batches.values() for mb in of_stage)
    return Program(name, m, Placement("custom", places, (tuple(range(number)),)), tuple(streams))
