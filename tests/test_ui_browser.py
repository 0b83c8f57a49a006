"""The real Perfetto UI, in a real browser: what it makes of a trace, and who may read from us."""

import contextlib
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perfetto import colours, processor
from tests.perfetto.browser import PerfettoUi
from tracegen.ui.query import views
from tracegen.ui.serve import PORT, PUBLIC_UI, TraceServer, running

pytest_plugins = ["tests.perfetto.fixtures"]

MAY_READ_LOCALLY = ("local-network-access",)


@pytest.fixture
def served(sample_trace: Path) -> Iterator[TraceServer]:
    """The sample on the one port that ui.perfetto.dev may read; waits while another test has it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", PORT)):
            break
        time.sleep(0.2)
    else:
        pytest.skip(f"port {PORT} of this machine is taken")
    with running(TraceServer(sample_trace)) as server:
        yield server


def test_offline_ui_shows_the_whole_trace(
    real_ui: PerfettoUi, sample_trace: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "sample.png"
    shown = real_ui.load(sample_trace, picture, (f"{views()} SELECT ratio FROM tracegen_bubble;",))
    assert shown.refused is None
    assert (shown.import_errors, shown.slices, shown.nested) == (0, 24, 0)
    assert (shown.flows, shown.counters) == (16, 24)
    assert shown.track_order == ("rank 00", "rank 01", "rank 02")
    assert shown.collapsed == ()
    assert shown.visible == shown.extent == (0, 1_800_000)
    assert shown.answers[0][0][0] == pytest.approx(1 / 3)
    assert picture.stat().st_size > 10_000


def test_one_nanosecond_of_overlap_is_seen(real_ui: PerfettoUi, broken_trace: Path) -> None:
    shown = real_ui.load(broken_trace)
    assert (shown.import_errors, shown.slices) == (1, 23)
    assert processor.import_problems(broken_trace) == [("slice_drop_overlapping_complete_event", 1)]


def test_a_truncated_trace_is_refused(
    real_ui: PerfettoUi, sample_trace: Path, tmp_path: Path
) -> None:
    truncated = tmp_path / "truncated.json"
    truncated.write_bytes(sample_trace.read_bytes()[:-200])
    assert "JSON trace file is incomplete" in (real_ui.load(truncated).refused or "")


def test_public_ui_gets_the_trace(real_ui: PerfettoUi, served: TraceServer) -> None:
    shown = real_ui.visit(served.link, (served_at(served),), permissions=MAY_READ_LOCALLY)
    assert (shown.refused, shown.slices, shown.collapsed) == (None, 24, ())
    assert served.delivered.wait(60)


def test_another_page_gets_nothing(
    real_ui: PerfettoUi, served: TraceServer, sample_trace: Path
) -> None:
    url = served_at(served) + served.trace_path
    assert real_ui.fetch(PUBLIC_UI, url, MAY_READ_LOCALLY) == sample_trace.read_text()
    assert served.delivered.wait(60)
    served.delivered.clear()
    for page in ("https://other.example", "https://perfetto.dev"):
        assert real_ui.fetch(page, url, MAY_READ_LOCALLY) == "TypeError: Failed to fetch"
    assert not served.delivered.is_set()


def served_at(server: TraceServer) -> str:
    """The address of a server."""
    return f"http://127.0.0.1:{server.port}"


def test_predicted_colours() -> None:
    """What the UI was seen to paint: F and B alike, forward and backward apart."""
    hues = {name: colours.colour(name)[0] for name in ("F3", "B12", "W", "forward", "backward")}
    assert hues == {"F3": 65, "B12": 61, "W": 230, "forward": 126, "backward": 208}
    assert colours.hue_distance("bwd", "wgrad") == 0
