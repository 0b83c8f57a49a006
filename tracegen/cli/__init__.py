"""The command line: parse, call, print. No logic.

Each command is a module of this package, imported when it is asked for, so that
`--help` and every command start without what the others need.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from tracegen import __version__
from tracegen.errors import TracegenError

# name -> what it does, in a line; the module has the name, with _ where that is a word of Python's
COMMANDS = {
    "run": "Compile a schedule, replay it, write its trace and print the figures.",
    "list": "List the schedules: what each is, its constraints, its paper.",
    "show": "Draw the tiling of a schedule or a trace: in the terminal, as SVG or HTML.",
    "explain": "Why is it not faster? The critical path, who waits for what, what would help.",
    "compare": "Schedules of one model side by side, or over a grid of sizes and costs.",
    "advise": "The fastest schedule that fits a memory limit, and what more memory would buy.",
    "solve": "The best order for sizes, costs and a memory limit, with a proven bound.",
    "import": "Read profiles of a run, or PyTorch's schedule CSV, and write the trace.",
    "export": "Write a schedule as PyTorch's schedule CSV.",
    "check": "Is a schedule, CSV or trace complete, in order and free of deadlock?",
    "diff": "What changed between two traces: actions, then times, arrows and figures.",
    "golden": "Make a folder of golden traces, and hold it against what is made now.",
    "calibrate": "Measure the costs of a model's stages on torch, for run --costs.",
    "open": "Open a trace in the Perfetto UI.",
    "stats": "The bubble, the waits and the tiles of a trace, by SQL.",
    "query": "Ask a trace a question in SQL.",
}


class Group(click.Group):
    """Loads a command when it is asked for; shows a TracegenError as one message, exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"tracegen.cli.{_module(cmd_name)}")
        command: click.Command = module.command
        # click keeps the lines after this mark, which a raw docstring can only spell out
        command.help = (command.help or "").replace("\\b\n", "\b\n")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            raise _unknown(ctx, args[0]) from None

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(*args, **extra)
        except click.NoSuchOption as error:
            raise _hinted(error) from None
        except KeyboardInterrupt as error:
            raise _interrupted(error) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise _hinted(error) from None
        except TracegenError as error:
            raise Refusal(str(error)) from error
        except BrokenPipeError:  # the reader of our output has seen enough
            sys.stderr.close()
            raise SystemExit(0) from None
        except OSError as error:  # files say what they are: this is stdout
            raise Refusal(f"the output cannot be written: {error.strerror or error}") from error
        except KeyboardInterrupt as error:
            raise _interrupted(error) from None


def _interrupted(error: KeyboardInterrupt) -> SystemExit:
    """How Ctrl-C ends, once it has said so; tracegen.__main__ has the same for imports."""
    click.echo(str(error) or "interrupted", err=True)
    return SystemExit(130)  # 128 + SIGINT, as shells have it


class Refusal(click.ClickException):
    """What the user asked for cannot be done."""

    exit_code = 2


def _module(name: str) -> str:
    return f"{name}_" if name in ("import", "list") else name


def _hinted(error: click.NoSuchOption) -> click.UsageError:
    """The same, with what the option is called here where that is known."""
    from tracegen.cli.words import option_hint

    hint = option_hint(error)
    return click.UsageError(f"{error.message.rstrip('.')}; {hint}", error.ctx) if hint else error


def _unknown(ctx: click.Context, name: str) -> click.UsageError:
    from difflib import get_close_matches

    from tracegen.cli.words import command_hint

    close = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else command_hint(name)
    hint = hint or f"there are {', '.join(COMMANDS)}"
    return click.UsageError(f"no command {name!r}; {hint}", ctx)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tracegen")
def main() -> None:
    """Compile, replay, execute and trace pipeline-parallel training schedules."""
