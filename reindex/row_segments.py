"""Segments of rows, from a reindexing to a loader: sorted by key, with checksums of the file and of the rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from typing import Any, Final, Self

import blake3
import msgpack

from cablestore.errors import ExportError
from cablestore.export.segment import SegmentWriter, read_segment
from cablestore.files import ObjectFolder
from cablestore.index.database import Row
from cablestore.index.derive import Derivation, combine, key_of
from cablestore.index.meta import Sizes
from cablestore.index.view import Catalog
from cablestore.limits import PART_ROWS, SEGMENT_BLOCK_SIZE_BYTES
from cablestore.protocol.post import Post

_LEVEL: Final = -3
"""Compression level of zstd: a fast level, because rows are read only once."""

_ROW_FIELDS: Final = 2
"""Number of fields of a row: a key and a value."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows that were written to a database, starting with the key `first`: their number and `RowDigest`.

    `source` names their origin in messages.
    """

    first: bytes
    rows: int
    digest: str
    source: str


@dataclass(frozen=True, slots=True)
class RowSegment:
    """A file of sorted rows.

    `first` and `last` are the keys of its first and last row. `digest` is the `RowDigest` of the rows.
    """

    file: str
    first: bytes
    last: bytes
    rows: int
    size_bytes: int
    blake3: str
    digest: str
    sizes: dict[str, tuple[int, int]]
    """Rows and bytes of each view."""

    @property
    def range(self) -> RowRange:
        """The rows of this segment in a database."""
        return RowRange(self.first, self.rows, self.digest, self.file)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Decode the result of `RowSegmentWriter.finish`."""
        sizes = {name: (int(rows), int(size)) for name, (rows, size) in fields["sizes"].items()}
        keys = {"first": bytes.fromhex(fields["first"]), "last": bytes.fromhex(fields["last"]), "sizes": sizes}
        return cls(**{**fields, **keys})


class RowDigest:
    """BLAKE3 over rows in order of keys: the concatenation of msgpack [key bin, value bin] of each."""

    def __init__(self) -> None:
        self._hasher = blake3.blake3()
        self.rows = 0

    def add(self, packed: bytes, rows: int) -> None:
        """Add rows that are packed as one msgpack array. Its header is not part of the digest."""
        self._hasher.update(memoryview(packed)[1 if rows < 16 else 3 if rows < 2**16 else 5 :])
        self.rows += rows

    def hexdigest(self) -> str:
        """Return the digest so far."""
        return self._hasher.hexdigest()


class WrittenRanges:
    """Collector of the ranges of rows that are written to a database in order of keys."""

    def __init__(self, source: str) -> None:
        """Initialize without ranges. `source` names the origin of the rows in messages."""
        self._source = source
        self._ended: list[RowRange] = []
        self._first = b""
        self._digest = RowDigest()

    def add(self, rows: list[Row]) -> None:
        """Add sorted rows. A range ends after at least `limits.PART_ROWS` rows."""
        if self._digest.rows >= PART_ROWS:
            self._ended = self.ranges()
            self._digest = RowDigest()
        if not self._digest.rows:
            self._first = rows[0][0]
        self._digest.add(msgpack.packb(rows), len(rows))

    def ranges(self) -> list[RowRange]:
        """Return the ranges so far."""
        return [*self._ended, RowRange(self._first, self._digest.rows, self._digest.hexdigest(), self._source)]


class RowSegmentWriter(SegmentWriter):
    """Writer of a segment of rows."""

    def __init__(self, folder: ObjectFolder, name: str) -> None:
        super().__init__(folder.file(name), _LEVEL, sync=False)
        self._name = name
        self._digest = RowDigest()
        self._first = self._last = b""

    def write(self, rows: list[Row]) -> None:
        """Append sorted rows."""
        for block in _blocks(rows):
            packed = msgpack.packb(block)
            self.write_packed(packed)
            self._digest.add(packed, len(block))
        self._first = self._first or rows[0][0]
        self._last = rows[-1][0]

    def finish(self, sizes: Sizes) -> dict[str, Any]:
        """Finish the file and return its description for `RowSegment.of`."""
        written = self.close()
        return {
            "file": self._name,
            "first": self._first.hex(),
            "last": self._last.hex(),
            "rows": self._digest.rows,
            "size_bytes": written.size_bytes,
            "blake3": written.blake3,
            "digest": self._digest.hexdigest(),
            "sizes": sizes,
        }


def read_rows(folder: ObjectFolder, segment: RowSegment) -> Iterator[list[Row]]:
    """Yield the rows of a segment in blocks, after verifying the checksum of the file."""
    file = folder.file(segment.file)
    for block in read_segment(file, segment.blake3):
        if {*map(type, block)} - {tuple} or {*map(len, block)} - {_ROW_FIELDS}:
            raise ExportError(f"{file} does not contain rows. Remove {folder}, then run the command again")
        yield list(block)


def with_local_only(
    rows: Iterable[Row], posts: Iterable[Post], catalog: Catalog, views: Collection[str]
) -> Iterator[Row]:
    """Yield the sorted `rows`, merged with the rows of the local-only `posts` in `views`.

    Exports do not contain these posts. Where both have parts or counts of a key, they are combined.
    """
    derivation = Derivation(catalog)
    records = [derivation.post(post) for post in posts]
    own = sorted(row for row in records + derivation.take() if catalog.view_of(row[0]) in views)
    for _, group in groupby(merge(rows, own, key=key_of), key=key_of):
        found = list(group)
        yield from found if len(found) == 1 else combine(found, catalog)


def _blocks(rows: list[Row]) -> Iterable[list[Row]]:
    """Split rows into blocks of about the size that readers hold in memory."""
    at = 0
    while at < len(rows):
        size = sum(len(key) + len(value) for key, value in rows[at : at + 100]) / len(rows[at : at + 100])
        count = max(1, int(SEGMENT_BLOCK_SIZE_BYTES / (size + 1)))
        yield rows[at : at + count]
        at += count
