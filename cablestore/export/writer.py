"""Writing of exports: single segments of posts, tombstones or statements, or a whole export as a stream.

Posts are passed as records, which sort in the order of an export: time u8[8] | hash u8[32] | type u8 | post. The time
is the reversed varint of the timestamp, with leading zeros. The result sorts like the number, and is copied from a post
in one step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from operator import itemgetter, lt
from typing import Any, Final, TypeVar

import msgpack

from cablestore import limits
from cablestore.export.manifest import (
    KINDS,
    MANIFEST,
    Filters,
    Manifest,
    Place,
    Segment,
    SegmentKind,
    in_order_of_types,
    plain,
    segment_name,
)
from cablestore.export.segment import SegmentWriter, Written
from cablestore.export.sort import into_blocks
from cablestore.files import Location, ObjectFile, folder_of
from cablestore.index.batches import batches
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.acts import Consent
from cablestore.protocol.body import TYPE_NAMES
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.varint import encode_varint, read_varint

T = TypeVar("T")

_LEVEL: Final = 1
"""Level of zstd. Keys, signatures and hashes do not compress. Level 3 saves a tenth more space and takes twice as
long."""

HASH_AT, TYPE_AT, POST_AT = 8, 40, 41
"""Offsets of the parts of a record, in bytes. The time is at 0."""
_STONE_SIZE_BYTES: Final = 64
"""Size of the target and author of a tombstone."""
_CONSENT_SIZE_BYTES: Final = 80
"""Size of the user, time, hash and answer of a statement."""


def post_record(timestamp_ms: int, digest: bytes, raw: bytes, post_type: int) -> bytes:
    """Return the record of a post. Raises ValueError for an impossible timestamp, hash or type."""
    return record_start(timestamp_ms, digest) + bytes((post_type,)) + raw


def record_start(timestamp_ms: int, digest: bytes) -> bytes:
    """Return the first two fields of a post's record: its time, and its hash `digest`. Raises ValueError."""
    time = encode_varint(timestamp_ms)[::-1]
    if len(time) > HASH_AT or len(digest) != HASH_SIZE_BYTES:
        raise ValueError(f"a post cannot have the timestamp {timestamp_ms} and the hash {digest.hex()}")
    return time.rjust(HASH_AT, b"\x00") + digest


def place_of(record: bytes) -> tuple[int, bytes]:
    """Return the timestamp in ms and the hash of a record's post, which are its position in an export."""
    time = record[:HASH_AT].lstrip(b"\x00")[::-1] or b"\x00"
    return read_varint(time, 0)[0], record[HASH_AT:TYPE_AT]


def _listed(record: bytes) -> Place:
    timestamp_ms, digest = place_of(record)
    return timestamp_ms, digest.hex()


def write_post_segment(folder: Location, number: int, blocks: Iterable[list[bytes]]) -> Segment:
    """Write a segment of posts from blocks of records. Return its entry in the manifest.

    A block should have about `limits.SEGMENT_BLOCK_SIZE_BYTES`. Different processes can write the segments of one
    export. Raises ValueError if records are out of order or missing, StorageError if writing fails.
    """
    name = segment_name("posts", number)
    types: Counter[int] = Counter()
    first = last = b""

    def raws() -> Iterator[list[bytes]]:
        nonlocal first, last
        for block in blocks:
            _check_order(last, block)
            first, last = first or block[0], block[-1]
            types.update(map(itemgetter(TYPE_AT), block))
            yield [record[POST_AT:] for record in block]

    written = _write(folder_of(folder).file(name), raws())
    posts = in_order_of_types(Counter({TYPE_NAMES[post_type]: count for post_type, count in types.items()}))
    return _entry(name, "posts", types.total(), written, posts=posts, first=_listed(first), last=_listed(last))


def write_tombstone_segment(folder: Location, number: int, blocks: Iterable[list[Tombstone]]) -> Segment:
    """Write a segment of tombstones from blocks in key order. Result and errors are as in `write_post_segment`."""
    name = segment_name("tombstones", number)
    items = 0
    last = b""

    def rows() -> Iterator[list[Any]]:
        nonlocal items, last
        for block in blocks:
            keys = [stone.target + stone.author for stone in block]
            _check_order(last, keys)
            last = keys[-1]
            items += len(block)
            yield [[stone.target, stone.author, stone.encode()] for stone in block]

    written = _write(folder_of(folder).file(name), rows())
    return _entry(name, "tombstones", items, written)


def write_consent_segment(folder: Location, number: int, blocks: Iterable[list[Consent]]) -> Segment:
    """Write a segment of statements in order of (user, timestamp, hash). The order is not checked.

    Result and errors are as in `write_post_segment`.
    """
    name = segment_name("consents", number)
    items = 0

    def rows() -> Iterator[list[Any]]:
        nonlocal items
        for block in blocks:
            items += len(block)
            yield [[said.user, said.timestamp_ms, said.hash, said.accepts] for said in block]

    written = _write(folder_of(folder).file(name), rows())
    return _entry(name, "consents", items, written)


def _check_order(last: bytes, keys: list[bytes]) -> None:
    if keys[0] <= last or not all(map(lt, keys, islice(keys, 1, None))):
        raise ValueError("the items of an export must be in order and unique")


def _write(file: ObjectFile, blocks: Iterable[list[Any]]) -> Written:
    """Write a segment. While one block is compressed and written, the next block is created and packed."""
    packer = msgpack.Packer()
    under_way: Future[None] | None = None
    with SegmentWriter(file, _LEVEL) as writer, ThreadPoolExecutor(1) as thread:
        for block in blocks:
            packed = packer.pack(block)
            if under_way is not None:
                under_way.result()
            under_way = thread.submit(writer.write_packed, packed)
        if under_way is None:
            raise ValueError(f"empty segment {file}: a segment needs at least one item")
        under_way.result()
        return writer.close()


def _entry(name: str, kind: SegmentKind, items: int, written: Written, **of_posts: Any) -> Segment:
    return Segment(name, kind, items, written.size_bytes, written.blake3, written.content_blake3, **of_posts)


def _nothing(_: Segment) -> None:
    pass


class ExportWriter:
    """Writer of an export as a stream: first all posts, then all tombstones and statements, then `finish`.

    A segment ends with the block that reaches `segment_size_bytes`, counted before compression. `views` contains the
    versions of the store's views. `written` are segments that exist already. `on_segment` is called with each new
    segment.
    """

    def __init__(
        self,
        folder: Location,
        dialect: Dialect,
        views: Mapping[str, int],
        filters: Filters | None = None,
        segment_size_bytes: int = limits.SEGMENT_SIZE_BYTES,
        *,
        written: Iterable[Segment] = (),
        on_segment: Callable[[Segment], None] = _nothing,
    ) -> None:
        """`folder` is a path or a URI. The first write creates a missing folder."""
        self._folder = folder_of(folder)
        self._dialect = dialect
        self._views = views
        self._filters = filters
        self._segment_size_bytes = segment_size_bytes
        self._block_size_bytes = min(limits.SEGMENT_BLOCK_SIZE_BYTES, segment_size_bytes)
        self._segments = list(written)
        self._on_segment = on_segment

    def add_records(self, records: Iterable[list[bytes]]) -> None:
        """Add all posts as records (`post_record`), in order and in lists of any length."""
        blocks = into_blocks(records, self._block_size_bytes)
        for first in blocks:
            segment = self._until_full(first, blocks, len)
            self._add(write_post_segment(self._folder, self._number("posts"), segment))

    def add_tombstones(self, stones: Iterable[Tombstone]) -> None:
        """Add all tombstones, in order of (target, author)."""
        blocks = batches(
            map(Tombstone.for_export, stones), _size_bytes, limits.SEGMENT_BLOCK_SIZE_BYTES, self._block_size_bytes
        )
        for first in blocks:
            segment = self._until_full(first, blocks, _size_bytes)
            self._add(write_tombstone_segment(self._folder, self._number("tombstones"), segment))

    def add_consents(self, statements: Iterable[Consent]) -> None:
        """Add all statements about roles without their post/infos, in order of (user, timestamp, hash)."""
        blocks = batches(statements, _consent_size_bytes, limits.SEGMENT_BLOCK_SIZE_BYTES, self._block_size_bytes)
        for first in blocks:
            segment = self._until_full(first, blocks, _consent_size_bytes)
            self._add(write_consent_segment(self._folder, self._number("consents"), segment))

    def finish(self) -> Manifest:
        """Write and return the manifest, which completes the export."""
        segments = tuple(sorted(self._segments, key=lambda segment: KINDS.index(segment.kind)))
        manifest = Manifest(plain(self._folder), self._dialect, dict(self._views), self._filters, segments)
        self._folder.write(MANIFEST, manifest.encode())
        return manifest

    def _until_full(
        self, first: list[T], blocks: Iterator[list[T]], size_bytes: Callable[[T], int]
    ) -> Iterator[list[T]]:
        """Yield `first` and then `blocks`, until the segment is full. `size_bytes` returns the size of an item."""
        block: list[T] | None = first
        total = 0
        while block is not None:
            yield block
            total += sum(map(size_bytes, block))
            block = next(blocks, None) if total < self._segment_size_bytes else None

    def _number(self, kind: SegmentKind) -> int:
        return sum(segment.kind == kind for segment in self._segments)

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._on_segment(segment)


def _size_bytes(stone: Tombstone) -> int:
    return _STONE_SIZE_BYTES + len(stone.encode())


def _consent_size_bytes(_: Consent) -> int:
    return _CONSENT_SIZE_BYTES
