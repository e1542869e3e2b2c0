"""Splitting rows into the pieces of a backup, and writing the pieces that do not exist yet.

The content determines where a piece ends. So an added or removed row does not change the pieces beside its own piece.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import blake3

from cablestore import limits, zstd
from cablestore.backup.manifest import Piece, PieceKind
from cablestore.errors import BackupError
from cablestore.files import ObjectFolder
from cablestore.index.database import Row
from cablestore.index.packing import pack

_LEVEL: Final = 1
_SMALLEST: Final = 4
"""A piece ends at 1/4 of the usual size at the earliest, and at 4 times the usual size at the latest."""


def cut(rows: Iterable[Row], usual_size_bytes: int) -> Iterator[list[Row]]:
    """Split `rows` into pieces of about `usual_size_bytes`.

    A row ends its piece if the row's checksum is below a limit that is proportional to the row's size.
    """
    piece: list[Row] = []
    total = 0
    for row in rows:
        key, value = row
        size_bytes = len(key) + len(value)
        piece.append(row)
        total += size_bytes
        if total * _SMALLEST < usual_size_bytes:
            continue
        if (
            zlib.crc32(value, zlib.crc32(key)) * usual_size_bytes < size_bytes << 32
            or total >= usual_size_bytes * _SMALLEST
        ):
            yield piece
            piece, total = [], 0
    if piece:
        yield piece


def as_rows(piece: list[Row]) -> list[Any]:
    """Return the rows of a piece as items [key, value]."""
    return [[key, value] for key, value in piece]


def as_posts(piece: list[Row]) -> list[Any]:
    """Return the items of a piece of posts: the bytes of the posts, without keys."""
    return [raw for _, raw in piece]


class PieceWriter:
    """Writer of the pieces of one backup. `present` maps the names of the existing files to their sizes in bytes.

    A piece is not written if a file with its name and size exists. With `again`, all pieces are written.
    """

    def __init__(
        self, folder: ObjectFolder, present: Mapping[str, int] | Iterable[tuple[str, int]], *, again: bool
    ) -> None:
        self._folder = folder
        self._present = {} if again else dict(present)
        self.written = 0
        self.written_size_bytes = 0

    def add(
        self,
        kind: PieceKind,
        rows: Iterable[Row],
        usual_size_bytes: int,
        items_of: Callable[[list[Row]], list[Any]] = as_rows,
    ) -> list[Piece]:
        """Write `rows`, passed in order of keys, as pieces of this kind. Return all pieces, including unchanged pieces.

        `items_of` converts the rows of a piece to the items of its file.
        """
        return [self._put(kind, piece, items_of(piece)) for piece in cut(rows, usual_size_bytes)]

    def _put(self, kind: PieceKind, rows: list[Row], items: list[Any]) -> Piece:
        content = pack(items)
        if len(content) > limits.MAX_SEGMENT_BLOCK_SIZE_BYTES:
            raise BackupError(
                f"the rows from {rows[0][0][:80]!r} are too large: the maximum in a backup is "
                f"{limits.MAX_SEGMENT_BLOCK_SIZE_BYTES} bytes. Remove the largest row first"
            )
        size_bytes = sum(len(key) + len(value) for key, value in rows)
        data = zstd.compress(content, _LEVEL)
        digest = blake3.blake3(content).hexdigest()
        piece = Piece(kind, len(rows), size_bytes, rows[0][0].hex(), rows[-1][0].hex(), digest, len(data))
        if self._present.get(piece.file) != len(data):
            self._folder.write(piece.file, data)
            self.written += 1
            self.written_size_bytes += len(data)
            self._present[piece.file] = len(data)
        return piece
