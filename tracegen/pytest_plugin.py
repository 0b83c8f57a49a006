"""`assert_trace_matches` for pytest: a schedule's trace against a golden one.

    def test_my_schedule(assert_trace_matches):
        program = tracegen.compile("schedules/mine.py", num_ranks=4, num_microbatches=8)
        assert_trace_matches(program, "golden/mine.json.gz")

`pytest --update-traces` writes the golden traces that differ or are not there yet.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from tracegen.costs import Costs
    from tracegen.ir import Program
    from tracegen.timeline import Timeline

UPDATE = "--update-traces"


class AssertTraceMatches(Protocol):
    """What the fixture gives."""

    def __call__(
        self,
        made: Program | Timeline,
        golden: str | Path,
        *,
        costs: Costs | None = None,
        times: str = "exact",
    ) -> None:
        """Fail with a report if what was made is not what the golden trace says.

        Args:
            made: a program, which is replayed, or a timeline.
            golden: a trace, relative to the folder of the test.
            costs: of the replay of a program.
            times: how far times may be apart: exact, order-only or a percentage such as 5%.
        """


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --update-traces."""
    group = parser.getgroup("tracegen")
    group.addoption(UPDATE, action="store_true", help="write golden traces that differ")


@pytest.fixture
def assert_trace_matches(request: pytest.FixtureRequest) -> AssertTraceMatches:
    """A function that fails if a program or timeline is not what a golden trace says."""
    folder, update = request.path.parent, bool(request.config.getoption(UPDATE))

    def matches(
        made: Program | Timeline,
        golden: str | Path,
        *,
        costs: Costs | None = None,
        times: str = "exact",
    ) -> None:
        from tracegen.ir import Program

        if isinstance(made, Program):
            from tracegen.engine import replay

            made = replay(made, costs)
        _compare(made, folder / golden, times, update)

    return matches


def _compare(made: Timeline, golden: Path, times: str, update: bool) -> None:
    from tracegen.comparison import report
    from tracegen.differ import diff
    from tracegen.emit import write
    from tracegen.errors import TracegenError

    if not golden.exists() and not update:
        pytest.fail(f"there is no {golden}; write it with `pytest {UPDATE}`", pytrace=False)
    try:
        found = diff(golden, made, times) if golden.exists() else None
    except TracegenError as error:
        pytest.fail(str(error), pytrace=False)
    if found is not None and found.same:
        return
    if update:
        write(made, golden)
        return
    assert found is not None
    lines = "\n".join(report.text(found))
    pytest.fail(f"{golden}\n{lines}\n\nif it is meant: `pytest {UPDATE}`", pytrace=False)
