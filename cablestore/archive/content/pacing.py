"""Sending on slow connections so that their progress is noticed within the stall time-out.

A program sees progress when the kernel takes more. The kernel takes megabytes ahead of what it sends, and then nothing
for as long as they take. So what is sent is cut into pieces, and little may wait in the kernel.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final

from cablestore.archive.format.cid import BLOCK_SIZE_BYTES

UNSENT_SIZE_BYTES: Final = 2 * BLOCK_SIZE_BYTES
"""How much waits in the kernel for its turn on the network. What is on its way is not counted, so that fast connections
stay fast."""
_TCP_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
"""None on systems without it, where the kernel's own limit holds."""


def in_pieces(part: bytes) -> Iterator[bytes]:
    """Yield a part in pieces of a block."""
    for at in range(0, len(part), BLOCK_SIZE_BYTES):
        yield part[at : at + BLOCK_SIZE_BYTES]


def limit_unsent(connection: socket.socket) -> None:
    """Let a connection take at most `UNSENT_SIZE_BYTES` ahead of what it sends."""
    if _TCP_NOTSENT_LOWAT is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_SIZE_BYTES)
