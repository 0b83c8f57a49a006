"""Traces of every shipped schedule on 12 ranks, with costs that make odd nanoseconds."""

from functools import cache
from pathlib import Path

import tracegen
from tracegen import registry
from tracegen.costs import Costs
from tracegen.errors import ScheduleError
from tracegen.moe import MoE
from tracegen.timeline import Timeline

RANKS = 12
SCHEDULES = tuple(registry.shipped())

DAY_NS = 86_400 * 10**9

# Short: a third and a tenth of a microsecond, 13 ns, primes. Long: a step takes days.
PLAIN = {
    "short": Costs(f_us=1 / 3, i_us=0.1, w_us=0.013, alpha_us=0.007),
    "long": Costs(f_us=2e9 + 1 / 3, i_us=2_000_000_011.1, w_us=1_999_999_973.013, alpha_us=7.919),
}
KERNELS = {
    "attn_f_us": 1 / 3,
    "disp_f_us": 0.1,
    "mlp_f_us": 0.997,
    "comb_f_us": 0.013,
    "comb_b_us": 0.101,
    "mlp_b_us": 2 / 3,
    "disp_b_us": 0.007,
    "attn_b_us": 1.009,
    "mlp_wgrad_us": 0.31,
    "attn_wgrad_us": 0.017,
}
MOE = {
    "short": Costs(moe=MoE(**KERNELS)),
    "long": Costs(moe=MoE(**{name: us + 1e9 for name, us in KERNELS.items()})),
}


class Traces:
    """A file for each schedule, costs and format, made when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, schedule: str, costs: str, suffix: str) -> Path:
        """The trace of the schedule at those costs."""
        path = self._folder / f"{schedule}-{costs}{suffix}"
        if not path.exists():
            tracegen.write(line(schedule, costs), path)
        return path


@cache
def line(schedule: str, costs: str) -> Timeline:
    """The schedule on 12 ranks with few microbatches; one of MoE stages runs kernels."""
    for microbatches in (RANKS, 2 * RANKS):
        try:
            program = tracegen.compile(schedule, RANKS, microbatches, communication=False)
        except ScheduleError:
            continue
        moe = schedule.startswith("moe")
        return tracegen.replay(program, (MOE if moe else PLAIN)[costs])
    raise AssertionError(f"{schedule} is not defined on {RANKS} ranks")
