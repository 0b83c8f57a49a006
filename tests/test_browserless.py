"""Without a browser `make test` passes, and says which tests it skipped; CI fails."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from chrome import browser

from tests.perfetto.browser import require_browser


def open_a_page() -> None:
    with browser():
        pass


@pytest.mark.parametrize("needs", [require_browser, open_a_page])
def test_skipped_except_in_ci(needs: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    reason = "needs a browser: no Chromium or Chrome on the path"
    for elsewhere in ("", "false"):
        monkeypatch.setenv("CI", elsewhere)
        with pytest.raises(pytest.skip.Exception, match=f"^{reason}$"):
            needs()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=f"^{reason}; CI must have it$"):
        needs()
