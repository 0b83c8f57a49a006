"""What a command is at, on stderr of a terminal, once that has taken a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from tracegen.cli.common import console

if TYPE_CHECKING:
    from rich.progress import Progress

    from tracegen.layout import Layout, Row
    from tracegen.shape import Slice

AFTER_S = 1.0

_shown: list[str] = []  # what is said now, or waits to be said; at most one


@contextmanager
def at(what: str) -> Iterator[None]:
    """Say what is being done for as long as the block takes, from the first second on.

    Inside another such block, and with --quiet or without a terminal, nothing is said.
    """
    if _shown or not _wanted():
        yield
        return
    said: list[Any] = []

    def say() -> None:
        said.append(console(stderr=True).status(what))
        said[0].start()

    timer = Timer(AFTER_S, say)
    timer.daemon = True
    _shown.append(what)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _shown.clear()
        for status in said:
            status.stop()


@contextmanager
def writing() -> Iterator[Callable[[Layout], Layout]]:
    """What makes of a trace the same that says how many rows of it are written; as `at`.

    Without a thread of its own, so that the trace may be written by two processes.
    """
    bar = _Bar(monotonic())
    try:
        yield bar.watched if _wanted() else lambda shown: shown
    finally:
        bar.stop()


class _Bar:
    """A bar that is drawn when a row is done."""

    def __init__(self, start_s: float) -> None:
        self.start_s = start_s
        self.progress: Progress | None = None

    def watched(self, shown: Layout) -> Layout:
        rows = enumerate(shown.rows, start=1)
        return replace(shown, rows=[self._row(row, at, len(shown.rows)) for at, row in rows])

    def _row(self, row: Row, number: int, total: int) -> Row:
        def slices() -> Iterator[Slice]:
            yield from row.slices()
            self.show(number, total)

        return row._replace(slices=slices)

    def show(self, done: int, total: int) -> None:
        if self.progress is None and monotonic() - self.start_s > AFTER_S:
            from rich.progress import Progress

            screen = console(stderr=True)
            self.progress = Progress(console=screen, transient=True, auto_refresh=False)
            self.progress.add_task("writing", total=total)
            self.progress.start()
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=done, refresh=True)

    def stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()


def _wanted() -> bool:
    context = click.get_current_context(silent=True)
    quiet = context is not None and context.params.get("quiet")
    return not quiet and sys.stderr is not None and sys.stderr.isatty()
