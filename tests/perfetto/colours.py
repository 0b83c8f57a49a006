"""Which colour the Perfetto UI gives a slice: a hash of its name, digits left out.

The rule is the UI's own (ui/src/components/colorizer.ts in v52.0): an FNV-1a hash, computed in
JavaScript's doubles, that loses the low bits of a product above 2**53.
"""

import re

FNV_OFFSET = 0x811C9DC5 & 0xFFFFFFF
FNV_PRIME = 16777619.0


def colour(name: str, strip_digits: bool = True) -> tuple[int, int]:
    """Hue (0 to 359) and lightness (40 to 79) in HSLuv of a slice with that name."""
    seed = re.sub(r"( )?\d+", "", name) if strip_digits else name
    return _hash(seed, 360), 40 + _hash(seed + "x", 40)


def hue_distance(one: str, other: str) -> int:
    """How far apart two names' hues are, at most 180."""
    apart = abs(colour(one)[0] - colour(other)[0])
    return min(apart, 360 - apart)


def _hash(text: str, size: int) -> int:
    value = FNV_OFFSET
    for character in text:
        value = int((value ^ ord(character)) * FNV_PRIME) & 0xFFFFFFFF
        if value >= 1 << 31:
            value -= 1 << 32
    return abs(value) % size
