"""The package as users get it: built, installed into a venv of its own, run from another folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from golden import SHIPPED

ROOT = Path(__file__).parent.parent
PACKAGE, SCHEDULES = ROOT / "tracegen", ROOT / "schedules"
# What the command line needs to draw; all of it pure Python.
NEEDED = ("click", "rich", "pygments", "markdown-it-py", "mdurl")


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={name: of for name, of in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built of."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("tracegen", "schedules"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source distribution, as an index would."""
    dist = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, source, cwd=dist)
    assert len(list(dist.glob("tracegen_pp-*.tar.gz"))) == 1
    (built,) = dist.glob("tracegen_pp-*.whl")
    return built


def empty_venv(folder: Path, *more: str) -> Path:
    """A venv without anything but the pure Python that the command line needs; its python."""
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for name in (*NEEDED, *more):
        for file in distribution(name).files or ():
            if not str(file).startswith("..") and "__pycache__" not in str(file):
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(file.locate()), site / file)
    return folder / "bin" / "python"


def install(python: Path, *what: object) -> None:
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps"]
    run(*pip, "--no-index", "--disable-pip-version-check", *what, cwd=python.parent)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = empty_venv(tmp_path_factory.mktemp("venv"))
    install(python, wheel)
    return python


def test_the_wheel_holds_every_file(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        f"{name}/{path.relative_to(folder)}"
        for folder, name in ((PACKAGE, "tracegen"), (SCHEDULES, "tracegen/schedules"))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - held == set(), "pyproject.toml lists the packages and their data"
    assert {top.partition("/")[0].partition("-")[0] for top in held} == {"tracegen", "tracegen_pp"}


def test_the_wheels_command_makes_the_trace_anywhere(installed: Path, tmp_path: Path) -> None:
    command = installed.with_name("tracegen")
    shown = run(command, "run", "--schedule", "dualpipev", cwd=tmp_path)
    assert "makespan         66.000 ms" in shown
    assert json.loads((tmp_path / "dualpipev.json").read_text())["otherData"]["m"] == 10
    listed = json.loads(run(command, "list", "--json", cwd=tmp_path))
    assert {row["name"] for row in listed["schedules"]} == set(SHIPPED)
    assert run(installed, "-m", "tracegen", "--version", cwd=tmp_path).startswith("tracegen, ver")


def test_the_wheel_brings_no_torch_and_its_schedules_with_it(
    installed: Path, tmp_path: Path
) -> None:
    code = (
        "import importlib.util as u, tracegen.registry as r; "
        "print(u.find_spec('torch'), u.find_spec('schedules'), r.shipped_dir())"
    )
    torch, schedules, folder = run(installed, "-c", code, cwd=tmp_path).split()
    assert (torch, schedules) == ("None", "None")
    assert Path(folder).parts[-3:] == ("site-packages", "tracegen", "schedules")


def test_an_editable_checkout_uses_the_files_in_schedules(source: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(source, checkout)
    python = empty_venv(tmp_path / "venv", "setuptools")
    install(python, "--no-build-isolation", "--editable", checkout)
    command = python.with_name("tracegen")

    def summary() -> str:
        rows = json.loads(run(command, "list", "--json", cwd=tmp_path))["schedules"]
        return next((row["summary"] for row in rows if row["name"] == "gpipe"), "")

    gpipe = checkout / "schedules" / "gpipe.py"
    assert summary() == "GPipe: all forwards, then all backwards"
    gpipe.write_text(gpipe.read_text().replace("GPipe: all", "GPipe, changed: all"))
    assert summary() == "GPipe, changed: all forwards, then all backwards"
    gpipe.with_name("new.py").write_text(gpipe.read_text().replace('"gpipe"', '"brand-new"'))
    assert run(command, "check", "brand-new", cwd=tmp_path).startswith("brand-new: sound: p=4")


@pytest.mark.nightly
def test_the_wheel_with_its_requirements(wheel: Path, tmp_path: Path) -> None:
    """As a user installs it: needs an index."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        ROOT / "constraints.txt",
        wheel,
        cwd=tmp_path,
    )
    run(python, "-m", "pip", "check", cwd=tmp_path)
    assert "66.000 ms" in run(python.with_name("tracegen"), "run", "-s", "dualpipev", cwd=tmp_path)
