"""Hand one trace to the Perfetto UI: the public page, or the installed one without any network.

ui.perfetto.dev may read from this machine only on port 9001 (its Content-Security-Policy), and a
browser lets it only when the server names it in a CORS header. So the trace is served there, to
that page and to nobody else: a request from another page, by another host name (DNS rebinding) or
for anything else is refused.
"""

import contextlib
import http.server
import json
import mimetypes
import os
import shutil
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, ClassVar

from tracegen.errors import FileError, ServeError

PUBLIC_UI = "https://ui.perfetto.dev"
PORT = 9001
LOOPBACK = "127.0.0.1"
TRACE_FOLDER = "/trace/"

EXPAND_ALL = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": ["."]}]
"""Startup commands: every track open. The whole trace is in view by default."""

OFFLINE_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self' data: blob:; worker-src 'self' blob:"
)
"""Keeps the installed UI from asking for anything outside, such as its usage statistics."""


def deep_link(trace_url: str, ui: str = PUBLIC_UI) -> str:
    """The address that opens the trace at `trace_url` in a Perfetto UI, tracks expanded."""
    commands = json.dumps(EXPAND_ALL, separators=(",", ":"))
    arguments = {"url": trace_url, "startupCommands": commands}
    query = urllib.parse.urlencode(arguments, quote_via=urllib.parse.quote, safe=":/")
    return f"{ui}/#!/?{query}"


def link_to_published(url: str) -> str:
    """The deep link for a trace that is published at `url`.

    Raises:
        ServeError: ui.perfetto.dev cannot read from such an address.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" or not parts.hostname:
        raise ServeError(f"--link: '{url}' is no https address; ui.perfetto.dev reads no other")
    return deep_link(url)


def local_link(trace: Path, offline: bool = False, port: int = PORT) -> str:
    """The address that opens a trace while this machine serves it on `port`."""
    here = f"http://{LOOPBACK}:{port}"
    return deep_link(here + trace_path(trace), here if offline else PUBLIC_UI)


def trace_path(trace: Path) -> str:
    """Where a trace is on the server. Apart from every file of the UI."""
    return TRACE_FOLDER + urllib.parse.quote(os.fsencode(trace.name))


class TraceServer(http.server.ThreadingHTTPServer):
    """Serves one trace on loopback, and with `ui` the files of an installed Perfetto UI as well.

    Attributes:
        delivered: set when the trace has been sent whole.
        asked: set at the first request of any kind.

    Raises:
        FileError: there is no such trace.
        ServeError: the port is taken.
    """

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # on Windows it would let two servers share the port

    def __init__(self, trace: Path, ui: Path | None = None, port: int = PORT) -> None:
        if not trace.is_file():
            raise FileError(f"{trace}: no such file")
        self.trace = trace.resolve()
        self.trace_path = trace_path(trace)
        self.ui = ui.resolve() if ui else None
        self.delivered = threading.Event()
        self.asked = threading.Event()
        try:
            super().__init__((LOOPBACK, port), TraceHandler)
        except OSError as error:
            raise ServeError(
                f"port {port} of this machine is taken, perhaps by another `tracegen open` or a "
                "trace_processor_shell; end that one, or use --offline --port N"
            ) from error
        self.port: int = self.server_address[1]
        own = f"http://{LOOPBACK}:{self.port}"
        self.origin = own if self.ui else PUBLIC_UI
        self.link = local_link(trace, offline=self.ui is not None, port=self.port)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up is no error; anything else is a bug and shows itself."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextlib.contextmanager
def running(server: TraceServer) -> Iterator[TraceServer]:
    """The server at work in a thread; the port is free again at the end."""
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class TraceHandler(http.server.BaseHTTPRequestHandler):
    """Answers for the trace and the UI's files, refuses the rest."""

    server: TraceServer
    server_version = "tracegen"
    sys_version = ""
    timeout = 60
    TYPES: ClassVar = {
        ".html": "text/html",
        ".js": "text/javascript",
        ".css": "text/css",
        ".wasm": "application/wasm",
        ".woff2": "font/woff2",
    }

    def do_GET(self) -> None:
        """The trace, or a file of the UI."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """The same without the body."""
        self._answer(with_body=False)

    def do_POST(self) -> None:
        """What the UI sends to ask whether a trace processor is here: there is none."""
        self._refuse(HTTPStatus.NOT_FOUND, "nothing to post to")

    def do_OPTIONS(self) -> None:
        """A browser asks whether the page may read from here. Chrome's older form needs a yes."""
        if not self._is_welcome():
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self._send_cors()
        self.send_header("Access-Control-Allow-Methods", "GET, HEAD")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self.send_header("Access-Control-Max-Age", "600")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the command line says what matters."""

    def _answer(self, with_body: bool) -> None:
        self.server.asked.set()
        if not self._is_welcome():
            return
        path = urllib.parse.urlsplit(self.path).path
        is_trace = urllib.parse.unquote(path) == urllib.parse.unquote(self.server.trace_path)
        file = self.server.trace if is_trace else self._ui_file(urllib.parse.unquote(path))
        if file is None:
            self._refuse(HTTPStatus.NOT_FOUND, "nothing here")
            return
        try:
            source = file.open("rb")
        except OSError:
            self._refuse(HTTPStatus.NOT_FOUND, "the file is gone")
            return
        with source:
            self._send(source, file.suffix, with_body)
        if is_trace and with_body:
            self.server.delivered.set()

    def _send(self, source: BinaryIO, suffix: str, with_body: bool) -> None:
        guessed = mimetypes.guess_type("x" + suffix)[0] or "application/octet-stream"
        self.send_response(HTTPStatus.OK)
        self._send_cors()
        self.send_header("Content-Type", self.TYPES.get(suffix, guessed))
        self.send_header("Content-Length", str(os.fstat(source.fileno()).st_size))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.server.ui:
            self.send_header("Content-Security-Policy", OFFLINE_POLICY)
        self.end_headers()
        if with_body:
            shutil.copyfileobj(source, self.wfile, 1 << 20)

    def _send_cors(self) -> None:
        self.send_header("Access-Control-Allow-Origin", self.server.origin)
        self.send_header("Vary", "Origin")

    def _ui_file(self, path: str) -> Path | None:
        """The file of the UI at a path, if it is one: never a folder or something outside."""
        ui = self.server.ui
        if ui is None or "\0" in path:
            return None
        file = (ui / (path.lstrip("/") or "index.html")).resolve()
        return file if ui in file.parents and file.is_file() else None

    def _is_welcome(self) -> bool:
        """Refuse a foreign host name and a foreign page; a request from no page is fine."""
        port = self.server.port
        if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
            self._refuse(HTTPStatus.FORBIDDEN, "this server has another name")
            return False
        origin = self.headers.get("Origin")
        from_foreign_page = self.headers.get("Sec-Fetch-Site") in ("cross-site", "same-site")
        if origin == self.server.origin or (origin is None and not from_foreign_page):
            return True
        self._refuse(HTTPStatus.FORBIDDEN, f"this trace is for {self.server.origin} only")
        return False

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        body = f"{reason}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
