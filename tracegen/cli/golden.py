"""`tracegen golden`: a folder of golden traces, made again and compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracegen.cli.common import say
from tracegen.cli.diff import FORMATS

if TYPE_CHECKING:
    from tracegen.golden import Verdict


@click.group("golden", context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    r"""Make a folder of golden traces, and hold it against what is made now.

    DIR/golden.toml names each trace and what `tracegen run` is given for it:

    \b
        ["1f1b.json.gz"]
        run = "--schedule 1f1b -p 4 -m 8"

    Paths are relative to DIR. times = "5%" in it, or at the top for all, lets times be apart.
    """


@command.command("check")
@click.argument("folder", metavar="DIR")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", help="Of the report; text."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress; the report and the exit code.")
def check(folder: str, form: str, quiet: bool) -> None:
    """Make every trace of DIR again and compare it with the golden one.

    Exit code 0 if all mean the same, 1 if some differ, 2 if some could not be compared.
    """
    from tracegen import golden

    verdicts = list(_progress(golden.check(folder, make), folder, quiet))
    for line in _report(verdicts, form):
        click.echo(line)
    if any(verdict.found is not None and not verdict.found.same for verdict in verdicts):
        say(f"if it is meant: `tracegen golden update {folder}`", quiet)
    _exit(verdicts)


@command.command("update")
@click.argument("folder", metavar="DIR")
@click.option("-q", "--quiet", is_flag=True, help="No progress; the verdict and the exit code.")
def update(folder: str, quiet: bool) -> None:
    """Make every trace of DIR again; write those that differ or are new."""
    from tracegen import golden

    verdicts = list(_progress(golden.update(folder, make), folder, quiet))
    for verdict in verdicts:
        if verdict.error is not None:
            click.echo(f"{verdict.golden.path}: {verdict.error}", err=True)
    written = sum(verdict.written for verdict in verdicts)
    failed = sum(verdict.error is not None for verdict in verdicts)
    kept = len(verdicts) - written - failed
    click.echo(f"{written} written, {kept} as they were" + f", {failed} failed" * bool(failed))
    _exit(verdicts)


def make(options: list[str], target: Path) -> None:
    """Write the trace that the options of `tracegen run` ask for.

    Raises:
        FileError: if `run` refuses them.
    """
    from tracegen.cli.run import command as run
    from tracegen.errors import FileError

    try:
        run.main([*options, "-q", "-o", str(target)], "tracegen run", standalone_mode=False)
    except click.ClickException as error:
        raise FileError(f"tracegen run {' '.join(options)}: {error.format_message()}") from None
    except SystemExit:
        pass  # as of what the replay found; whether there is a trace counts
    if not target.exists():
        raise FileError(f"tracegen run {' '.join(options)}: it wrote no trace")


def _progress(verdicts: Iterator[Verdict], folder: str, quiet: bool) -> Iterator[Verdict]:
    from tracegen import golden

    count = len(golden.manifest(folder))
    for number, verdict in enumerate(verdicts, start=1):
        say(f"[{number}/{count}] {verdict.golden.path.name}: {_word(verdict)}", quiet)
        yield verdict


def _word(verdict: Verdict) -> str:
    if verdict.error is not None:
        return "could not be compared" if not verdict.written else "could not be written"
    if verdict.written:
        return "written"
    return "same" if verdict.found is not None and verdict.found.same else "different"


def _report(verdicts: list[Verdict], form: str) -> Iterable[str]:
    if form == "json":
        yield _as_json(verdicts)
        return
    from tracegen.comparison import report

    for verdict in verdicts:
        path = str(verdict.golden.path)
        if verdict.error is not None:
            yield from _refused(verdict, form)
        elif verdict.found is not None and not verdict.found.same:
            found = verdict.found
            yield f"{path}: tracegen run {' '.join(verdict.golden.run)}"
            lines = report.github(found, path) if form == "github" else report.text(found)
            yield from (line if line.startswith("::") else f"  {line}".rstrip() for line in lines)
            yield ""
    yield _verdict(verdicts)


def _refused(verdict: Verdict, form: str) -> Iterator[str]:
    if form == "github":
        message = str(verdict.error).replace("%", "%25").replace("\n", "%0A")
        yield f"::error title=tracegen golden::{message}"
    yield f"{verdict.golden.path}: {verdict.error}"
    yield ""


def _verdict(verdicts: list[Verdict]) -> str:
    different = [v.golden.path.name for v in verdicts if v.found is not None and not v.found.same]
    failed = [v.golden.path.name for v in verdicts if v.error is not None]
    said = [f"{len(different)} differ: {', '.join(different)}"] if different else []
    said += [f"{len(failed)} could not be compared: {', '.join(failed)}"] if failed else []
    if not said:
        return f"all {len(verdicts)} golden traces are as they were"
    return f"of {len(verdicts)} golden traces " + "; ".join(said)


def _as_json(verdicts: list[Verdict]) -> str:
    from tracegen.comparison import report

    traces = [
        {
            "file": str(verdict.golden.path),
            "run": verdict.golden.run,
            "verdict": _word(verdict),
            "error": None if verdict.error is None else str(verdict.error),
            "difference": None if verdict.found is None else report.as_data(verdict.found),
        }
        for verdict in verdicts
    ]
    same = all(verdict.found is not None and verdict.found.same for verdict in verdicts)
    return json.dumps({"schema_version": 1, "same": same, "traces": traces}, indent=2, default=str)


def _exit(verdicts: list[Verdict]) -> None:
    if any(verdict.error is not None for verdict in verdicts):
        raise SystemExit(2)
    if any(verdict.found is not None and not verdict.found.same for verdict in verdicts):
        raise SystemExit(1)
