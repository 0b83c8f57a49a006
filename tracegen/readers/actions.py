"""Which action a slice is: by its args, by torch's text form, or by a pattern of the user's."""

from __future__ import annotations

import re
from typing import Any

from tracegen.errors import FileError, ScheduleError
from tracegen.ir import (
    KIND_MASK,
    KINDS,
    MAX_STAGES,
    MICROBATCH_SHIFT,
    NO_MATE,
    NUMBER,
    STAGE_MASK,
    STAGE_SHIFT,
    Action,
    Kind,
    Overlap,
    encode,
    parse,
)
from tracegen.ir import W as WEIGHT

# No action, no pair. Microbatches beyond 2**38 are no numbers of microbatches.
NO_ACTION = (-1, NO_MATE)
MAX_MICROBATCH = 1 << 38

_WORDS = {
    "F": "f fwd forward forward_step",
    "B": "b bwd backward full_backward backward_step bp",
    "I": "i input backward_input bwd_input input_backward dgrad bi bx",
    "W": "w wg wgrad weight backward_weight bwd_weight weight_backward bw",
}
# What other tools call the kinds, in lower case.
OPS = {word: NUMBER[Kind(kind)] for kind, words in _WORDS.items() for word in words.split()}
_OPS_AS_WRITTEN = {str(kind): NUMBER[kind] for kind in Kind} | OPS

_STAGE = ("stage", "stage_id", "stage_index", "stage_idx")
_MICROBATCH = ("microbatch", "mb", "microbatch_id", "microbatch_index", "mb_id", "micro_batch")
# The args that say what a slice is that is no action: a message, a sum, a kernel.
_IDENTITY = ("stage", "microbatch", "layer", "op", "action", "waits_for")
_OP = ("op", "kind", "computation_type", "phase")
# What PiPPy's recorder of events calls a stage's work on a microbatch.
_PIPPY = re.compile(r"([FB])_(\d{1,9}),(\d{1,18})")
# torch's runtime puts this before the action in the ranges it marks.
_TORCH_RANGE = "PP:"


class Namer:
    """Finds the action of a slice; remembers every name it has looked at."""

    def __init__(self, pattern: str | None = None) -> None:
        """As the option has it.

        Args:
            pattern: a regular expression with the named groups op and mb, and stage (without
                it a rank has one stage, of its own number).

        Raises:
            FileError: if it is no regular expression, or lacks a group.
        """
        self._pattern = _compiled(pattern)
        self._known: dict[str, tuple[int, int]] = {}
        self.needs_rank = self._pattern is not None and "stage" not in self._pattern.groupindex

    def by_name(self, name: str) -> tuple[int, int]:
        """The codes of the action (and of the backward half of a pair) that the name says."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._read(name)
        return known

    def _read(self, name: str) -> tuple[int, int]:
        if self._pattern is not None:
            match = self._pattern.search(name)
            return NO_ACTION if match is None else _matched(match)
        if pippy := _PIPPY.fullmatch(name):
            name = f"{pippy[2]}{pippy[1]}{pippy[3]}"
        try:
            step = parse(name.removeprefix(_TORCH_RANGE))
        except (ScheduleError, ValueError):
            return NO_ACTION
        if isinstance(step, Overlap):
            codes = step.forward.code, step.backward.code
        elif isinstance(step, Action) and step.kind.is_compute:
            codes = step.code, NO_MATE
        else:
            return NO_ACTION
        return codes if max(codes) >> 24 < MAX_MICROBATCH else NO_ACTION

    def of(self, name: str, args: dict[str, Any]) -> tuple[int, int]:
        """As `by_name`, where the args may say it too: a pattern first, args, then the name."""
        if self._pattern is not None and (codes := self.by_name(name)) != NO_ACTION:
            return codes
        stage, microbatch = args.get("stage"), args.get("microbatch")
        kind = _OPS_AS_WRITTEN.get(op) if type(op := args.get("op")) is str else None
        if kind is None or type(stage) is not int or type(microbatch) is not int:
            kind, stage, microbatch = _loosely(args)
        if kind is None or stage is None or microbatch is None or kind > WEIGHT:
            return self.by_name(name)
        if not (0 <= stage < MAX_STAGES and 0 <= microbatch < MAX_MICROBATCH):
            return NO_ACTION
        if "backward_op" not in args:
            return encode(stage, kind, microbatch), NO_MATE
        return encode(stage, kind, microbatch), _mate(args)


def identity(args: dict[str, Any]) -> str:
    """What a slice is beyond its name: `stage 3, op SUM_REPLICAS`; "" if its args do not say."""
    said = ((key, args[key]) for key in _IDENTITY if key in args)
    return ", ".join(
        f"{key} {value if (number := _whole(value)) is None else number}" for key, value in said
    )


def identity_of(code: int) -> str:
    """The same of a slice that is an action, though on no rank's row."""
    stage, microbatch = code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
    return identity({"stage": stage, "microbatch": microbatch, "op": KINDS[code & KIND_MASK].value})


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        compiled = re.compile(pattern)
        compiled.search("")  # one of bytes would only fail at the first name
    except TypeError:
        what = f"{type(pattern).__name__} is no text"
        raise FileError(f"--name-pattern: {what}; give a regular expression") from None
    except re.error as error:
        raise FileError(f"--name-pattern {pattern!r} is no regular expression: {error}") from None
    missing = {"op", "mb"} - compiled.groupindex.keys()
    if missing:
        raise FileError(
            f"--name-pattern {pattern!r} has no group {' and '.join(sorted(missing))}; write it as "
            r"(?P<stage>\d+)(?P<op>[FBIW])(?P<mb>\d+)"
        )
    return compiled


def _matched(match: re.Match[str]) -> tuple[int, int]:
    said = match.groupdict()
    kind = OPS.get((said["op"] or "").lower())
    stage, microbatch = _whole(said.get("stage", "0")), _whole(said["mb"])
    if kind is None or stage is None or microbatch is None:
        return NO_ACTION
    if stage >= MAX_STAGES or microbatch >= MAX_MICROBATCH:
        return NO_ACTION
    return encode(stage, kind, microbatch), NO_MATE


def _loosely(args: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Kind, stage and microbatch under any of the names that tools give them."""
    op = next((args[key] for key in _OP if key in args), None)
    kind = OPS.get(op.lower(), _OPS_AS_WRITTEN.get(op)) if isinstance(op, str) else None
    stage = next((args[key] for key in _STAGE if key in args), None)
    microbatch = next((args[key] for key in _MICROBATCH if key in args), None)
    return kind, _whole(stage), _whole(microbatch)


def _mate(args: dict[str, Any]) -> int:
    kind = _OPS_AS_WRITTEN.get(op) if type(op := args.get("backward_op")) is str else None
    stage, microbatch = _whole(args.get("backward_stage")), _whole(args.get("backward_microbatch"))
    if kind is None or stage is None or microbatch is None:
        return NO_MATE
    if not (0 <= stage < MAX_STAGES and 0 <= microbatch < MAX_MICROBATCH):
        return NO_MATE
    return encode(stage, kind, microbatch)


def _whole(value: Any) -> int | None:
    """An integer >= 0 of a number or its text; None of anything else."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return None
