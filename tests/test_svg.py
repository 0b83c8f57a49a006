"""The SVG: its cells are those of the published figures, its colours hold, its text fits."""

import re
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import tracegen
from tests import chrome
from tracegen.cli import main
from tracegen.timeline import Timeline
from tracegen.ui import picture, svg
from tracegen.ui.picture import FILLS, OTHER, THEMES

DATA = Path(__file__).parent / "data" / "figures"
SVG = "{http://www.w3.org/2000/svg}"
LETTER = {fill.colour: fill.letter for fill in FILLS.values()}


def line_of(
    name: str, p: int, m: int, v: int | None = None, costs: tracegen.Costs | None = None
) -> Timeline:
    return tracegen.replay(tracegen.compile(name, p, m, v), costs or tracegen.Costs())


def drawn(line: Timeline, **look: object) -> ElementTree.Element:
    return ElementTree.fromstring("".join(svg.chunks(line, svg.Look(**look))))  # type: ignore[arg-type]


def rows(picture: ElementTree.Element) -> list[list[ElementTree.Element]]:
    """The tiles of each rank that are drawn one by one, from left to right."""
    ranks = [
        group
        for group in picture.findall(f"{SVG}g")
        if any(text.text and text.text.startswith("rank ") for text in group.findall(f"{SVG}text"))
    ]
    return [
        sorted(
            (tile for tile in rank.findall(f"{SVG}g") if tile.find(f"{SVG}title") is not None),
            key=lambda tile: float(tile.find(f"{SVG}rect").get("x")),  # type: ignore[union-attr, arg-type]
        )
        for rank in ranks
    ]


def cell(tile: ElementTree.Element) -> str:
    """What a reader sees of a tile: colour and number, `F3`; of a pair, `F3+B0`."""
    colours = [rect.get("fill") for rect in tile.findall(f"{SVG}rect")]
    letters = [LETTER[colour] for colour in colours if colour in LETTER]
    numbers = [text.text for text in tile.findall(f"{SVG}text")]
    return "+".join(f"{letter}{n}" for letter, n in zip(letters, numbers, strict=True))


@pytest.mark.parametrize(("name", "p", "m"), [("dualpipe", 8, 20), ("dualpipev", 4, 10)])
def test_the_cells_are_those_of_the_published_figure(name: str, p: int, m: int) -> None:
    text = (DATA / f"{name}.txt").read_text().splitlines()
    figure = [line.split() for line in text if not line.startswith("#")]
    assert [[cell(tile) for tile in row] for row in rows(drawn(line_of(name, p, m)))] == figure


def test_tiles_stand_at_their_times_and_say_what_they_are() -> None:
    costs = tracegen.Costs(f_us=1000, i_us=1000, w_us=1000, alpha_us=250)
    tiles = rows(drawn(line_of("1f1b", 2, 2, costs=costs), legend=False))
    said = [[tile.findtext(f"{SVG}title") for tile in row] for row in tiles]
    assert said == [
        [
            "0F0, rank 0: from 0 ns for 1 ms",
            "0F1, rank 0: from 1 ms for 1 ms",
            "0B0, rank 0: from 4.5 ms for 2 ms, waited 2.5 ms for 1B0",
            "0B1, rank 0: from 7.5 ms for 2 ms, waited 1 ms for 1B1",
        ],
        [
            "1F0, rank 1: from 1.25 ms for 1 ms, waited 1.25 ms for 0F0",
            "1B0, rank 1: from 2.25 ms for 2 ms",
            "1F1, rank 1: from 4.25 ms for 1 ms",
            "1B1, rank 1: from 5.25 ms for 2 ms",
        ],
    ]
    boxes = [tile.find(f"{SVG}rect") for tile in tiles[0]]
    edges = [float(box.get("x")) for box in boxes if box is not None]  # type: ignore[arg-type]
    pixels_per_ms = edges[1] - edges[0]
    assert edges[2] - edges[0] == pytest.approx(4.5 * pixels_per_ms, abs=0.05)


# --- colours ---------------------------------------------------------------------------------


def linear(colour: str) -> list[float]:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def luminance(rgb: list[float]) -> float:
    return 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2]


def lightness(colour: str) -> float:
    """L* of CIELAB: what is left in greyscale."""
    return _lab(linear(colour))[0]


def contrast(a: str, b: str) -> float:
    """WCAG's: 4.5 is enough for small text."""
    low, high = sorted([luminance(linear(a)), luminance(linear(b))])
    return (high + 0.05) / (low + 0.05)


def full(colour: str) -> str:
    return "#" + "".join(2 * digit for digit in colour[1:]) if len(colour) == 4 else colour


def _lab(rgb: list[float]) -> tuple[float, float, float]:
    to_xyz = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.95047, 1.0, 1.08883)
    f = []
    for row, reference in zip(to_xyz, white, strict=True):
        t = sum(a * max(0.0, b) for a, b in zip(row, rgb, strict=True)) / reference
        f.append(t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


# Machado, Oliveira and Fernandes 2009, "A Physiologically-based Model for Simulation of Color
# Vision Deficiency", severity 1.0, on linear RGB.
SIGHT = {
    "full": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def test_kinds_are_told_apart_in_greyscale() -> None:
    steps = [lightness(fill.colour) for kind, fill in FILLS.items() if kind != OTHER]
    assert min(a - b for a, b in pairwise(steps)) >= 15
    everything = [lightness(fill.colour) for fill in FILLS.values()]
    assert min(abs(a - b) for a, b in combinations(everything, 2)) >= 12


@pytest.mark.parametrize("sight", SIGHT)
def test_kinds_are_told_apart_by_colour_blind_readers(sight: str) -> None:
    def seen(colour: str) -> tuple[float, float, float]:
        rgb = linear(colour)
        return _lab(
            [sum(a * b for a, b in zip(row, rgb, strict=True)) for row in SIGHT[sight]],
        )

    colours = [seen(fill.colour) for fill in FILLS.values()]
    distances = [
        sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
        for a, b in combinations(colours, 2)
    ]
    assert min(distances) >= 18  # 2.3 is just noticeable side by side; 10, at a glance


def test_what_is_written_can_be_read() -> None:
    for fill in FILLS.values():
        assert contrast(fill.colour, full(fill.ink)) >= 4.5
    for theme in THEMES.values():
        assert contrast(theme.ink, theme.background) >= 7
        assert contrast(theme.faint, theme.background) >= 3
        kinds = [fill.colour for kind, fill in FILLS.items() if kind != OTHER]
        assert min(abs(lightness(c) - lightness(theme.lane)) for c in kinds) >= 8


# --- the rest --------------------------------------------------------------------------------


def test_the_same_timeline_gives_the_same_bytes() -> None:
    first, second = ("".join(svg.chunks(line_of("zbv", 4, 8))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["<b>&\"'", "nul\0 bell\a", "half \ud800 pair", "long " * 100])
def test_any_name_gives_valid_xml(name: str) -> None:
    line = line_of("1f1b", 2, 4)
    named = replace(line, program=replace(line.program, name=name))
    text = "".join(svg.chunks(named))
    ElementTree.fromstring(text.encode())
    assert "<b>" not in text


def test_many_tiles_become_few_shapes_that_count_them_all() -> None:
    line = line_of("1f1b", 8, 5000)
    text = "".join(svg.chunks(line))
    assert len(text) < 600_000
    assert text.count("<g><title>") == 0
    counted = sum(map(int, re.findall(r": (\d+) tiles too narrow to name", text)))
    assert counted == 8 * 2 * 5000


def area(path: str) -> float:
    return sum(float(w) * float(h) for w, h in re.findall(r"h([\d.]+)v([\d.]+)h-", path))


@pytest.mark.parametrize("name", ["1f1b", "zbv", "dualpipev"])
@pytest.mark.parametrize("m", [600, 3000])
def test_merged_tiles_take_the_share_of_time_that_they_took(name: str, m: int) -> None:
    line = line_of(name, 4, m)
    found = drawn(line)
    paths = [p for p in found.iter(f"{SVG}path") if p.get("fill") in LETTER]
    shown = {c: sum(area(p.get("d") or "") for p in paths if p.get("fill") == c) for c in LETTER}
    row = next(r for r in found.iter(f"{SVG}rect") if r.get("fill") == THEMES["paper"].lane)
    whole = 4 * float(row.get("width")) * float(row.get("height"))  # type: ignore[arg-type]
    assert sum(shown.values()) / whole == pytest.approx(
        sum(line.busy_ns) / (4 * line.makespan_ns), rel=0.03
    )


def test_a_timeline_with_nothing_to_see_is_still_a_picture() -> None:
    nothing = tracegen.Costs(f_us=0, i_us=0, w_us=0)
    assert rows(drawn(line_of("1f1b", 2, 2, costs=nothing))) == [[], []]


def test_arrows_are_the_transfers() -> None:
    line = line_of("zbv", 4, 8)
    paths = [p for p in drawn(line, arrows=True).iter(f"{SVG}path") if p.get("fill") == "none"]
    drawn_arrows = [(p.get("d") or "").count("L") // 3 for p in paths]
    forward = [move.forward for move in line.transfers()]
    assert drawn_arrows == [forward.count(True), forward.count(False)]


def test_the_memory_curve_says_each_peak() -> None:
    line = line_of("1f1b", 4, 8)
    texts = [text.text for text in drawn(line, memory=True).iter(f"{SVG}text")]
    assert [t for t in texts if t and t.startswith("peak")] == [f"peak {n}" for n in (4, 3, 2, 1)]


def test_the_legend_names_what_occurs_and_can_be_left_out() -> None:
    words = [
        "forward",
        "input gradient",
        "weight gradient",
        "backward",
        "overlapped pair",
        "foot: the rank's second stage",
    ]
    line = line_of("dualpipev", 4, 10)
    with_legend = [t.text for t in drawn(line).iter(f"{SVG}text")]
    without = [t.text for t in drawn(line, legend=False).iter(f"{SVG}text")]
    assert [word for word in with_legend if word in words] == words
    assert not set(without) & {*words, "dualpipev"}


def test_the_width_is_what_was_asked_for() -> None:
    assert drawn(line_of("1f1b", 4, 8), width=700).get("width") == "700"


def test_moe_kernels_stand_under_the_tiles() -> None:
    from tracegen.moe import MoE

    line = line_of("moe-1f1b-bad-overlap", 2, 4, costs=tracegen.Costs(moe=MoE()))
    titles = [title.text or "" for title in drawn(line).iter(f"{SVG}title")]
    assert "rank 1, comm stream, forward: 8 kernels" in titles
    assert "rank 0, compute stream, weight gradient: 8 kernels" in titles


def test_what_holds_a_rank_beside_compute_is_shown() -> None:
    program = tracegen.compile("1f1b", 2, 2)
    costs = tracegen.Costs(optimizer_us=500, alpha_us=100)
    line = tracegen.replay(program, costs, p2p="blocking")
    found = drawn(line)
    said = [tile.findtext(f"{SVG}title") for tile in rows(found)[1]]
    assert said[:3] == [
        "1RECV_F0, rank 1: from 0 ns for 1.1 ms",
        "1F0, rank 1: from 1.1 ms for 1 ms",
        "1RECV_F1, rank 1: from 2.1 ms for 100 \u00b5s",
    ]
    assert (said[-1] or "").startswith("1OPTIMIZER, rank 1: from ")
    assert "message, gradient sum, optimizer" in [t.text for t in found.iter(f"{SVG}text")]


def test_several_steps_are_shown_one_after_the_other() -> None:
    program = tracegen.compile("zbv", 2, 4)
    line = tracegen.replay(program, tracegen.Costs(optimizer_us=500), steps=2, sync=True)
    for row in rows(drawn(line, arrows=True)):
        cells = [cell(tile) for tile in row if tile.find(f"{SVG}text") is not None]
        assert cells[: len(cells) // 2] == cells[len(cells) // 2 :]


def test_a_trace_that_was_read_looks_as_what_wrote_it(tmp_path: Path) -> None:
    costs = tracegen.Costs(f_us=1000.3, i_us=333.333, alpha_us=12.5)
    for name in ("1f1b", "dualpipev", "interleaved-1f1b"):
        line = line_of(name, 4, 8, costs=costs)
        tracegen.write(line, tmp_path / "trace.json")
        code, read, _ = show(
            str(tmp_path / "trace.json"), "--svg", "-", "--arrows", "--memory", "--theme", "dark"
        )
        look = svg.Look(theme="dark", arrows=True, memory=True)
        assert (code, read) == (0, "".join(svg.chunks(line, look)))


def test_ticks_are_round_and_few() -> None:
    assert list(picture.ticks(66_000_000, 15)) == [5_000_000 * n for n in range(14)]
    assert list(picture.ticks(0, 10)) == [0]
    for makespan in (1, 7, 999, 10**6 + 1, 86_400 * 10**9):
        assert 1 <= len(picture.ticks(makespan, 12)) <= 12


def test_a_notebook_shows_a_timeline() -> None:
    line = line_of("1f1b", 2, 4)
    assert line._repr_html_() == svg.html(line)
    assert "<svg " in svg.html(line)
    assert len(svg.html(line_of("1f1b", 64, 800))) < 1_500_000


# --- the command -----------------------------------------------------------------------------


def show(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(main, ["show", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_show_writes_the_picture_and_says_so(tmp_path: Path) -> None:
    target = tmp_path / "zbv.svg"
    assert show("zbv", "--svg", str(target)) == (0, "", f"wrote {target}\n")
    code, out, err = show("zbv", "--svg", "-")
    assert (code, out, err) == (0, target.read_text(), "")


def test_show_refuses_what_makes_no_sense() -> None:
    told = (
        "Usage: main show [OPTIONS] SCHEDULE_OR_TRACE\nTry 'main show --help' for help.\n\nError: "
    )
    assert show("zbv", "--arrows") == (
        2,
        "",
        told + "--arrows is about a picture; add --svg FILE or --html FILE\n",
    )
    assert show("zbv", "--svg", "-", "--html", "-") == (
        2,
        "",
        told + "--svg - and --html - both want stdout; give one of them a file\n",
    )
    for option, name in (("--svg", "a.png"), ("--html", "a.svg")):
        format = option.removeprefix("--")
        why = f"{option} writes {format.upper()}; name it .{format}\n"
        assert show("zbv", option, name) == (2, "", f"{told}{name}: {why}")
    assert show("zbv", "--html", "x.html", "--width", "500") == (
        2,
        "",
        told + "--width is about an SVG; a page takes its window's\n",
    )


# --- in a real browser -----------------------------------------------------------------------

TEXTS_OUTSIDE = """() => [...document.querySelectorAll('g > title + rect')].flatMap(first => {
    const tile = first.parentElement, box = tile.querySelector('rect').getBBox();
    const tall = Math.max(...[...tile.querySelectorAll('rect')].map(r => {
        const b = r.getBBox(); return b.y + b.height; }));
    return [...tile.querySelectorAll('text')].filter(text => {
        const t = text.getBBox();
        return t.x < box.x || t.x + t.width > box.x + box.width || t.y + t.height > tall + 3;
    }).map(text => text.textContent + ' in ' + tile.querySelector('title').textContent);
})"""
FONT_SIZES = """() => [...document.querySelectorAll('g > title + rect')].map(first =>
    [...first.parentElement.querySelectorAll('text')].map(text => +text.getAttribute('font-size')))
"""
TEXTS_BEYOND = """() => [...document.querySelectorAll('text')].filter(text => {
    const t = text.getBoundingClientRect(), s = document.documentElement.getBoundingClientRect();
    return t.left < s.left || t.right > s.right || t.top < s.top || t.bottom > s.bottom;
}).map(text => text.textContent)"""


def test_at_p8_m20_every_tile_has_its_number_and_text_fits(tmp_path: Path) -> None:
    target = tmp_path / "picture.svg"
    with chrome.browser() as opened:
        for name in ("gpipe", "1f1b", "zb-h1", "zbv", "dualpipe", "dualpipev"):
            line = line_of(name, 8, 20)
            svg.write(line, target, svg.Look(memory=True, arrows=True))
            page = opened(target, width=1900)
            assert page.evaluate(TEXTS_OUTSIDE) == []
            assert page.evaluate(TEXTS_BEYOND) == []
            sizes = page.evaluate(FONT_SIZES)
            pairs = sum(mate >= 0 for stream in line.program.ranks for mate in stream.mates)
            assert len(sizes) == len(line.program)
            assert sum(map(len, sizes)) == len(line.program) + pairs
            assert min(min(of_tile) for of_tile in sizes) >= 8


def test_the_browser_draws_a_tile_in_its_colour(tmp_path: Path) -> None:
    target = tmp_path / "picture.svg"
    svg.write(line_of("1f1b", 2, 4), target, svg.Look(theme="dark"))
    with chrome.browser() as opened:
        page = opened(target)
        for number, fill in ((0, FILLS[0]), (2, FILLS[1])):
            box = page.locator("g > title + rect").nth(number).bounding_box()
            assert chrome.pixel(page, box["x"] + 4, box["y"] + 4) == fill.colour
        assert chrome.pixel(page, 2, 2) == THEMES["dark"].background
