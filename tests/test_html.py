"""The page: its data says the timeline, and in a real browser it zooms, pans and names tiles."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

import tracegen
from tests import chrome
from tests.test_svg import line_of, show
from tracegen.timeline import Timeline
from tracegen.ui import html
from tracegen.ui.picture import FILLS


def page_of(line: Timeline, **look: Any) -> str:
    return "".join(html.chunks(line, html.Look(**look)))


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def decoded(data: dict[str, Any], rank: int) -> list[tuple[int, int, str]]:
    """(start, end, action) of a rank's tiles, as the page reads them."""

    def name(what: int) -> str:
        kind, rest = what % 16, what // 16
        batch = rest // len(data["ranks"]) if kind < 8 else ""
        return f"{rest % len(data['ranks'])}{data['kinds'][kind]}{batch}"

    tiles, at, row = [], 0, data["rows"][rank]
    for gap, lasts, what, mate, _ in zip(*(row[n::5] for n in range(5)), strict=True):
        start = at + gap * data["unit"]
        at = start + lasts * data["unit"]
        text = f"({name(what)};{name(mate - 1)})OVERLAP_F_B" if mate else name(what)
        tiles.append((start, at, text))
    return tiles


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipe", "interleaved-1f1b"])
def test_the_data_is_the_timeline(name: str) -> None:
    costs = tracegen.Costs(f_us=1000.001, i_us=333.333, w_us=700, alpha_us=7)
    line = line_of(name, 4, 8, costs=costs)
    data = data_of(page_of(line))
    for rank, stream in enumerate(line.program.ranks):
        first = line.program.offsets[rank]
        assert decoded(data, rank) == [
            (line.start_ns[first + at], line.end_ns[first + at], str(action))
            for at, action in enumerate(stream)
        ]


def test_the_data_has_what_else_held_a_rank_and_every_step() -> None:
    program = tracegen.compile("dualpipe", 4, 8)
    costs = tracegen.Costs(optimizer_us=500, alpha_us=7, replica_sync_us=11)
    line = tracegen.replay(program, costs, steps=2, sync=True)
    data = data_of(page_of(line, arrows=True, memory=True))
    for rank in range(4):
        tiles = decoded(data, rank)
        assert len(tiles) == len(line.program.ranks[rank]) + len(line.held[rank])
        assert [name for *_, name in tiles if "OPTIMIZER" in name] == [
            str(one) for one in line.held[rank] if one.is_optimizer
        ]
        assert tiles == sorted(tiles)


def test_arrows_join_the_tiles_of_the_transfers() -> None:
    line = line_of("zbv", 4, 8)
    data = data_of(page_of(line, arrows=True))
    offsets = line.program.offsets
    found = {
        (offsets[source] + there, offsets[rank] + tile, bool(forward))
        for rank, row in enumerate(data["arrows"])
        for tile, source, there, forward in zip(*(row[n::4] for n in range(4)), strict=True)
    }
    assert found == {(move.source, move.target, move.forward) for move in line.transfers()}


def test_a_tile_takes_few_bytes() -> None:
    line = line_of("1f1b", 16, 1563)
    assert len(page_of(line)) < 17 * len(line.program)


def test_the_page_asks_for_nothing_from_elsewhere() -> None:
    page = page_of(line_of("dualpipev", 4, 10), arrows=True, memory=True)
    assert not re.search(r"(src|href)=|url\(|@import|https?:|\bon\w+=|\bstyle=", page)
    assert "default-src 'none'; script-src 'sha256-" in page


def test_a_name_cannot_break_out_of_the_page() -> None:
    from dataclasses import replace

    line = line_of("1f1b", 2, 4)
    named = replace(line, program=replace(line.program, name="</script><script>alert(1)\0"))
    page = page_of(named)
    assert page.count("<script") == 2
    assert "alert(1)\ufffd" in page


def test_show_writes_the_page_and_says_so(tmp_path: Path) -> None:
    target = tmp_path / "zbv.html"
    assert show("zbv", "--html", str(target)) == (0, "", f"wrote {target}\n")
    code, out, err = show("zbv", "--html", "-")
    assert (code, out, err) == (0, target.read_text(), "")


# --- in a real browser -----------------------------------------------------------------------


def view(page: Any) -> tuple[float, float, float]:
    """From and to in ns, and how far down, as last drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    data = page.evaluate("() => ({ ...document.querySelector('canvas').dataset })")
    return float(data["from"]), float(data["to"]), float(data["top"])


def tip(page: Any) -> str | None:
    box = page.locator("#tip")
    return box.inner_text() if box.is_visible() else None


def point(page: Any, line: Timeline, rank: int, ns: float) -> tuple[int, float]:
    """Where a time of a rank's row is on the page, by the page's own axis."""
    start, end, top = view(page)
    box = page.locator("canvas").bounding_box()
    left = 58 + 7 * len(str(line.program.num_ranks - 1))
    x = box["x"] + left + (ns - start) / (end - start) * (box["width"] - left - 14)
    return round(x), box["y"] + 8 + rank * 35 - top + 6


def hover(page: Any, line: Timeline, rank: int, ns: float) -> str | None:
    page.mouse.move(*point(page, line, rank, ns))
    view(page)
    return tip(page)


def test_the_page_names_the_tile_under_the_pointer(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    line = line_of("dualpipev", 4, 10)
    html.write(line, target)
    with chrome.browser() as opened:
        page = opened(target)
        assert page.title() == "dualpipev: p=4 m=10 v=2, makespan 66 ms, bubble ratio 9.1%"
        assert hover(page, line, 0, 500_000) == (
            "0F0\nforward, stage 0, microbatch 0\nrank 0, starts 0\u00a0ns, lasts 1\u00a0ms"
        )
        step = next(
            step
            for step in range(line.program.offsets[1])
            if line.program.ranks[0].mates[step] >= 0 and line.blocker[step] >= 0
        )
        code, mate = line.program.ranks[0][step].forward, line.program.ranks[0][step].backward  # type: ignore[union-attr]
        middle = (line.start_ns[step] + line.end_ns[step]) / 2
        said = (hover(page, line, 0, middle) or "").split("\n")
        assert said[:3] == [
            f"{code} + {mate}",
            f"forward, stage {code.stage}, microbatch {code.microbatch}",
            f"backward, stage {mate.stage}, microbatch {mate.microbatch}",
        ]
        assert re.fullmatch(r"waited \d+\sms for \d[FBI]\d of rank \d", said[4])
        assert hover(page, line, 3, 500_000) is None  # idle
        page.mouse.move(5, 5)
        assert tip(page) is None


def test_the_page_zooms_pans_and_goes_by_keys(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    line = line_of("1f1b", 4, 8)
    html.write(line, target)
    with chrome.browser() as opened:
        page = opened(target)
        whole = float(line.makespan_ns)
        assert view(page)[:2] == (0, whole)
        x, y = point(page, line, 1, whole / 4)
        page.mouse.move(x, y)
        page.mouse.wheel(0, -500)
        start, end, _ = view(page)
        assert end - start == pytest.approx(whole * 2.718281828 ** (-300 * 0.002), rel=1e-6)
        assert abs(point(page, line, 1, whole / 4)[0] - x) <= 1
        page.mouse.down()
        page.mouse.move(x - 200, y, steps=4)
        page.mouse.up()
        assert abs(point(page, line, 1, whole / 4)[0] - (x - 200)) <= 1
        page.locator("canvas").focus()
        before = view(page)
        page.keyboard.press("ArrowRight")
        assert view(page)[0] > before[0]
        page.keyboard.press("-")
        page.keyboard.press("0")
        assert view(page)[:2] == (0, whole)
        page.keyboard.press("+")
        assert view(page)[1] - view(page)[0] == pytest.approx(0.7 * whole)
        page.keyboard.press("Home")
        for _ in range(3):
            page.keyboard.press(".")
        assert (tip(page) or "").startswith("0F2\n")
        assert page.locator("#status").inner_text().startswith("0F2; forward, stage 0")
        page.keyboard.press("Escape")
        assert tip(page) is None


@pytest.mark.parametrize("theme", [None, "paper", "dark"])
def test_the_page_follows_the_theme_or_the_reader(theme: str | None, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    html.write(line_of("1f1b", 2, 4), target, html.Look(theme=theme, memory=True, arrows=True))
    with chrome.browser() as opened:
        for dark in (False, True):
            page = opened(target, dark=dark)
            is_dark = theme == "dark" or (theme is None and dark)
            assert chrome.pixel(page, 3, 3) == ("#14171c" if is_dark else "#ffffff")
            box = page.locator("canvas").bounding_box()
            found = chrome.pixel(page, box["x"] + 65 + 4, box["y"] + 8 + 4)
            assert found == FILLS[0].colour


def test_the_page_stays_usable_at_50_000_tiles(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    line = line_of("1f1b", 16, 1563)
    assert len(line.program) > 50_000
    html.write(line, target)
    with chrome.browser() as opened:
        began = time.monotonic()
        page = opened(target)
        view(page)
        assert time.monotonic() - began < 60  # not for ever
        frames = page.evaluate("""async () => {
            const canvas = document.querySelector('canvas'), took = [];
            const box = canvas.getBoundingClientRect();
            for (let n = 0; n < 40; n++) {
                const began = performance.now();
                canvas.dispatchEvent(new WheelEvent('wheel', { bubbles: true, cancelable: true,
                    deltaY: n < 20 ? -40 : 40, clientX: box.left + 600, clientY: box.top + 60 }));
                await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
                took.push(performance.now() - began);
            }
            return took.sort((a, b) => a - b);
        }""")
        assert frames[len(frames) // 2] < 300  # ms, on a machine that has other things to do
        page.locator("canvas").focus()
        page.keyboard.press("Home")
        at = line.program.offsets[9] + 1500
        middle = (line.start_ns[at] + line.end_ns[at]) / 2
        for _ in range(16):
            page.mouse.move(*point(page, line, 9, middle))
            page.mouse.wheel(0, -300)
        start, end, _ = view(page)
        assert end - start < line.makespan_ns / 1000
        action = str(line.program.ranks[9][1500])
        assert (hover(page, line, 9, middle) or "").split("\n")[0] == action
