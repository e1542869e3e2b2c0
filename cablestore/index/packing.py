"""Row values with several parts, in msgpack. Disk blocks have checksums, but a value may still be invalid."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from cablestore.errors import CorruptStoreError

_PACK: Final = msgpack.Packer().pack  # a new packer per call takes twice the time


def pack(value: Any) -> bytes:
    """Return the bytes of a value: None, int, bytes, str, and lists and dicts of these. Spark pickles this function."""
    packed: bytes = _PACK(value)
    return packed


def unpack(data: bytes) -> Any:
    """Return the value that `pack` encoded, or raise CorruptStoreError."""
    try:
        return msgpack.unpackb(data)
    except (ValueError, TypeError) as error:
        raise CorruptStoreError(
            f"row value is not valid msgpack ({len(data)} bytes): {error}. Run `cablestore rebuild`"
        ) from None
