"""The gallery: its pictures and traces are what its commands make now."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

GALLERY = Path(__file__).parent.parent / "examples" / "gallery"
PAGE = (GALLERY / "README.md").read_text("utf-8")
ENTRIES = PAGE.split("\n## ")[1:]


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery_make", GALLERY / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_pictures_are_what_the_commands_make(
    make: ModuleType, tmp_path: Path
) -> None:
    make.make(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in GALLERY.glob("*.svg")}
    assert made.keys() == committed.keys()
    changed = [name for name in made if made[name] != committed[name]]
    assert changed == [], "python examples/gallery/make.py makes them again"


def test_the_trace_commands_make_a_trace_for_every_picture(
    make: ModuleType, tmp_path: Path
) -> None:
    make.make(tmp_path, traces=True)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.with_suffix(".json").name for path in GALLERY.glob("*.svg"))
    for path in tmp_path.iterdir():
        assert json.loads(path.read_text())["traceEvents"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.split("\n")[0])
def test_an_entry_has_its_commands_its_picture_and_what_to_look_at(entry: str) -> None:
    trace, picture, shown = (
        re.search(pattern, entry, re.M)
        for pattern in (
            r"^    tracegen run --schedule (.*) -o (\S+)\.json$",
            r"^    tracegen show (.*?)(?: --arrows)?(?: --memory)? --svg (\S+)\.svg$",
            r"^!\[.+\]\((\S+)\.svg\)$",
        )
    )
    assert trace is not None
    assert picture is not None
    assert shown is not None
    assert trace.groups() == picture.groups()
    assert shown[1] == trace[2]
    text = entry[shown.end() :].strip()
    assert 2 <= len(re.findall(r"[.;:?!](?:\s|$)", text)) <= 6


def test_the_schedules_that_the_project_is_named_for_are_there() -> None:
    named = {"gpipe", "1f1b", "zb-h1", "zb-h2", "zbv", "dualpipe", "dualpipev", "chimera"}
    named |= {"moe-1f1b-bad-overlap", "interleaved-1f1b", "v-half", "v-min", "hanayo"}
    assert named <= {path.stem for path in GALLERY.glob("*.svg")}
