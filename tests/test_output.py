"""Where output goes: files that are whole or not there, pipes, stdout, terminals."""

from __future__ import annotations

import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from command import SCRIPT, process, refusal, run
from golden import SHIPPED

from tracegen import view
from tracegen.files import write_text

every_schedule = pytest.mark.parametrize("name", SHIPPED)


# A trace long enough for two processes to write, and what limits them to one core, or a size.
LONG = ("run", "-s", "1f1b", "-p", "16", "-m", "1024", "-q", "-o", "x.json")
ONE_CORE = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
PATIENCE_S = 60  # with a process of ours, on a machine that has much else to do
SMALL_FILES = "resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))"


def limited(limit: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command for the long trace under a limit."""
    code = f"import os, resource; {limit}; from tracegen.cli import main; main({LONG!r})"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# Where the output goes


def test_the_default_run(tmp_path: Path) -> None:
    """The newcomer's command: the trace in a file, the tiling and the figures on stdout."""
    done = process("run", "--schedule", "dualpipev", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"wrote dualpipev.json\n")
    assert json.loads((tmp_path / "dualpipev.json").read_text())["otherData"]["m"] == 10
    text = done.stdout.decode()
    assert text.startswith("dualpipev   p=4 m=10 v=2   8 stages, v placement\nrank 0 ")
    assert "makespan         66.000 ms" in text
    assert "ratio 9.09%   overhead 10.00%   span rate 9.09%" in text


def test_a_trace_on_stdout(tmp_path: Path) -> None:
    run("run", "-s", "1f1b", "-o", "x.json", "-q")
    done = process("run", "-s", "1f1b", "-o", "-", cwd=tmp_path)
    assert done.stdout == Path("x.json").read_bytes()
    assert done.stderr.startswith(b"1f1b   p=4")  # the tiling goes aside
    assert process("run", "-s", "1f1b", "-o", "-", "-q", cwd=tmp_path).stderr == b""


def test_quiet() -> None:
    found = run("run", "-s", "1f1b", "-q")
    assert found.output == ""
    assert Path("1f1b.json").is_file()


def test_gzip_by_suffix() -> None:
    run("run", "-s", "1f1b", "-o", "x.json")
    run("run", "-s", "1f1b", "-o", "x.json.gz")
    assert gzip.decompress(Path("x.json.gz").read_bytes()) == Path("x.json").read_bytes()


def test_one_core_writes_what_two_write(tmp_path: Path) -> None:
    """A long trace is written by two processes, where there are two cores."""
    assert process(*LONG, cwd=tmp_path).returncode == 0
    both = Path("x.json").read_bytes()
    assert limited(ONE_CORE, tmp_path).returncode == 0
    assert Path("x.json").read_bytes() == both
    assert json.loads(both)["otherData"]["p"] == 16


@pytest.mark.parametrize("more", ["", f"; {ONE_CORE}"])
def test_a_long_trace_that_finds_no_room(tmp_path: Path, more: str) -> None:
    Path("x.json").write_text("before")
    done = limited(SMALL_FILES + more, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Error: x.json: cannot be written: File too large\n"
    assert Path("x.json").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


# The second process, to which every test gives text that a reader can tell.
two = pytest.mark.skipif(sys.platform != "linux", reason="a second process writes on Linux alone")


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def ends(child: int) -> bool:
    """Whether a process goes, or waits for nothing but its parent's word."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@two
def test_a_disk_with_room_for_the_trace_once(
    two_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the second process has written beside the trace need not fit there twice."""
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=0, f_frsize=4096))
    write_text("x.txt", iter(["slices ", "and "]), iter(["what ", "follows"]))
    assert Path("x.txt").read_text() == "slices and what follows"


@two
def test_a_link_into_another_folder_is_written_there(two_cores: None, tmp_path: Path) -> None:
    """Also the second process's text: the folder of the link may be closed to us."""
    (tmp_path / "there").mkdir()
    (tmp_path / "x.txt").symlink_to("there/x.txt")

    def rest() -> Iterator[str]:
        folders = set[str]()
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                folders.add(os.path.dirname(os.readlink(link)))
        yield f"{str(tmp_path) in folders} {str(tmp_path / 'there') in folders}"

    write_text("x.txt", iter([""]), rest())
    assert Path("there/x.txt").read_text() == "False True"


@two
def test_ctrl_c_while_the_second_process_is_waited_for(two_cores: None) -> None:
    def rest() -> Iterator[str]:
        Path("child").write_text(str(os.getpid()))
        time.sleep(1000)
        yield "late"

    waited = []

    def interrupt(*_: object) -> None:
        waited.append(Path("child").exists())
        if sum(waited) > 5:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            write_text("x.txt", iter(["soon"]), rest())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ends(int(Path("child").read_text()))
    assert [path.name for path in Path().iterdir()] == ["child"]


@two
def test_the_second_process_ends_with_the_first(tmp_path: Path) -> None:
    code = """if True:
        import os, time, tracegen.files as files
        def rest():
            open("child", "w").write(f"{os.getpid()}.")
            while True:
                time.sleep(0.02)
                yield "more"
        files._can_fork = lambda: True
        files.write_text("x.txt", iter(["soon"]), rest())
    """
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as parent:
        until = time.monotonic() + PATIENCE_S
        while not (Path("child").exists() and Path("child").read_text().endswith(".")):
            assert time.monotonic() < until
            time.sleep(0.02)
        parent.kill()
    assert ends(int(Path("child").read_text()[:-1]))


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("forks", [True, False])
def test_a_process_that_is_ended_leaves_nothing_beside_the_target(
    tmp_path: Path, number: str, forks: bool
) -> None:
    """It dies by the signal, as one does that knows nothing of it, and what stood there is kept."""
    code = f"""if True:
        import time, tracegen.files as files
        def text():
            while True:
                time.sleep(0.02)
                open("begun", "w")
                yield "more"
        files._can_fork = lambda: {forks}
        files.write_text("x.txt", text(), text())
    """
    (tmp_path / "x.txt").write_text("before")
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as process:
        until = time.monotonic() + PATIENCE_S
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        process.send_signal(getattr(signal, number))
        assert process.wait(PATIENCE_S) == -getattr(signal, number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["begun", "x.txt"]
    assert (tmp_path / "x.txt").read_text() == "before"


def test_targets_that_are_no_files(tmp_path: Path) -> None:
    assert run("run", "-s", "1f1b", "-o", "/dev/null").exit_code == 0
    assert Path("/dev/null").is_char_device()
    os.mkfifo("pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append(Path("pipe").read_bytes()))
    reader.start()
    assert run("run", "-s", "1f1b", "-o", "pipe").exit_code == 0
    reader.join()
    assert Path("pipe").is_fifo()
    run("run", "-s", "1f1b", "-o", "x.json")
    assert got == [Path("x.json").read_bytes()]


def test_a_link_is_followed() -> None:
    Path("real.json").write_text("old")
    Path("link.json").symlink_to("real.json")
    run("run", "-s", "1f1b", "-o", "link.json")
    assert Path("link.json").is_symlink()
    assert Path("real.json").read_text().startswith('{"displayTimeUnit"')


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no/x.json", "no/x.json: cannot be written: there is no folder no"),
        ("folder.json", "folder.json: cannot be written: Is a directory"),
        ("loop.json", "loop.json: cannot be written: a loop of symbolic links"),
        (f"{'x' * 300}.json", f"{'x' * 300}.json: cannot be written: File name too long"),
    ],
)
def test_targets_that_cannot_be_written(target: str, message: str) -> None:
    Path("folder.json").mkdir()
    Path("loop.json").symlink_to("loop.json")
    assert refusal("run", "-s", "1f1b", "-o", target) == message


def test_a_name_that_is_no_traces() -> None:
    assert refusal("run", "-s", "1f1b", "-o", "x.txt").startswith("x.txt: a trace's name ends in ")
    for kind in ("svg", "html"):
        assert refusal("run", "-s", "1f1b", "-o", f"x.{kind}") == (
            f"x.{kind}: a trace's name ends in .json or .json.gz or .pftrace; "
            f"`tracegen show --{kind}` writes pictures"
        )


@pytest.mark.parametrize(
    ("request_", "target", "said"),
    [
        ("export 1f1b -o", "x.json", "export writes CSV; name it .csv"),
        ("run -s 1f1b --save-order", "x.json", "--save-order writes CSV; name it .csv"),
        ("solve -p 2 -m 2 --save-order", "x.json", "--save-order writes CSV; name it .csv"),
        ("compare -s 1f1b --save-costs", "x.json", "--save-costs writes TOML; name it .toml"),
        ("compare --sweep m=4 --bubble-svg", "x.png", "--bubble-svg writes SVG; name it .svg"),
        ("compare --sweep m=4 --frontier-svg", "x.png", "--frontier-svg writes SVG; name it .svg"),
        ("show 1f1b --svg", "x.png", "--svg writes SVG; name it .svg"),
        ("show 1f1b --html", "x.htm.gz", "--html writes HTML; name it .html"),
    ],
)
def test_what_a_name_says_is_another_format(request_: str, target: str, said: str) -> None:
    assert refusal(*request_.split(), target).endswith(f"Error: {target}: {said}")
    assert not list(Path.cwd().iterdir())


def test_an_existing_file_survives_a_failure(tmp_path: Path) -> None:
    Path("x.json").write_text("precious")
    assert run("run", "-s", "1f1b", "--f", "nan", "-o", "x.json").exit_code == 2

    def breaks() -> Iterator[str]:
        yield "half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_text("x.json", breaks())
    limit = f"trap '' XFSZ; ulimit -f 8; {SCRIPT} run -s 1f1b -m 500 -o x.json"
    done = subprocess.run(["bash", "-c", limit], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: x.json: cannot be written: File too large\n"
    assert Path("x.json").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_the_mode_of_a_file() -> None:
    run("run", "-s", "1f1b", "-o", "x.json")
    assert Path("x.json").stat().st_mode & 0o777 == 0o666 & ~_umask()
    Path("x.json").chmod(0o640)
    run("run", "-s", "1f1b", "-o", "x.json")
    assert Path("x.json").stat().st_mode & 0o777 == 0o640


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


# The terminal


@every_schedule
@pytest.mark.parametrize("width", [40, 80, 200])
def test_plain_and_within_the_width(name: str, width: int) -> None:
    text = run("run", "-s", name, "--no-trace", width=width).stdout
    assert text.isascii()
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "makespan" in text
    ranks = SHIPPED[name].example[0]
    for rank in range(ranks):
        assert f"\nrank {rank} " in text


@pytest.mark.parametrize("width", [20, 40, 60, 71, 72, 80])
def test_no_figure_is_cut(width: int) -> None:
    text = run("run", "-s", "1f1b", "-p", 2, "-m", 4, "--no-trace", width=width).stdout
    assert text.isascii()
    if width >= 40:
        for figure in ("12.000 ms", "3.000 ms", "20.00%", "25.00%", "15.000 ms"):
            assert figure in text
        for kind in ("forward", "backward"):
            assert kind in text


def test_no_figure_is_cut_beside_communication() -> None:
    said = ("--zero", 3, "--unshard", 700, "--grad-sync", 2500, "--no-trace")
    text = run("run", "-s", "interleaved-1f1b", "-p", 2, "-m", 4, *said, width=80).stdout
    assert "\nrank       busy      idle  comm busy   exposed " in text
    assert "\n   0  24.000 ms  6.200 ms   6.400 ms  3.200 ms " in text
    text = run("run", "-s", "interleaved-1f1b", "-p", 2, "-m", 4, *said, width=40).stdout
    assert "\nrank      busy     idle comm busy\n   0 24.000 ms 6.200 ms  6.400 ms\n" in text
    assert "\nrank  exposed    input   weight\n   0 3.200 ms        5        5\n" in text


def test_what_waits_at_a_ranks_end_has_a_name() -> None:
    said = ("--grad-sync", 2500, "--zero", 2, "--no-trace", "--explain")
    assert ": 2.500 ms  its end waits for its own 1REDUCE_GRAD" in (
        run("run", "-s", "1f1b", "-p", 2, "-m", 4, *said).stdout
    )


def test_list_in_a_narrow_terminal() -> None:
    text = run("list", width=40).stdout
    assert max(map(len, text.splitlines())) <= 40
    for name in SHIPPED:
        assert f"\n{name}\n" in f"\n{text}"


def on_a_terminal(*args: str, **env: str) -> bytes:
    """What a command writes to a real terminal."""
    plain = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    ours, theirs = pty.openpty()
    command = subprocess.Popen(
        [SCRIPT, *args],
        stdout=theirs,
        env={**plain, "COLUMNS": "80", "TERM": "xterm-256color", **env},
    )
    os.close(theirs)
    text = everything(ours)
    assert command.wait() == 0
    return text


def everything(terminal: int) -> bytes:
    """All that comes until the other end is closed."""
    text = b""
    try:
        while block := os.read(terminal, 1 << 16):
            text += block
    except OSError:  # this is how Linux says so
        pass
    os.close(terminal)
    return text


def test_colour_only_where_it_is_wanted() -> None:
    coloured = on_a_terminal("show", "1f1b")
    assert b"\x1b[" in coloured
    plain = run("show", "1f1b").stdout.replace("\n", "\r\n").encode()
    assert on_a_terminal("show", "1f1b", NO_COLOR="1") == plain
    assert on_a_terminal("show", "1f1b", TERM="dumb") == plain
    assert b"\x1b" not in process("show", "1f1b", cwd=Path.cwd()).stdout


def test_sixteen_colours_tell_the_kinds_apart() -> None:
    """Of those, the nearest to the usual colours would be two yellows and greys."""
    shown = on_a_terminal("show", "zbv", TERM="xterm", COLORTERM="")
    for letter, colour in (("F", b"30;43"), ("I", b"37;44"), ("W", b"30;42")):
        assert b"\x1b[%sm %s \x1b[0m" % (colour, letter.encode()) in shown
    assert b"\x1b[37;41m B \x1b[0m" in on_a_terminal("show", "1f1b", TERM="xterm", COLORTERM="")
    assert set(view.STANDARD) == set(view.KINDS)


EVERY_KIND = [
    "1f1b --f 333.3333 --b 0.1 --alpha 0.013",
    "interleaved-1f1b -v 3 -p 2 -m 4 --bandwidth 50 --bytes 1e6 --links",
    "zb-h2 --steps 3 --optimizer 5 --grad-sync 7 --bubble-row",
    "1f1b --p2p blocking --p2p-order fused --alpha 5",
    "zbv --dispatch dynamic --slow 1=1.5",
    "dualpipe -p 4 -m 8 --replica-sync 3 --jitter 0.1 --seed 4",
    "moe-1f1b-bad-overlap --steps 2 --jitter 0.1 --alpha 3",
    "dualpipev --moe block=dualpipe --moe layers=2 --moe attn_f=300,200",
    "chimera --pipes 4 -p 4 -m 8 --forward-only",
    "v-half --activation-bytes 1e6 --w-share 0.25 --memory-limit 8MB",
]


@pytest.mark.parametrize("request_", EVERY_KIND)
@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_like_makes_the_same_bytes_of_every_kind(request_: str, suffix: str) -> None:
    first, again = Path(f"a.{suffix}"), Path(f"b.{suffix}")
    made = run("run", "-q", "-s", *request_.split(), "-o", first)
    assert made.exit_code == 0, made.stderr
    assert run("run", "-q", "--like", first, "-o", again).exit_code == 0
    assert again.read_bytes() == first.read_bytes()


def test_nothing_is_written_over_what_is_read() -> None:
    run("run", "-q", "-s", "gpipe", "-o", "a.json")
    run("run", "-q", "-s", "1f1b", "-o", "b.json")
    before = Path("a.json").read_bytes()
    Path("folder").mkdir()
    Path("folder/a.json").write_bytes(before)
    said = "a.json is what is being read; give another file to write"
    for command in (
        ("show", "a.json", "--svg", "a.json"),
        ("show", "a.json", "--html", "./a.json"),
        ("diff", "a.json", "b.json", "--overlay", "a.json"),
        ("diff", "b.json", "a.json", "--overlay", "a.json"),
        ("explain", "a.json", "-o", "a.json"),
        ("import", "b.json", "a.json", "-o", "./a.json"),
        ("import", "[a].json", "-o", "a.json"),
        ("explain", "[ab].json", "-o", "a.json"),
        ("import", "folder", "-o", "folder/a.json"),
    ):
        assert refusal(*command).endswith(said.removeprefix("a.json")), command
    assert Path("a.json").read_bytes() == Path("folder/a.json").read_bytes() == before
    run("export", "1f1b", "-o", "a.csv")
    assert refusal("export", "a.csv", "-o", "a.csv").endswith(said.removeprefix("a.json"))


def test_an_overlay_is_json_in_a_file() -> None:
    run("run", "-q", "-s", "gpipe", "-o", "a.json")
    for target, said in (
        ("-", "the report and --overlay - both want stdout; give --overlay a file"),
        ("b.pftrace", "b.pftrace: --overlay writes JSON; name it .json"),
    ):
        assert refusal("diff", "a.json", "a.json", "--overlay", target).endswith(f"Error: {said}")


def test_a_trace_too_long_for_json_says_so() -> None:
    long = ("run", "-q", "-s", "1f1b", "-p", 2, "-m", 2, "--f", 3e12)
    said = "warning: Perfetto reads times past 2**42 us from JSON inexactly; write .pftrace\n"
    assert run(*long, "-o", "a.json").stderr == said
    assert run(*long, "-o", "a.pftrace").stderr == ""


# What a command shows on a terminal from a given moment on, not from a second on.
AFTER = """
import sys, tracegen.cli as c, tracegen.cli.progress as p
p.AFTER_S = float(sys.argv[1])
c.main(sys.argv[2:])
"""


def at_once(*args: str, stdout: int | None = None, after_s: float = 0) -> tuple[int, str]:
    """The exit code of a command and what it shows on a terminal, what it is at too."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", AFTER, str(after_s), *args],
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = everything(ours).decode()
    return child.wait(), shown


def test_what_takes_long_says_what_it_is_at() -> None:
    _, shown = at_once(*LONG[:-3], "-o", "x.json")
    for what in ("compiling", "replaying 32768 actions", "writing", "100%", "wrote x.json"):
        assert what in shown
    assert "reading x.json" in at_once("show", "x.json")[1]
    assert "comparing" in at_once("diff", "x.json", "x.json")[1]


def test_what_is_quick_or_quiet_says_nothing() -> None:
    assert at_once(*LONG) == (0, "")
    _, shown = at_once("run", "-s", "1f1b", "-o", "x.json", after_s=PATIENCE_S)
    assert "wrote x.json" in shown
    assert "compiling" not in shown
    assert "writing" not in shown


def test_no_bar_is_left_where_writing_fails() -> None:
    code, shown = at_once(*LONG[:-3], "-o", "/dev/full", stdout=subprocess.DEVNULL)
    assert (code, "No space left on device" in shown) == (2, True)
    assert shown.count("\x1b[?25h") == shown.count("\x1b[?25l") > 0  # the cursor is there again
