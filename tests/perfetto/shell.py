"""A stand-in for trace_processor_shell: the same HTTP interface, answered by the wasm build.

It lets the tests run the official client's way to a native shell where none can be downloaded.
usage: python -m tests.perfetto.shell -D --http-port PORT
"""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

from tracegen.ui import trace_processor, wasm

METHODS = {
    "/status": trace_processor.STATUS,
    "/parse": trace_processor.APPEND_DATA,
    "/query": trace_processor.QUERY,
    "/notify_eof": trace_processor.FINALIZE_DATA,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    processor: ClassVar[wasm.WasmProcessor]
    lock: ClassVar = threading.Lock()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.lock:
            if self.path == "/rpc":
                reply = self.processor.rpc(body)
            else:
                reply = trace_processor.call(self.processor.rpc, METHODS[self.path], body)
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    Handler.processor = wasm.WasmProcessor()
    address = ("localhost", int(sys.argv[sys.argv.index("--http-port") + 1]))
    ThreadingHTTPServer(address, Handler).serve_forever()
