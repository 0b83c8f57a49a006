"""How a program is replayed: transfers, dispatch, how many steps in a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tracegen.checks import check_count, check_one_of
from tracegen.errors import CostError

P2P = ("async", "blocking")
P2P_ORDER = ("torch", "naive", "fused")
DISPATCH = ("static", "dynamic")


@dataclass(frozen=True, slots=True)
class Mode:
    """DESIGN's rules 7 to 9.

    Attributes:
        p2p: async: transfers run beside compute. blocking: SEND and RECV are actions that hold
            the rank until both ends have met and the transfer is over.
        p2p_order: of blocking, where they stand: as PyTorch's lowering places them (torch), the
            receive just before and the send just after its compute (naive), or that with a send
            and a receive of one neighbour at one point as one action (fused). Unless given, where
            the program has them, or else as torch.
        dispatch: static: every rank runs its order. dynamic: an idle rank takes any ready action.
        steps: training steps in a row, each rank going on as soon as it is done.
        sync: whether the optimizer waits for all ranks, and the next step for all optimizers.

    Raises:
        CostError: for a value that is none of these, or two that contradict each other.
    """

    p2p: str = "async"
    p2p_order: str | None = None
    dispatch: str = "static"
    steps: int = 1
    sync: bool = False

    def __post_init__(self) -> None:
        check_one_of("p2p", self.p2p, P2P)
        if self.p2p_order is not None:
            check_one_of("p2p_order", self.p2p_order, P2P_ORDER)
        check_one_of("dispatch", self.dispatch, DISPATCH)
        check_count("steps", self.steps)
        if self.p2p_order is not None and not self.blocking:
            raise CostError(f"p2p_order = {self.p2p_order} is for p2p = blocking; add that")
        if self.blocking and self.dynamic:
            raise CostError(
                "p2p = blocking with dispatch = dynamic: a rank that waits in a SEND cannot take "
                "what is ready; give one of them"
            )

    @property
    def blocking(self) -> bool:
        return self.p2p == "blocking"

    @property
    def dynamic(self) -> bool:
        return self.dispatch == "dynamic"

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, as plain data that `from_dict` takes."""
        return {
            f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Mode:
        """The mode of plain data, as a trace's metadata holds it.

        Raises:
            CostError: naming the key that is unknown, or the value that is none.
        """
        known = [f.name for f in fields(cls)]
        for key in data:
            if key not in known:
                raise CostError(f"replay: no setting {key!r}; there are {', '.join(known)}")
        return cls(**data)
