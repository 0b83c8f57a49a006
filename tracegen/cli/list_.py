"""`tracegen list`: the schedules there are."""

from __future__ import annotations

import json

import click


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def command(as_json: bool) -> None:
    """List the schedules: what each is, its constraints, its paper."""
    from tracegen import metrics, registry
    from tracegen.cli.common import console, say

    named, problems = registry.available()
    for problem in problems:
        say(f"warning: {problem}")
    if as_json:
        rows = [
            {
                "name": s.name,
                "summary": s.summary,
                "needs": s.needs,
                "paper": s.paper,
                "stages_per_rank": s.stages_per_rank,
                "aliases": list(s.aliases),
            }
            for s in named.values()
        ]
        click.echo(json.dumps({"schema_version": metrics.SCHEMA_VERSION, "schedules": rows}))
        return
    from textwrap import fill

    from rich.text import Text

    out = console()
    for s in sorted(named.values(), key=lambda s: s.name):
        any_v = "" if s.needs.startswith("v ") else "v any"  # what is needed of v says it better
        v = any_v if s.stages_per_rank is None else f"v = {s.stages_per_rank}"
        facts = ", ".join(filter(None, (v, s.needs, s.paper)))
        facts += f"; also called {', '.join(s.aliases)}" if s.aliases else ""
        out.print(Text(s.name, "bold"))
        for line in filter(None, (s.summary and f"{s.summary}.", facts)):
            lines = fill(
                line,
                out.width,
                initial_indent="    ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )
            out.print(Text(lines))
