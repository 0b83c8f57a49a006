"""Schedules of a user's own file and of other distributions, and what may be wrong with them."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from command import process, refusal, run

from tracegen import registry
from tracegen.errors import ScheduleError


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# A user's own file

MINE = """
from tracegen.order import Order, Pipe
from tracegen.schedule import schedule

@schedule("mine", paper="none")
def mine(rank: int, pipe: Pipe) -> Order:
    (stage,) = pipe.stages(rank)
    return [stage.F, stage.B] * pipe.num_microbatches
"""


README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def test_the_readmes_is_1f1b() -> None:
    start = README.index('"""Mine: ')
    name = mine(README[start : README.index("```", start)])
    for sizes in ((), ("-p", 2, "-m", 1), ("-p", 3, "-m", 8)):
        assert run("export", name, *sizes).stdout == run("export", "1f1b", *sizes).stdout


def mine(text: str, name: str = "mine.py") -> str:
    Path(name).write_text(text)
    return f"./{name}"


def test_a_users_own_schedule() -> None:
    found = run("run", "-s", mine(MINE), "-p", 2, "-m", 2)
    assert found.exit_code == 0
    assert found.stdout.startswith("mine   p=2 m=2 v=1   2 stages, loop placement\n")
    about = json.loads(Path("mine.json").read_text())["otherData"]
    assert about["program"] == ["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"]
    assert run("check", "mine.py").stdout == ("mine.py: sound: p=4 m=8 v=1, loop placement\n")


def test_a_file_without_its_ending_is_no_typo_of_a_schedules_name() -> None:
    mine(MINE)
    for command in ("run", "compare"):
        assert refusal(command, "-s", "mine") == (
            "no schedule 'mine'; of the file give the whole name: mine.py"
        )
    Path("mine.csv").touch()
    assert refusal("show", "./mine") == (
        "./mine: no such file; give the whole name: ./mine.py or ./mine.csv"
    )
    assert refusal("export", "./mine") == (
        "no schedule './mine'; of the file give the whole name: ./mine.py or ./mine.csv"
    )


def test_a_schedule_needs_no_paper() -> None:
    (found,) = registry.load_file(Path(mine(MINE.replace(', paper="none"', ""))))
    assert (found.name, found.paper) == ("mine", "")
    assert run("run", "-s", "mine.py", "-p", 2, "-m", 2).exit_code == 0


ORDER = MINE.partition("    (stage,)")[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def x(:\n", "mine.py, line 1: SyntaxError: invalid syntax"),
        ("x = 1\n", "mine.py defines no schedule; mark a function of (rank, pipe) with @schedule"),
        ("import nothing_there\n", "mine.py, line 1: ModuleNotFoundError: No module named "),
        ("x = 1\nraise SystemExit(3)\n", "mine.py, line 2: SystemExit: 3"),
        ("x = open('no')\n", "mine.py, line 1: FileNotFoundError: [Errno 2] No such file"),
        (
            MINE + MINE.replace('"mine"', '"other"').replace("def mine", "def other"),
            "./mine.py defines 2 schedules (mine, other); keep one",
        ),
        (
            MINE.replace('"mine", ', ""),
            "mine.py, line 5: TypeError: schedule() missing 1 required positional argument: 'name",
        ),
        (f"{ORDER}    return 1 / 0\n", "mine, rank 0, {here}, line 7: ZeroDivisionError: division"),
        (f"{ORDER}    pass\n", "mine, rank 0: its order is None; return a list of slots"),
        (f"{ORDER}    return 'FB'\n", "mine, rank 0: its order is 'FB'; return a list of slots"),
        (f"{ORDER}    return [1]\n", "mine, rank 0: 1 is no cell; use slots such as stage.F, "),
        (f"{ORDER}    return [[]]\n", "mine, rank 0: a list stands in its order; join lists by +"),
        (
            f"{ORDER}    return [s.W for s in pipe.stages(rank)]\n",
            "mine, rank 0: a W of stage 0 stands where no I is owed one; put it after an I",
        ),
        (
            MINE.replace("import Order", "import overlap, Order").replace(
                "[stage.F, stage.B]", "[overlap(stage.B, stage.F)]"
            ),
            "mine, rank 0: a pair is of two slots of stages, first an F",
        ),
        (
            MINE.replace("(rank: int, pipe: Pipe)", "()"),
            "mine, rank 0: TypeError: mine() takes 0 positional arguments but 2 were given",
        ),
        (
            MINE.replace('"none"', '"none", place=lambda p, v: None'),
            "mine: place gives None, which is no Placement",
        ),
        (
            MINE.replace('"none"', '"none", example=(0, 0)'),
            "mine.py, line 5: mine: example = (0, 0); give p and m of 1 or more",
        ),
        (
            MINE.replace('"mine"', '""'),
            "mine.py, line 5: @schedule has '' for a name; write @schedule(\"NAME\")",
        ),
        (
            MINE.replace('("mine", paper="none")', ""),
            "mine.py, line 5: @schedule has <function mine at 0x",
        ),
        (
            MINE.replace('"none"', '"none", stages_per_rank="2"'),
            "mine.py, line 5: mine: '2' stages per rank; give a number, 1 or more",
        ),
    ],
)
def test_what_is_wrong_with_a_users_own_schedule(text: str, message: str) -> None:
    found = refusal("run", "-s", mine(text))
    assert found.startswith(message.format(here=Path("mine.py").absolute()))
    assert "Traceback" not in found


def test_a_users_order_that_is_unsound() -> None:
    half = mine(MINE.replace(" * pipe.num_microbatches", ""))
    assert refusal("run", "-s", half, "-p", 1, "-m", 2) == (
        "mine:\n  rank 0: 0F1 is missing\n  rank 0: 0B1 is missing (or 0I1 and 0W1)"
    )
    found = run("check", half, "-p", 1, "-m", 2, "--json")
    assert (found.exit_code, json.loads(found.stdout)["sound"]) == (1, False)
    assert refusal("run", "-s", "./no.py") == (
        "no.py: no such file; expected a Python file with a @schedule"
    )


# Schedules of other distributions


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    """A folder for the path, of installed distributions: one good, one broken, one that clashes."""
    site = tmp_path / "site"
    for name, text in (
        ("good", MINE.replace('"mine", paper="none"', '"offered"')),
        ("broken", "raise RuntimeError('not today')\n"),
        ("leaving", "raise SystemExit('bye')\n"),
        ("clash", MINE.replace('"mine"', '"1f1b"')),
        ("empty", "x = 1\n"),
    ):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tracegen.schedules]\n{name} = {name}_pp\n")
        (site / f"{name}_pp.py").write_text(text)
    return site


PROBLEMS = [
    "plugin broken (broken_pp): RuntimeError: not today",
    "plugin clash (clash_pp): it defines '1f1b', a name that is already taken",
    "plugin empty (empty_pp): empty_pp defines no schedule; mark a function of (rank, pipe) "
    "with @schedule",
    "plugin leaving (leaving_pp): SystemExit: bye",
]


def test_plugins_are_found_and_broken_ones_stop_nothing(plugins: Path, tmp_path: Path) -> None:
    path = {"PYTHONPATH": str(plugins)}
    done = process("run", "-s", "offered", "-p", 2, "-m", 2, "--json", cwd=tmp_path, **path)
    assert json.loads(done.stdout)["schedule"] == "offered"
    assert (tmp_path / "offered.json").is_file()
    done = process("list", cwd=tmp_path, **path)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines() == [f"warning: {problem}" for problem in PROBLEMS]
    assert b"\noffered\n    v = 1\n" in done.stdout
    done = process("run", "-s", "brokn", cwd=tmp_path, **path)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[1:] == [f"  {problem}" for problem in PROBLEMS]


def test_two_shipped_files_with_one_name_are_refused(tmp_path, monkeypatch):
    """A copy of a file in schedules/ whose name was left as it was hides no schedule."""
    for name in ("gpipe.py", "zbv.py"):
        shutil.copy(registry.shipped_dir() / name, tmp_path)
    copy = shutil.copy(registry.shipped_dir() / "gpipe.py", tmp_path / "mine.py")
    monkeypatch.setattr(registry, "shipped_dir", lambda: tmp_path)
    with pytest.raises(ScheduleError) as error:
        registry.shipped()
    first = tmp_path / "gpipe.py"
    assert str(error.value) == f"{copy} defines 'gpipe', as {first} does; give it another name"


def test_a_name_too_long_for_a_file_is_a_schedule_that_is_not_known() -> None:
    for command in (("run", "-s"), ("show",)):
        assert refusal(*command, "a" * 5000).startswith("no schedule 'aaa")


def test_a_shipped_file_that_is_no_schedules_is_not_looked_into(tmp_path, monkeypatch):
    """As in a listing: names that begin with an underscore are helpers'."""
    shutil.copy(registry.shipped_dir() / "gpipe.py", tmp_path)
    text = (tmp_path / "gpipe.py").read_text()
    (tmp_path / "_helper.py").write_text(text.replace('"gpipe"', '"_helper"'))
    monkeypatch.setattr(registry, "shipped_dir", lambda: tmp_path)
    assert registry.find("gpipe").name == "gpipe"
    with pytest.raises(ScheduleError, match="no schedule '_helper'"):
        registry.find("_helper")


def test_a_shipped_file_that_changes_is_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook beside which somebody edits the checkout."""
    copy = Path(shutil.copy(registry.shipped_dir() / "gpipe.py", tmp_path))
    monkeypatch.setattr(registry, "shipped_dir", lambda: tmp_path)
    before = registry.find("gpipe")
    assert registry.find("gpipe") is before
    copy.write_text(copy.read_text().replace("arXiv:1811.06965", "mine"))
    os.utime(copy, (time.time() + 10,) * 2)  # the clock of the files may have stood still
    assert (before.paper, registry.find("gpipe").paper) == ("arXiv:1811.06965", "mine")
