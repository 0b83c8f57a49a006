"""Compile, replay, execute and trace pipeline-parallel training schedules.

    program = tracegen.compile("dualpipev", num_ranks=4, num_microbatches=10)
    line = tracegen.replay(program, tracegen.Costs(f_us=1000, i_us=1000, w_us=1000))
    tracegen.write(line, "trace.json")

Each name is imported when it is first used, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracegen.compiler import compile
    from tracegen.costs import Costs
    from tracegen.differ import diff
    from tracegen.emit import write
    from tracegen.engine import replay
    from tracegen.errors import TracegenError
    from tracegen.execute.record import record
    from tracegen.ir import Action, Kind, Overlap, Program, StageAction
    from tracegen.moe import MoE
    from tracegen.profiles.door import read
    from tracegen.timeline import Timeline

_HOME = {
    "Action": "ir",
    "Costs": "costs",
    "Kind": "ir",
    "MoE": "moe",
    "Overlap": "ir",
    "Program": "ir",
    "StageAction": "ir",
    "Timeline": "timeline",
    "TracegenError": "errors",
    "compile": "compiler",
    "diff": "differ",
    "read": "profiles.door",
    "record": "execute.record",
    "replay": "engine",
    "write": "emit",
}

__version__ = "0.1.0"
__all__ = [
    "Action",
    "Costs",
    "Kind",
    "MoE",
    "Overlap",
    "Program",
    "StageAction",
    "Timeline",
    "TracegenError",
    "compile",
    "diff",
    "read",
    "record",
    "replay",
    "write",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tracegen' has no attribute {name!r}")
    value = getattr(import_module(f"tracegen.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
