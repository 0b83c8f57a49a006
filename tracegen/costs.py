"""How long an action takes and a transfer, and how much a stage's activations hold.

Given in microseconds, bytes and GB/s (10**9 bytes a second), kept as integer
nanoseconds: each given cost is rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegen.cost_checks import (
    OF_LINK,
    OF_MICROBATCH,
    OF_RANK,
    OF_STAGE,
    TIMES,
    WHOLE_STAGE,
    Table,
    check_bandwidth,
    check_kernels,
    check_memory,
    check_noise,
    check_number,
    check_table,
    check_zero,
)
from tracegen.errors import CostError
from tracegen.files import check_path
from tracegen.ir import Program
from tracegen.times import DEFAULT_US, DEFAULTS, Each, Times, of_each, of_number, times_at

if TYPE_CHECKING:
    from tracegen.moe import MoE


@dataclass(frozen=True, eq=False)  # it has its own
class Costs:
    """What a replay needs to know of the model and the machine.

    Attributes:
        f_us, b_us, i_us, w_us: one stage's forward, full backward, and the halves of
            the latter for the input and the weight, in µs; b = i + w, and b alone means
            i = w = b/2. 1000 each of f, i and w unless given. A number, or one a stage.
        split_us: what splitting a stage's backward costs, in µs; 0 unless given. I and W then
            last i + w + split: W lasts w + split. Less than 0 where it saves something.
        fb_us: an overlapped pair, in µs, by the stage of its forward; unless given, the
            sum of its halves.
        r_us: a stage's recomputation of what its forward did not keep, in µs; 0 unless given. It
            stands at the start of B, I and a pair, and comes on top of their times: it waits for
            the gradient as they do, which is when Megatron and torch.utils.checkpoint begin it.
        alpha_us: the latency of a hand-over between ranks, in µs.
        bandwidth_GBps: of each directed link between two ranks, in 10**9 bytes/s; unlimited
            unless given.
        boundary_bytes: what a hand-over between two stages carries, either way. A number,
            or one a boundary, that behind stage 0 first.
        activation_bytes: a stage's activations of one microbatch, in bytes; peaks are
            in units of one stage's unless given. A number, or one a stage.
        w_share: the share of a stage's activations that I does not give back and W does, 0 to 1.
        stage: what differs on single stages: {3: {"f_us": 1200, "microbatch": {5: {...}}}}.
        microbatch: on single microbatches: {5: {"f_us": 1200}}, or {5: {"scale": 1.5}}
            to multiply every time of it.
        link: on single directed links from rank to rank: {"3-4": {"alpha_us": 5}}.
            Of several that apply, microbatch goes before stage, and both together before either.
        moe: the costs of a mixture-of-experts stage's kernels, in the place of f, b, i, w and fb.
            A stage may have its own of single kernels: {3: {"moe": {"attn_f": 500}}}.
        rank: on single ranks: {3: {"slowdown": 1.5}} multiplies the times of its actions.
        jitter: the sigma of a lognormal factor on every action's time; its median is 1.
        seed: which factors.
        grad_sync_us: a stage's gradient all-reduce or reduce-scatter among its data-parallel
            peers, after its rank's last action of a step, in µs. A number, or one a stage.
            With `zero`, after the stage's last one instead, on the communication stream.
        replica_sync_us: the sum of a stage's gradients over the replicas that crossing chains
            hold (Chimera, DualPipe): begins when all have come to it. A number, or one a stage.
        optimizer_us: a stage's optimizer step, after that. A number, or one a stage.
        memory: what a stage's weights hold beside activations, in bytes: weight_bytes,
            gradient_bytes, optimizer_bytes, and w_stash_bytes, kept of each microbatch from its
            I to its W. Each a number, or one a stage.
        zero: what data-parallel peers shard, by ZeRO's stages: 0 nothing, 1 the optimizer's state,
            2 gradients too, 3 weights too. UNSHARD and REDUCE_GRAD then run on a communication
            stream of each rank (see `collective`): with 1 and 2 each stage is gathered once a
            step, with 3 where PyTorch's FSDP would. None: ranks have no such stream.
        unshard_us: the all-gather of a stage's weights, in µs. A number, or one a stage.

    Raises:
        CostError: for a cost that is no finite number >= 0, or contradicts another.
    """

    f_us: Each | None = None
    i_us: Each | None = None
    w_us: Each | None = None
    fb_us: Each | None = None
    alpha_us: float = 0.0
    b_us: Each | None = None
    bandwidth_GBps: float | None = None
    boundary_bytes: Each = 0.0
    activation_bytes: Each | None = None
    w_share: float = 0.0
    stage: Table = field(default_factory=dict)
    microbatch: Table = field(default_factory=dict)
    link: Table = field(default_factory=dict)
    moe: MoE | None = None
    rank: Table = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0
    grad_sync_us: Each = 0.0
    replica_sync_us: Each = 0.0
    optimizer_us: Each = 0.0
    memory: Mapping[str, Each] = field(default_factory=dict)
    r_us: Each | None = None
    zero: int | None = None
    unshard_us: Each = 0.0
    split_us: Each | None = None

    def __post_init__(self) -> None:
        for name in (*TIMES, *WHOLE_STAGE, "boundary_bytes", "activation_bytes"):
            for value in _each(getattr(self, name)):
                check_number(name, value)
        for name in ("alpha_us", "w_share"):
            check_number(name, getattr(self, name))
        check_bandwidth("bandwidth_GBps", self.bandwidth_GBps)
        if self.w_share > 1:
            raise CostError(f"w_share = {self.w_share} is more than the whole; use 0 to 1")
        for where, table, allowed in (
            ("stage", self.stage, OF_STAGE),
            ("microbatch", self.microbatch, OF_MICROBATCH),
            ("link", self.link, OF_LINK),
            ("rank", self.rank, OF_RANK),
        ):
            check_table(where, table, allowed)
        check_noise(self.jitter, self.seed)
        check_memory(self.memory)
        gathers = any(_each(self.unshard_us)) or any("unshard_us" in e for e in self.stage.values())
        check_zero(self.zero, self.moe, gathers)
        whole = [name for name in TIMES if getattr(self, name) is not None]
        check_kernels(self.moe, whole, self.stage, self.microbatch)
        lengths = {len(v) for n in TIMES if isinstance(v := getattr(self, n), Sequence)}
        if len(lengths) > 1:
            raise CostError(f"costs for {sorted(lengths)} stages; give one a stage of each")
        for at in range(max(lengths, default=1)):
            times_at({name: of_each(getattr(self, name), at) for name in TIMES}, DEFAULTS)

    def __eq__(self, other: object) -> bool:
        """Whether both mean the same costs, whatever was given and what left to the defaults."""
        if not isinstance(other, Costs):
            return NotImplemented
        return self.in_force() == other.in_force()

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, as plain data that `from_dict` takes."""
        default = Costs()
        return {
            f.name: _plain(value)
            for f in fields(self)
            if (value := getattr(self, f.name)) != getattr(default, f.name)
        }

    def in_force(self) -> dict[str, Any]:
        """Every cost, defaults spelt out, as plain data that `from_dict` takes."""
        quiet = ("jitter", "seed", "r_us", "split_us", *WHOLE_STAGE)  # 0 goes without saying
        data = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        data = {name: value for name, value in data.items() if name not in quiet or value}
        if self.zero is None:
            del data["zero"]
        if self.moe is not None:
            plain = {n: v for n, v in data.items() if n not in (*TIMES, "moe") and v != {}}
            return {**plain, "moe": self.moe.in_force()}
        if self.b_us is None:
            data |= {n: DEFAULT_US for n in ("i_us", "w_us") if data[n] is None}
        data["f_us"] = DEFAULT_US if self.f_us is None else data["f_us"]
        return {name: value for name, value in data.items() if value != {}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "costs") -> Costs:
        """Costs of plain data, as a TOML file and a trace's metadata hold it.

        Raises:
            CostError: naming the key that is unknown, or the value that is no cost.
        """
        if not isinstance(data, Mapping):
            what = f"{type(data).__name__} is no table"
            raise CostError(f"{where}: {what}; give a dict, such as {{'f_us': 1000}}")
        known = [f.name for f in fields(cls)]
        for key in data:
            if key not in known:
                raise CostError(f"{where}: no cost {key!r}; there are {', '.join(known)}")
        try:
            return cls(**{**data, **_kernels(data)})
        except CostError as error:
            raise CostError(f"{where}: {error}") from None

    @classmethod
    def from_toml(cls, path: str | Path) -> Costs:
        """Costs of a TOML file, whose keys are the attributes and whose tables are `[stage.3]`,
        `[microbatch.5]`, `[stage.3.microbatch.5]` and `[link."3-4"]`.

        Raises:
            CostError: if it cannot be read, is no TOML or holds no costs.
            FileError: if it is no path.
        """
        import tomllib

        check_path("path", path)
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise CostError(f"{path}: {error.strerror}; expected a TOML file of costs") from None
        except (ValueError, RecursionError) as error:  # TOML's own, and what slips through it
            raise CostError(f"{path}: it is not TOML: {error}") from None
        return cls.from_dict(data, str(path))

    def override(self, **given: float | None) -> Costs:
        """These costs with those given that are not None.

        b given alone takes the place of i and w, and i and w together that of b.
        """
        new: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
        if "b_us" in new:
            new = {"i_us": None, "w_us": None} | new
        elif {"i_us", "w_us"} <= new.keys():
            new = {"b_us": None} | new
        return replace(self, **new)

    @property
    def in_bytes(self) -> bool:
        """Whether activations are counted in bytes, not in units of one stage's."""
        return self.activation_bytes is not None or any(
            "activation_bytes" in entry for entry in self.stage.values()
        )

    def activations(self, num_stages: int) -> list[float]:
        """What a stage's activations of one microbatch hold, by stage: bytes, or one unit.

        Raises:
            CostError: if they are given for another number of stages.
        """
        name = "activation_bytes"
        sizes = [
            of_number(self.stage, s).get(name, of_each(self.activation_bytes, s, name, num_stages))
            for s in range(num_stages)
        ]
        if (known := [s for s, size in enumerate(sizes) if size is not None]) == []:
            return [1.0] * num_stages
        if None in sizes:
            raise CostError(
                f"stage {known[0]} has activation_bytes and stage {sizes.index(None)} has not; "
                "give those of all stages"
            )
        return [float(size) for size in sizes]

    def times(self, program: Program) -> Times:
        """The times of every action of a program, in ns.

        Raises:
            CostError: if costs are given for stages, microbatches or links that it has not.
        """
        return Times.of(self, program)


def _each(value: Each | None) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _kernels(data: Mapping[str, Any]) -> dict[str, MoE]:
    if data.get("moe") is None:
        return {}
    from tracegen.moe import MoE

    return {"moe": MoE.from_dict(data["moe"])}


def _plain(value: Any) -> Any:
    if hasattr(value, "given"):  # kernel costs
        return value.given()
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
