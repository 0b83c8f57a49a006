"""The command line: what later work may build on, exit codes, names, refusals."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from command import SCRIPT, refusal, run
from golden import SHIPPED
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import tracegen
from tracegen.cli import COMMANDS, main

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

every_schedule = pytest.mark.parametrize("name", SHIPPED)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Frozen: other people's scripts read these

REPORT = [
    "schema_version",
    "schedule",
    "p",
    "m",
    "v",
    "stages",
    "makespan_us",
    "bubble_ratio",
    "bubble_overhead",
    "span_rate",
    "busy_us",
    "idle_us",
    "peak_activations",
    "critical_path",
    "trace",
]
METADATA = [
    *REPORT[:-2],
    "tool",
    "tool_version",
    "placement",
    "stage_ranks",
    "chains",
    "forward_only",
    "costs",
    "zero_length_actions",
]


def test_run_json_is_one_object_of_these_keys() -> None:
    found = run("run", "--schedule", "1f1b", "-p", 2, "-m", 2, "--json", "-o", "x.json")
    assert found.stderr == "wrote x.json\n"
    assert found.stdout.count("\n") == 1
    report = json.loads(found.stdout)
    assert list(report) == REPORT
    assert report == {
        "schema_version": 1,
        "schedule": "1f1b",
        "p": 2,
        "m": 2,
        "v": 1,
        "stages": 2,
        "makespan_us": 9000.0,
        "bubble_ratio": pytest.approx(1 / 3),
        "bubble_overhead": 0.5,
        "span_rate": pytest.approx(1 / 3),
        "busy_us": [6000.0, 6000.0],
        "idle_us": [3000.0, 3000.0],
        "peak_activations": {"freed_at_input": [2, 1], "freed_at_weight": [2, 1]},
        "critical_path": [
            {"rank": 0, "action": "0F0", "start_us": 0.0, "end_us": 1000.0},
            {"rank": 1, "action": "1F0", "start_us": 1000.0, "end_us": 2000.0},
            {"rank": 1, "action": "1B0", "start_us": 2000.0, "end_us": 4000.0},
            {"rank": 1, "action": "1F1", "start_us": 4000.0, "end_us": 5000.0},
            {"rank": 1, "action": "1B1", "start_us": 5000.0, "end_us": 7000.0},
            {"rank": 0, "action": "0B1", "start_us": 7000.0, "end_us": 9000.0},
        ],
        "trace": "x.json",
    }


@every_schedule
def test_every_schedule_has_the_same_report(name: str) -> None:
    found = run("run", "-s", name, "--json", "--no-trace")
    report = json.loads(found.stdout)
    kernels = [key for key in report if key not in REPORT]  # of MoE costs, what communication does
    assert [key for key in report if key not in kernels] == REPORT
    assert bool(kernels) == name.startswith("moe-")
    assert report["schedule"] == name
    assert report["trace"] is None
    assert {len(report[key]) for key in ("busy_us", "idle_us")} == {report["p"]}
    assert found.stderr == ""
    assert not list(Path.cwd().iterdir())


def test_the_metadata_of_a_trace() -> None:
    run("run", "-s", "1f1b", "-p", 2, "-m", 2, "-o", "x.json")
    trace = json.loads(Path("x.json").read_text())
    assert list(trace) == ["displayTimeUnit", "otherData", "metadata", "traceEvents"]
    assert trace["otherData"] == trace["metadata"]
    about = trace["otherData"]
    assert list(about) == METADATA
    assert about["tool"] == "tracegen"
    assert about["tool_version"] == tracegen.__version__
    assert about["stage_ranks"] == [0, 1]
    assert about["chains"] == [[0, 1]]
    assert (
        about["costs"].items()
        >= {
            "f_us": 1000.0,
            "i_us": 1000.0,
            "w_us": 1000.0,
            "fb_us": None,
            "alpha_us": 0.0,
            "b_us": None,
            "bandwidth_GBps": None,
            "boundary_bytes": 0.0,
            "activation_bytes": None,
            "w_share": 0.0,
        }.items()
    )


def test_a_trace_says_nothing_of_when_and_where() -> None:
    run("run", "-s", "1f1b", "-o", "x.json")
    text = Path("x.json").read_text()
    assert str(Path.cwd()) not in text
    assert os.uname().nodename not in text


def test_list_json() -> None:
    rows = json.loads(run("list", "--json").stdout)
    assert list(rows) == ["schema_version", "schedules"]
    assert {row["name"] for row in rows["schedules"]} == set(SHIPPED)
    assert list(rows["schedules"][0]) == [
        "name",
        "summary",
        "needs",
        "paper",
        "stages_per_rank",
        "aliases",
    ]


def test_check_json() -> None:
    assert json.loads(run("check", "1f1b", "--json").stdout) == {
        "schema_version": 1,
        "sound": True,
        "problems": [],
    }


def test_the_python_door() -> None:
    for name in ("Costs", "MoE", "compile", "replay", "write", "read", "diff"):
        assert name in tracegen.__all__
        assert callable(getattr(tracegen, name))
    program = tracegen.compile("dualpipev", num_ranks=4, num_microbatches=10, stages_per_rank=None)
    assert str(program.ranks[0][0]) == "0F0"
    assert not program.compute_only().has_communication
    line = tracegen.replay(
        program, tracegen.Costs(f_us=1000, i_us=1000, w_us=1000, fb_us=None, alpha_us=0)
    )
    assert (line.makespan_ns, line.busy_ns[0]) == (66_000_000, 60_000_000)
    assert line.peak_activations["freed_at_input"][0] == 9
    assert line.peak_activations["freed_at_weight"][3] == 9
    tracegen.write(line, "trace.json")
    assert Path("trace.json").is_file()
    with pytest.raises(AttributeError, match="module 'tracegen' has no attribute 'nothing'"):
        _ = tracegen.nothing  # type: ignore[attr-defined]


# Exit codes: 0 done, 1 invalid, 2 could not be carried out, 130 interrupted

BAD = "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n"


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["--version"], 0),
        (["--help"], 0),
        (["run", "--help"], 0),
        (["check", "1f1b"], 0),
        (["check", "bad.csv"], 1),
        (["check", "no.csv"], 2),
        (["run", "-s", "bad.csv"], 2),
        (["run"], 2),
        (["run", "-s", "1f1b", "-p", "x"], 2),
        (["run", "-s", "1f1b", "--f", "-1"], 2),
        (["nothing"], 2),
        (["import", "bad.csv"], 2),
        (["export", "chimera"], 2),
    ],
)
def test_exit_codes(args: list[str], code: int) -> None:
    Path("bad.csv").write_text(BAD)
    found = run(*args)
    assert found.exit_code == code
    assert "Traceback" not in found.output


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tracegen.compiler.compile", stop)
    found = run("show", "1f1b")
    assert (found.exit_code, found.stderr) == (130, "interrupted\n")
    monkeypatch.setattr("click.Group.parse_args", stop)
    found = run("show", "1f1b")
    assert (found.exit_code, found.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("module", ["click", "rich.console", "tracegen.registry"])
@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-m", "tracegen"]])
def test_interrupted_while_modules_are_imported(start: list[str], module: str) -> None:
    """Ctrl-C that comes when a module of that name is looked for."""
    Path("sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    done = subprocess.run(
        [*start, "show", "1f1b"],
        env={**os.environ, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_reader_that_has_seen_enough() -> None:
    """`tracegen run -o - | head -1` ends quietly."""
    text = f"{SCRIPT} run -s 1f1b -m 500 -o - -q | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == '{"displayTimeUnit":"ns",\n0\n'
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["list", "compare", "show zbv"])
def test_a_reader_that_has_seen_enough_of_a_table(command: str) -> None:
    text = f"{SCRIPT} {command} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[1:], done.stderr) == (["0"], "")


@pytest.mark.parametrize(
    ("redirect", "message"),
    [
        (">/dev/full", "Error: the output cannot be written: No space left on device\n"),
        (">&-", ""),
    ],
)
def test_stdout_that_takes_nothing(redirect: str, message: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{SCRIPT} list {redirect}"], capture_output=True, text=True, check=False
    )
    assert done.stderr == message


def test_a_trace_for_a_closed_stdout() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{SCRIPT} run -s 1f1b -q -o - >&-"], stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 2
    assert done.stderr == b"Error: -: cannot be written: stdout is closed\n"


# The commands


def test_help_names_every_command() -> None:
    help_text = run("--help").stdout
    for name in COMMANDS:
        assert f"  {name} " in help_text
    assert run("--version").stdout == f"tracegen, version {tracegen.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(name: str) -> None:
    text = run(name, "--help").stdout
    assert text.startswith(f"Usage: main {name}")
    assert "\\b" not in text
    assert text.isascii()
    assert "INTEGER" not in text
    assert "..." not in text.partition("Commands:")[2]  # nothing is cut short
    listed = text.partition("Options:")[2].partition("Commands:")[0].splitlines()
    assert all(line[2] == "-" for line in listed if line[:2] == "  " and line[2] != " ")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("DualPipeV", "dualpipev"),
        ("dualpipe_v", "dualpipev"),
        ("zerobubble", "zb-h1"),
        ("ScheduleInterleaved1F1B", "interleaved-1f1b"),
        ("1F1B", "1f1b"),
    ],
)
def test_names_are_forgiving(typed: str, name: str) -> None:
    assert json.loads(run("run", "-s", typed, "--json", "--no-trace").stdout)["schedule"] == name


def test_typos_get_a_suggestion() -> None:
    assert refusal("run", "-s", "dualpip") == ("no schedule 'dualpip'; did you mean 'dualpipe'?")
    assert refusal("run", "-s", "zvb") == "no schedule 'zvb'; did you mean 'zbv'?"
    assert refusal("show", "qqqqq").startswith("no schedule 'qqqqq'; there are 1f1b, ")
    assert refusal("rum").endswith("Error: no command 'rum'; did you mean 'run'?")
    assert "Error: No such option '--shedule'. (Did you mean" in refusal("run", "--shedule", "x")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("run -s 1f1b --pipeline-model-parallel-size 4", "here it is -p or --ranks"),
        ("run -s 1f1b --num_microbatches 8", "here it is -m or --microbatches"),
        ("show 1f1b --vpp 2", "here it is -v or --stages-per-rank"),
        ("compare --num-layers 32", "here it is --model-layers"),
        (
            "run -s 1f1b --num-layers 32",
            "a model's sizes go to `tracegen compare`, whose --save-costs writes a file for "
            "--costs; --execute has sizes of its own",
        ),
        ("run --global-batch-size 8", "-m is the microbatches of a step"),
        ("export --schedule 1f1b", "the schedule stands by itself: `tracegen export NAME`"),
        ("--schedule 1f1b", "options follow a command, as in `tracegen run --schedule NAME`"),
    ],
)
def test_the_words_of_other_frameworks_get_ours(typed: str, hint: str) -> None:
    assert refusal(*typed.split()).endswith(f"; {hint}")


def test_what_stands_where_a_command_should_gets_a_command() -> None:
    assert refusal("DualPipeV").endswith("; of a schedule: `tracegen run --schedule dualpipev`")
    assert refusal("mine.py").endswith("; of a schedule: `tracegen run --schedule mine.py`")
    said = "; of a trace: `tracegen open a.json`, `tracegen show a.json`"
    assert refusal("a.json").endswith(said)
    assert "`tracegen --help` lists all" in refusal("help")
    assert "there are run, list" in refusal("qqqqq")


def test_a_name_need_not_be_text() -> None:
    name = os.fsdecode(b"\xff.json")
    assert run("run", "-q", "-s", "1f1b", "-o", name).exit_code == 0
    assert "/trace/%25FF.json&" in run("open", "--print-only", name).stdout
    for command in (("show",), ("explain",), ("diff", name)):
        assert run(*command, name).exit_code == 0
    for encoding in ("utf-8:strict", "latin-1:strict"):
        env = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run([SCRIPT, "check", name], env=env, capture_output=True, text=True)
        assert done.stdout == "\\udcff.json: sound: p=4 m=8 v=1, loop placement\n"


def test_sql_that_is_no_text_is_refused() -> None:
    pytest.importorskip("wasmtime")
    run("run", "-q", "-s", "1f1b", "-o", "a.json")
    assert refusal("query", "a.json", os.fsdecode(b"select '\xff'")) == "SQL: it is not UTF-8"


def test_a_trace_may_come_from_standard_input() -> None:
    run("run", "-s", "zbv", "-p", 2, "-o", "zbv.json.gz")
    for trace in (gzip.decompress(zipped := Path("zbv.json.gz").read_bytes()), zipped):

        def piped(*args: str, trace: bytes = trace) -> Result:
            return CliRunner().invoke(main, args, input=trace, env={"COLUMNS": "80"})

        for command in ("show", "check", "explain"):
            said = run(command, "zbv.json.gz").stdout.replace("zbv.json.gz", "-")
            assert (piped(command, "-").output, said != "") == (said, True)
        for sides in (("zbv.json.gz", "-"), ("-", "zbv.json.gz")):
            assert piped("diff", *sides).exit_code == 0
        assert piped("run", "--like", "-", "-o", "again.json.gz").exit_code == 0
        assert Path("again.json.gz").read_bytes() == zipped
    assert refusal("show", "-").startswith("-: it is empty; expected a Chrome trace")
    assert "- and - are one standard input" in run("diff", "-", "-").stderr


def test_what_is_no_schedule_or_trace_is_told_apart() -> None:
    Path("folder").mkdir()
    stdin = "-: standard input is not read; give a name or a file"
    assert refusal("export", "-").endswith(stdin)
    folder = (
        "folder is a folder; a schedule's file ends in .py or .csv, "
        "and `tracegen import` reads profiles"
    )
    for command in (("run",), ("compare",), ("advise", "--memory-limit", 6)):
        assert refusal(*command, "-s", "-") == stdin
        assert refusal(*command, "-s", "folder") == folder
    made = "folder: it is a folder; `tracegen import` makes a trace of the profiles in it"
    assert refusal("stats", "folder") == refusal("query", "folder", "select 1") == made
    none = "no.json: no such file; expected a trace: `tracegen run -s SCHEDULE` writes one"
    assert refusal("stats", "no.json") == none
    Path("empty.json").touch()
    assert refusal("open", "empty.json").startswith("empty.json: it is empty; expected a trace")


FORMATS = (
    "a schedule's file ends in .py or .csv, a trace's in .json, .json.gz, .pftrace, an nsys "
    "export's in .sqlite, .sqlite3, .db"
)
SCHEDULES_ARE = "expected a name that `tracegen list` has, or a file that ends in .py or .csv"
A_TRACE = 'expected a Chrome trace, {"traceEvents":[...]} or an array of events'


def test_a_file_whose_name_says_no_format_is_told_which_are_read() -> None:
    Path("mine.txt").write_text("0F0,0B0\n")
    Path("zbv").write_text("hello\n")
    for command in ("check", "show", "explain"):
        assert refusal(command, "mine.txt") == f"mine.txt: its name says no format; {FORMATS}"
        assert refusal(command, "nope.txt") == f"nope.txt: no such file; {FORMATS}"
        assert refusal(command, "./nope") == f"./nope: no such file; {FORMATS}"
        assert refusal(command, "./zbv") == f"./zbv: its name says no format; {FORMATS}"
        assert run(command, "zbv").exit_code == 0  # a schedule's name goes before a file's
    for command in (("export",), ("run", "-s"), ("compare", "-s"), ("calibrate", "-s")):
        assert refusal(*command, "mine.txt") == f"mine.txt is no schedule; {SCHEDULES_ARE}"
        assert refusal(*command, "./nope") == f"./nope: no such file; {SCHEDULES_ARE}"
    rows = "of a schedule's CSV (FILE.csv) `tracegen import` makes a trace"
    said = f"mine.txt: it begins with '0F0,0B0\\n'; {A_TRACE}; {rows}"
    assert refusal("import", "mine.txt") == refusal("diff", "mine.txt", "zbv") == said
    assert refusal("diff", "zbv", "zbv") == f"zbv: it begins with 'hello\\n'; {A_TRACE}"
    assert refusal("open", "zbv", "--print-only") == (
        "zbv: it begins with 'hello\\n'; expected a trace, such as FILE.json, FILE.json.gz or "
        "FILE.pftrace"
    )
    assert refusal("open", "1f1b", "--print-only") == (
        "1f1b: no such file; expected a trace: `tracegen run -s SCHEDULE` writes one"
    )


def test_diff_says_which_command_takes_schedules() -> None:
    Path("mine.py").touch()
    Path("gpipe").touch()
    for golden, new in (("1f1b", "zbv"), ("mine.py", "DualPipe")):
        assert refusal("diff", golden, new) == (
            f"{golden} and {new} are schedules, no traces; two schedules are held against each "
            f"other by `tracegen compare -s {golden},{new}`"
        )
    one = "is a schedule, no trace; `tracegen run -s {0} -o {1}.json` writes one"
    assert refusal("diff", "gpipe", "1f1b") == f"1f1b {one.format('1f1b', '1f1b')}"
    assert refusal("diff", "mine.py", "no.json") == f"mine.py {one.format('mine.py', 'mine')}"
    assert refusal("diff", "no.json", "qqqqq").startswith("no.json: No such file or directory; ")


@pytest.mark.parametrize(
    "command",
    ["show q1f1b", "check ./q1f1b", "explain ./q1f1b", "diff q1f1b.json q1f1b", "diff ./q1f1b x"]
    + ["open q1f1b", "query q1f1b x", "stats q1f1b", "import ./q1f1b", "run --like q1f1b"],
)
def test_a_trace_without_its_ending_is_told_the_whole_name(command: str) -> None:
    run("run", "-s", "1f1b", "-o", "q1f1b.json")
    name = "./q1f1b" if "./" in command else "q1f1b"
    said = refusal(*command.split())
    assert said.replace(" or directory", "").lower() == (
        f"{name}: no such file; give the whole name: {name}.json"
    )


def test_run_takes_a_schedule_by_itself_as_show_and_check_do() -> None:
    asked = run("run", "-s", "zb-h1", "-p", 3).stdout
    assert asked == run("run", "zb-h1", "-p", 3).stdout == run("run", "-p", 3, "zb-h1").stdout
    assert refusal("run", "zbv.json").endswith(
        "Error: zbv.json is a trace; --like zbv.json makes it again, `tracegen show` draws it"
    )
    said = "; one schedule is given as --schedule NAME"
    for more in (("zbv", "1f1b"), ("--like", "x.json", "1f1b"), ("-s", "zbv", "1f1b")):
        assert said in run("run", *more).stderr


def test_a_size_outside_is_refused_with_what_would_do() -> None:
    assert refusal("run", "-s", "dualpipe", "-p", 5, "-m", 20) == (
        "dualpipe is not defined for p=5 m=20 v=2: p is even, since one pipe goes down the ranks "
        "and one up; nearest that would do: p=4 or p=6"
    )
    assert refusal("run", "-s", "1f1b", "-p", 10**9) == (
        "1f1b: p * v = 1000000000 stages; use 65536 or fewer"
    )
    assert refusal("run", "-s", "1f1b", "-m", 10**12) == (
        "1f1b: p=4 m=1000000000000 v=1 is 8000000000000 actions; use sizes of 100000000 or fewer"
    )


def test_requests_that_contradict_themselves() -> None:
    both = "--json and -o - both want stdout; give -o a file or leave one out"
    assert refusal("run", "-s", "1f1b", "--json", "-o", "-").endswith(f"Error: {both}")
    none = "--no-trace and -o contradict each other; leave one out"
    assert refusal("run", "-s", "1f1b", "--no-trace", "-o", "x.json").endswith(f"Error: {none}")
    pipes = "-v and --pipes say the same of a schedule; give one of them"
    assert refusal("show", "chimera", "-v", 2, "--pipes", 4).endswith(f"Error: {pipes}")
    twice = "--slow 1=2 and --slow 01=3: rank 1 is given twice; give it once"
    assert refusal("run", "-s", "1f1b", "--slow", "1=2", "--slow", "01=3").endswith(
        f"Error: {twice}"
    )
    theme = "--theme is about a picture; add --bubble-svg or --frontier-svg"
    assert refusal("compare", "--sweep", "m=4", "--theme", "dark").endswith(f"Error: {theme}")
    for some in (("--p2p-order", "naive"), ("--dispatch", "dynamic"), ("--steps", 3), ("--sync",)):
        replayed = f"{some[0]}: only --p2p blocking is replayed here; leave it out"
        assert refusal("check", "1f1b", *some).endswith(f"Error: {replayed}")
    assert "Invalid value for '--waits': -1 is not in the range x>=0" in refusal(
        "stats", "x.json", "--waits", -1
    )


def test_export_and_import() -> None:
    assert run("export", "1f1b", "-p", 2, "-m", 2).stdout == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    with_comms = run("export", "1f1b", "-p", 2, "-m", 1, "--comms", "-o", "x.csv")
    assert (with_comms.stdout, with_comms.stderr) == ("", "wrote x.csv\n")
    assert Path("x.csv").read_text() == (
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"
    )
    found = run("import", "x.csv")
    assert found.stdout.startswith("x.csv: p=2 m=1 v=1, loop placement; this is 1f1b or ")
    assert found.stderr == "wrote x.json\n"
    assert json.loads(Path("x.json").read_text())["otherData"]["schedule"] == "x.csv"


def test_like_makes_the_trace_again() -> None:
    size = ["-s", "zbv", "-p", 3, "--f", 1 / 3, "--w", 0.7]
    run("run", *size, "-o", "a.json")
    found = run("run", "--like", "a.json", "-o", "b.json")
    assert found.exit_code == 0, found.output
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


# No request of any kind ends in a traceback

numbers = st.one_of(
    st.integers(-2, 9).map(str),
    st.floats().map(str),
    st.sampled_from(["1e308", "1e-320", "-0", "0.1", "1e15", "x", "", "1_0", " 1", "\u0661"]),
)
COSTS = ("--f", "--b", "--i", "--w", "--fb", "--alpha", "--bandwidth", "--bytes")
MORE = ("--activation-bytes", "--w-share")


@SETTINGS
@given(
    st.sampled_from(["run", "show", "check", "export"]),
    st.sampled_from([*SHIPPED, "zerobubble", "nothing", "", "./x.py", "x.csv", ".", "x.json"]),
    st.dictionaries(st.sampled_from(["-p", "-m", "-v", "--pipes"]), numbers, max_size=3),
    st.dictionaries(st.sampled_from([*COSTS, *MORE]), numbers, max_size=3),
    st.booleans(),
)
@example("run", "1f1b", {}, {"--activation-bytes": "1e308"}, False)
@example("run", "1f1b", {}, {"--f": "1e308", "--b": "1e308"}, False)
@example("run", "1f1b", {}, {"--bandwidth": "1e-320", "--bytes": "1e18"}, False)
@example("run", "dualpipe", {"-p": "0"}, {}, True)
def test_any_request_is_answered_or_refused(
    command: str, schedule: str, sizes: dict[str, str], costs: dict[str, str], forward: bool
) -> None:
    Path("x.csv").write_text(BAD)
    Path("x.json").write_text("{}")
    named = ["--schedule", schedule, "-o", "/dev/null"] if command == "run" else [schedule]
    given = sizes if command == "export" else sizes | costs
    options = [text for option in given.items() for text in option]
    found = run(command, *named, *options, *(["--forward-only"] * forward))
    assert found.exit_code in ((0, 1, 2) if command == "check" else (0, 2))
    if found.exit_code == 2:
        assert found.stderr.strip()
        assert found.stdout == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "--like", "x.json", "-p", 3), "-p: x.json has sizes of its own; leave it out"),
        (("show", "x.json", "-m", 3), "-m: x.json has sizes of its own; leave it out"),
        (("show", "x.json", "--f", 3), "--f: x.json has times of its own; leave it out"),
        (("explain", "x.json", "--steps", 2), "--steps: x.json has times of its own; leave it out"),
        (
            ("check", "x.json", "--forward-only"),
            "--forward-only: x.json has sizes of its own; leave it out",
        ),
    ],
)
def test_what_a_trace_says_itself_is_not_asked_otherwise(
    args: tuple[object, ...], message: str
) -> None:
    run("run", "-s", "1f1b", "-q", "-o", "x.json")
    assert refusal(*args).endswith(f"Error: {message}")


def test_a_trace_that_hangs_before_any_backward_is_not_forward_only() -> None:
    naive = ("--p2p", "blocking", "--p2p-order", "naive")
    assert run("run", "-s", "zbv", *naive, "-q", "-o", "x.json").exit_code == 2
    assert json.loads(Path("x.json").read_text())["metadata"]["forward_only"] is False
    again = run("run", "--like", "x.json", "-q", "-o", "y.json")
    assert "deadlock after 23 of 384 actions" in again.stderr
    assert Path("y.json").read_bytes() == Path("x.json").read_bytes()


def test_main_is_what_the_script_runs() -> None:
    assert main.name == "main"


@pytest.mark.parametrize(
    ("schedule", "options", "flag"),
    [
        ("1f1b", "--bytes 100", "--bytes"),
        ("1f1b", "--bandwidth 50", "--bandwidth"),
        ("1f1b", "--seed 3", "--seed"),
        ("1f1b", "--sync", "--sync"),
        ("zbv", "--replica-sync 30", "--replica-sync"),
        ("zbv", "--fb 100", "--fb"),
    ],
)
def test_an_option_that_changes_nothing_is_said(schedule: str, options: str, flag: str) -> None:
    found = run("run", "-s", schedule, *options.split(), "--no-trace", "--json")
    plain = run("run", "-s", schedule, "--no-trace", "--json")
    assert found.stdout == plain.stdout
    assert found.stderr.startswith(f"warning: {flag} changes nothing: ")


@pytest.mark.parametrize(("p", "others"), [(3, "stage 2 takes"), (5, "stages 2 to 4 take")])
def test_costs_of_fewer_stages_are_named(tmp_path: Path, p: int, others: str) -> None:
    costs = tmp_path / "of_two.toml"
    costs.write_text("[stage.0]\nf_us = 2000\n[stage.1]\nf_us = 2000\n")
    about = ("run", "-s", "1f1b", "--no-trace", "--costs", costs)
    assert run(*about, "-p", p).stderr == (
        f"warning: the costs are of 2 stages, the program has {p}: "
        f"{others} the default, 1 ms an F, I or W\n"
    )
    assert run(*about, "-p", 2).stderr == ""
    costs.write_text("f_us = 500\n[stage.0]\nf_us = 2000\n[stage.1]\nf_us = 2000\n")
    assert run(*about, "-p", p).stderr == ""


def test_sharding_without_its_collectives_is_said() -> None:
    said = "warning: --zero changes nothing: no --unshard or --grad-sync is given\n"
    shards = ("run", "-s", "1f1b", "--no-trace", "--zero", 3)
    assert run(*shards).stderr == said
    assert run(*shards, "--unshard", 50).stderr == run(*shards, "--grad-sync", 50).stderr == ""
    Path("c.toml").write_text("zero = 3\n[stage.1]\nunshard_us = 5\n")
    assert run(*shards, "--costs", "c.toml").stderr == ""


@pytest.mark.parametrize(
    "options",
    ["--bytes 1000 --bandwidth 1", "--jitter 0.1 --seed 3", "--steps 2 --sync", "--fb 100"],
)
def test_an_option_that_changes_something_is_not_warned_of(options: str) -> None:
    found = run("run", "-s", "dualpipe", *options.split(), "--no-trace", "--json")
    assert found.stderr == ""
    assert found.stdout != run("run", "-s", "dualpipe", "--no-trace", "--json").stdout


def test_pipes_are_of_schedules_that_cross() -> None:
    assert "1f1b has no pipes that cross, as chimera has" in refusal(
        "run", "-s", "1f1b", "--pipes", "4"
    )
    assert run("run", "-s", "chimera", "--pipes", "4", "--no-trace").exit_code == 0
