"""A small trace by hand: 1F1B as the layout asks for it, so that these tests need no emitter."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PIPELINE_PID = 1000
Event = dict[str, Any]


def order(rank: int, num_ranks: int, num_microbatches: int) -> list[tuple[str, int]]:
    """What one rank of 1F1B computes, in order."""
    warmup = min(num_ranks - rank, num_microbatches)
    cells = [("F", microbatch) for microbatch in range(warmup)]
    for microbatch in range(num_microbatches):
        cells.append(("B", microbatch))
        if warmup + microbatch < num_microbatches:
            cells.append(("F", warmup + microbatch))
    return cells


def tiles(num_ranks: int, num_microbatches: int, f_ns: int, b_ns: int) -> list[Event]:
    """Every action with its start, end and what it waited for; times in nanoseconds."""
    waiting = [order(rank, num_ranks, num_microbatches) for rank in range(num_ranks)]
    free = [0] * num_ranks
    ends: dict[tuple[str, int, int], int] = {}
    done: list[Event] = []
    while any(waiting):
        for rank, cells in enumerate(waiting):
            while cells:
                op, microbatch = cells[0]
                source = rank - 1 if op == "F" else rank + 1
                needed = (op, source, microbatch) if 0 <= source < num_ranks else None
                if needed and needed not in ends:
                    break
                start = max(free[rank], ends[needed] if needed else 0)
                end = start + (f_ns if op == "F" else b_ns)
                done.append(
                    {"rank": rank, "op": op, "microbatch": microbatch, "start": start, "end": end}
                    | {"wait": start - free[rank], "needed": needed}
                )
                free[rank] = ends[op, rank, microbatch] = end
                cells.pop(0)
    return done


def events(tile_list: list[Event], num_ranks: int) -> Iterator[Event]:
    """The trace events: names, tiles, arrows and one counter per rank."""
    yield _meta("process_name", 0, {"name": "pipeline"})
    for rank in range(num_ranks):
        yield _meta("thread_name", rank + 1, {"name": f"rank {rank:02d}"})
    starts = {(t["op"], t["rank"], t["microbatch"]): t["start"] for t in tile_list}
    in_flight = [0] * num_ranks
    for number, tile in enumerate(tile_list):
        rank, needed = tile["rank"], tile["needed"]
        args = {name: tile[name] for name in ("rank", "op", "microbatch")}
        args |= {"stage": rank, "chain": 0, "phase": "steady"}
        if tile["wait"]:
            waited_for = f"{needed[1]}{needed[0]}{needed[2]}"
            args |= {"waited_for": waited_for, "wait_us": tile["wait"] / 1000}
        duration = _us(tile["end"] - tile["start"])
        name = f"{tile['op']}{tile['microbatch']}"
        yield _event("X", rank, tile["start"], name, dur=duration, cat="compute", args=args)
        if needed:
            arrow = {"id": number + 1, "cat": "p2p"}
            yield _event("s", needed[1], starts[needed], "send", **arrow)
            yield _event("f", rank, tile["start"], "send", bp="e", **arrow)
        forward = tile["op"] == "F"
        in_flight[rank] += 1 if forward else -1
        at = tile["start"] if forward else tile["end"]
        yield _event("C", rank, at, f"in flight {rank:02d}", args={"stages": in_flight[rank]})


def write(
    path: Path,
    num_ranks: int = 3,
    num_microbatches: int = 4,
    f_ns: int = 100_000,
    b_ns: int = 200_000,
    overlap_ns: int = 0,
) -> Path:
    """Write the trace; `overlap_ns` lengthens the first tile of rank 1 into its second."""
    tile_list = tiles(num_ranks, num_microbatches, f_ns, b_ns)
    next(tile for tile in tile_list if tile["rank"] == 1)["end"] += overlap_ns
    document = {"traceEvents": list(events(tile_list, num_ranks))}
    path.write_text(json.dumps(document))
    return path


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _event(kind: str, rank: int, at_ns: int, name: str, **more: object) -> Event:
    where = {"pid": PIPELINE_PID, "tid": rank + 1, "ts": _us(at_ns)}
    return {"ph": kind, "name": name} | where | more


def _meta(name: str, tid: int, args: Event) -> Event:
    return {"ph": "M", "pid": PIPELINE_PID, "tid": tid, "name": name, "args": args}
