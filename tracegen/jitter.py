"""Seeded noise on the times: a lognormal factor for each action, the same on every machine.

The factor comes from a hash of what the action is, not from a sequence of random
numbers, so that it does not depend on the order in which actions are looked at.
Only operations that IEEE 754 rounds exactly are used (+ - * / and the square
root): a platform's own log and exp may differ in the last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

from tracegen.ir import KIND_MASK, KINDS, MICROBATCH_SHIFT, STAGE_MASK, STAGE_SHIFT

PAIR = "FB"

LN2 = 0.6931471805599453
ROOT_HALF = 0.7071067811865476


@dataclass(frozen=True, slots=True)
class Jitter:
    """Factors exp(sigma z), z standard normal, by the hash of (seed, step, stage, op, microbatch).

    Attributes:
        sigma: above 0. The median factor is 1.
        seed: another seed, other factors.
        num_microbatches: of a step; microbatch m is the first of the second step.
    """

    sigma: float
    seed: int
    num_microbatches: int

    def factor(self, code: int, op: str | None = None) -> float:
        """The factor of an action; op, where given, is that of its code's place."""
        step, microbatch = divmod(code >> MICROBATCH_SHIFT, self.num_microbatches)
        stage = code >> STAGE_SHIFT & STAGE_MASK
        what = f"{self.seed} {step} {stage} {op or KINDS[code & KIND_MASK]} {microbatch}"
        return _exp(self.sigma * _normal(what))

    def of(self, ns: int, code: int, op: str | None = None) -> int:
        """A time of an action with its factor, rounded to whole ns."""
        return round(ns * self.factor(code, op))

    def of_pair(self, ns: int, code: int) -> int:
        """The same of a pair as a whole, by the code of its forward."""
        return self.of(ns, code, PAIR)


def _normal(text: str) -> float:
    """A standard normal number for a text: Marsaglia's polar method on its hashes."""
    attempt = 0
    while True:
        digest = blake2b(f"{text} {attempt}".encode(), digest_size=14).digest()
        x = int.from_bytes(digest[:7], "big") / (1 << 55) - 1  # 56 bits, -1 to 1
        y = int.from_bytes(digest[7:], "big") / (1 << 55) - 1
        s = x * x + y * y
        if 0 < s < 1:
            return x * math.sqrt(-2 * _log(s) / s)
        attempt += 1


def _log(x: float) -> float:
    """The natural logarithm of x > 0, by 2 artanh((y - 1) / (y + 1)) of its mantissa y."""
    mantissa, exponent = math.frexp(x)
    if mantissa < ROOT_HALF:
        mantissa, exponent = mantissa * 2, exponent - 1
    t = (mantissa - 1) / (mantissa + 1)
    square, power, total = t * t, t, 0.0
    for odd in range(1, 25, 2):
        total += power / odd
        power *= square
    return exponent * LN2 + 2 * total


def _exp(x: float) -> float:
    """Exp(x), by the series of what is left beside a power of two."""
    twos = round(x / LN2)
    rest = x - twos * LN2
    term = total = 1.0
    for number in range(1, 18):
        term *= rest / number
        total += term
    return math.ldexp(total, twos)
