"""DeepSeek's pair by itself, with mlpW before or after mlpF, and with nothing overlapped.

Run it as `python examples/moe/pair.py before after none`.
"""

import argparse
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from tracegen.blocks import block
from tracegen.moe import MoE

PROFILE = tomllib.loads((Path(__file__).parent / "deepseek.toml").read_text())["moe"]


WAYS = ("before", "after", "none")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ways", nargs="*", metavar="WAY", help="all unless named")
    asked = parser.parse_args().ways
    if unknown := [name for name in asked if name not in WAYS]:
        parser.error(f"no way {unknown[0]!r}; there are {', '.join(WAYS)}")
    for name in asked or WAYS:
        moe = MoE.from_dict(PROFILE)
        moe = replace(moe, block="none") if name == "none" else replace(moe, mlp_w=name)
        found = block(moe)
        takes, exposed = found.alone_ns / 1e6, found.alone_exposed_ns / 1e6
        sys.stdout.write(f"{name:<7} {takes:7.2f} ms, {exposed:6.2f} ms exposed\n")


if __name__ == "__main__":
    main()
