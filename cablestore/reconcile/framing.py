"""Frames in a stream of bytes: each with its size before it, as libp2p writes them (uvarint, then so many bytes). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cablestore.errors import DecodeError, ReconcileError
from cablestore.protocol.varint import MAX_VARINT_SIZE_BYTES, encode_varint, read_varint

BATCH_SIZE_BYTES: Final = 262_144
"""What is handed to a connection at once, about."""


def framed(content: bytes) -> bytes:
    """Return the frame of this content."""
    return encode_varint(len(content)) + content


def batched(contents: Iterable[bytes], size_bytes: int = BATCH_SIZE_BYTES) -> Iterator[bytes]:
    """Yield the frames of these contents, as many together as come to `size_bytes`, one at least."""
    batch = bytearray()
    for content in contents:
        frame = framed(content)
        if batch and len(batch) + len(frame) > size_bytes:
            yield bytes(batch)
            batch.clear()
        batch += frame
    if batch:
        yield bytes(batch)


class FrameReader:
    """Gives the frames of a stream, however it is cut. It never holds more than one frame and what was fed last."""

    def __init__(self, max_size_bytes: int) -> None:
        self._max_size_bytes = max_size_bytes
        self._buffer = bytearray()
        self._needed_bytes = 0

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here."""
        return not self._buffer

    def feed(self, data: bytes) -> list[bytes]:
        """Take what came; return the contents of the frames that it completes.

        Raises ReconcileError for a size that is no minimal varint or more than allowed. The stream cannot be read on then.
        """
        self._buffer += data
        if len(self._buffer) < self._needed_bytes:
            return []
        buffered, at, found = bytes(self._buffer), 0, []
        while at < len(buffered):
            size_bytes, start = self._size(buffered, at)
            self._needed_bytes = start + size_bytes - at
            if size_bytes > self._max_size_bytes:
                raise ReconcileError(f"a frame of {size_bytes} bytes is announced, allowed are {self._max_size_bytes}")
            if len(buffered) - at < self._needed_bytes:
                break
            found.append(buffered[start : start + size_bytes])
            at = start + size_bytes
            self._needed_bytes = 0
        del self._buffer[:at]
        return found

    @staticmethod
    def _size(buffered: bytes, at: int) -> tuple[int, int]:
        """Read a frame's size; return it and where the content begins. An unfinished one counts as a frame of no bytes more."""
        try:
            return read_varint(buffered, at)
        except DecodeError as error:
            rest = buffered[at : at + MAX_VARINT_SIZE_BYTES]
            if len(rest) < MAX_VARINT_SIZE_BYTES and min(rest) >= 0x80:
                return 0, len(buffered) + 1
            raise ReconcileError(f"the stream has no frame at byte {at}: {error.reason}") from None
