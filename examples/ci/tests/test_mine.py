"""The fixture `assert_trace_matches` comes with tracegen."""

from pathlib import Path

import tracegen

MINE = Path(__file__).parent.parent / "schedules" / "mine.py"


def test_mine_is_what_it_was(assert_trace_matches):
    program = tracegen.compile(MINE, num_ranks=4, num_microbatches=8)
    assert_trace_matches(program, "golden/mine.json.gz")


def test_mine_keeps_its_order_whatever_the_costs(assert_trace_matches):
    program = tracegen.compile(MINE, num_ranks=4, num_microbatches=8)
    line = tracegen.replay(program, tracegen.Costs(f_us=1010))
    assert_trace_matches(line, "golden/mine-slow.json.gz", times="order-only")
