"""The kernels of one DeepSeek-V3 layer from its sizes, with the arithmetic.

Run it as `python examples/moe/model.py`; the sizes are in the file.
"""

import argparse
import sys

from tracegen.moe_model import Model

MODEL = Model(
    hidden=7168,
    experts=256,
    top_k=8,
    expert_hidden=2048,
    expert_ranks=64,
    tokens=4096,
    dispatch_bytes=1,
    bandwidth_GBps=45,
    tflops=350,
)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for cost, arithmetic, us in MODEL.table():
        sys.stdout.write(f"{cost:<11} {us:7.1f} us = {arithmetic}\n")


if __name__ == "__main__":
    main()
