"""Frames in a stream of bytes: each content comes after its size, as libp2p writes them. Pure."""

from __future__ import annotations

from cablestore.errors import DecodeError, ReconcileError
from cablestore.protocol.message import FrameReader


class ReconcileFrameReader(FrameReader):
    """A `FrameReader` that returns empty frames too, and whose errors are ReconcileErrors."""

    def __init__(self, max_size_bytes: int) -> None:
        super().__init__(max_size_bytes, skips_empty=False)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes, return the contents of the frames that are whole now.

        Raises ReconcileError for a size that is not a minimal varint or is above the limit. The stream cannot be read on then.
        """
        try:
            return super().feed(data)
        except DecodeError as error:
            raise ReconcileError(f"the stream has no frame here: {error}") from None
