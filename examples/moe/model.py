"""The kernels of one DeepSeek-V3 layer from its sizes, with the arithmetic."""

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

for cost, arithmetic, us in MODEL.table():
    sys.stdout.write(f"{cost:<11} {us:7.1f} us = {arithmetic}\n")
