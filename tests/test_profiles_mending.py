"""Profiles that are no JSON as torch wrote them, each slip as its report shows it.

The texts are written here after pytorch issues 98432 (a Windows path), 130622 and 136180 (control
characters), 33961 (a key without its first quotation mark), kineto's pull request 1459 (quotation
marks in a name), and the figures that torch_tb_profiler mends when it reads.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracegen.errors import FileError
from tracegen.profiles import stream
from tracegen.profiles.reading import read
from tracegen.profiles.stream import Stream
from tracegen.readers.warn import SHOWN, Warnings

MENDED = {
    "windows": r'"cat": "python_function", "name": "torch\cuda\__init__.py(219): _lazy_init"',
    "user": r'"cat": "python_function", "name": "C:\Users\me\new.py(1): <module>"',
    "control": '"cat": "python_function", "name": "torch/_inductor/config.py(0): \x01\n\x02"',
    "not applicable": '"cat": "gpu_memset", "name": "Memset", "bandwidth (GB/s)": N/A',
    "infinite": '"cat": "gpu_memset", "name": "Memset", "a": -inf, "bandwidth (GB/s)": inf',
    "no number": '"cat": "gpu_memset", "name": "Memset", "bandwidth (GB/s)": -nan(ind)',
}
LOST = {
    "quoted": '"cat": "python_function", "name": "{"device": "cpu", "dtype": "f"}(12): run"',
    "root": r'"cat": "python_function", "name": "C:\"',
    "key": '"name": "    add", "cat": "cpu_to_cuda", tid": 0',
}
MEANT = {"windows": "torch\\cuda\\__init__.py(219): _lazy_init", "infinite": "Memset"}


def document(slip: str, every: int) -> tuple[str, int]:
    """A profile of three forwards and backwards with that slip in every so many events."""
    parts, slips = [], 0
    for at in range(60):
        step = at // 10
        name = f"PP:0{'F' if step < 3 else 'B'}{step % 3}"
        about = '"args": {"Input Dims": [[1], {"a": 1}, {"b": 2}], "note": "}, {\\"ph\\": 1"}'
        what = f'"cat": "cpu_op", "name": "aten::mm", "ts": {at * 10}, "dur": 5, {about}'
        if at % 10 == 0:
            what = f'"cat": "user_annotation", "name": "{name}", "ts": {at * 10}, "dur": 95'
        elif at % every == 1:
            slips += 1
            what = f'"ts": {at * 10}, "dur": 1, {slip}, "args": {{"x": [{{"y": 1}}, {{"y": 2}}]}}'
        parts.append(f'  {{\n    "ph": "X", "pid": 7, "tid": 7, {what}\n  }}')
    events = ",\n".join(parts)
    return f'{{"schemaVersion": 1,\n "traceEvents": [\n{events}\n], "traceName": "t"}}', slips


@pytest.mark.parametrize("block", [40, 700, 1 << 20])
@pytest.mark.parametrize("every", [3, 50])
@pytest.mark.parametrize("what", [*MENDED, *LOST])
def test_what_torch_writes_that_is_no_json_is_read(
    what: str, every: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "BLOCK", block)
    text, slips = document({**MENDED, **LOST}[what], every)
    with pytest.raises(ValueError, match=r"line \d"):
        json.loads(text)
    path = tmp_path / "rank0.json"
    path.write_text(text)
    warnings = Warnings()
    events = [event for part in Stream(path, warnings).events() for event in part]
    assert len(events) == 60 - (slips if what in LOST else 0)
    assert [e["ts"] for e in events if e["cat"] == "user_annotation"] == [*range(0, 600, 100)]
    if what in MEANT:
        assert MEANT[what] in {event["name"] for event in events}
    said = warnings.texts()
    if what in LOST:
        assert "rank0.json: an event is no JSON and is left out: '{" in said[0]
        assert len(said) == min(slips, SHOWN + 1)
    else:
        assert said == [
            f"{path}: some of its texts are no JSON (backslashes or control characters as they "
            "are, figures such as N/A); they are read as they are meant"
        ]
    line = read([path])
    assert [str(action) for action in line.program.ranks[0]] == [
        *("0F0", "0F1", "0F2", "0B0", "0B1", "0B2")
    ]


def test_what_is_no_json_at_its_end_or_beside_the_events_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    for text, said in (
        ('{"schemaVersion": 1, "traceEvents": [{"ph" "X"}, 1]}', "Expecting ':'"),
        ('{"schemaVersion": N/A, "traceEvents": []}', "Expecting value"),
    ):
        path.write_text(text)
        with pytest.raises(FileError) as refused:
            read([path])
        assert str(refused.value).startswith(f"{path}: it is no JSON: {said}")


def test_a_slip_does_not_make_the_rest_be_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be mended by more text is not a reason to read more."""
    path = tmp_path / "rank0.json"
    rest = ",\n".join(['{"ph": "X", "name": "a", "ts": 1}'] * 300_000)
    path.write_text('{"schemaVersion": N/A, "traceEvents": [\n' + rest + "]}")
    reads = []
    more = Stream._more
    monkeypatch.setattr(Stream, "_more", lambda one: reads.append(1) or more(one))
    with pytest.raises(FileError):
        list(Stream(path, Warnings()).events())
    assert path.stat().st_size > 8 * stream.BLOCK
    assert len(reads) <= 3
