"""What a reader has to say of a file that it can read all the same."""

from __future__ import annotations

from collections import Counter

SHOWN = 3


class Warnings:
    """Remarks by kind: the first few of each in full, and how many more there are.

    A file with a million slips of one kind must not make a million lines.
    """

    def __init__(self) -> None:
        self._shown: dict[str, list[str]] = {}
        self._count: Counter[str] = Counter()

    def add(self, kind: str, text: str) -> None:
        """Note one; `kind` says which are alike, in the plural: "slices without an end"."""
        self._count[kind] += 1
        if self._count[kind] <= SHOWN:
            self._shown.setdefault(kind, []).append(text)

    def take(self, other: Warnings) -> None:
        """Add what another has noted."""
        for kind, shown in other._shown.items():
            mine = self._shown.setdefault(kind, [])
            mine += shown[: max(0, SHOWN - len(mine))]
            self._count[kind] += other._count[kind]

    def texts(self) -> list[str]:
        """Every remark, a line each, in the order of the first of each kind."""
        lines = []
        for kind, shown in self._shown.items():
            lines += shown
            if (more := self._count[kind] - len(shown)) > 0:
                lines.append(f"and {more} more {kind}")
        return lines
