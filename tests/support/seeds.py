"""All that is random in a test comes from the test's name, so that the same test repeats it, alone and in any order.

This holds for `random`, for what the product draws from the system, for the keys of handshakes, and for fixtures that
several tests share, which go by their own name. Processes that a test starts draw from the system; where their bytes
matter, the test gives them a seed.
"""

from __future__ import annotations

import os
import random
import zlib
from typing import Any

from noise.backends.default.diffie_hellmans import ED25519
from noise.backends.default.keypairs import KeyPair25519

_SYSTEM = random.Random("the system")


def replace_system() -> None:
    """Have `os.urandom`, `secrets` and handshakes of this process draw from a seed."""
    os.urandom = _drawn
    vars(random)["_urandom"] = _drawn  # what `secrets` and SystemRandom call
    ED25519.generate_keypair = _key_pair


def _drawn(size_bytes: int, /) -> bytes:
    return _SYSTEM.randbytes(size_bytes)


def _key_pair(_: Any) -> Any:
    return KeyPair25519.from_private_bytes(_drawn(32))


def begin(name: str) -> random.Random:
    """Seed everything by a name; returns a generator for the test's own use."""
    random.seed(f"random of {name}")
    _SYSTEM.seed(f"system of {name}")
    return random.Random(f"{name}")


def number_of(name: str) -> int:
    """Return a number that a name always gives, for a child process or a series of seeds."""
    return zlib.crc32(name.encode())
