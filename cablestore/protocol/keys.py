"""Parts of keys: escaped text, hex hashes, sortable timestamps, ranges.

A key starts with `!`, and `!` separates its parts. So the keys with a common prefix are one range.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from cablestore.errors import ArgumentError, CorruptStoreError, DecodeError

SEPARATOR: Final = b"!"
TIME_DIGITS: Final = 16
"""Number of digits of the milliseconds in a `sort_time`."""
SORT_TIME_SIZE_BYTES: Final = TIME_DIGITS + 1 + 32
"""Size of a `sort_time`: digits of the time, a dot, digits of the hash."""
AFTER_SORT_TIMES: Final = b"~"
"""Key part that sorts after every `sort_time`."""
NS_PER_MS: Final = 1_000_000
"""Posts have times in milliseconds. Waku, archives and reconciliation use nanoseconds."""
_LOW = re.compile(rb'[\x00-"]')
_SORT_TIME = re.compile(r"[0-9]{16}\.[0-9a-f]{32}")
_ESCAPED = re.compile(rb'"([@-b])')


@lru_cache(maxsize=4096)
def escape(text: str) -> bytes:
    """Return `text` as UTF-8 without `!`. Escaped texts sort like the bytes of the texts.

    Bytes up to 0x22 become `"` and the byte plus 0x40. Other bytes are unchanged.
    """
    return _LOW.sub(lambda match: bytes((0x22, match[0][0] + 0x40)), text.encode())


def unescape(part: bytes) -> str:
    """Return the text that `escape` encoded."""
    return _ESCAPED.sub(lambda match: bytes((match[1][0] - 0x40,)), part).decode()


def sort_time(timestamp_ms: int, hash_hex: bytes) -> bytes:
    """Return a key part for a post's time: 16 decimal digits, `.`, the first 32 hex digits of the post's hash.

    It sorts by (timestamp, hash), is unique for each post, and is the same on every machine.
    """
    return b"%016d.%s" % (timestamp_ms, hash_hex[:32])


def is_sort_time(part: str) -> bool:
    """Return True if a string has the form of a `sort_time`."""
    return _SORT_TIME.fullmatch(part) is not None


def _type_part(number: int) -> bytes:
    digits = b"%d" % number
    return digits if number < 10 else b"%c%b" % (0x5F + len(digits), digits)


TYPE_PARTS: Final = tuple(map(_type_part, range(128)))
"""The key part of each number of a post type: 0 to 9, then a10 to a99, b100 to b127. They sort like the numbers."""


def time_floor(timestamp_ms: int) -> bytes:
    """Return a key part that sorts before every `sort_time` of this millisecond and after every earlier `sort_time`."""
    return b"%016d" % timestamp_ms


def time_of(part: bytes) -> int:
    """Return the milliseconds in a `sort_time`. Raises CorruptStoreError if it is damaged."""
    return number_in(part[:TIME_DIGITS])


def number_in(part: bytes) -> int:
    """Return the number in decimal digits in a part of a stored key. Raises CorruptStoreError for other bytes."""
    try:
        return int(part)
    except ValueError:
        raise _damaged_key(part) from None


def unhex(part: bytes) -> bytes:
    """Return the bytes of hex digits in a part of a stored key. Raises CorruptStoreError for other bytes."""
    try:
        return bytes.fromhex(part.decode())
    except ValueError:
        raise _damaged_key(part) from None


def _damaged_key(part: bytes) -> CorruptStoreError:
    return CorruptStoreError(f"a key with the part {part[:80]!r} is damaged. Run `cablestore rebuild`")


def after_prefix(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with `prefix`, which must end in a byte below 0xff."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def utf8(text: str, what: str) -> bytes:
    """Return a string in UTF-8. Raises ArgumentError, which contains `what`, for a string with surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{what} cannot be encoded in UTF-8: {text[:80]!r}") from None


def parse_hex(text: str, what: str, size_bytes: int = 32, *, is_secret: bool = False) -> bytes:
    """Return the bytes of hex digits that a user entered. Raises DecodeError, which contains `what`.

    The error contains the input unless it `is_secret`, because messages go to logs and to support.
    """
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = None
    if value is not None and len(value) == size_bytes:
        return value
    if is_secret:
        raise DecodeError(
            0,
            (
                f"{what} must have {2 * size_bytes} hex digits, got {len(text)} characters. They are secret and not "
                "shown here"
            ),
        )
    if value is None:
        raise DecodeError(0, f"{what} must consist of hex digits, got {text!r}")
    raise DecodeError(0, f"{what} must have {2 * size_bytes} hex digits, got {len(text)}: {text!r}")
