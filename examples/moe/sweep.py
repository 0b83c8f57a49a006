"""All-to-all against compute, from a tenth of it to four times: the tables of this page.

Run it as `python examples/moe/sweep.py [hides] [times] [plain] [longer] [share] [weights]`.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace

import tracegen
from tracegen.blocks import RATIOS, Point, block, hides_up_to, sweep, with_ratio
from tracegen.moe import BlockOrder, MoE

# Four all-to-all of equal lengths; compute as the default costs have it, 2400 a layer.
EQUAL = MoE(disp_f_us=400, comb_f_us=400)
LAYERS = (1, 2, 4)


def hides() -> Iterator[list[str]]:
    """The largest all-to-all / compute of a block at which a row of blocks exposes nothing."""
    yield ["L", "all-to-all", *BlockOrder, "dualpipe, mlp_w after"]
    for layers in LAYERS:
        for name, base in (("equal", EQUAL), ("2:1:2:1", MoE())):
            cells = [hides_up_to(replace(base, layers=layers, block=order)) for order in BlockOrder]
            after = replace(base, layers=layers, block="dualpipe", mlp_w="after")
            cells.append(hides_up_to(after))
            yield [str(layers), name, *(f"{ratio:.3f}" for ratio in cells)]


def times() -> Iterator[list[str]]:
    """A block's time in a row of blocks, over that of its computation."""
    yield ["L", "block", *map(str, RATIOS)]
    for layers in LAYERS:
        for order in BlockOrder:
            base = replace(EQUAL, layers=layers, block=order)
            found = [block(with_ratio(base, ratio)) for ratio in RATIOS]
            yield [str(layers), order, *(f"{b.each_ns / b.compute_ns:.2f}" for b in found)]


def plain() -> Iterator[list[str]]:
    """How much longer plain dualpipev (p = 4, m = 12) is in %: fb of a block alone / in a row."""
    program = tracegen.compile("dualpipev", 4, 12, communication=False)
    yield ["L", "block", *map(str, RATIOS)]
    for layers in LAYERS:
        for order in BlockOrder:
            yield [
                str(layers),
                order,
                *map(_errors, sweep(program, EQUAL, RATIOS, [layers], [order])),
            ]


def longer() -> Iterator[list[str]]:
    """The same at L = 1, all-to-all as long as computation, and more microbatches."""
    yield ["m", *BlockOrder]
    for m in (12, 24, 48, 96):
        program = tracegen.compile("dualpipev", 4, m, communication=False)
        yield [str(m), *map(_errors, sweep(program, EQUAL, [1.0], [1]))]


def _errors(point: Point) -> str:
    return f"{100 * point.alone_error:.1f} / {100 * point.row_error:.1f}"


def share() -> Iterator[list[str]]:
    """A block in a row of blocks when communication takes a share of the device, in ms."""
    shares = (0.0, 0.1, 0.15, 0.2, 0.3, 0.5)
    yield ["block", *map(str, shares)]
    for order in ("pair", "dualpipe"):
        found = [block(replace(MoE(), block=order, comm_sm_share=s)) for s in shares]
        yield [order, *(f"{b.each_ns / 1e6:.2f}" for b in found)]


def weights() -> Iterator[list[str]]:
    """Per pair, in ms: a full B in the block, or I in it and W behind it."""
    ratios = (0.5, 0.75, 1.0, 1.5, 2.0)
    yield ["block", "backward", *map(str, ratios)]
    for order in ("pair", "dualpipe"):
        for name, options in (
            ("B in the block", {}),
            ("I in it, W behind it", {"full": False, "then_w": True}),
        ):
            found = [block(with_ratio(replace(EQUAL, block=order), r), **options) for r in ratios]
            yield [order, name, *(f"{b.each_ns / 1e6:.2f}" for b in found)]


TABLES = {
    "hides": hides,
    "times": times,
    "plain": plain,
    "longer": longer,
    "share": share,
    "weights": weights,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="all unless named")
    asked = parser.parse_args().tables
    if unknown := [name for name in asked if name not in TABLES]:
        parser.error(f"no table {unknown[0]!r}; there are {', '.join(TABLES)}")
    for name in asked or TABLES:
        head, *rows = TABLES[name]()
        sys.stdout.write(f"{TABLES[name].__doc__}\n\n")
        for row in [head, ["---"] * len(head), *rows]:
            sys.stdout.write(f"| {' | '.join(row)} |\n")


if __name__ == "__main__":
    main()
