"""All that is random in a test comes from the test's name, so that the same test repeats it, alone and in any order.

This holds for `random`, for what the product draws from the system, and for fixtures that
several tests share, which go by their own name. Processes that a test starts draw from the system; where their bytes
matter, the test gives them a seed.
"""

from __future__ import annotations

import os
import random
import zlib

_SYSTEM = random.Random("the system")


def replace_system() -> None:
    """Have `os.urandom` and `secrets` of this process draw from a seed."""
    os.urandom = _drawn
    vars(random)["_urandom"] = _drawn  # what `secrets` and SystemRandom call


def _drawn(size_bytes: int, /) -> bytes:
    return _SYSTEM.randbytes(size_bytes)


def begin(name: str) -> random.Random:
    """Seed everything by a name; returns a generator for the test's own use."""
    random.seed(f"random of {name}")
    _SYSTEM.seed(f"system of {name}")
    return random.Random(f"{name}")


def number_of(name: str) -> int:
    """Return a number that a name always gives, for a child process or a series of seeds."""
    return zlib.crc32(name.encode())
