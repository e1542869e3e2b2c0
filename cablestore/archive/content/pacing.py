"""Pacing of sends on slow connections, so that the stall timeout notices their progress.

A program notices progress when the kernel accepts more bytes. By default, the kernel buffers megabytes, and then
accepts no bytes until these are sent. Therefore data is sent in pieces, and the kernel's buffer is limited.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Final

from cablestore.archive.format.cid import BLOCK_SIZE_BYTES

UNSENT_SIZE_BYTES: Final = 2 * BLOCK_SIZE_BYTES
"""Maximum number of bytes that wait in the kernel. Sent bytes are not counted, so fast connections are not limited."""
_TCP_NOTSENT_LOWAT: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)
"""None on systems without this option, where the default limit of the kernel applies."""


def in_pieces(part: bytes) -> Iterator[bytes]:
    """Yield a part in pieces of at most one block."""
    for at in range(0, len(part), BLOCK_SIZE_BYTES):
        yield part[at : at + BLOCK_SIZE_BYTES]


def limit_unsent(connection: socket.socket) -> None:
    """Let the kernel hold at most `UNSENT_SIZE_BYTES` of unsent data of a connection, if the system supports this."""
    if _TCP_NOTSENT_LOWAT is not None:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_SIZE_BYTES)
