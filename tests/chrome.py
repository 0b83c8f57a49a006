"""Pages in a real Chromium that reach nothing but the file they show."""

import contextlib
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.perfetto.browser import FLAGS, TIMEOUT_MS, chromium, require_browser

Open = Callable[..., Any]


@contextlib.contextmanager
def browser() -> Iterator[Open]:
    """Opens files: `open(path, dark=False, width=1400)` is a page.

    Fails at the end if a page had an error, said something or asked for another file. Skips
    where there is no browser; fails in CI, which has one.
    """
    require_browser(of_perfetto=False)
    from playwright.sync_api import sync_playwright

    troubles: list[str] = []

    def opened(path: Path, dark: bool = False, width: int = 1400) -> Any:
        page = started.new_page(
            viewport={"width": width, "height": 800}, color_scheme="dark" if dark else "light"
        )
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text))
        page.on("request", lambda asked: troubles.append(asked.url))
        page.goto(path.as_uri())
        assert troubles.pop(0) == path.as_uri()
        return page

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=chromium(), headless=True, args=FLAGS, timeout=TIMEOUT_MS
        )
        yield opened
        started.close()
    assert troubles == []


def pixel(page: Any, x: float, y: float) -> str:
    """The colour of a point of the page, #rrggbb."""
    png = page.screenshot(clip={"x": round(x), "y": round(y), "width": 1, "height": 1})
    at, data = 8, b""
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        if kind == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += 12 + size
    # One pixel has no neighbours, so whatever its filter, its bytes are its channels.
    return "#" + zlib.decompress(data)[1:4].hex()
