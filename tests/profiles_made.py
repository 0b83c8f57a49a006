"""Profiles made by hand in the formats that GPU runs are recorded in, from a replayed timeline."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from tracegen.ir import KIND_MASK, KINDS, MICROBATCH_SHIFT, NO_MATE, STAGE_MASK, STAGE_SHIFT
from tracegen.ir import F as FORWARD
from tracegen.timeline import Timeline

Event = dict[str, Any]
LATE = 40  # us from a launch to its kernel, at least
MAIN, AUTOGRAD = 77, 78


def kineto(
    line: Timeline,
    rank: int,
    *,
    skew_us: float = 0,
    correlation: bool = True,
    comm: bool = True,
    prefix: str = "PP:",
    base: float = 5_000_000.0,
) -> list[Event]:
    """The events of a rank on a GPU: the host runs ahead, kernels run when the timeline says.

    Each action is a range on the main thread in which it launches two kernels, a backward's
    from autograd's thread, on two streams; it is launched 100 us after the one before, while
    receives are kernels on a stream of their own that end when their input is there.
    """
    events: list[Event] = []
    number = 1000 * rank
    now = base + skew_us
    program = line.program
    first, last = program.offsets[rank : rank + 2]
    for step in range(first, last):
        code, mate = (
            program.ranks[rank].codes[step - first],
            program.ranks[rank].mates[step - first],
        )
        start, end = (
            base + skew_us + of[step] / 1000 + 10_000 for of in (line.start_ns, line.end_ns)
        )
        name = f"{prefix}{program.ranks[rank][step - first]}"
        range_start = now
        thread = MAIN if code & KIND_MASK == FORWARD and mate == NO_MATE else AUTOGRAD
        middle = (start + end) / 2
        for stream, (a, b) in ((7, (start, middle)), (20, (middle, end))):
            number += 1
            events += _launch(now + 10, thread, number, correlation)
            events += _kernel("sm90_gemm", stream, a, b, number, correlation)
            now += 20
        now += 30
        events.append(_x("user_annotation", name, MAIN, range_start, now))
        # The same range as the device's: it must not be read as another action.
        events.append(_x("gpu_user_annotation", name, 7, start, end, pid=0))
        now += 30
    if comm:
        events += _messages(line, rank, base + skew_us, now, number)
    return events


def _transfers(line: Timeline, rank: int) -> Iterator[tuple[str, int, int]]:
    """What a rank sends and receives, as `PP:0SEND_F2`: from when to when it is under way, ns."""
    for one in line.transfers():
        for step, verb in ((one.source, "SEND"), (one.target, "RECV")):
            program = line.program
            if program.rank_of_step(step) != rank:
                continue
            at = step - program.offsets[rank]
            codes = (program.ranks[rank].codes[at], program.ranks[rank].mates[at])
            code = next(c for c in codes if c >= 0 and (c & KIND_MASK == FORWARD) == one.forward)
            stage, mb = code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
            name = f"PP:{stage}{verb}_{'F' if one.forward else 'B'}{mb}"
            yield name, one.start_ns, one.end_ns


def _messages(line: Timeline, rank: int, zero: float, now: float, number: int) -> Iterator[Event]:
    """NCCL's kernels, launched in ranges of their own after all else."""
    for name, *span in _transfers(line, rank):
        number += 1
        start, end = (zero + ns / 1000 + 10_000 for ns in span)
        yield from _launch(now + 5, MAIN, number, True)
        yield from _kernel("ncclDevKernel_SendRecv(...)", 30, start, end, number, True)
        yield _x("user_annotation", name, MAIN, now, now + 20)
        now += 30


PERIOD = 100_000  # us from a replay of a graph to the next


def graph(
    line: Timeline, rank: int, *, replays: int = 1, skew_us: float = 0, nodes: bool = True
) -> list[Event]:
    """A rank's events where each step is the replay of one CUDA graph.

    The host launches every replay at once, long before; the actions are annotations of kernels.
    Each action has two kernels that compute, on two streams, and before them a memset that needs
    no input; beside them a collective and, after the first, a kernel without an annotation. A
    receive is there 200 us early and lasts until its input has come.
    """
    events: list[Event] = []
    program = line.program
    first, last = program.offsets[rank : rank + 2]
    for replay in range(replays):
        call, zero = 50 + replay, 5_010_000.0 + skew_us + replay * PERIOD
        launch = 5_000_000.0 + skew_us + 100 * replay
        events.append(_x("user_annotation", f"ProfilerStep#{replay}", MAIN, launch, launch + 90))
        (_, api, flow) = _launch(launch + 20, MAIN, call, True)
        events += [{**api, "name": "cudaGraphLaunch"}, flow]
        spans = [("all-gather", "PP:0UNSHARD", -900, -500)]
        for step in range(first, last):
            action = f"PP:{program.ranks[rank][step - first]}"
            start, end = line.start_ns[step] / 1000, line.end_ns[step] / 1000
            middle = (start + end) / 2
            spans += [
                ("gemm", action, start, middle),
                ("gemm", action, middle - 2, end),
                ("ncclDevKernel_AllReduce", action, middle, end + 7),
                ("copy", "", middle, middle + 1),
            ]
            if step > first and line.start_ns[step] > line.end_ns[step - 1]:
                spans.append(("Memset (Device)", action, start - 5, start - 4))
        for name, start, end in _transfers(line, rank):
            early = 200 if "RECV" in name else 0
            spans.append(("ncclDevKernel_SendRecv", name, start / 1000 - early, end / 1000))
        for node, (kernel, action, start, end) in enumerate(spans):
            event, _ = _kernel(kernel, 100 + node, zero + start, zero + end, call, nodes)
            if nodes:
                event["args"] |= {"graph id": 3, "graph node id": (3 << 32) + node + 1}
            if kernel.startswith("Memset"):
                event["cat"] = "gpu_memset"
            if action:
                event["args"]["name"] = action
            events.append(event)
    return events


def _x(cat: str, name: str, tid: int, start: float, end: float, **more: Any) -> Event:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": more.pop("pid", 4242),
        "tid": tid,
        "ts": start,
        "dur": round(end - start, 3),
        "args": more,
    }


def _launch(ts: float, tid: int, number: int, correlation: bool) -> list[Event]:
    args = {"correlation": number, "cbid": 211} if correlation else {"cbid": 211}
    event = _x("cuda_runtime", "cudaLaunchKernel", tid, ts, ts + 5, **args)
    flow = {
        "ph": "s",
        "id": number,
        "pid": 4242,
        "tid": tid,
        "ts": ts,
        "cat": "ac2g",
        "name": "ac2g",
    }
    operator = _x("cpu_op", "aten::mm", tid, ts - 2, ts + 6)
    return [operator, event, flow]


def _kernel(
    name: str, stream: int, start: float, end: float, number: int, correlation: bool
) -> list[Event]:
    args: dict[str, Any] = {"device": 0, "stream": stream}
    if correlation:
        args["correlation"] = number
    event = _x("kernel", name, stream, start, end, pid=0, **args)
    flow = {
        "ph": "f",
        "id": number,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "cat": "ac2g",
        "name": "ac2g",
        "bp": "e",
    }
    return [event, flow]


def write(path: Path, events: list[Event], **about: Any) -> Path:
    """A file of torch.profiler's form."""
    head = {"schemaVersion": 1, "deviceProperties": [], **about}
    text = json.dumps({**head, "traceEvents": events, "traceName": "made by hand"}, indent=1)
    path.write_bytes(gzip.compress(text.encode(), 1) if path.suffix == ".gz" else text.encode())
    return path


def info(rank: int, world: int, groups: dict[str, list[int]]) -> dict[str, Any]:
    """`distributedInfo` as torch 2.4 and later have it."""
    config = [
        {"pg_name": str(at), "pg_desc": name, "backend_config": "cuda:nccl", "ranks": ranks}
        for at, (name, ranks) in enumerate(groups.items())
    ]
    return {
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": world,
            "pg_count": len(config),
            "pg_config": config,
        }
    }


def megatron(line: Timeline, folder: Path, *, chunks: bool, replica: int = 0) -> None:
    """Timer dumps as the public patch of Megatron-LM writes them."""
    program = line.program
    p, v = program.num_ranks, program.stages_per_rank
    for rank, stream in enumerate(program.ranks):
        said = {}
        for step, code in enumerate(stream.codes, program.offsets[rank]):
            op = "forward" if code & KIND_MASK == FORWARD else "backward"
            stage, mb = code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
            key = f"{op}-{stage // p}-{mb}" if chunks else f"{op}-{mb}"
            said[f"{key}-start"] = line.start_ns[step] / 1e6
            said[f"{key}-end"] = line.end_ns[step] / 1e6
        name = (
            f"event_times_PP{p}_VPP{v}_TPxCPxDP_rank_{replica}_pp_rank_{rank}"
            f"_rank_{rank * 2 + replica}.json"
        )
        (folder / name).write_text(json.dumps(said))


def stragglers(
    line: Timeline, *, dp: int = 1, tp: int = 1, steps: int = 1, apart: bool = True
) -> list[Event]:
    """A timeline as StragglerAnalysis writes it, of dp x pp x tp ranks.

    Every pipeline is 10 us later than the one before, every step 100 us longer in its first
    action. `apart`: whether the steps follow each other, or each is counted from its beginning.
    """
    events: list[Event] = []
    program = line.program
    p, names = program.num_ranks, {"F": "forward", "B": "backward", "I": "backward"}
    for rank in range(dp * tp * p):
        place, data, tensor = rank // (dp * tp), rank // tp % dp, rank % tp
        for step in range(steps):
            zero = 10 * (rank % (dp * tp)) + step * apart * line.makespan_ns
            times = zip(
                program.ranks[place].codes,
                line.start_ns[program.offsets[place] :],
                line.end_ns[program.offsets[place] :],
                strict=False,
            )
            for code, start, end in times:
                kind = KINDS[code & KIND_MASK].value
                name = f"{names.get(kind, 'backward-wgrad')}-compute"
                stage, mb = code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
                early = 100 * step if start == 0 else 0
                span = zero + start / 1000 - early, zero + end / 1000
                args = {"step": 20 + step, "model_chunk": stage // p, "mb_id": mb, "seq_id": mb}
                events.append(_x(name, name, 5 * rank, *span, pid=data, **args))
            args = {"step": 20 + step, "model_chunk": -1, "mb_id": -1, "seq_id": 0}
            events.append(_x("gc", "gc", 5 * rank, zero, zero, pid=data, **args))
            events.append(_x("forward-send", "forward-send", 5 * rank + 1, 0, 1, pid=data, **args))
        for at, what in enumerate(("compute", "pp-comm", "tp-comm", "dp-comm", "misc")):
            name = {"name": f"PP rank {place}, TP rank {tensor}, {what}"}
            of = {"ph": "M", "name": "thread_name", "pid": data, "tid": 5 * rank + at}
            events.append({**of, "args": name})
    return events


def nsys(
    path: Path, line: Timeline, ranks: list[int], *, kernels: bool, text_ids: bool = True
) -> None:
    """An export of Nsight Systems with a range an action, of the form of its SQLite schema."""
    with closing(sqlite3.connect(path)) as base:
        base.executescript(
            """
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
            CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER,
                text TEXT, textId INTEGER, globalTid INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER,
                globalTid INTEGER, correlationId INTEGER);
            CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER,
                globalPid INTEGER, correlationId INTEGER, shortName INTEGER);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1790000000000000000);
            INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_SendRecv');
            """
        )
        if not kernels:
            base.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
        for rank in ranks:
            _nsys_rank(base, line, rank, kernels, text_ids)
        base.commit()


def _nsys_rank(
    base: sqlite3.Connection, line: Timeline, rank: int, kernels: bool, text_ids: bool
) -> None:
    process = (100 + rank) << 24
    program, now = line.program, 0
    words = {"F": "fwd", "B": "bwd"}
    for step, code in enumerate(program.ranks[rank].codes, program.offsets[rank]):
        op = words[KINDS[code & KIND_MASK].value]
        stage, mb = code >> STAGE_SHIFT & STAGE_MASK, code >> MICROBATCH_SHIFT
        text, number = f"step stage={stage} {op} mb={mb}", 10 + step
        start, end = line.start_ns[step] + 10_000_000, line.end_ns[step] + 10_000_000
        span = (now, now + 50_000) if kernels else (start, end)
        row = (*span, 59, None if text_ids else text, number if text_ids else None, process + 7)
        base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
        base.execute("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", (number, text))
        base.execute(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, 'optimizer', NULL, ?)",
            (span[0], span[1], process + 7),
        )
        if kernels:
            for name, thread in ((1, 7), (2, 9)):
                launch = (now + 10_000, now + 12_000, process + thread, step * 2 + name)
                base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?)", launch)
                late = 0 if name == 1 else 5_000_000
                base.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?)",
                    (start, end + late, process, step * 2 + name, name),
                )
        now += 60_000


PATTERN = r"stage=(?P<stage>\d+) (?P<op>fwd|bwd) mb=(?P<mb>\d+)"
