"""Megatron-LM's timers, nsys exports, the command line, and what a measured order is called."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from command import refusal, run

import tracegen
from tests import profiles_made as made
from tracegen.errors import FileError
from tracegen.ir import Stream
from tracegen.profiles.nearest import known
from tracegen.profiles.reading import read
from tracegen.timeline import Timeline

SAMPLES = Path(__file__).parent.parent / "examples" / "profiles"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def replayed(name: str, p: int, m: int, v: int | None = None) -> Timeline:
    program = tracegen.compile(name, p, m, v, communication=False)
    return tracegen.replay(program, tracegen.Costs(f_us=1000, b_us=2100, alpha_us=70))


def test_megatron_timers() -> None:
    line = replayed("1f1b", 4, 8)
    Path("run").mkdir()
    for replica in (0, 1):
        made.megatron(line, Path("run"), chunks=False, replica=replica)
    found = read(["run"])
    assert found.program.ranks == line.program.ranks
    assert found.program.name == "1f1b"
    assert found.start_ns == line.start_ns
    assert found.makespan_ns == line.makespan_ns
    assert found.found is not None
    assert found.found.warnings == [
        "4 of 8 files are of other replicas than TPxCPxDP_rank_0 and left out",
        "timers' times are read as they are: whether a forward's includes the wait for its input "
        "is for the timers to say",
    ]
    # Nothing else relates the clocks than that no result is used before it is made.
    assert 70 <= found.config["executed"]["clock_uncertainty_us"] <= 400


def test_megatron_timers_of_virtual_stages() -> None:
    line = replayed("interleaved-1f1b", 2, 4, 2)
    made.megatron(line, Path(), chunks=True)
    found = read(sorted(Path().glob("event_times_*.json")))
    assert found.program.ranks == line.program.ranks
    assert found.program.name == "interleaved-1f1b"
    assert found.start_ns == line.start_ns


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "it is no object of milliseconds"),
        (
            "{",
            "it cannot be read as JSON: Expecting property name enclosed in double quotes: line "
            "1 column 2 (char 1)",
        ),
        ("{}", "it has no key such as forward-0-start; expected milliseconds by key"),
        (
            '{"forward-0-start": 1.5}',
            "forward of microbatch 0, stage 0: expected a start and an end that comes after it",
        ),
        (
            '{"forward-0-start": "x", "forward-0-end": 2}',
            "forward-0-start is 'x'; expected milliseconds, a number",
        ),
        (
            '{"forward-3-0-start": 1, "forward-3-0-end": 2}',
            "forward-3-0-start: there is no chunk 3; its name says VPP1",
        ),
    ],
)
def test_megatron_timers_that_cannot_be_read(content: str, said: str) -> None:
    name = "event_times_PP1_VPP1_TPxCPxDP_rank_0_pp_rank_0_rank_0.json"
    Path(name).write_text(content)
    with pytest.raises(FileError) as refused:
        read([name])
    assert str(refused.value) == f"{name}: {said}"


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("text_ids", [True, False])
def test_nsys_exports(kernels: bool, text_ids: bool) -> None:
    """One file for all ranks, and a file a rank."""
    line = replayed("interleaved-1f1b", 2, 4, 2)
    made.nsys(Path("all.sqlite"), line, [0, 1], kernels=kernels, text_ids=text_ids)
    for rank in range(2):
        made.nsys(Path(f"rank{rank}.sqlite"), line, [rank], kernels=kernels, text_ids=text_ids)
    for given in (["all.sqlite"], ["rank0.sqlite", "rank1.sqlite"]):
        found = read(given, name_pattern=made.PATTERN)
        assert found.program.ranks == line.program.ranks
        assert found.start_ns == pytest.approx(line.start_ns, abs=1)
        assert found.end_ns == pytest.approx(line.end_ns, abs=1)
        assert found.found is not None
        no_kernels = [text for text in found.found.warnings if "no CUDA kernels" in text]
        assert bool(no_kernels) == (not kernels)


@pytest.mark.parametrize("cell", [b"z", "x", 1.5, 1 << 62])
def test_cells_of_nsys_exports_that_are_no_times(cell: object) -> None:
    """SQLite lets any value stand in any column."""
    line = replayed("interleaved-1f1b", 2, 4, 2)
    made.nsys(Path("all.sqlite"), line, [0, 1], kernels=True)
    with closing(sqlite3.connect("all.sqlite")) as base:
        base.execute("CREATE TABLE o AS SELECT * FROM NVTX_EVENTS WHERE textId IS NOT NULL LIMIT 1")
        base.execute("UPDATE o SET start = ?", (cell,))
        base.execute("INSERT INTO NVTX_EVENTS SELECT * FROM o")
        kernel = "CUPTI_ACTIVITY_KIND_KERNEL"
        base.execute(f"CREATE TABLE k AS SELECT * FROM {kernel} LIMIT 1")
        base.execute("UPDATE k SET end = ?", (cell,))
        base.execute(f"INSERT INTO {kernel} SELECT * FROM k")
        base.execute("UPDATE TARGET_INFO_SESSION_START_TIME SET utcEpochNs = ?", (cell,))
        base.commit()
    found = read(["all.sqlite"], name_pattern=made.PATTERN)
    assert found.program.ranks == line.program.ranks
    assert found.start_ns == pytest.approx(line.start_ns, abs=1)
    assert found.found is not None
    said = "\n".join(found.found.warnings)
    assert "its start, end or globalTid is no integer; left out" in said
    assert "all.sqlite: a kernel's launch, start or end is no integer; left out" in said


@pytest.mark.parametrize("version", ["_V2", "_V3"])
def test_tables_of_newer_nsys_exports(version: str) -> None:
    """Their names have a version; an empty table of an older one may be there too."""
    line = replayed("interleaved-1f1b", 2, 4, 2)
    made.nsys(Path("all.sqlite"), line, [0, 1], kernels=True)
    with closing(sqlite3.connect("all.sqlite")) as base:
        kinds = ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL")
        for table in (*kinds, "StringIds"):
            base.execute(f"ALTER TABLE {table} RENAME TO {table}{version}")
            base.execute(f"CREATE TABLE {table} (start INTEGER)")
        base.commit()
    found = read(["all.sqlite"], name_pattern=made.PATTERN)
    assert found.program.ranks == line.program.ranks
    assert found.start_ns == pytest.approx(line.start_ns, abs=1)
    assert found.config["executed"]["tiles_of"] == "kernels launched during each range"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("start, end, globalTid", "its NVTX_EVENTS names no range: it has no text, and no textId"),
        ("start, text", "its NVTX_EVENTS has no end, no globalTid"),
    ],
)
def test_nsys_tables_that_lack_what_is_needed(columns: str, said: str) -> None:
    with closing(sqlite3.connect("a.sqlite")) as base:
        base.execute(f"CREATE TABLE NVTX_EVENTS ({columns})")
    assert refusal("show", "a.sqlite") == f"a.sqlite: {said}"


def test_nsys_exports_that_cannot_be_read() -> None:
    line = replayed("gpipe", 1, 2)
    made.nsys(Path("a.sqlite"), line, [0], kernels=False)
    assert refusal("show", "a.sqlite") == (
        "a.sqlite: none of its NVTX ranges is named as an action; give `tracegen import "
        "--name-pattern` with the groups stage, op and mb, such as "
        r"'stage(?P<stage>\d+) (?P<op>fwd|bwd) mb(?P<mb>\d+)'"
    )
    Path("b.sqlite").write_bytes(b"nothing of the kind" * 100)
    assert refusal("import", "b.sqlite") == (
        "b.sqlite: it cannot be read as SQLite: file is not a database"
    )


def test_a_program_that_is_nearly_a_schedule_is_named_with_its_differences() -> None:
    line = replayed("zbv", 4, 8)
    rows = [list(stream) for stream in line.program.ranks]
    rows[1][7], rows[1][8] = rows[1][8], rows[1][7]
    changed = line.program.with_ranks(Stream.of(row) for row in rows)
    from dataclasses import replace

    found = known(replace(line, program=changed))
    assert found.names == []
    assert found.nearest == "zbv"
    assert str(found) == "nearly zbv: 1 difference"
    assert found.differences[0].endswith("changed places")
    assert known(line).names == ["zbv"]


@pytest.mark.parametrize(
    ("name", "p", "m"),
    [
        ("1f1b", 4, 8),
        ("gpipe", 4, 8),
        ("interleaved-1f1b", 4, 8),
        ("looped-bfs", 4, 8),
        ("zbv", 4, 8),
        ("dualpipev", 4, 10),
        ("zb-h1", 4, 8),
    ],
)
def test_every_schedule_is_named_from_its_measured_order(name: str, p: int, m: int) -> None:
    line = replayed(name, p, m)
    for rank in range(p):
        about = made.info(rank, p, {"mesh_pp": list(range(p))})
        made.write(Path(f"{rank}.json"), made.kineto(line, rank, skew_us=rank * 3333.0), **about)
    found = read(["*.json"])
    assert name in known(found).names
    assert abs(found.makespan_ns - line.makespan_ns) < 300_000


def test_import_says_what_it_is_and_how_large_the_bubble_is() -> None:
    shutil.copytree(SAMPLES / "dualpipev", "run")
    found = run("import", "run", "--replay", "-o", "out.json", width=100)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert lines[0] == ("run: torch profiler, 2 files: p=2 m=4 v=2, v placement; this is dualpipev")
    assert lines[1].startswith("clocks: one host's clock, which the messages do not contradict; ")
    assert lines[2] == "tiles: the host's operations in each range"
    assert any(line.startswith("bubble           ratio ") for line in lines)
    assert "why ranks wait" in lines
    assert lines[-1].startswith("replay of its own costs: makespan ")
    assert found.stderr == "wrote out.json\n"
    said = json.loads(Path("out.json").read_text())["metadata"]
    assert said["schedule"] == "dualpipev"
    assert said["executed"]["profile"] == "torch profiler"
    assert said["executed"]["predicted_makespan_us"] > 0
    assert run("import", "run").stderr == "wrote run.tiling.json\n"
    assert "host" not in said["executed"]


def test_the_other_commands_read_profiles_too() -> None:
    shutil.copytree(SAMPLES / "gpipe", "run")
    assert run("show", "run").stdout.startswith("gpipe   p=2 m=3 v=1   2 stages, loop placement\n")
    assert run("check", "run").stdout == "run: sound: p=2 m=3 v=1, loop placement\n"
    run("import", "run", "-o", "t.json")
    same = run("diff", "run", "t.json")
    assert (same.exit_code, same.stdout) == (0, "same: 12 actions on 2 ranks agree\n")
    assert run("diff", "run/rank*.json.gz", "t.json", "--times", "order-only").exit_code == 0
    shown = run("open", "run", "--print-only")
    assert "/trace/run.tiling.json" in shown.stdout
    assert tracegen.read("run").program.name == "gpipe"
    assert tracegen.read("t.json").program.name == "gpipe"


def test_a_folder_named_as_a_schedule_does_not_hide_it() -> None:
    Path("zbv").mkdir()
    assert run("show", "zbv", "-p", 2, "-m", 4).stdout.startswith("zbv   p=2 m=4")
    assert refusal("show", "zbv/").startswith("zbv/: the folder holds no profile; expected torch")


def test_a_folder_of_folders_names_those_that_hold_profiles() -> None:
    runs = Path("runs")
    runs.mkdir()
    for name in "abcdefg":
        (runs / name).mkdir()
        (runs / name / "rank0.sqlite").touch()
    (runs / "none").mkdir()
    (runs / "other").mkdir()
    (runs / "other" / "config.json").write_text("{}")
    assert refusal("import", "runs") == (
        "runs: the folder holds no profile; those in it do: give one of runs/a, runs/b, runs/c, "
        "runs/d, runs/e and 2 more"
    )


def test_requests_that_cannot_be_carried_out() -> None:
    assert refusal("import", "nothing.json") == (
        "nothing.json: no such file; expected a folder, files or a pattern of torch profiler "
        "traces (*.json, *.json.gz), Megatron-LM's event_times_*.json or an nsys export (*.sqlite)"
    )
    assert refusal("import", "x*.json").startswith("x*.json: no file is so named; expected")
    shutil.copytree(SAMPLES / "gpipe", "run")
    assert "--f is about a CSV; the costs of a profile are measured" in refusal(
        "import", "run", "--f", 3
    )
    Path("x.csv").write_text("0F0,0B0\n")
    assert "--rank-map, --name-pattern and --replay are about profiles" in refusal(
        "import", "x.csv", "--replay"
    )
    made.nsys(Path("run/a.sqlite"), replayed("gpipe", 1, 2), [0], kernels=False)
    assert refusal("import", "run") == (
        "the files are of several formats: run/a.sqlite is nsys; run/rank0.json.gz is torch "
        "profiler; give one run's alone"
    )
    assert not list(Path().glob("*.tiling.json"))


def test_one_rank_alone_is_a_part() -> None:
    shutil.copy(SAMPLES / "dualpipev/rank1.json.gz", "one.json.gz")
    found = run("import", "one.json.gz", "-o", "o.json")
    assert found.exit_code == 0, found.output
    assert "no file is of rank 0 of the pipeline 0, 1: what they did is not shown" in found.stderr
    assert "no whole program" in found.stderr
    assert "no schedule known by name" in found.stdout
    assert run("show", "o.json").exit_code == 0


def test_a_trace_of_another_tool_is_imported_too() -> None:
    events = [
        {"ph": "X", "name": f"{op}0", "pid": 0, "tid": 0, "ts": at, "dur": 1000}
        for at, op in ((0, "0F"), (1000, "0B"))
    ]
    Path("a.json").write_text(json.dumps({"traceEvents": events}))
    found = run("import", "a.json")
    assert found.stdout.startswith("a.json: chrome trace, 1 file: p=1 m=1 v=1")
    assert Path("a.tiling.json").is_file()
