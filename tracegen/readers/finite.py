"""NaN and infinities, which are no JSON though Python reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def not_finite(value: Any, where: str) -> Iterator[str]:
    """The places of NaN and infinities in plain data."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: {value}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from not_finite(inner, f"{where}: {key}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from not_finite(inner, f"{where}[{at}]")
