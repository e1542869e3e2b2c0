"""Segments: files of msgpack values in compressed blocks, with a checksum that is kept elsewhere.

A file is a sequence of zstd frames, one for each block; each holds one msgpack array. `zstd -dc FILE` prints the plain
msgpack. The caller decides what an array holds. A file gets its name when it is complete.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import blake3
import msgpack

from cablestore import zstd
from cablestore.errors import CorruptExportError
from cablestore.files import storage_errors, unique_suffix
from cablestore.limits import MAX_SEGMENT_BLOCK_SIZE_BYTES

_CHUNK_SIZE_BYTES: Final = 2**20
_MAX_BLOCK_ITEMS: Final = 2**20
"""Memory for a list is allocated before its items are read: a few bytes cannot request more than this."""


@dataclass(frozen=True, slots=True)
class Written:
    """A finished segment: its size, the BLAKE3 of its bytes in hex, and that of its msgpack before compression."""

    size_bytes: int
    blake3: str
    content_blake3: str


class SegmentWriter:
    """Writer of one segment, under another name until `close`. A `with` removes an unfinished one."""

    def __init__(self, path: Path, level: int, *, sync: bool = True) -> None:
        """Begin the segment at `path`; `level` is zstd's. Without `sync` it may be lost or damaged if power fails."""
        self._path = path
        self._sync = sync
        self._unfinished = path.with_name(path.name + unique_suffix())
        self._compressor = zstd.ZstdCompressor(level=level)
        self._hasher = blake3.blake3()
        self._content_hasher = blake3.blake3()
        self.size_bytes = 0
        with storage_errors(path):
            self._file = self._unfinished.open("wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()
        self._unfinished.unlink(missing_ok=True)

    def write_packed(self, content: bytes) -> None:
        """Append a block, which is a msgpack array."""
        self._content_hasher.update(content)
        data = self._compressor.compress(content, zstd.ZstdCompressor.FLUSH_FRAME)
        self._hasher.update(data)
        self.size_bytes += len(data)
        with storage_errors(self._path):
            self._file.write(data)

    def close(self) -> Written:
        """Sync the segment to the disk, unless told otherwise, and rename it."""
        with storage_errors(self._path):
            self._file.flush()
            if self._sync:
                os.fsync(self._file.fileno())
            self._file.close()
            self._unfinished.replace(self._path)
        return Written(self.size_bytes, self._hasher.hexdigest(), self._content_hasher.hexdigest())


def read_segment(path: Path, expected_blake3: str | None = None) -> Iterator[tuple[Any, ...]]:
    """Yield the blocks of a segment, tuples of items. With a checksum, the file is verified first.

    Raises CorruptExportError, which names the file, if it is missing, has another checksum or is not a segment, and
    StorageError after an I/O error.
    """
    data = _checked(path, expected_blake3)
    unpacker = msgpack.Unpacker(
        use_list=False, max_buffer_size=MAX_SEGMENT_BLOCK_SIZE_BYTES, max_array_len=_MAX_BLOCK_ITEMS
    )
    size_bytes = 0
    stream = zstd.ZstdFile(io.BytesIO(data))
    try:
        while data and (chunk := stream.read(_CHUNK_SIZE_BYTES)):
            unpacker.feed(chunk)
            for block in unpacker:
                if not isinstance(block, tuple):
                    raise CorruptExportError(f"{path} holds a block that is not a list. Write the segment again")
                yield block
                size_bytes = 0
            size_bytes += len(chunk)
            if size_bytes >= MAX_SEGMENT_BLOCK_SIZE_BYTES:
                raise CorruptExportError(
                    f"{path} holds a block of more than {MAX_SEGMENT_BLOCK_SIZE_BYTES} bytes. Write the segment again"
                )
        if unpacker.read_bytes(1):
            raise CorruptExportError(f"{path} ends within a block. Write the segment again")
    except (zstd.ZstdError, EOFError, ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CorruptExportError(f"{path} is not a segment of blocks: {error}. Write it again") from None


def segment_blake3(path: Path) -> str:
    """Return the BLAKE3 of a file in hex. Memory does not grow with the file."""
    hasher = blake3.blake3()
    with storage_errors(path), path.open("rb") as file:
        while chunk := file.read(_CHUNK_SIZE_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _checked(path: Path, expected_blake3: str | None) -> bytes:
    with storage_errors(path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise CorruptExportError(f"{path} is missing. Copy or write it again") from None
    found = blake3.blake3(data).hexdigest() if expected_blake3 else None
    if found != expected_blake3:
        raise CorruptExportError(
            f"{path} is damaged: its BLAKE3 is {found}, expected {expected_blake3}. Copy or write it again"
        )
    return data
