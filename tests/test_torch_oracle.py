"""Our orders are torch's, at every small size. Needs torch; skipped without it."""

from __future__ import annotations

from typing import Any

import pytest
from golden import SHIPPED, case

from tracegen.errors import ScheduleError

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

CLASSES = {
    "gpipe": "ScheduleGPipe",
    "looped-bfs": "ScheduleLoopedBFS",
    "interleaved-1f1b": "ScheduleInterleaved1F1B",
    "interleaved-zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


def torch_order(name: str, p: int, m: int, v: int) -> list[list[str]] | None:
    """Torch's order without its process group, or None where torch refuses the size."""
    made: Any = object.__new__(getattr(torch_schedules, name))
    made.pp_group_size, made._n_microbatches, made._stages = p, m, [None] * v
    made.n_local_stages, made._num_stages, made.num_stages = v, p * v, p * v
    made.number_of_rounds = max(1, m // p)
    made.microbatches_per_round = m // made.number_of_rounds
    if ("Interleaved" in name and m % made.number_of_rounds) or ("DualPipeV" in name and m < 2 * p):
        return None
    rows = (
        made._get_pipeline_order()
        if name == "ScheduleGPipe"
        else {rank: made._calculate_single_rank_operations(rank) for rank in range(p)}
    )
    gradients = torch_schedules.REDUCE_GRAD
    return [[str(a) for a in rows[r] if a and a.computation_type != gradients] for r in range(p)]


@pytest.mark.parametrize("name", CLASSES)
def test_same_order_as_torch(name: str) -> None:
    fixed = SHIPPED[name].stages_per_rank
    accepted = 0
    for v in [fixed] if fixed else [1, 2, 3]:
        for p in range(1, 7):
            for m in range(1, 17):
                theirs = torch_order(CLASSES[name], p, m, v)
                try:
                    ours = case(name, p, m, v).rows
                except ScheduleError:
                    ours = None
                assert ours == theirs, (p, m, v)
                accepted += ours is not None
    assert accepted >= 40


def test_zb_h1_is_torchs_interleaved_zero_bubble_with_one_stage_a_rank() -> None:
    """Torch's wants equal rounds; without interleaving there is no need of any."""
    for p in range(1, 7):
        for m in range(1, 17):
            theirs = torch_order("ScheduleInterleavedZeroBubble", p, m, 1)
            assert theirs in (None, case("zb-h1", p, m).rows), (p, m)


def test_1f1b_is_what_torch_runs() -> None:
    """Schedule1F1B._get_pipeline_order starts the last rank at F1; its run loop does not."""
    for p in range(1, 9):
        for m in range(1, 17):
            for rank, row in enumerate(case("1f1b", p, m).rows):
                warmup = min(m, p - rank)
                forwards, run = iter(range(warmup, m)), [f"{rank}F{k}" for k in range(warmup)]
                for k in range(m):
                    run.append(f"{rank}B{k}")
                    run += [f"{rank}F{n}" for n in [next(forwards, None)] if n is not None]
                assert row == run, (p, m, rank)
