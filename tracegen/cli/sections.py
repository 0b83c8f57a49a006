"""Help whose options stand in sections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

SIZE, COSTS, MODEL, REPLAY, MEMORY, EXECUTE = (
    "Size",
    "Costs",
    "A model whose costs are derived",
    "How it is replayed",
    "Memory and waits",
    "On real torch stages",
)


def with_options(
    section: str, options: tuple[Callable[[Any], Any], ...], command: Command
) -> Command:
    """Give a command these options, in this order, under a heading of its help."""
    before = len(getattr(command, "__click_params__", ()))
    for option in reversed(options):
        command = option(command)
    for added in command.__click_params__[before:]:  # type: ignore[attr-defined]
        added.section = section
    return command


class Sectioned(click.Command):
    """A command whose help has its own options first, then a section for each group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        options = (one for one in self.get_params(ctx) if isinstance(one, click.Option))
        for param in options:  # what an argument is, the usage and the text above say
            if (record := param.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
