"""Golden traces: tracegen's own, and what other projects' CI does with theirs (examples/ci)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tracegen
from tests.perfetto.browser import give_up
from tracegen import golden, registry
from tracegen.cli import main

ROOT = Path(__file__).parent.parent
OURS = ROOT / "tests" / "golden"
EXAMPLE = ROOT / "examples" / "ci"
PLUGIN = "tracegen.pytest_plugin"


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["golden", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def test_every_schedule_has_a_golden_trace() -> None:
    names = {entry.path.name.removesuffix(".json.gz") for entry in golden.manifest(OURS)}
    assert names == set(registry.shipped())
    assert {path.name.removesuffix(".json.gz") for path in OURS.glob("*.gz")} == names


def test_every_schedule_is_as_its_golden_trace() -> None:
    code, out, err = run("check", OURS)
    count = len(registry.shipped())
    assert (code, out) == (0, f"all {count} golden traces are as they were\n"), out
    assert err.count(": same\n") == count
    assert err.startswith(f"[1/{count}] 1f1b.json.gz: same\n")


def test_one_number_of_one_schedule_changed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = tmp_path / "schedules"
    shutil.copytree(registry.shipped_dir(), schedules)
    file = schedules / "one_f_one_b.py"
    text = file.read_text()
    assert text.count("min(pipe.num_ranks - rank, ") == 1
    file.write_text(text.replace("min(pipe.num_ranks - rank, ", "min(pipe.num_ranks - rank + 1, "))
    monkeypatch.setattr(registry, "shipped_dir", lambda: schedules)
    code, out, _ = run("check", OURS)
    assert code == 1
    lines = out.splitlines()
    assert lines[0] == (
        f"{OURS / '1f1b.json.gz'}: tracegen run --schedule 1f1b -p 4 -m 8 --f 1000 --i 1100 "
        "--w 900 --alpha 10"
    )
    assert lines[1].startswith("  different: ")
    assert "    0B0 (rank 0, action 4) and 0F4 (action 5) changed places\n" in out
    assert "  makespan " in out
    assert "  peak activations (freed at weight) 4 -> 5 (+25.0 %)" in out
    assert lines[-1] == f"of {len(registry.shipped())} golden traces 1 differ: 1f1b.json.gz"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a manifest of two traces that are not there yet."""
    (tmp_path / "golden.toml").write_text(
        '["a.json"]\nrun = "--schedule gpipe -p 2 -m 2"\n'
        '["b.json.gz"]\nrun = "tracegen run --schedule 1f1b -p 2 -m 4 --alpha 5"\ntimes = "5%"\n'
    )
    return tmp_path


def test_update_writes_only_what_differs(folder: Path) -> None:
    assert run("update", folder) == (
        0,
        "2 written, 0 as they were\n",
        "[1/2] a.json: written\n[2/2] b.json.gz: written\n",
    )
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert run("update", folder, "-q") == (0, "0 written, 2 as they were\n", "")
    a = folder / "a.json"
    text = a.read_text()
    a.write_text(text.replace('"tool_version":"', '"tool_version":"9.'))
    assert run("update", folder, "-q")[1] == "0 written, 2 as they were\n"
    a.write_text(text.replace('"dur":1000.000', '"dur":1500.000', 1))
    assert run("check", folder, "-q")[0] == 1
    assert run("update", folder, "-q")[1] == "1 written, 1 as they were\n"
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_check_says_which_could_not_be_compared(folder: Path) -> None:
    run("update", folder)
    (folder / "a.json").unlink()
    code, out, err = run("check", folder)
    assert code == 2
    assert out == (
        f"{folder / 'a.json'}: {folder / 'a.json'}: there is none yet; make it with "
        "`golden update`\n\nof 2 golden traces 1 could not be compared: a.json\n"
    )
    assert err == "[1/2] a.json: could not be compared\n[2/2] b.json.gz: same\n"


def test_check_as_json_and_for_github(folder: Path) -> None:
    run("update", folder)
    a = folder / "a.json"
    a.write_text(a.read_text().replace('"dur":1000.000', '"dur":1500.000', 1))
    code, out, _ = run("check", folder, "--format", "json")
    data = json.loads(out)
    assert (code, data["same"]) == (1, False)
    assert [trace["verdict"] for trace in data["traces"]] == ["different", "same"]
    assert data["traces"][0]["difference"]["actions"][0]["change"] == "duration"
    code, out, _ = run("check", folder, "--format", "github", "-q")
    assert code == 1
    assert f"::error file={a},title=tracegen diff::" in out


PROBLEMS = {
    "": "it names no trace; " + golden.EXAMPLE,
    "x = [": "it is not TOML: Invalid value (at end of document); " + golden.EXAMPLE,
    '["a.json"]\n': "a.json: it has no run; " + golden.EXAMPLE,
    '["a.json"]\nrun = "x"\nfoo = 1': "a.json: no key 'foo'; there are run and times",
    '["a.txt"]\nrun = "x"': "a.txt: expected the name of a trace here: *.json, *.json.gz, "
    "*.pftrace",
    '["../a.json"]\nrun = "x"': "../a.json: expected the name of a trace here: *.json, *.json.gz, "
    "*.pftrace",
    '["a.json"]\nrun = "--schedule \'x"': 'a.json: run "--schedule \'x": No closing quotation',
    '["a.json"]\nrun = "x"\ntimes = "5"': "a.json: times '5': expected exact, order-only or a "
    "percentage such as 5%",
}


@pytest.mark.parametrize("text", PROBLEMS)
def test_a_manifest_that_is_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "golden.toml"
    path.write_text(text)
    assert run("check", tmp_path) == (2, "", f"Error: {path}: {PROBLEMS[text]}\n")


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "golden.toml"
    message = f"Error: {path}: No such file or directory; {golden.EXAMPLE}\n"
    assert run("check", tmp_path) == (2, "", message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--schedule nonesuch", "no schedule 'nonesuch'"),
        ("--schedule 1f1b -p x", "Invalid value for '-p'"),
        ("--no-such-option", "No such option"),
        ("--help", "it wrote no trace"),
    ],
)
def test_options_that_run_refuses(options: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "golden.toml").write_text(f'["a.json"]\nrun = "{options}"\n')
    for action in ("update", "check"):
        code, out, err = run(action, tmp_path)
        assert code == 2
        assert message in out + err or action == "check"


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A repository of another project's, made of examples/ci."""
    if shutil.which("git") is None:
        give_up("needs git")
    repository = tmp_path / "repository"
    shutil.copytree(EXAMPLE, repository, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
    hook = repository / ".git" / "hooks" / "pre-commit"
    shell(repository, "git init -q .")
    shutil.copy(repository / "pre-commit", hook)
    return repository


def shell(folder: Path, command: str, **more: str) -> tuple[int, str]:
    """Run a command line as a CI step does, with this tracegen first on the path."""
    bin_ = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": f"-p no:cacheprovider{_plugin()}",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        **{f"GIT_{who}_{what}": "test@example.org" for who in ("AUTHOR", "COMMITTER")
           for what in ("NAME", "EMAIL")},
        **more,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-e", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def _installed() -> bool:
    """Whether pytest finds the fixture by itself, as it does where tracegen is installed."""
    return any(entry.value == PLUGIN for entry in entry_points(group="pytest11"))


def _plugin() -> str:
    return "" if _installed() else f" -p {PLUGIN}"


def change(repository: Path) -> None:
    """One number of the schedule."""
    file = repository / "schedules" / "mine.py"
    text = file.read_text()
    assert text.count("AHEAD = 1\n") == 1
    file.write_text(text.replace("AHEAD = 1\n", "AHEAD = 2\n"))
    # Of the same size: Python would take its compiled form, of the same second, for the file's.
    os.utime(file, (time.time() + 10,) * 2)


def workflow_steps(repository: Path) -> list[str]:
    text = (repository / ".github" / "workflows" / "golden-traces.yml").read_text()
    return re.findall(r"^ +run: (.+)$", text, re.MULTILINE)


def test_the_workflow_passes_until_the_schedule_is_changed(scratch: Path) -> None:
    _install, check, tests = workflow_steps(scratch)
    for step in (check, tests):
        code, out = shell(scratch, step)
        assert code == 0, out
    change(scratch)
    code, out = shell(scratch, check)
    assert code == 1
    assert "::error file=golden/mine-p4-m8.json.gz,title=tracegen diff::" in out
    code, out = shell(scratch, tests)
    assert code == 1
    assert "2 failed" in out


def test_the_workflow_installs_from_where_it_says(scratch: Path, tmp_path: Path) -> None:
    """With the placeholder replaced by a checkout; pip says what it would install."""
    checkout = tmp_path / "tracegen"
    checkout.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    for name in ("tracegen", "schedules"):
        shutil.copytree(ROOT / name, checkout / name)
    install, *_ = workflow_steps(scratch)
    # pip's word for "no isolation" in the environment is a 0: the network is not there to ask.
    how = {"PIP_DRY_RUN": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    code, out = shell(scratch, install, TRACEGEN=checkout.as_uri(), **how)
    assert code == 0, out
    assert "Would install tracegen-pp-" in out
    text = (scratch / ".github" / "workflows" / "golden-traces.yml").read_text()
    assert re.search(r"^  TRACEGEN: git\+https://HOST/OWNER/tracegen@COMMIT$", text, re.MULTILINE)


def test_the_git_hook_refuses_a_commit_that_changes_the_schedule(scratch: Path) -> None:
    code, out = shell(scratch, "git add -A && git commit -q -m first")
    assert code == 0, out
    change(scratch)
    code, out = shell(scratch, "git add -A && git commit -q -m second")
    assert code != 0
    assert "of 2 golden traces 2 differ" in out
    code, out = shell(scratch, "tracegen golden update golden && git add -A && git commit -q -m ok")
    assert code == 0, out


def test_the_hook_of_pre_commit_is_the_same(scratch: Path) -> None:
    text = (scratch / ".pre-commit-config.yaml").read_text()
    (entry,) = re.findall(r"^ +entry: (.+)$", text, re.MULTILINE)
    assert shell(scratch, entry)[0] == 0
    change(scratch)
    assert shell(scratch, entry)[0] == 1


def test_the_fixture_reports_and_updates(scratch: Path) -> None:
    command = "python -m pytest -q tests"
    code, out = shell(scratch, command)
    assert code == 0, out
    change(scratch)
    code, out = shell(scratch, command)
    assert code == 1
    assert "different: " in out
    assert "if it is meant: `pytest --update-traces`" in out
    assert "Traceback" not in out
    assert shell(scratch, f"{command} --update-traces")[0] == 0
    assert shell(scratch, command)[0] == 0


def test_the_fixture_takes_programs_and_timelines(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    from tracegen import pytest_plugin

    program = tracegen.compile("gpipe", 2, 2)
    costs = tracegen.Costs(alpha_us=5)
    path = tmp_path / "gpipe.json"
    compare: Any = pytest_plugin._compare
    compare(tracegen.replay(program, costs), path, "exact", True)
    compare(tracegen.replay(program, costs), path, "exact", False)
    with pytest.raises(pytest.fail.Exception, match="different"):
        compare(tracegen.replay(program), path, "exact", False)
    compare(tracegen.replay(program), path, "order-only", False)
    with pytest.raises(pytest.fail.Exception, match="there is no"):
        compare(tracegen.replay(program), tmp_path / "none.json", "exact", False)
    path.write_text("{")
    with pytest.raises(pytest.fail.Exception, match="it has no traceEvents"):
        compare(tracegen.replay(program), path, "exact", False)
