"""What an event of torch's profiler is, by its name: an action, a mark, a message, an operation.

torch's multi-stage runtime marks each action as `PP:2F0` or `PP:2RECV_F0`, GPipe as `Forward 0`
and `Backward 0`.
"""

from __future__ import annotations

import re

from tracegen.errors import ScheduleError
from tracegen.ir import MAX_MICROBATCHES, NO_MATE, Action, encode, parse
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.readers.actions import NO_ACTION, Namer

# The categories of what the host does, of what launches, and of what is launched.
HOST = ("cpu_op", "user_annotation", "Operator", "", None)
CALLS = (
    *("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "musa_runtime", "Runtime"),
    *("xpu_runtime", "xpu_driver", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver"),
)
KERNELS = ("kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "Kernel", "Memcpy", "Memset")

IGNORED, OP, BACKWARD_OP, SEND, RECEIVE, COMMUNICATION, ACTION, MARK, UPDATE = range(9)

# What torch.profiler calls its own steps.
STEP = "ProfilerStep#"
_OPTIMIZER = "Optimizer.step#"
_GPIPE = re.compile(r"(Forward|Backward) (\d{1,9})")
_AUTOGRAD = "autograd::engine::evaluate_function"
_RECEIVE = re.compile(r"(gloo|[a-z]{1,6}ccl|ucc|mpi):recv\b")
_SEND = re.compile(r"c10d::(i?send)$")
_OTHER = re.compile(r"c10d::|(gloo|[a-z]{1,6}ccl|ucc|mpi):|record_param_comms")
# Operators that compute nothing; torch's runtime calls them around its sends.
_NO_WORK = ("detach", "detach_")
# How many ranges that are no action are named where none is one.
_SHOWN = 3


class Kinds:
    """Tells what events are, and remembers every name that it has looked at.

    Attributes:
        known: by name, what `of` has found.
        ranges: what some ranges are called that are no action.
        one_stage: whether the actions say no stage.
    """

    def __init__(self, namer: Namer) -> None:
        self.namer, self.one_stage = namer, False
        self.ranges: list[str] = []
        self.known: dict[str, tuple[int, int, int]] = {}
        self._actions: dict[str, tuple[int, int] | None] = {}

    def of(self, name: str, category: object) -> tuple[int, int, int]:
        """What an event of the host is, and the codes of the action if it is one."""
        found = self.known[name] = self._kind(name, category)
        return found

    def action(self, label: str) -> tuple[int, int] | None:
        """The codes of the action that a device's label says, a SEND's and RECV's too, or None.

        Of a pair the second is its backward's, otherwise NO_MATE.
        """
        if label not in self._actions:
            self._actions[label] = self._action(label)
        return self._actions[label]

    def _kind(self, name: str, category: object) -> tuple[int, int, int]:
        if (codes := self._action(name)) is not None:
            return (ACTION, *codes)
        if name.startswith((STEP, _OPTIMIZER)):
            return MARK if name.startswith(STEP) else UPDATE, 0, 0
        if _SEND.match(name):
            return SEND, 0, 0
        if _RECEIVE.match(name):
            return RECEIVE, 0, 0
        if _OTHER.match(name):
            return COMMUNICATION, 0, 0
        if category == "user_annotation" and len(self.ranges) < _SHOWN:
            self.ranges.append(name[:60])
        if category == "user_annotation" or name.removeprefix("aten::") in _NO_WORK:
            return IGNORED, 0, 0
        return (BACKWARD_OP if name.startswith(_AUTOGRAD) else OP), 0, 0

    def _action(self, name: str) -> tuple[int, int] | None:
        if (codes := self.namer.by_name(name)) != NO_ACTION:
            self.one_stage = self.namer.needs_rank
            return codes
        if name.startswith("PP:"):
            try:
                step = parse(name[3:])
            except ScheduleError:
                return None
            return (step.code, NO_MATE) if isinstance(step, Action) else None
        if (match := _GPIPE.fullmatch(name)) and int(match[2]) < MAX_MICROBATCHES:
            self.one_stage = True
            kind = FORWARD if match[1] == "Forward" else FULL
            return encode(0, kind, int(match[2])), NO_MATE
        return None
