"""Records of the posts of one state: in pieces of bounded size, or all of them in order of time and hash.

The database contains posts in order of their hashes.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from cablestore import limits
from cablestore.errors import CorruptStoreError, DecodeError
from cablestore.export.filter import Selection
from cablestore.export.sort import merge, write_sorted
from cablestore.export.writer import POST_AT, TYPE_AT, post_record
from cablestore.index.batches import Progress
from cablestore.index.database import Row
from cablestore.index.drops import AppliedDrops
from cablestore.index.reader import DATA_PREFIX, Reader, reject_newer
from cablestore.protocol.body import TYPE_NAMES
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import SIGNED_FROM, decode_post
from cablestore.protocol.varint import read_varint

_CHUNK_POSTS: Final = 250
_HASH_AT: Final = len(DATA_PREFIX)
_KEY_SIZE_BYTES: Final = _HASH_AT + 2 * HASH_SIZE_BYTES
_ENDS: Final = 0x80808080808080
_TYPE_AND_SIX: Final = 0x00808080808000


def records_in_order(reader: Reader, scratch: Path, *, progress: Progress) -> Iterator[list[bytes]]:
    """Yield the records of all posts except local-only posts, in order of time and hash, in lists of any length.

    If the posts exceed `limits.MAX_RUN_SIZE_BYTES`, runs are written to the folder `scratch`. Memory is bounded. Raises
    CorruptStoreError and StorageError.
    """
    runs: list[Path] = []
    made = pieces(reader, None, "", limits.MAX_RUN_SIZE_BYTES, progress)
    records, _ = next(made, ([], ""))
    for further, _ in made:
        runs.append(scratch / f"run-{len(runs):06d}")
        write_sorted(runs[-1], records)
        records = further
    if runs:
        runs.append(scratch / f"run-{len(runs):06d}")
        write_sorted(runs[-1], records)
        yield from merge(runs)
    else:
        records.sort()
        yield records


def pieces(
    reader: Reader, selection: Selection | None, read_to: str, run_size_bytes: int, progress: Progress
) -> Iterator[tuple[list[bytes], str]]:
    """Yield the records of each run of at least `run_size_bytes`, and the last hash that was read for the run.

    Only posts after the hash `read_to` are read. With `selection`, the records of other posts are omitted.
    """
    rows = reader.scan(DATA_PREFIX + read_to.encode() + b"\x00" if read_to else DATA_PREFIX, after_prefix(DATA_PREFIX))
    records: list[bytes] = []
    size_bytes = 0
    going = AppliedDrops.under_way(reader)
    while chunk := list(islice(rows, _CHUNK_POSTS)):
        staying = [row for row in chunk if not is_going(reader, going, row)] if going else chunk
        found = records_of(staying) if selection is None else _selected(staying, selection, reader)
        size_bytes += sum(map(len, found))
        records += found
        read_to = _hash_hex(chunk[-1])
        progress(len(chunk))
        if size_bytes >= run_size_bytes:
            yield records, read_to
            records, size_bytes = [], 0
    if records:
        yield records, read_to


def is_going(reader: Reader, going: AppliedDrops, row: Row) -> bool:
    """Return True if the post in `row` is to be removed by the drops in `going`. Return False for a damaged post."""
    try:
        return going.of(decode_post(row[1], reader.dialect)) is not None
    except DecodeError:
        return False


def _hash_hex(row: Row) -> str:
    return row[0][_HASH_AT:].decode("ascii", "replace")


def records_of(rows: list[Row]) -> list[bytes]:
    """Return the records of posts. Only the timestamp and the type are decoded, their most common encoding inline."""
    records = []
    for key, raw in rows:
        try:
            links = raw[SIGNED_FROM]
            at = SIGNED_FROM + 1 + 32 * links
            digest = unhexlify(key[_HASH_AT:])
            # A type below 128, then a varint of six bytes, as for all times from 1971 to 2109.
            if links < 0x80 and int.from_bytes(raw[at : at + 7], "little") & _ENDS == _TYPE_AND_SIX:
                records.append(b"".join((b"\x00\x00", raw[at + 6 : at : -1], digest, raw[at : at + 1], raw)))
            else:
                records.append(_unusual_record(digest, raw))
        except (DecodeError, IndexError, ValueError) as error:
            raise _damaged(key, error) from None
    for (key, _), record in zip(rows, records, strict=True):
        if len(key) != _KEY_SIZE_BYTES:
            raise _damaged(key, "its key does not contain a hash")
        if record[TYPE_AT] not in TYPE_NAMES:
            unknown = DecodeError(SIGNED_FROM, f"unknown post type {record[TYPE_AT]}", is_unknown_type=True)
            reject_newer(unknown, record[POST_AT:], key[_HASH_AT:])
            raise _damaged(key, unknown.reason)
    return records


def _damaged(key: bytes, why: object) -> CorruptStoreError:
    return CorruptStoreError(
        f"the post at {key!r} is damaged: {why}. Remove it with `cablestore rebuild`, then export the store again"
    )


def _unusual_record(digest: bytes, raw: bytes) -> bytes:
    links, at = read_varint(raw, SIGNED_FROM)
    post_type, at = read_varint(raw, at + 32 * links)
    return post_record(read_varint(raw, at)[0], digest, raw, post_type)


def _selected(rows: list[Row], selection: Selection, reader: Reader) -> list[bytes]:
    """Return the records of the posts in `rows` that `selection` includes. Raises CorruptStoreError."""
    records = []
    for row in rows:
        try:
            post = decode_post(row[1], reader.dialect)
        except DecodeError as error:
            reject_newer(error, row[1], row[0][_HASH_AT:])
            raise _damaged(row[0], error) from None
        if post.hash_hex != row[0][_HASH_AT:]:
            raise _damaged(row[0], "its bytes do not match its hash")
        if selection.includes_post(post):
            records.append(post_record(post.timestamp_ms, post.hash, post.raw, post.type))
    return records
