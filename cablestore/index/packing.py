"""Values of rows that have several parts, in msgpack. Disk blocks have checksums, but a value may still be nonsense."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from cablestore.errors import CorruptStoreError

_PACK: Final = msgpack.Packer().pack  # a packer a call takes twice the time


def pack(value: Any) -> bytes:
    """Return the bytes of a value: None, int, bytes, str, list and dict of such."""
    packed: bytes = _PACK(value)
    return packed


def unpack(data: bytes) -> Any:
    """Return the value that `pack` wrote, or raise CorruptStoreError."""
    try:
        return msgpack.unpackb(data)
    except (ValueError, TypeError) as error:
        raise CorruptStoreError(
            f"a row holds {len(data)} bytes that are no value: {error}. Run `cablestore rebuild`"
        ) from None
