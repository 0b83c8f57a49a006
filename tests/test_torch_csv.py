"""PyTorch's schedule CSV: what is read, what is refused and where, what torch makes of ours."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from golden import SHIPPED
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import programs

import tracegen
from tracegen import torch_csv
from tracegen.errors import FileError, ProgramError, ScheduleError, TracegenError
from tracegen.ir import Program, parse
from tracegen.passes.communication import add_communication
from tracegen.passes.validate import validate
from tracegen.passes.whole_stage import add_whole_stage

SETTINGS = settings(max_examples=100, deadline=None, derandomize=True)

ODD = Path(__file__).parent / "data" / "odd_traces" / "csv"

every_schedule = pytest.mark.parametrize("name", SHIPPED)


# Files that people meet


@pytest.mark.parametrize(
    ("stem", "size", "placement"),
    [
        ("00_ok", (2, 2, 1), "loop"),
        ("01_crlf", (2, 2, 1), "loop"),
        ("02_trailing_commas", (2, 2, 1), "loop"),
        ("03_blank_last_line", (2, 2, 1), "loop"),
        ("05_bom", (2, 2, 1), "loop"),
        ("21_overlap_fb", (2, 3, 1), "loop"),
        ("22_reduce_grad", (2, 2, 1), "loop"),
        ("32_zbv_p2_m2", (2, 2, 2), "v"),
    ],
)
def test_odd_but_good(stem: str, size: tuple[int, int, int], placement: str) -> None:
    program = tracegen.compile(ODD / f"{stem}.csv")
    assert (program.num_ranks, program.num_microbatches, program.stages_per_rank) == size
    assert program.placement.name == placement
    if stem < "21":
        plain = tracegen.compile(ODD / "00_ok.csv")
        assert program.compute_only().ranks == plain.compute_only().ranks


FORM = "expected one row a rank, its actions separated by commas, such as 0F0,0F1,0B0,0B1"
ACTION = (
    "is not an action; expected <stage><F|B|I|W><microbatch>, such as 2F0, "
    "<stage><SEND_F|RECV_F|SEND_B|RECV_B><microbatch>, <stage><UNSHARD|RESHARD|REDUCE_GRAD> "
    "or (3F5;0B2)OVERLAP_F_B"
)


@pytest.mark.parametrize(
    ("stem", "message"),
    [
        ("04_blank_middle_line", f", line 2: it is empty; {FORM}"),
        ("08_tabs", f", line 1: it has tabs; {FORM}"),
        ("30_utf16", ": it is in UTF-16 or not text at all; expected UTF-8"),
        ("27_trailing_junk", f", line 1, cell 1: '0F0xyz' {ACTION}"),
        (
            "11_duplicate_action",
            ": rank 0, action 1: 0F0 again does what 0F0, action 0, has done",
        ),
        ("13_W_before_I", ": rank 0, action 1: 0W0 comes before 0I0, which is action 2"),
        (
            "15_I_without_W",
            ":\n  rank 0, action 1: 0I0 has no 0W0, which is missing"
            "\n  rank 0, action 3: 0I1 has no 0W1, which is missing",
        ),
        (
            "17_missing_stage",
            ": rank 1, action 0: 2F0 is of stage 2, but no rank holds stage 1; "
            "stages are numbered from 0 without a gap",
        ),
        (
            "18_cross_rank_deadlock",
            ":\n  deadlock after 1 of 8 actions"
            "\n  rank 0, action 1: 0B0 waits for rank 1, action 3: 1B0"
            "\n  rank 1, action 0: 1F1 waits for rank 0, action 2: 0F1",
        ),
        (
            "24_torch_1f1b_last_rank_off_by_one",
            ": rank 1, action 0: 1F1 should be of microbatch 0: this is how torch's Schedule1F1B "
            "draws itself, numbering the last rank's forwards from 1; take one from each, or use "
            "`tracegen export 1f1b`",
        ),
    ],
)
def test_odd_and_refused(stem: str, message: str) -> None:
    path = ODD / f"{stem}.csv"
    with pytest.raises(TracegenError) as error:
        tracegen.compile(path)
    assert str(error.value) == f"{path}{message}"


def test_every_odd_file_is_tried() -> None:
    tried = set()
    for test in (test_odd_but_good, test_odd_and_refused):
        tried |= {case[0] for case in test.pytestmark[0].args[1]}  # type: ignore[attr-defined]
    assert {path.stem for path in ODD.glob("*.csv")} == tried


NINES = "9" * 5000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f": it holds no actions; {FORM}"),
        (",,,\n\n , \n", f": it holds no actions; {FORM}"),
        ("0F0 0B0\n", f", line 1, cell 1: '0F0 0B0' {ACTION}"),
        ("0F0;0B0\n", f", line 1, cell 1: '0F0;0B0' {ACTION}"),
        ('0F0,"0B0\n', f", line 1: unexpected end of data; {FORM}"),
        ("0F0,0B0\x0b1F0,1B0\n", f", line 1, cell 2: '0B0\\x0b1F0' {ACTION}"),
        ("\u0660F0,0B0\n", f", line 1, cell 1: '\u0660F0' {ACTION}"),  # a digit, not an ASCII one
        ("0f0,0b0\n", f", line 1, cell 1: '0f0' {ACTION}"),
        ("0F,0B\n", f", line 1, cell 1: '0F' {ACTION}"),
        ("(0F1;0W0)OVERLAP_F_B\n", f", line 1, cell 1: '(0F1;0W0)OVERLAP_F_B' {ACTION}"),
        (f"{'x' * 99}\n", f", line 1, cell 1: '{'x' * 60}...' {ACTION}"),
        (
            "65536F0\n",
            ", line 1, cell 1: stage 65536 is out of range; it goes from 0 to 65535",
        ),
        (
            "0F0,0F4294967296\n",
            ", line 1, cell 2: microbatch 4294967296 is out of range; it goes from 0 to 4294967295",
        ),
        (
            f"0F{NINES}\n",
            ", line 1, cell 1: microbatch 99999999... of 5000 digits is out of range; "
            "it goes from 0 to 4294967295",
        ),
        (f"{' ' * 200_000}0F0\n", f", line 1: field larger than field limit (131072); {FORM}"),
    ],
)
def test_text_that_is_no_schedule(text: str, message: str) -> None:
    with pytest.raises(FileError) as error:
        torch_csv.from_text(text, "x.csv")
    assert str(error.value) == f"x.csv{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0UNSHARD,0RESHARD\n", ": no rank has an F, B, I or W; there is nothing to do"),
        ("0F0,0B0\n0F1,0B1\n", ": rank 1, action 0: 0F1 belongs on rank 0, which holds stage 0"),
        (
            "0F0,0B0\n1UNSHARD\n",
            ":\n  rank 1: 1F0 is missing\n  rank 1: 1B0 is missing (or 1I0 and 1W0)",
        ),
        ("0F1,0B1\n", ": microbatch 0 is missing; the highest is 1, and m runs from 0"),
        (
            "0F0,0F4294967295\n",
            ": microbatch 1 is missing; the highest is 4294967295, and m runs from 0",
        ),
        ("0F0,0B0,0F1\n", ": rank 0: 0B1 is missing (or 0I1 and 0W1)"),
    ],
)
def test_rows_that_are_no_program(text: str, message: str) -> None:
    with pytest.raises(ProgramError) as error:
        validate(torch_csv.from_text(text, "x.csv"))
    assert str(error.value) == f"x.csv{message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n",
            " rank 0, action 3: 0REDUCE_GRAD again does what action 2 has done",
        ),
        (
            "0F0,0I0,0REDUCE_GRAD,0W0\n",
            " rank 0, action 3: 0W0 comes after 0REDUCE_GRAD, action 2, which lacks its gradient",
        ),
        (
            "0F0,0B0\n1F0,1B0,0REDUCE_GRAD\n",
            " rank 1, action 2: 0REDUCE_GRAD belongs on rank 0, which holds stage 0",
        ),
        (
            "0UNSHARD,0F0,0RESHARD,0B0\n",
            " rank 0, action 3: 0B0 needs stage 0; UNSHARD it before",
        ),
        (
            "0UNSHARD,0UNSHARD,0F0,0B0,0RESHARD,0RESHARD\n",
            "\n  rank 0, action 1: 0UNSHARD comes when stage 0 is there already"
            "\n  rank 0, action 5: 0RESHARD needs stage 0; UNSHARD it before",
        ),
    ],
)
def test_whole_stage_actions_where_torch_cannot_do_them(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(ProgramError) as error:
        tracegen.compile(path)
    assert str(error.value) == f"{path}:{message}"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(end: str) -> None:
    program = torch_csv.from_text(f'"0F0", 0B0{end}1F0,1B0,,{end}{end},,{end}', "x.csv")
    assert [list(map(str, stream)) for stream in program.ranks] == [["0F0", "0B0"], ["1F0", "1B0"]]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    with pytest.raises(FileError, match=r"x.csv: No such file or directory; expected a sch"):
        tracegen.compile(path)
    path.mkdir()
    with pytest.raises(FileError, match=r"x.csv: Is a directory; expected a schedule CSV"):
        tracegen.compile(path)
    other = tmp_path / "y.csv"
    other.write_bytes(b"0F0,\xff")
    with pytest.raises(FileError, match=r"y.csv: byte 4 is not UTF-8; expected UTF-8"):
        tracegen.compile(other)


@SETTINGS
@given(
    st.text(alphabet="0123FBIWSEND_RCV(;)OLAP,\n\r \t\"'x", max_size=60)
    | st.lists(
        st.sampled_from(["0F0", "0B0", "0I0", "0W0", "1F0", "1B0", "0F1", "0B1", "\n", "0UNSHARD"]),
        max_size=12,
    ).map(",".join)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(TracegenError):
        program = validate(torch_csv.from_text(text, "x.csv"))
        assert tracegen.replay(program).makespan_ns > 0


# There and back


def written(program: Program) -> str:
    """The rows as text, also of programs that torch has no form for."""
    return "".join(",".join(map(str, stream)) + "\n" for stream in program.ranks)


@every_schedule
@pytest.mark.parametrize("communication", [False, True])
def test_what_is_written_is_read(name: str, communication: bool) -> None:
    for p in (2, 4):
        program = tracegen.compile(name, p, communication=communication)
        again = torch_csv.from_text(written(program), "again")
        assert again.ranks == program.ranks
        assert again.placement.ranks == program.placement.ranks
        assert again.placement.chains == program.placement.chains
        assert again.num_microbatches == program.num_microbatches
        assert again.placement.name == program.placement.name or program.stages_per_rank == 1


def test_a_placement_that_has_no_name() -> None:
    program = torch_csv.from_text("1F0,1B0\n0F0,0B0\n", "x.csv")
    assert program.placement.name == "custom"
    assert program.placement.ranks == (1, 0)
    assert validate(program)


@SETTINGS
@given(programs(4, 4))
def test_any_program_is_read_as_it_was_written(program: Program) -> None:
    used = {program.placement.ranks[s] for s in range(program.num_stages)}
    if used != set(range(len(program.ranks))):
        return  # a rank that does nothing has no row
    again = torch_csv.from_text(written(program), "again")
    assert again.ranks == program.ranks
    assert again.placement.ranks == program.placement.ranks
    assert again.placement.chains == program.placement.chains


# What torch makes of it

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")


def torch_reads(text: str, path: Path, form: str, p: int, m: int, stages: int) -> list[list[str]]:
    """The rows that torch's runtime would run, read without its process group."""
    made: Any = object.__new__(torch_schedules._PipelineScheduleRuntime)
    made.pipeline_order, made.pp_group_size, made.rank = {}, p, 0
    made._num_stages, made._n_microbatches = stages, m
    made._stages, made._defer_pp_recv = [], False
    path.write_text(text)
    made._load_csv(str(path), form)
    return [[str(action) for action in made.pipeline_order_with_comms[rank]] for rank in range(p)]


def rows(program: Program) -> list[list[str]]:
    return [[str(step) for step in stream] for stream in program.ranks]


def both_agree(program: Program, path: Path) -> None:
    """Torch reads both our forms, and lowers the compute-only one to our other."""
    size = (program.num_ranks, program.num_microbatches, program.num_stages)
    ours = add_communication(add_whole_stage(program))
    lowered = torch_reads(torch_csv.write(program), path, "compute_only", *size)
    assert torch_reads(torch_csv.write(ours), path, "compute_comms", *size) == rows(ours)
    assert [_sorted_reshards(row) for row in lowered] == [
        _sorted_reshards(row) for row in rows(ours)
    ]


def _sorted_reshards(row: list[str]) -> list[str]:
    """Torch drops several stages at a point in the order of a Python set, which means nothing."""
    row = [*row]
    for _ in row:
        for at, (a, b) in enumerate(pairwise(row)):
            if a.endswith("RESHARD") and b.endswith("RESHARD") and a > b:
                row[at], row[at + 1] = b, a
    return row


ONE_CHAIN = [name for name in SHIPPED if name not in ("chimera", "dualpipe")]


@pytest.mark.parametrize("name", ONE_CHAIN)
def test_torch_reads_and_lowers_as_we_do(name: str, tmp_path: Path) -> None:
    assert agreed(name, (1, 2, 4), (2, 3), tmp_path / "x.csv") >= 6


@pytest.mark.nightly
@pytest.mark.parametrize("name", ONE_CHAIN)
def test_torch_reads_and_lowers_as_we_do_at_many_sizes(name: str, tmp_path: Path) -> None:
    assert agreed(name, range(1, 9), (2, 3, 4, 5), tmp_path / "x.csv") >= 16


def agreed(name: str, ps: Iterable[int], vs: tuple[int, ...], path: Path) -> int:
    """The number of sizes tried, all of which torch reads and lowers as we do."""
    tried = 0
    for p in ps:
        for m in (p, 2 * p, 2 * p + 1, 3 * p):
            for v in vs if SHIPPED[name].stages_per_rank is None else (None,):
                try:
                    program = tracegen.compile(name, p, m, v, communication=False)
                except ScheduleError:
                    continue
                both_agree(program, path)
                tried += 1
    return tried


@SETTINGS
@given(programs(4, 3))
def test_torch_lowers_any_program_as_we_do(
    tmp_path_factory: pytest.TempPathFactory, program: Program
) -> None:
    empty = not all(map(len, program.ranks))
    if len(program.placement.chains) > 1 or empty:
        return  # torch has no form for it
    both_agree(program, tmp_path_factory.getbasetemp() / "x.csv")


@pytest.mark.parametrize("name", ["chimera", "dualpipe"])
def test_two_chains_have_no_torch_form(name: str) -> None:
    with pytest.raises(ScheduleError) as error:
        torch_csv.write(tracegen.compile(name))
    assert str(error.value) == (
        f"{name} has 2 chains of stages on one model: torch's form numbers the stages of one "
        "chain, so export one of a single chain (dualpipev instead of dualpipe, "
        "hanayo instead of chimera)"
    )


def test_a_forward_only_program_has_no_torch_form(tmp_path: Path) -> None:
    program = tracegen.compile("1f1b", 2, 2, forward_only=True, communication=False)
    with pytest.raises(ScheduleError) as error:
        torch_csv.write(program)
    assert str(error.value) == (
        "1f1b has no backward: torch's runtime refuses such a file; export the training "
        "schedule, whose eval() leaves the backward out"
    )
    with pytest.raises(AssertionError, match="Invalid backward microbatches"):
        torch_reads(written(program), tmp_path / "x.csv", "compute_only", 2, 2, 2)


def test_torch_accepts_what_we_refuse(tmp_path: Path) -> None:
    """Why the reader is stricter: these run with the wrong result, or never end."""
    text = "0F0xyz,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    read = torch_reads(text, tmp_path / "x.csv", "compute_only", 2, 2, 2)
    assert read[0][1] == "0F0"
    with pytest.raises(FileError):
        torch_csv.from_text(text, "x.csv")


def test_parse_gives_back_what_torch_prints() -> None:
    for text in ("2F0", "3SEND_F1", "4RECV_B5", "1UNSHARD", "2RESHARD", "3REDUCE_GRAD"):
        assert str(parse(text)) == text == str(torch_schedules._Action.from_str(text))
    pair = "(3F5;0B2)OVERLAP_F_B"
    assert str(parse(pair)) == pair == str(torch_schedules._Action.from_str(pair))


# A file's own SEND and RECV

COMMS = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
    "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n"
)


def test_messages_that_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text(COMMS)
    assert tracegen.compile(path, communication=False).has_communication


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("1RECV_F1,", "", "rank 1, action 4: 1F1 has no 1RECV_F1, which is missing"),
        ("0SEND_F1,", "", "rank 0, action 2: 0F1 has no 0SEND_F1, which is missing"),
        (
            "0F0,0SEND_F0",
            "0SEND_F0,0F0",
            "rank 0, action 1: 0F0 comes after its 0SEND_F0, which is action 0",
        ),
        ("1F0,", "1F0,1SEND_F0,", "rank 1, action 2: 1SEND_F0 moves nothing between two ranks"),
        (
            "1RECV_F0,",
            "1RECV_F0,1RECV_F0,",
            "rank 1, action 1: 1RECV_F0 is there already, as action 0",
        ),
        (
            "0RECV_B0,0B0,0RECV_B1",
            "0RECV_B1,0RECV_B0,0B0",
            "rank 0, action 4: 0RECV_B1 gets what rank 1, action 4: 1SEND_B0 sends; "
            "a link's messages arrive in the order they are sent",
        ),
    ],
)
def test_messages_that_are_not(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert COMMS.count(old) == 1
    path = tmp_path / "x.csv"
    path.write_text(COMMS.replace(old, new))
    with pytest.raises(ProgramError) as error:
        tracegen.compile(path)
    assert error.value.problems == [message]
