"""Splitting the messages of a period into archives that fit into a member's memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cablestore.errors import ArchiveError
from cablestore.limits import MAX_ARCHIVE_SIZE_BYTES
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.waku import WakuMessage


class OversizeMessage(NamedTuple):
    """Message that exceeds the size of an archive."""

    message: WakuMessage
    size_bytes: int


def chunks(
    messages: Iterable[WakuMessage], max_size_bytes: int = MAX_ARCHIVE_SIZE_BYTES
) -> Iterator[tuple[WakuMessage, ...] | OversizeMessage]:
    """Yield the messages of each archive in order, and between them each message that is too large for an archive.

    The size of a message is the size of its payload and author key, as in status-go. Raises ArchiveError unless
    `messages` is sorted by (timestamp, post hash) without duplicates, because equal posts must produce equal archives.
    """
    chunk: list[WakuMessage] = []
    chunk_size_bytes = 0
    latest = (-1, b"")
    for message in messages:
        moment = message[2:]  # time and hash
        if moment <= latest:
            raise ArchiveError(
                f"wrong order: post {message.post_hash.hex()} follows {latest[1].hex()} of {latest[0]} ns. "
                "Sort the posts by (timestamp, hash), and pass each post once"
            )
        latest = moment
        size_bytes = len(message.payload) + KEY_SIZE_BYTES
        if size_bytes > max_size_bytes:
            yield OversizeMessage(message, size_bytes)
            continue
        if chunk and chunk_size_bytes + size_bytes > max_size_bytes:
            yield tuple(chunk)
            chunk, chunk_size_bytes = [], 0
        chunk.append(message)
        chunk_size_bytes += size_bytes
    if chunk:
        yield tuple(chunk)
