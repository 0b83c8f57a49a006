"""The JSON of every schedule in Perfetto's real trace processor: nothing is dropped or moved."""

from collections.abc import Iterator

import pytest

from tests.perfetto.awkward import DAY_NS, RANKS, SCHEDULES, Traces, line
from tests.perfetto.processor import Engine, Facts
from tracegen.timeline import Timeline

pytest_plugins = ["tests.perfetto.fixtures"]

every_trace = [(name, costs) for name in SCHEDULES for costs in ("short", "long")]


@pytest.fixture(params=every_trace, ids="-".join)
def loaded(
    request: pytest.FixtureRequest, engine: Engine, traces: Traces
) -> tuple[Timeline, Facts]:
    name, costs = request.param
    return line(name, costs), engine.facts(traces.path(name, costs, ".json"))


def test_every_slice_and_arrow_is_there(loaded: tuple[Timeline, Facts]) -> None:
    timeline, facts = loaded
    assert facts.problems == []
    found = [(s["group_name"], s["track"], s["ts"], s["dur"]) for s in facts.slices]
    assert sorted(found) == sorted([*tiles(timeline), *kernels(timeline)])
    assert {s["depth"] for s in facts.slices} == {0}
    arrows = [
        tuple(flow[f"{end}_{what}"] for end in ("source", "target") for what in ("track", "ts"))
        for flow in facts.flows
        if len(str(flow["source_track"])) == len("rank 00")
    ]
    assert sorted(arrows) == sorted(transfers(timeline))


def test_ranks_stand_in_order(loaded: tuple[Timeline, Facts]) -> None:
    timeline, facts = loaded
    ranks = [f"rank {rank:02d}" for rank in range(RANKS)]
    streams = [f"{rank} {kind}" for rank in ranks for kind in ("compute", "communication")]
    assert facts.track_order == ([] if timeline.kernels is None else streams) + ranks


def test_times_reach_beyond_a_day() -> None:
    for name in SCHEDULES:
        assert line(name, "long").makespan_ns > DAY_NS


def tiles(timeline: Timeline) -> Iterator[tuple[str, str, int, int]]:
    """Where the slice of each action belongs."""
    for step, (start, end) in enumerate(zip(timeline.start_ns, timeline.end_ns, strict=True)):
        if end > start:
            rank = timeline.program.rank_of_step(step)
            yield "pipeline", f"rank {rank:02d}", start, end - start


def kernels(timeline: Timeline) -> Iterator[tuple[str, str, int, int]]:
    """Where the slice of each kernel belongs."""
    for rank in range(RANKS if timeline.kernels is not None else 0):
        for stream, kind in enumerate(("compute", "communication")):
            for span in timeline.kernels.of_stream(rank, stream):  # type: ignore[union-attr]
                if span.end_ns > span.start_ns:
                    row = f"rank {rank:02d} {kind}"
                    yield "kernels", row, span.start_ns, span.end_ns - span.start_ns


def transfers(timeline: Timeline) -> Iterator[tuple[str, int, str, int]]:
    """The two ends of the arrow of each hand-over between ranks."""
    for transfer in timeline.transfers():
        ends = transfer.source, transfer.target
        if all(timeline.end_ns[step] > timeline.start_ns[step] for step in ends):
            (a, start), (b, then) = (
                (f"rank {timeline.program.rank_of_step(step):02d}", timeline.start_ns[step])
                for step in ends
            )
            yield a, start, b, then
