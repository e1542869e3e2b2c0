"""Random values of tests depend on the test's name, so that a test repeats them, alone and in any order.

This applies to `random`, to random bytes of the system, and to fixtures that several tests share, which use their own
name. Processes that a test starts use the system's. If their bytes matter, the test passes a seed.

`CABLESTORE_SEED` selects other values for all tests: `make explore` looks for faults that the usual values miss.
"""

from __future__ import annotations

import os
import random

SEED = os.environ.get("CABLESTORE_SEED", "")
_SYSTEM = random.Random("the system")


def replace_system() -> None:
    """Replace `os.urandom` and `secrets` of this process by a seeded generator."""
    os.urandom = _drawn
    vars(random)["_urandom"] = _drawn  # called by `secrets` and SystemRandom


def _drawn(size_bytes: int, /) -> bytes:
    return _SYSTEM.randbytes(size_bytes)


def begin(name: str) -> random.Random:
    """Seed everything by a name. Return a generator for the test's own use."""
    random.seed(f"random of {name}{SEED}")
    _SYSTEM.seed(f"system of {name}{SEED}")
    return random.Random(f"{name}{SEED}")
