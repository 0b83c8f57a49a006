"""What a value that is given may be: a number, a count, one of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegen.errors import CostError


def is_number(value: Any) -> bool:
    """Whether this is an int or a float; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_count(name: str, value: Any) -> None:
    """Refuse what is no whole number of 1 or more.

    Raises:
        CostError: with the name and the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CostError(f"{name} = {value!r}; use a whole number, 1 or more")


def check_one_of(name: str, value: Any, known: Sequence[str]) -> None:
    """Refuse what is none of the words that are known, two or more.

    Raises:
        CostError: with the name, the value and those words.
    """
    if value not in known:
        raise CostError(f"{name} = {value!r}; use {', '.join(known[:-1])} or {known[-1]}")
