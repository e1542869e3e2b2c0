"""Segments: files of msgpack values in compressed blocks, with a checksum in another file.

A file is a sequence of zstd frames, one for each block; each contains one msgpack array. `zstd -dc FILE` prints the
plain msgpack. The caller defines the content of an array. A file gets its name when it is complete.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import blake3
import msgpack

from cablestore import limits, zstd
from cablestore.errors import ExportError
from cablestore.files import ObjectFile, file_of, storage_errors

_CHUNK_SIZE_BYTES: Final = 2**20
_MAX_BLOCK_ITEMS: Final = 2**20
"""Maximum length of an array. The decoder allocates memory for an array before it reads the items, so a few bytes could
request too much memory."""


@dataclass(frozen=True, slots=True)
class Written:
    """Finished segment: its size, and the BLAKE3 in hex of its bytes and of its msgpack before compression."""

    size_bytes: int
    blake3: str
    content_blake3: str


class SegmentWriter:
    """Writer of one segment. `close` gives the file its name. The end of the `with` block removes an unfinished file."""

    def __init__(self, file: Path | ObjectFile, level: int, *, sync: bool = True) -> None:
        """Start a segment. `level` is zstd's compression level. Without `sync`, a power failure may lose the file."""
        self._path = file_of(file)
        self._compressor = zstd.ZstdCompressor(level=level)
        self._hasher = blake3.blake3()
        self._content_hasher = blake3.blake3()
        self.size_bytes = 0
        self._writing = self._path.folder.writing(self._path.name, sync=sync)
        self._file = self._writing.__enter__()
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if error is None:
            kind, error = GeneratorExit, GeneratorExit()
        self._writing.__exit__(kind, error, trace)

    def write_packed(self, content: bytes) -> None:
        """Append a block, which is a msgpack array. Raises OSError, which the `with` block turns into StorageError."""
        self._content_hasher.update(content)
        data = self._compressor.compress(content, zstd.ZstdCompressor.FLUSH_FRAME)
        self._hasher.update(data)
        self.size_bytes += len(data)
        self._file.write(data)

    def close(self) -> Written:
        """Give the segment its name. Then its content is in the object store, or on the disk if `sync` is set."""
        self._is_open = False
        self._writing.__exit__(None, None, None)
        return Written(self.size_bytes, self._hasher.hexdigest(), self._content_hasher.hexdigest())


def read_segment(file: Path | ObjectFile, expected_blake3: str | None = None) -> Iterator[tuple[Any, ...]]:
    """Yield the blocks of a segment as tuples of items. With `expected_blake3`, the file is verified first.

    Raises ExportError, which contains the file's name, if the file is missing, has another checksum or is not a
    segment. Raises StorageError after an I/O error.
    """
    path = file_of(file)
    data = _checked(path, expected_blake3)
    unpacker = msgpack.Unpacker(
        use_list=False, max_buffer_size=limits.MAX_SEGMENT_BLOCK_SIZE_BYTES, max_array_len=_MAX_BLOCK_ITEMS
    )
    read_bytes = begin = 0
    stream = zstd.ZstdFile(io.BytesIO(data))
    try:
        while data and (chunk := stream.read(_CHUNK_SIZE_BYTES)):
            unpacker.feed(chunk)
            read_bytes += len(chunk)
            for block in unpacker:
                if not isinstance(block, tuple):
                    raise ExportError(f"{path} contains a block that is not a list. Write the segment again")
                yield block
                begin = unpacker.tell()
            if read_bytes - begin >= limits.MAX_SEGMENT_BLOCK_SIZE_BYTES:  # and the block does not end here
                raise ExportError(
                    f"{path} contains a block of more than {limits.MAX_SEGMENT_BLOCK_SIZE_BYTES} bytes. Write the "
                    "segment again"
                )
        if _has_rest(unpacker):
            raise ExportError(f"{path} ends within a block. Write the segment again")
    except (zstd.ZstdError, EOFError, ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise ExportError(f"{path} is not a segment of blocks: {error}. Write it again") from None


def _has_rest(unpacker: msgpack.Unpacker) -> bool:
    """Return True if bytes of an incomplete value remain. Some versions of msgpack return them, others raise."""
    try:
        return bool(unpacker.read_bytes(1))
    except ValueError:
        return True


def segment_blake3(file: Path | ObjectFile) -> str:
    """Return the BLAKE3 of a file in hex. Memory is bounded."""
    place = file_of(file)
    hasher = blake3.blake3()
    with storage_errors(place), place.folder.open(place.name) as stream:
        while chunk := stream.read(_CHUNK_SIZE_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _checked(file: ObjectFile, expected_blake3: str | None) -> bytes:
    try:
        data = file.folder.read(file.name)
    except FileNotFoundError:
        raise ExportError(f"{file} is missing. Copy or write it again") from None
    found = blake3.blake3(data).hexdigest() if expected_blake3 else None
    if found != expected_blake3:
        raise ExportError(
            f"{file} is damaged: its BLAKE3 is {found}, expected {expected_blake3}. Copy or write it again"
        )
    return data
