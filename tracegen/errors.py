"""Every error tracegen raises on bad input. All derive from TracegenError."""

from typing import Any


class TracegenError(Exception):
    """Bad input from the user: the command line prints the message, without a traceback."""


class ScheduleError(TracegenError):
    """A schedule is unknown, refuses the size it was asked for, or its file cannot be used."""


class BrokenSchedule(ScheduleError):
    """A schedule's own code fails, or gives what is no order."""


class UnknownSchedule(ScheduleError):
    """No shipped, installed or given schedule has that name."""


class ProgramError(TracegenError):
    """A program is incomplete, misplaced or out of order.

    Attributes:
        problems: every violation found, each one line.
    """

    def __init__(self, where: str, problems: list[str]) -> None:
        self.problems = problems
        shown = problems[:5]
        if len(problems) > len(shown):
            shown = [*shown, f"and {len(problems) - len(shown)} more"]
        joint = "\n  " if len(shown) > 1 else " "
        super().__init__(f"{where}:{joint}" + "\n  ".join(shown))


class DeadlockError(ProgramError):
    """A program that cannot finish: its actions wait for each other in a cycle.

    Attributes:
        line: the Timeline up to where it hangs, where a replay found it.
        program: the Program, where the validator found it.
    """

    def __init__(
        self, where: str, problems: list[str], line: Any = None, program: Any = None
    ) -> None:
        super().__init__(where, problems)
        self.line, self.program = line, program


class CostError(TracegenError):
    """A cost is no usable number, contradicts another or names something that is not there."""


class FileError(TracegenError):
    """A file cannot be read, understood or written."""


class ToolMissing(TracegenError):
    """A program or an optional package that the request needs is not there."""


class QueryError(TracegenError):
    """Perfetto's trace processor refuses a query."""


class ServeError(TracegenError):
    """A trace cannot be served to the browser."""


class ExecuteError(TracegenError):
    """A program cannot be executed here, a rank failed, or its gradients are wrong."""


class DiffError(TracegenError):
    """Two traces cannot be compared as asked."""
