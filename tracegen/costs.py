"""How long an action takes and a transfer, and how much a stage's activations hold.

Given in microseconds, bytes and GB/s (10**9 bytes a second), kept as integer
nanoseconds: each given cost is rounded once.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from tracegen.errors import CostError
from tracegen.ir import (
    KIND_MASK,
    NO_MATE,
    STAGE_MASK,
    STAGE_SHIFT,
    Placement,
    Program,
    encode,
)
from tracegen.ir import B as FULL
from tracegen.ir import F as FORWARD
from tracegen.ir import I as INPUT
from tracegen.ir import W as WEIGHT

DEFAULT_US = 1000.0
TIMES = ("f_us", "b_us", "i_us", "w_us", "fb_us")
OF_STAGE = (*TIMES, "activation_bytes", "microbatch")
OF_MICROBATCH = (*TIMES, "scale")
OF_LINK = ("alpha_us", "bandwidth_GBps")

# One number for all, or one a stage (for boundary_bytes, one a boundary).
Each = float | Sequence[float]
Table = Mapping[str | int, Mapping[str, Any]]


@dataclass(frozen=True)
class Costs:
    """What a replay needs to know of the model and the machine.

    Attributes:
        f_us, b_us, i_us, w_us: one stage's forward, full backward, and the halves of
            the latter for the input and the weight, in µs; b = i + w, and b alone means
            i = w = b/2. 1000 each of f, i and w unless given. A number, or one a stage.
        fb_us: an overlapped pair, in µs, by the stage of its forward; unless given, the
            sum of its halves.
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

    def __post_init__(self) -> None:
        for name in (*TIMES, "alpha_us", "boundary_bytes", "activation_bytes", "w_share"):
            for value in _each(getattr(self, name)):
                _check_number(name, value)
        _check_bandwidth("bandwidth_GBps", self.bandwidth_GBps)
        if self.w_share > 1:
            raise CostError(f"w_share = {self.w_share} is more than the whole; use 0 to 1")
        for where, table, allowed in (
            ("stage", self.stage, OF_STAGE),
            ("microbatch", self.microbatch, OF_MICROBATCH),
            ("link", self.link, OF_LINK),
        ):
            _check_table(where, table, allowed)
        lengths = {len(v) for n in TIMES if isinstance(v := getattr(self, n), Sequence)}
        if len(lengths) > 1:
            raise CostError(f"costs for {sorted(lengths)} stages; give one a stage of each")
        for at in range(max(lengths, default=1)):
            _times_at({name: _at(getattr(self, name), at) for name in TIMES}, _DEFAULTS)

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
        data = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
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
        known = [f.name for f in fields(cls)]
        for key in data:
            if key not in known:
                raise CostError(f"{where}: no cost {key!r}; there are {', '.join(known)}")
        try:
            return cls(**data)
        except CostError as error:
            raise CostError(f"{where}: {error}") from None

    @classmethod
    def from_toml(cls, path: Path) -> Costs:
        """Costs of a TOML file, whose keys are the attributes and whose tables are `[stage.3]`,
        `[microbatch.5]`, `[stage.3.microbatch.5]` and `[link."3-4"]`.

        Raises:
            CostError: if it cannot be read, is no TOML or holds no costs.
        """
        try:
            return cls.from_dict(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
        except OSError as error:
            raise CostError(f"{path}: {error.strerror}; expected a TOML file of costs") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise CostError(f"{path}: it is not TOML: {error}") from None

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

    def activations(self, num_stages: int) -> list[float]:
        """What a stage's activations of one microbatch hold, by stage: bytes, or one unit.

        Raises:
            CostError: if they are given for another number of stages.
        """
        name = "activation_bytes"
        return [
            float(
                _of(self.stage, s).get(name) or _at(self.activation_bytes, s, name, num_stages) or 1
            )
            for s in range(num_stages)
        ]

    def times(self, program: Program) -> Times:
        """The times of every action of a program, in ns.

        Raises:
            CostError: if costs are given for stages, microbatches or links that it has not.
        """
        return Times.of(self, program)


@dataclass(frozen=True, slots=True)
class Times:
    """Costs in integer ns for one program.

    Attributes:
        of_kind: by the kind's number (F, B, I, W), then by stage.
        pair: by the stage of the pair's forward; None where it is the sum of its halves.
        single: what differs: the ns of an action's code.
        single_pair: of a pair, by the code of its forward.
        alpha: latency by (from rank, to rank), where it differs from `any_alpha`.
        any_alpha: latency of the other links.
    """

    of_kind: tuple[list[int], list[int], list[int], list[int]]
    pair: list[int | None]
    single: dict[int, int]
    single_pair: dict[int, int]
    alpha: dict[tuple[int, int], int]
    any_alpha: int
    bandwidth: dict[tuple[int, int], float | None]
    any_bandwidth: float | None
    boundary_bytes: list[float]

    @classmethod
    def of(cls, costs: Costs, program: Program) -> Times:
        S, M = program.num_stages, program.num_microbatches
        whole: list[dict[str, float | None]] = []
        for stage in range(S):
            base = {n: _at(getattr(costs, n), stage, n, S) for n in TIMES}
            times = _times_at(base, _DEFAULTS)
            whole.append(_times_at(_of(costs.stage, stage), times))
        for where, table, count in (
            ("stage", costs.stage, S),
            ("microbatch", costs.microbatch, M),
        ):
            for number in table:
                if not 0 <= int(number) < count:
                    raise CostError(f"{where} {number} has costs; the last {where} is {count - 1}")
        single, single_pair = {}, {}
        for stage, microbatch, times in _singles(costs, whole, M):
            kinds = _in_ns(times)
            for kind in (FORWARD, FULL, INPUT, WEIGHT):
                single[encode(stage, kind, microbatch)] = kinds[kind]
            if (pair := times["fb_us"]) is not None:
                single_pair[encode(stage, FORWARD, microbatch)] = _ns(pair)
        columns = tuple([_in_ns(times)[kind] for times in whole] for kind in range(4))
        alpha, bandwidth = _links(costs, program.num_ranks)
        return cls(
            columns,  # type: ignore[arg-type]
            [None if (fb := times["fb_us"]) is None else _ns(fb) for times in whole],
            single,
            single_pair,
            alpha,
            _ns(costs.alpha_us),
            bandwidth,
            costs.bandwidth_GBps,
            _boundaries(costs.boundary_bytes, program.placement),
        )

    def duration(self, code: int, mate: int = NO_MATE) -> int:
        """The ns of a step: an action, or a pair of the codes of its forward and its backward."""
        stage = code >> STAGE_SHIFT & STAGE_MASK
        if mate == NO_MATE:
            known = self.single.get(code) if self.single else None
            return self.of_kind[code & KIND_MASK][stage] if known is None else known
        pair = self.single_pair.get(code, self.pair[stage])
        return self.duration(code) + self.duration(mate) if pair is None else pair

    def latency(self, link: tuple[int, int]) -> int:
        """The ns a hand-over takes from the first rank to the second, beside its bytes."""
        return self.alpha.get(link, self.any_alpha)

    def occupancy(self, link: tuple[int, int], stage: int) -> int:
        """The ns that what stage `stage` hands to its next stage occupies the link."""
        bandwidth = self.bandwidth.get(link, self.any_bandwidth)
        return 0 if bandwidth is None else round(self.boundary_bytes[stage] / bandwidth)

    @property
    def links_queue(self) -> bool:
        """Whether any link has a bandwidth, so that transfers wait for each other."""
        return any(self.boundary_bytes) and (
            self.any_bandwidth is not None or any(v is not None for v in self.bandwidth.values())
        )


_DEFAULTS: dict[str, float | None] = {
    "f_us": DEFAULT_US,
    "i_us": DEFAULT_US,
    "w_us": DEFAULT_US,
    "fb_us": None,
}


def _ns(us: float) -> int:
    return round(us * 1000)


def _in_ns(times: Mapping[str, float | None]) -> tuple[int, int, int, int]:
    f, i, w = (_ns(times[name] or 0.0) for name in ("f_us", "i_us", "w_us"))
    return f, i + w, i, w


def _times_at(
    given: Mapping[str, Any], outer: Mapping[str, float | None]
) -> dict[str, float | None]:
    """f, i, w and fb in µs where `given` says something, over `outer`."""

    def of(name: str) -> float | None:
        value = given.get(name)
        return outer[name] if value is None else value

    b, i, w = (given.get(name) for name in ("b_us", "i_us", "w_us"))
    if b is None:
        i, w = of("i_us"), of("w_us")
    elif i is None and w is None:
        i = w = b / 2
    elif i is not None and w is not None:
        if not math.isclose(b, i + w, rel_tol=1e-9, abs_tol=1e-6):
            raise CostError(f"b_us = {b} is not i_us + w_us = {i + w}; give two of the three")
    elif (rest := b - (w if i is None else i)) < 0:
        half = "w_us" if i is None else "i_us"
        raise CostError(f"b_us = {b} is less than its half {half} = {b - rest}; b = i + w")
    else:
        i, w = (rest, w) if i is None else (i, rest)
    scale = given.get("scale", 1.0)
    times = {"f_us": of("f_us"), "i_us": i, "w_us": w, "fb_us": of("fb_us")}
    return {name: None if us is None else us * scale for name, us in times.items()}


def _of(table: Table, number: int) -> Mapping[str, Any]:
    """The entry of a stage or microbatch, whose key is text in TOML and JSON."""
    return table.get(number) or table.get(str(number)) or {}


def _singles(
    costs: Costs, whole: list[dict[str, float | None]], num_microbatches: int
) -> Iterator[tuple[int, int, dict[str, float | None]]]:
    """(stage, microbatch, its times) wherever a microbatch has costs of its own."""
    everywhere = {int(number): entry for number, entry in costs.microbatch.items()}
    for stage, times in enumerate(whole):
        here = {
            int(number): entry
            for number, entry in _of(costs.stage, stage).get("microbatch", {}).items()
        }
        for microbatch in sorted(everywhere.keys() | here.keys()):
            if microbatch >= num_microbatches:
                raise CostError(
                    f"microbatch {microbatch} has costs; the last microbatch is "
                    f"{num_microbatches - 1}"
                )
            own = _times_at(everywhere.get(microbatch, {}), times)
            yield stage, microbatch, _times_at(here.get(microbatch, {}), own)


def _links(
    costs: Costs, num_ranks: int
) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], float | None]]:
    alpha: dict[tuple[int, int], int] = {}
    bandwidth: dict[tuple[int, int], float | None] = {}
    for name, entry in costs.link.items():
        a, _, b = str(name).partition("-")
        link = (int(a), int(b))
        if max(link) >= num_ranks or link[0] == link[1]:
            raise CostError(f"link {name!r}: there is none; ranks are 0 to {num_ranks - 1}")
        if "alpha_us" in entry:
            alpha[link] = _ns(entry["alpha_us"])
        if "bandwidth_GBps" in entry:
            bandwidth[link] = entry["bandwidth_GBps"]
    return alpha, bandwidth


def _boundaries(given: Each, placement: Placement) -> list[float]:
    """Bytes by the lower stage of each boundary."""
    S = placement.num_stages
    if not isinstance(given, Sequence):
        return [float(given)] * S
    if len(given) not in (S, S - 1):
        raise CostError(
            f"boundary_bytes has {len(given)} numbers; {S} stages have {S - 1} boundaries"
        )
    return [*map(float, given), 0.0][:S]


def _each(value: Each | None) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _at(value: Each | None, stage: int, name: str = "", num_stages: int = 0) -> float | None:
    if not isinstance(value, Sequence):
        return value
    if num_stages and len(value) != num_stages:
        raise CostError(f"{name} has {len(value)} numbers; there are {num_stages} stages")
    return value[stage]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _check_number(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0:
        raise CostError(f"{name} = {value!r} is no cost; use a finite number, 0 or more")


def _check_bandwidth(name: str, value: Any) -> None:
    if value is None:
        return
    _check_number(name, value)
    if value == 0:
        raise CostError(f"{name} = 0 would never end; leave it out for no limit")


def _check_table(where: str, table: Any, allowed: tuple[str, ...]) -> None:
    if not isinstance(table, Mapping) or not all(isinstance(e, Mapping) for e in table.values()):
        raise CostError(f'{where} is no table; write it as [{where}.NUMBER] (link: [link."0-1"])')
    for number, entry in table.items():
        here = f"{where} {number}"
        a, dash, b = str(number).partition("-")
        if not (a.isdecimal() and (b.isdecimal() if where == "link" else not dash)):
            form = "<from rank>-<to rank>, such as 0-1" if where == "link" else "a number"
            raise CostError(f"{where} {number!r}: expected {form}")
        for key, value in entry.items():
            if key not in allowed:
                raise CostError(f"{here}: no cost {key!r}; there are {', '.join(allowed)}")
            if key == "microbatch":
                _check_table(f"{here} microbatch", value, OF_MICROBATCH)
            elif key == "bandwidth_GBps":
                _check_bandwidth(f"{here}: {key}", value)
            else:
                _check_number(f"{here}: {key}", value)
