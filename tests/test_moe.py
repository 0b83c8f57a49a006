"""Blocks of MoE kernels computed by hand, with the arithmetic."""

from __future__ import annotations

import re

import pytest

from tracegen.blocks import in_a_row
from tracegen.costs import Costs
from tracegen.engine import replay
from tracegen.ir import Placement, Program, Stream, parse
from tracegen.kernel_line import Kernels
from tracegen.moe import Kernel, MoE

ONE_RANK = Placement("loop", (0,), ((0,),))


def program(row: str) -> Program:
    """One rank, one stage, two microbatches."""
    return Program("by hand", 2, ONE_RANK, (Stream.of(map(parse, row.split())),))


FULL = program("0F0 (0F1;0B0)OVERLAP_F_B 0B1")
HALF = program("0F0 (0F1;0I0)OVERLAP_F_B 0W0 0B1")


def costs(**layers: float | list[float]) -> dict[str, float | list[float]]:
    return {f"{name}_us": value for name, value in layers.items()}


# One layer. A forward alone: attnF 0-3, dispF 3-7, mlpF 7-12, combF 12-21. A full
# backward alone: combB 1, mlpB 3, mlpW 2 beside dispB 5, attnB 1, attnW 5: 15, one by one 17.
ONE = costs(
    attn_f=3, disp_f=4, mlp_f=5, comb_f=9, comb_b=1,
    mlp_b=3, disp_b=5, attn_b=1, mlp_wgrad=2, attn_wgrad=5,
)  # fmt: skip
# Two: layer 0 is that of ONE. A forward alone: layer 0 until 21, then attnF 21-23,
# dispF 23-26, mlpF 26-30, combF 30-33. A full backward alone:
#   layer 1: combB 0-4, mlpB 4-5, mlpW 5-8 beside dispB 5-7, attnB 8-13, attnW 13-21,
#   layer 0: combB 13-14 beside it, mlpB 21-24, mlpW 24-26 beside dispB 24-29,
#            attnB 29-30, attnW 30-35: 35, one by one 23 + 17 = 40.
TWO = costs(
    attn_f=[3, 2], disp_f=[4, 3], mlp_f=[5, 4], comb_f=[9, 3], comb_b=[1, 4],
    mlp_b=[3, 1], disp_b=[5, 2], attn_b=[1, 5], mlp_wgrad=[2, 3], attn_wgrad=[5, 8],
)  # fmt: skip

# (block, mlp_w, full?): the pair's kernels by stream, name and layer, and the makespan.
ONE_LAYER = {
    # One by one from 21, where the forward before ends; 38 later the backward: 17.
    ("none", "before", True): (
        """attnF0 21-24 mlpF0 28-33 mlpB0 43-46 mlpW0 46-48 attnB0 53-54 attnW0 54-59
           dispF0 24-28 combF0 33-42 combB0 42-43 dispB0 48-53""",
        21 + 38 + 17,
    ),
    # From 21 in steps of max(3, 1), max(3, 4), max(2 + 5, 5), max(1 + 5, 9).
    ("lockstep", "before", True): (
        """attnF0 21-24 mlpB0 24-27 mlpW0 28-30 mlpF0 30-35 attnB0 35-36 attnW0 36-41
           combB0 21-22 dispF0 24-28 dispB0 28-33 combF0 35-44""",
        21 + 3 + 4 + 7 + 9 + 15,
    ),
    # mlpW does not wait for dispF, so mlpF starts at 29 and combF, the last, at 34.
    ("pair", "before", True): (
        """attnF0 21-24 mlpB0 24-27 mlpW0 27-29 mlpF0 29-34 attnB0 34-35 attnW0 35-40
           combB0 21-22 dispF0 24-28 dispB0 28-33 combF0 34-43""",
        43 + 15,
    ),
    # mlpF starts at 28, when dispF has ended, so combF ends 1 earlier; attnB 1 later.
    ("pair", "after", True): (
        """attnF0 21-24 mlpB0 24-27 mlpF0 28-33 mlpW0 33-35 attnB0 35-36 attnW0 36-41
           combB0 21-22 dispF0 24-28 dispB0 28-33 combF0 33-42""",
        42 + 15,
    ),
    # attnF beside combF of the forward before (12-21): all that follows is 2 earlier.
    ("dualpipe", "before", True): (
        """attnF0 12-15 mlpB0 22-25 mlpW0 25-27 mlpF0 27-32 attnB0 32-33 attnW0 33-38
           combB0 21-22 dispF0 22-26 dispB0 26-31 combF0 32-41""",
        41 + 15,
    ),
    ("dualpipe", "after", True): (
        """attnF0 12-15 mlpB0 22-25 mlpF0 26-31 mlpW0 31-33 attnB0 33-34 attnW0 34-39
           combB0 21-22 dispF0 22-26 dispB0 26-31 combF0 31-40""",
        40 + 15,
    ),
    # The input's half: W runs after the block, which it could have filled: 2 + 5, then B.
    ("none", "before", False): (
        """attnF0 21-24 mlpF0 28-33 mlpB0 43-46 attnB0 51-52
           dispF0 24-28 combF0 33-42 combB0 42-43 dispB0 46-51""",
        52 + 7 + 17,
    ),
    # Steps of max(3, 1), max(3, 4), max(5, 5), max(1, 9). W 42-49; B's combB beside it
    # at 42-43, so the 14 behind combB begin at 49.
    ("lockstep", "before", False): (
        """attnF0 21-24 mlpB0 24-27 mlpF0 28-33 attnB0 33-34
           combB0 21-22 dispF0 24-28 dispB0 28-33 combF0 33-42""",
        42 + 7 + 14,
    ),
    ("pair", "before", False): (
        """attnF0 21-24 mlpB0 24-27 mlpF0 28-33 attnB0 33-34
           combB0 21-22 dispF0 24-28 dispB0 28-33 combF0 33-42""",
        42 + 7 + 14,
    ),
    # W (32-39) runs beside combF, which ends at 40: then B.
    ("dualpipe", "before", False): (
        """attnF0 12-15 mlpB0 22-25 mlpF0 26-31 attnB0 31-32
           combB0 21-22 dispF0 22-26 dispB0 26-31 combF0 31-40""",
        40 + 15,
    ),
}

TWO_LAYERS = {
    ("none", "before", True): (
        """attnF0 33-36 mlpF0 40-45 attnF1 54-56 mlpF1 59-63
           mlpB1 70-71 mlpW1 71-74 attnB1 76-81 attnW1 81-89
           mlpB0 90-93 mlpW0 93-95 attnB0 100-101 attnW0 101-106
           dispF0 36-40 combF0 45-54 dispF1 56-59 combF1 63-66
           combB1 66-70 dispB1 74-76 combB0 89-90 dispB0 95-100""",
        33 + 33 + 40 + 40,
    ),
    # max(3, 4) max(1, 4) max(3 + 5, 2) max(5 + 8, 9), then max(2, 1) max(3, 3)
    # max(2 + 4, 5) max(1 + 5, 3): 29 + 17.
    ("lockstep", "before", True): (
        """attnF0 33-36 mlpB1 37-38 mlpW1 41-44 mlpF0 44-49 attnB1 49-54 attnW1 54-62
           attnF1 62-64 mlpB0 64-67 mlpW0 67-69 mlpF1 69-73 attnB0 73-74 attnW0 74-79
           combB1 33-37 dispF0 37-41 dispB1 41-43 combF0 49-58
           combB0 62-63 dispF1 64-67 dispB0 67-72 combF1 73-76""",
        33 + 29 + 17 + 35,
    ),
    # mlpW1 beside dispF0 saves 3; attnF1 waits for attnW1 (59), not for combF0 (55).
    ("pair", "before", True): (
        """attnF0 33-36 mlpB1 37-38 mlpW1 38-41 mlpF0 41-46 attnB1 46-51 attnW1 51-59
           attnF1 59-61 mlpB0 61-64 mlpW0 64-66 mlpF1 66-70 attnB0 70-71 attnW0 71-76
           combB1 33-37 dispF0 37-41 dispB1 41-43 combF0 46-55
           combB0 55-56 dispF1 61-64 dispB0 64-69 combF1 70-73""",
        76 + 35,
    ),
    ("pair", "after", True): (
        """attnF0 33-36 mlpB1 37-38 mlpF0 41-46 mlpW1 46-49 attnB1 49-54 attnW1 54-62
           attnF1 62-64 mlpB0 64-67 mlpF1 67-71 mlpW0 71-73 attnB0 73-74 attnW0 74-79
           combB1 33-37 dispF0 37-41 dispB1 41-43 combF0 46-55
           combB0 55-56 dispF1 64-67 dispB0 67-72 combF1 72-75""",
        79 + 35,
    ),
    # attnF0 beside the forward before. Behind the block combB1 of the next backward runs
    # from 73 to 77 beside attnW0, which ends at 76: 3 earlier than behind a closed block.
    ("dualpipe", "before", True): (
        """attnF0 30-33 mlpB1 37-38 mlpW1 38-41 mlpF0 41-46 attnB1 46-51 attnW1 51-59
           attnF1 59-61 mlpB0 61-64 mlpW0 64-66 mlpF1 66-70 attnB0 70-71 attnW0 71-76
           combB1 33-37 dispF0 37-41 dispB1 41-43 combF0 46-55
           combB0 55-56 dispF1 61-64 dispB0 64-69 combF1 70-73""",
        73 + 35,
    ),
    ("none", "before", False): (
        """attnF0 33-36 mlpF0 40-45 attnF1 54-56 mlpF1 59-63
           mlpB1 70-71 attnB1 73-78 mlpB0 79-82 attnB0 87-88
           dispF0 36-40 combF0 45-54 dispF1 56-59 combF1 63-66
           combB1 66-70 dispB1 71-73 combB0 78-79 dispB0 82-87""",
        88 + 18 + 40,
    ),
    # max(3, 4) max(1, 4) max(5, 2) max(5, 9), max(2, 1) max(3, 3) max(4, 5) max(1, 3): 35.
    # Then W, 18, and behind it B without its first combB, which runs beside W: 35 - 4.
    ("lockstep", "before", False): (
        """attnF0 33-36 mlpB1 37-38 mlpF0 41-46 attnB1 46-51
           attnF1 55-57 mlpB0 57-60 mlpF1 60-64 attnB0 65-66
           combB1 33-37 dispF0 37-41 dispB1 41-43 combF0 46-55
           combB0 55-56 dispF1 57-60 dispB0 60-65 combF1 65-68""",
        33 + 35 + 18 + 31,
    ),
    ("pair", "before", False): (
        """attnF0 33-36 mlpB1 37-38 mlpF0 41-46 attnB1 46-51
           attnF1 55-57 mlpB0 57-60 mlpF1 60-64 attnB0 65-66
           combB1 33-37 dispF0 37-41 dispB1 41-43 combF0 46-55
           combB0 55-56 dispF1 57-60 dispB0 60-65 combF1 65-68""",
        68 + 18 + 31,
    ),
    # W from 66, when attnB0 has ended, not from 68.
    ("dualpipe", "before", False): (
        """attnF0 30-33 mlpB1 37-38 mlpF0 41-46 attnB1 46-51
           attnF1 55-57 mlpB0 57-60 mlpF1 60-64 attnB0 65-66
           combB1 33-37 dispF0 37-41 dispB1 41-43 combF0 46-55
           combB0 55-56 dispF1 57-60 dispB0 60-65 combF1 65-68""",
        66 + 18 + 31,
    ),
}


def shown(kernels: Kernels, step: int) -> dict[str, tuple[float, float]]:
    """The kernels of a step with their times in µs."""
    return {
        f"{k.kernel.label}{k.layer}": (k.start_ns / 1000, k.end_ns / 1000)
        for k in kernels
        if k.step == step
    }


def by_hand(text: str) -> dict[str, tuple[float, float]]:
    found = re.findall(r"(\w+) (\d+)-(\d+)", text)
    return {name: (float(start), float(end)) for name, start, end in found}


CASES = [(1, ONE, case) for case in ONE_LAYER.items()] + [
    (2, TWO, case) for case in TWO_LAYERS.items()
]


@pytest.mark.parametrize(("layers", "of", "case"), CASES, ids=str)
def test_blocks_computed_by_hand(layers, of, case):
    (order, when, full), (text, makespan) = case
    line = replay(
        FULL if full else HALF, Costs(moe=MoE(layers=layers, block=order, mlp_w=when, **of))
    )
    assert shown(line.kernels, 1) == by_hand(text)
    assert line.makespan_ns == 1000 * makespan


def test_no_two_block_orders_agree_on_the_hand_computed_blocks():
    assert len({makespan for (_, _, full), (_, makespan) in ONE_LAYER.items() if full}) == 6
    orders = [makespan for (_, when, full), (_, makespan) in TWO_LAYERS.items() if full]
    assert orders == [146, 114, 111, 114, 108]


# The contract's own case.
CONTRACT = costs(
    attn_f=3, disp_f=2, mlp_f=4, comb_f=1, comb_b=2,
    mlp_b=5, disp_b=3, attn_b=6, mlp_wgrad=2, attn_wgrad=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("order", "makespan", "exposed"),
    [("none", 58, 16), ("pair", 48, 6), ("dualpipe", 45, 3), ("lockstep", 48, 6)],
)
def test_exposed_communication(order, makespan, exposed):
    line = replay(FULL, Costs(moe=MoE(block=order, **CONTRACT)))
    assert (line.makespan_ns, line.exposed_ns) == (1000 * makespan, [1000 * exposed])
    # Two forwards of 3 + 4, two backwards of 5 + 2 + 6 + 1; two of 2 + 1 + 2 + 3 besides.
    assert line.busy_ns == [42_000]
    assert line.comm_busy_ns == [16_000]
    assert line.overlap_ratio == 1 - exposed / 16
    assert line.idle_ns == [1000 * makespan - 42_000]


def test_communication_that_takes_half_of_the_device():
    """pair, from 10, where the forward ends; a rate of 1/2 beside communication.

    attnF: 2 beside combB do 1, then 2 more: 14. mlpB: 2 beside dispF do 1, then 4: 20.
    mlpW: 3 beside dispB do 1.5, then 0.5: 23.5. mlpF: 27.5. attnB: 1 beside combF does
    0.5, then 5.5: 34. attnW: 35. Then combB 37, mlpB 42, mlpW 1.5 beside dispB until 45,
    then 0.5: 45.5, attnB 51.5, attnW 52.5.
    """
    line = replay(FULL, Costs(moe=MoE(block="pair", comm_sm_share=0.5, **CONTRACT)))
    assert shown(line.kernels, 1) == {
        "attnF0": (10, 14),
        "mlpB0": (14, 20),
        "mlpW0": (20, 23.5),
        "mlpF0": (23.5, 27.5),
        "attnB0": (27.5, 34),
        "attnW0": (34, 35),
        "combB0": (10, 12),
        "dispF0": (14, 16),
        "dispB0": (20, 23),
        "combF0": (27.5, 28.5),
    }
    assert line.makespan_ns == 52_500
    assert line.exposed_ns == [5_000]


@pytest.mark.parametrize(
    ("share", "end"),
    # 3 ns of work: 3 / 0.9 = 3.3; 3 / 0.75 = 4; 3 / 0.5 = 6; at 1/10 only 1 of the 10 beside is
    # done, then 2 more.
    [(0.0, 3), (0.1, 4), (0.25, 4), (0.5, 6), (0.9, 12)],
)
def test_an_end_is_rounded_up_to_a_whole_nanosecond(share, end):
    ns = dict.fromkeys((f"{kernel.cost}_us" for kernel in Kernel), 0.0)
    moe = MoE(comm_sm_share=share, **ns | {"attn_f_us": 0.003, "comb_b_us": 0.010})
    kernels = in_a_row(moe, 1)
    assert kernels.end_ns[0] == end


def test_a_share_is_the_decimal_that_was_written():
    """9 ns at 0.9 are 10 ns; at 1 less the binary fraction nearest to 0.1 they would be 11."""
    ns = dict.fromkeys((f"{kernel.cost}_us" for kernel in Kernel), 0.0)
    moe = MoE(comm_sm_share=0.1, **ns | {"attn_f_us": 0.009, "comb_b_us": 0.1})
    assert in_a_row(moe, 1).end_ns[0] == 10
