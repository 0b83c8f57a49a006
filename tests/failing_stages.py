"""Stages for `--model`, one of which fails in its forward: see test_launch.py.

One that hangs makes a file first, where $HANGS names one.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

FAILING_SLICE, FAILING_CALL = 1, 4  # past the call that tells shapes, in the second step of two


class Stage(nn.Module):
    """A small layer that counts its calls."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.layer, self.fault, self.calls = nn.Linear(4, 4), fault, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == FAILING_CALL:
            if self.fault == "raise":
                raise ValueError("out of luck")
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "hang":
                if "HANGS" in os.environ:
                    Path(os.environ["HANGS"]).touch()
                time.sleep(1000)
        return torch.tanh(self.layer(x))


def _stages(fault: str) -> tuple[list[nn.Module], torch.Tensor]:
    return [Stage(fault if k == FAILING_SLICE else "") for k in range(2)], torch.randn(3, 4)


def raises() -> object:
    return _stages("raise")


def killed() -> object:
    return _stages("kill")


def exits() -> object:
    return _stages("exit")


def hangs() -> object:
    return _stages("hang")


def sound() -> object:
    """With a loss of its own."""
    return *_stages(""), lambda output, microbatch: (output - microbatch).square().mean()


def no_stages() -> object:
    return "nothing"
