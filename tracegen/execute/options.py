"""What a user asks of an execution. No torch: the launcher reads it too."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tracegen.errors import ExecuteError
from tracegen.ir import Program

DEVICES = ("cpu", "cuda")
DTYPES = ("float32", "float64", "bfloat16", "float16")
GATES = ("comm", "dag")


@dataclass(frozen=True, slots=True)
class Options:
    """The model, the device and the measuring of an execution.

    Attributes:
        device: cpu or cuda; one device a process, unless `share_gpu`.
        share_gpu: all ranks are streams of one process on one device.
        layers: transformer layers of the whole model; one a stage unless given.
        hidden, heads, vocab: its width, attention heads and vocabulary.
        sequence, microbatch_size: tokens of a sequence, sequences of a microbatch.
        dtype: of parameters and activations.
        split: layers of each stage of a chain; shared out evenly if empty.
        experts: experts of a layer; 0 for a dense model, or two a process when ep > 1.
        ep: processes of each rank's expert-parallel group; p * ep in all.
        model: the user's own stages, as FILE.py:FUNCTION; the sizes above are then not looked at.
        seed: of parameters and data.
        gate: where an action waits: `comm`, in the communication operator, on its stream;
            `dag`, on the host, before the action is launched.
        warmup_steps, measure_steps: steps before measuring, and steps measured.
        check: hold loss and gradients against the whole model's on one device.
        threads: of torch in each process on a CPU.
        hang_s: seconds without any progress after which a rank is taken to hang.
        port: of the rendezvous on this machine; any free one if 0.
    """

    device: str = "cpu"
    share_gpu: bool = False
    layers: int | None = None
    hidden: int = 128
    heads: int = 4
    vocab: int = 256
    sequence: int = 128
    microbatch_size: int = 2
    dtype: str = "float32"
    split: tuple[int, ...] = ()
    experts: int = 0
    ep: int = 1
    model: str | None = None
    seed: int = 0
    gate: str = "comm"
    warmup_steps: int = 3
    measure_steps: int = 10
    check: bool = True
    threads: int = 1
    hang_s: float = 10.0
    port: int = 0

    def __post_init__(self) -> None:
        for name, known in (("device", DEVICES), ("dtype", DTYPES), ("gate", GATES)):
            if getattr(self, name) not in known:
                raise ExecuteError(f"{name} {getattr(self, name)!r}: use {' or '.join(known)}")
        for name in ("hidden", "heads", "vocab", "sequence", "microbatch_size", "ep", "threads"):
            self._at_least(name, 1)
        for name, least in (("measure_steps", 1), ("warmup_steps", 0), ("experts", 0)):
            self._at_least(name, least)
        if self.layers is not None:
            self._at_least("layers", 1)
        if not self.hang_s > 0:  # NaN too
            raise ExecuteError(f"hang_s = {self.hang_s}: use more than 0 seconds")
        self._agree()

    def _agree(self) -> None:
        if self.hidden % self.heads:
            raise ExecuteError(f"hidden = {self.hidden} is no multiple of heads = {self.heads}")
        if self.num_experts % self.ep:
            raise ExecuteError(f"experts = {self.experts} is no multiple of ep = {self.ep}")
        if self.share_gpu and self.ep > 1:
            raise ExecuteError(
                "ep > 1 takes a process for each expert group; leave --share-gpu out"
            )
        if self.model is not None and self.ep > 1:
            raise ExecuteError("ep > 1 is for the model built in; leave --model or --ep out")

    def _at_least(self, name: str, least: int) -> None:
        if getattr(self, name) < least:
            raise ExecuteError(f"{name} = {getattr(self, name)}: use {least} or more")

    @property
    def num_experts(self) -> int:
        """Experts of a layer; 0 where the layers are dense."""
        return 2 * self.ep if self.ep > 1 and not self.experts else self.experts

    def layers_of(self, num_slices: int) -> list[range]:
        """The layers of each slice of the model, evenly (earlier slices first) or by `split`.

        Raises:
            ExecuteError: if the layers do not go round.
        """
        layers = sum(self.split) if self.split and self.layers is None else self.layers
        layers = num_slices if layers is None else layers
        if not self.split:
            if layers < num_slices:
                raise ExecuteError(
                    f"{layers} layers are too few for {num_slices} stages; use {num_slices} or more"
                )
            ends = [-(-layers * k // num_slices) for k in range(num_slices + 1)]
        else:
            if len(self.split) != num_slices or sum(self.split) != layers or min(self.split) < 1:
                raise ExecuteError(
                    f"split {','.join(map(str, self.split))}: it says {sum(self.split)} layers in "
                    f"{len(self.split)} stages; expected {layers} in {num_slices}, 1 or more each"
                )
            ends = [sum(self.split[:k]) for k in range(num_slices + 1)]
        return [range(a, b) for a, b in pairwise(ends)]


def slices(program: Program) -> list[int]:
    """The slice of the model that each stage is: its place in its chain.

    Every chain runs the whole model, so stages at one place of several chains
    are copies of one slice.

    Raises:
        ExecuteError: if the chains differ in length, so that their slices differ.
    """
    chains = program.placement.chains
    if len({len(chain) for chain in chains}) > 1:
        raise ExecuteError(
            f"{program.name}: its chains have {', '.join(str(len(c)) for c in chains)} stages; "
            "only chains of one length cut the model in the same places"
        )
    of = [0] * program.num_stages
    for chain in chains:
        for place, stage in enumerate(chain):
            of[stage] = place
    return of
