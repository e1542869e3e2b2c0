"""Moments: when a post says it was written, as bytes that sort: timestamp u64 big-endian, hash u8[32].

"Latest" is the greatest moment, everywhere.
"""

from __future__ import annotations

from typing import Final

from cablestore.index.database import Row
from cablestore.protocol.keys import time_of

MOMENT_SIZE_BYTES: Final = 40


def moment(timestamp_ms: int, digest: bytes) -> bytes:
    """Return the 40 bytes that sort by (timestamp, hash)."""
    return timestamp_ms.to_bytes(8, "big") + digest


def moment_of_row(row: Row) -> bytes:
    """Return the moment of a row whose key ends in a sort time and whose value is the post's hash."""
    key, digest = row
    return moment(time_of(key.rsplit(b"!", 1)[1]), digest)
