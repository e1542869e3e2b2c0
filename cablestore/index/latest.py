"""Order keys: a post's claimed time and its hash, as sortable bytes: timestamp u64 big-endian, hash u8[32].

"Latest" always means the greatest order key.
"""

from __future__ import annotations

from typing import Final

from cablestore.index.database import Row
from cablestore.protocol.keys import time_of

ORDER_KEY_SIZE_BYTES: Final = 40


def order_key(timestamp_ms: int, digest: bytes) -> bytes:
    """Return the 40 bytes that sort by (timestamp, hash)."""
    return timestamp_ms.to_bytes(8, "big") + digest


def order_key_of_row(row: Row) -> bytes:
    """Return the order key of a post from a row `...!<mono-ts> -> hash`."""
    key, digest = row
    return order_key(time_of(key.rsplit(b"!", 1)[1]), digest)
