"""Hashes with which deployed nodes map ids to filters and response groups. Pure.

All are public functions without a key, so a member that chooses ids can cause collisions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, reduce
from operator import or_
from typing import Final

from cablestore.errors import SdsError
from cablestore.extras import naming_extras

with naming_extras("causal logs need", SdsError):
    import mmh3

_MASK: Final = 0xFFFFFFFF
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593


def javascript_hash(text: str) -> int:
    """Return MurmurHash3 x86_32 with seed 0, signed, as @waku/sds computes it.

    It hashes the first UTF-16 unit of each character instead of a byte. For text in ASCII, which ids are, and in
    Latin-1, this equals MurmurHash3 of the bytes.
    """
    if text.isascii():
        return mmh3.hash(text)
    units = [ord(each) if each <= "\uffff" else 0xD800 + ((ord(each) - 0x10000) >> 10) for each in text]
    return _murmur3(units)


def nim_hash(text: str) -> int:
    """Return FarmHash's 64-bit fingerprint of UTF-8, signed: `hash(string)` of Nim from 2.2 on, which nim-sds uses.

    Raises UnicodeEncodeError for text that UTF-8 cannot encode, and SdsError if FarmHash is not installed.
    """
    found = _farmhash()(text.encode())
    return found - (1 << 64) if found >> 63 else found


@cache
def _farmhash() -> Callable[[bytes], int]:
    with naming_extras("the dialect nim needs", SdsError):
        from farmhash import Fingerprint64  # noqa: PLC0415 - only for one dialect, and not every Python has a wheel
    found: Callable[[bytes], int] = Fingerprint64
    return found


def sha256_hash(text: str) -> int:
    """Return the first eight bytes of SHA-256 of UTF-8, unsigned, as @waku/sds uses it for repairs.

    Raises UnicodeEncodeError for text that UTF-8 cannot encode.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _murmur3(units: list[int]) -> int:
    """Return MurmurHash3 x86_32 of units that may be wider than bytes: their upper bits are mixed in."""
    hash_ = 0
    whole = len(units) // 4 * 4
    for at in range(0, whole, 4):
        hash_ ^= _mixed(_word(units[at : at + 4]))
        hash_ = (_rotated(hash_, 13) * 5 + 0xE6546B64) & _MASK
    hash_ ^= _mixed(_word(units[whole:])) ^ len(units)
    hash_ = (hash_ ^ hash_ >> 16) * 0x85EBCA6B & _MASK
    hash_ = (hash_ ^ hash_ >> 13) * 0xC2B2AE35 & _MASK
    hash_ ^= hash_ >> 16
    return hash_ - (1 << 32) if hash_ >> 31 else hash_


def _word(units: list[int]) -> int:
    return reduce(or_, (unit << 8 * at for at, unit in enumerate(units)), 0) & _MASK


def _mixed(word: int) -> int:
    return _rotated(word * _C1 & _MASK, 15) * _C2 & _MASK


def _rotated(word: int, by: int) -> int:
    return (word << by | word >> 32 - by) & _MASK
