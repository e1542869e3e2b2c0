"""Parts of fuzz tests: bytes that are hard to decode, and the loop over them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

from cablestore.protocol.varint import encode_varint

SOAK = bool(os.environ.get("CABLESTORE_SOAK"))
INTERESTING = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 254, 255]
VARINTS = [encode_varint(n) for n in (0, 127, 128, 255, 4096, 4097, 2**31, 2**32, 2**53, 2**63, 2**64 - 1)] + [
    b"\x80\x00",
    b"\xff" * 10,
]


def run(work: Callable[[random.Random], object], inputs: int) -> None:
    """Run `work` on this many inputs, each from a separate printed seed. A soak uses other seeds each time."""
    first = int(time.time()) if SOAK else random.randrange(2**32)
    rng = random.Random(first)
    for number in range(inputs):
        rng.seed(first + number)
        try:
            work(rng)
        except BaseException as error:
            error.add_note(f"random seed {first + number}")
            raise
