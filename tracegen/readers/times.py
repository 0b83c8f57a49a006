"""A time as a trace writes it -> exact nanoseconds."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from tracegen.errors import FileError

# A float of microseconds below this holds three decimals, and so the nanosecond.
EXACT_US = float(1 << 42)
LIMIT_NS = 1 << 62
_EXACT = Context(prec=60)


class Imprecise(Exception):
    """A time is so large that its float has lost the nanoseconds; the text still has them."""


def exact_ns(value: Any, where: str) -> Decimal | int:
    """The nanoseconds of a time in microseconds, unrounded.

    Args:
        value: a number, or one as text.
        where: what it is, for the error: "event 3: ts".

    Raises:
        FileError: if it is no finite number, or beyond 2**62 ns (146 years).
        Imprecise: if it is a float too large to hold them.
    """
    if isinstance(value, float) and abs(value) >= EXACT_US and abs(value) < LIMIT_NS:
        raise Imprecise
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        raise FileError(f"{where} is {_shown(value)}; expected microseconds, a number")
    try:
        us = Decimal(value if isinstance(value, int | Decimal) else str(value).strip())
    except InvalidOperation:
        raise FileError(f"{where} is {_shown(value)}; expected microseconds, a number") from None
    if not us.is_finite():
        raise FileError(f"{where} is {value}; expected a finite number of microseconds")
    if abs(us) >= LIMIT_NS // 1000:
        raise FileError(f"{where} is {us:.6g} us; a trace of more than 146 years is not read")
    return _EXACT.multiply(us, Decimal(1000))


def whole(ns: Decimal | int) -> int:
    """The nearest integer; of two the one further from zero, as Perfetto rounds."""
    return int(Decimal(ns).to_integral_value(ROUND_HALF_UP))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 24 else f"{text[:20]}... ({type(value).__name__})"
