"""Rates, and the unit that a number typed for one can only have been meant in."""

from __future__ import annotations

from tracegen.errors import CostError

# No device and no link comes near these. 10**9 GB/s is what people write for a link without limit.
MOST_TFLOPS = 10**6
MOST_GBPS = 10**9


def check_rate(name: str, value: float) -> None:
    """Refuse a rate that was meant in FLOP/s, or in bytes/s.

    Args:
        name: tflops, or ending in GBps.
        value: in 10**12 FLOP/s, or in 10**9 bytes/s.

    Raises:
        CostError: with what it is in that unit.
    """
    if name.endswith("tflops"):
        most, power, unit = MOST_TFLOPS, 12, "FLOP/s"
    else:
        most, power, unit = MOST_GBPS, 9, "bytes/s"
    if value > most:
        raise CostError(
            f"{name} = {value:g} is more than any device has: it is in 10**{power} {unit}; "
            f"for {value:g} {unit} use {value / 10**power:g}"
        )
