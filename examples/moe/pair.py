"""DeepSeek's pair by itself, with mlpW before or after mlpF, and with nothing overlapped.

Run it as `python examples/moe/pair.py before after none`.
"""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

from tracegen.blocks import block
from tracegen.moe import MoE

PROFILE = tomllib.loads((Path(__file__).parent / "deepseek.toml").read_text())["moe"]


def main() -> None:
    for name in sys.argv[1:]:
        moe = MoE.from_dict(PROFILE)
        moe = replace(moe, block="none") if name == "none" else replace(moe, mlp_w=name)
        found = block(moe)
        takes, exposed = found.alone_ns / 1e6, found.alone_exposed_ns / 1e6
        sys.stdout.write(f"{name:<7} {takes:7.2f} ms, {exposed:6.2f} ms exposed\n")


if __name__ == "__main__":
    main()
