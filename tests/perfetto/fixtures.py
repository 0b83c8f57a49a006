"""Fixtures that a test module asks for with `pytest_plugins = ["tests.perfetto.fixtures"]`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.perfetto import sample
from tests.perfetto.awkward import Traces
from tests.perfetto.browser import PerfettoUi, require_browser
from tests.perfetto.processor import Engine


@pytest.fixture(scope="session")
def real_ui() -> Iterator[PerfettoUi]:
    """The real Perfetto UI in Chromium, started once for all tests."""
    require_browser()
    with PerfettoUi() as ui:
        yield ui


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The real trace processor, started once for all tests."""
    return Engine()


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """Traces of the shipped schedules with awkward costs, each written once."""
    return Traces(tmp_path_factory.mktemp("traces"))


@pytest.fixture(scope="session")
def sample_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1F1B on 3 ranks with 4 microbatches, F = 100 us and B = 200 us."""
    return sample.write(tmp_path_factory.mktemp("sample") / "sample.json")


@pytest.fixture(scope="session")
def broken_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but two tiles of rank 1 overlap by 1 ns."""
    return sample.write(tmp_path_factory.mktemp("broken") / "broken.json", overlap_ns=1)
