"""Every trace of the gallery in the real Perfetto UI: all there, in order, without an error."""

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracegen
from tests.perfetto.browser import PerfettoUi
from tracegen.cli import main
from tracegen.layout import Layout, layout

KERNEL_ROWS = ("compute", "communication")

pytest_plugins = ["tests.perfetto.fixtures"]

PAGE = Path(__file__).parent.parent / "examples" / "gallery" / "README.md"
COMMANDS = re.findall(r"^    tracegen (run --schedule .* -o (\S+)\.json)$", PAGE.read_text(), re.M)
# Those that the project is named for are looked at every time, the others nightly.
FIRST = ("gpipe", "1f1b", "zb-h2", "dualpipev", "moe-1f1b-bad-overlap")


def expected(shown: Layout) -> tuple[int, int, int]:
    """How many slices, arrows and counter samples a trace holds."""
    slices = sum(1 for row in shown.rows for _ in row.slices())
    return slices, sum(1 for _ in shown.arrows()), sum(len(c.ns) for c in shown.counters())


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, id=name, marks=() if name in FIRST else pytest.mark.nightly)
        for command, name in COMMANDS
    ],
)
def test_all_of_it_is_there(
    command: str, real_ui: PerfettoUi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, [*command.split(), "--quiet"])
    assert done.exit_code == 0, done.output
    (trace,) = tmp_path.iterdir()
    kept = os.environ.get("SCREENSHOTS")  # where to keep a picture of each
    found = real_ui.load(trace, Path(kept) / f"{trace.stem}.png" if kept else None)
    line = tracegen.read(trace)
    assert (found.refused, found.import_errors, found.nested) == (None, 0, 0)
    assert (found.slices, found.flows, found.counters) == expected(layout(line))
    ranks = [f"rank {rank}" for rank in range(line.program.num_ranks)]
    assert [name for name in found.track_order if not name.endswith(KERNEL_ROWS)] == ranks
    assert found.collapsed == ()
