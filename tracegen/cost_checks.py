"""What is a usable cost, and which keys a table of costs may have."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tracegen.checks import is_number
from tracegen.errors import CostError
from tracegen.rates import check_rate

TIMES = ("f_us", "b_us", "i_us", "w_us", "split_us", "fb_us", "r_us")
WHOLE_STAGE = ("grad_sync_us", "replica_sync_us", "optimizer_us", "unshard_us")
ZERO = (0, 1, 2, 3)
OF_STAGE = (*TIMES, *WHOLE_STAGE, "activation_bytes", "microbatch", "moe")
OF_RANK = ("slowdown",)
OF_MEMORY = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "w_stash_bytes")
OF_MICROBATCH = (*TIMES, "scale")
OF_LINK = ("alpha_us", "bandwidth_GBps")

# Above this, us would be more ns than the engine's clock has.
MOST = 10**18
FLOAT_MOST = 1e308  # an int can be more

Table = Mapping[str | int, Mapping[str, Any]]

# A stage, microbatch or rank as the key of a table; 01 would be another key than 1.
NUMBER = "(?:0|[1-9][0-9]{0,9})"
KEY = {"link": (re.compile(f"{NUMBER}-{NUMBER}"), "<from rank>-<to rank>, such as 0-1")}
ANY_KEY = (re.compile(NUMBER), "a number")


def check_number(name: str, value: Any) -> None:
    """Refuse what is no cost: anything but a finite number, 0 or more; `split_us` may be less.

    Raises:
        CostError: with the name and the value.
    """
    if is_number(value) and name.endswith("split_us"):
        value = abs(value)
    if not is_number(value) or not 0 <= value < math.inf:
        raise CostError(f"{name} = {value!r} is no cost; use a finite number, 0 or more")
    if value > MOST:
        shown = f"{value:g}" if value < FLOAT_MOST else "a number of hundreds of digits"
        raise CostError(f"{name} = {shown} is more than any cost; 10**18 is the most")


def check_bandwidth(name: str, value: Any) -> None:
    """Refuse what is neither None, for no limit, nor a rate in GB/s above 0.

    Raises:
        CostError: with the name and the value.
    """
    if value is None:
        return
    check_number(name, value)
    if value == 0:
        raise CostError(f"{name} = 0 would never end; leave it out for no limit")
    check_rate(name, value)


def check_noise(sigma: Any, seed: Any) -> None:
    """Refuse a sigma that is no number from 0 to 10, or a seed that is no whole number.

    Raises:
        CostError: with the value.
    """
    check_number("jitter", sigma)
    if sigma > 10:
        raise CostError(f"jitter = {sigma} is beyond any noise; it is a sigma, such as 0.05")
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise CostError(f"seed = {seed!r}; use a whole number")


def check_zero(zero: Any, moe: Any, gathers: bool) -> None:
    """What is sharded among data-parallel peers, and what goes with it.

    Args:
        zero: of ZERO, or None.
        moe: the kernel costs, or None.
        gathers: whether an UNSHARD takes time.

    Raises:
        CostError: naming what contradicts it.
    """
    if zero is None:
        if gathers:
            raise CostError("unshard_us without zero: nothing is sharded; add zero = 3, or 1")
        return
    if zero not in ZERO or isinstance(zero, bool | float):
        raise CostError(f"zero = {zero!r}; use 0, 1, 2 or 3")
    if zero == 0 and gathers:
        raise CostError("unshard_us with zero = 0: nothing is sharded; use zero = 1, 2 or 3")
    if moe is not None:
        raise CostError(
            f"zero = {zero} beside kernel costs (moe), whose all-to-all has the communication "
            "stream; give one or the other"
        )


def check_memory(memory: Any) -> None:
    """Refuse a table of what stages hold that has another key than OF_MEMORY, or no sizes.

    Raises:
        CostError: naming the key.
    """
    if not isinstance(memory, Mapping):
        raise CostError("memory is no table; write it as [memory]")
    for key, value in memory.items():
        if key not in OF_MEMORY:
            raise CostError(f"memory: no size {key!r}; there are {', '.join(OF_MEMORY)}")
        for one in value if isinstance(value, list | tuple) else [value]:
            check_number(f"memory: {key}", one)


def check_kernels(moe: Any, whole: list[str], stage: Table, microbatch: Table) -> None:
    """A stage is described by its kernels or as a whole, not by both.

    Args:
        moe: the kernel costs, or None.
        whole: the costs of whole actions that are given for all stages.
        stage: the table of what differs on single stages.
        microbatch: the same of microbatches.

    Raises:
        CostError: naming the costs that contradict each other.
    """
    entries = [(f"stage {number}: ", entry) for number, entry in stage.items()]
    for prefix, entry in list(entries):
        for number, inner in entry.get("microbatch", {}).items():
            entries.append((f"{prefix}microbatch {number}: ", inner))
    entries += [(f"microbatch {number}: ", entry) for number, entry in microbatch.items()]
    whole = whole + [prefix + name for prefix, entry in entries for name in TIMES if name in entry]
    if moe is None:
        for prefix, entry in entries:
            if "moe" in entry:
                raise CostError(
                    f"{prefix}moe has kernel costs; give those of all stages too, [moe]"
                )
        return
    from tracegen.moe import MoE  # when it is asked for: a start takes as long as its imports

    if not isinstance(moe, MoE):
        raise CostError(f"moe = {moe!r} is no MoE; use MoE(...)")
    if whole:
        raise CostError(
            f"{', '.join(whole)} beside kernel costs (moe): an action lasts what its kernels "
            "last; give one or the other"
        )
    for prefix, entry in entries:
        moe.at_stage(prefix.removesuffix(": "), entry.get("moe", {}))


def check_table(where: str, table: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a table of what differs that is not in its form; `moe` see `check_kernels`.

    Args:
        where: its name: stage, microbatch, link or rank; `stage 3 microbatch` for one in another.
        table: by number, or by link, the costs.
        allowed: the costs that it may have.

    Raises:
        CostError: naming the entry and the cost.
    """
    if not isinstance(table, Mapping) or not all(isinstance(e, Mapping) for e in table.values()):
        key = '"0-1"' if where == "link" else "NUMBER"
        raise CostError(f"{where} is no table; write it as [{where.replace(' ', '.')}.{key}]")
    pattern, form = KEY.get(where, ANY_KEY)
    for number, entry in table.items():
        here = f"{where} {number}"
        if not pattern.fullmatch(str(number)):
            raise CostError(f"{where} {number!r}: expected {form}")
        for key, value in entry.items():
            if key not in allowed:
                raise CostError(f"{here}: no cost {key!r}; there are {', '.join(allowed)}")
            if key == "microbatch":
                check_table(f"{here} microbatch", value, OF_MICROBATCH)
            elif key == "moe":
                continue
            elif key == "bandwidth_GBps":
                check_bandwidth(f"{here}: {key}", value)
            elif key == "slowdown" and value == 0:
                raise CostError(f"{here}: slowdown = 0; 1 is the usual speed, 1.5 is slower")
            else:
                check_number(f"{here}: {key}", value)
