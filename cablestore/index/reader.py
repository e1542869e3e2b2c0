"""Reads of one consistent state of the database: rows, and their posts and tombstones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from heapq import merge
from typing import Final, Self

from cablestore import limits
from cablestore.errors import CorruptStoreError, DecodeError, OpenError
from cablestore.index.database import Row, SnapshotSource, Source
from cablestore.index.local import CONFIRMED, local_key
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.body import Delete
from cablestore.protocol.crypto import HASH_SIZE_BYTES, KEY_SIZE_BYTES, post_hash
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import Post, decode_post

DATA_PREFIX: Final = b"!data!"
PRIVATE_PREFIX: Final = b"!private!"
TOMBSTONE_PREFIX: Final = b"!chat!deleted!"
TARGET_PREFIX: Final = b"!chat!target!"
AFTER_HEX: Final = b"~"
"""A part of a key that sorts after all hex digits."""

_DATA_PREFIX_SIZE: Final = len(DATA_PREFIX)


@lru_cache(maxsize=limits.MAX_POSTS_REMEMBERED)
def _decoded(raw: bytes, dialect: Dialect) -> Post:
    """Decode a post that is read by its hash. The result is cached, because new posts are often read several times."""
    return decode_post(raw, dialect)


def reject_newer(error: DecodeError, raw: bytes, hash_hex: bytes) -> None:
    """Raise OpenError if a stored post is undamaged, but has an unknown type: a newer version stored it."""
    if error.is_unknown_type and post_hash(raw).hex().encode() == hash_hex:
        raise OpenError(
            f"the store contains posts that this version of cablestore cannot read: {error.reason}. Install a newer "
            "version"
        ) from None


def _damaged(error: DecodeError, raw: bytes, hash_hex: bytes) -> CorruptStoreError:
    """Return the error for a stored post that cannot be decoded. Raises OpenError as `reject_newer`."""
    reject_newer(error, raw, hash_hex)
    return CorruptStoreError(
        f"the post {hash_hex.decode()} is damaged: {error}. Run `cablestore rebuild` to remove it. Peers may send it "
        "again"
    )


def hash_part(row: Row) -> bytes:
    """Return the hash, in hex digits, after the prefix of the key of a post, a sealed post or a tombstone."""
    key = row[0]
    start = len(TOMBSTONE_PREFIX if key.startswith(TOMBSTONE_PREFIX) else PRIVATE_PREFIX)
    if key.startswith(DATA_PREFIX):
        start = _DATA_PREFIX_SIZE
    return key[start : start + 2 * HASH_SIZE_BYTES]


def fraction_before(hash_hex: bytes) -> float:
    """Return the fraction of all possible hashes that precede a hash in hex digits, or 1 if the digits are invalid.

    Because hashes are evenly distributed, about this fraction of the posts precedes it.
    """
    try:
        return int(hash_hex[:8].ljust(8, b"0"), 16) / 2**32
    except ValueError:
        return 1.0


def data_key(hash_hex: bytes) -> bytes:
    """Return the key of a post's bytes."""
    return DATA_PREFIX + hash_hex


def record_key(post: Post) -> bytes:
    """Return the key of the row of the post itself."""
    return (DATA_PREFIX if post.sealed is None else PRIVATE_PREFIX) + post.hash_hex


def tombstone_key(target_hex: bytes, author_hex: bytes) -> bytes:
    """Return the key of the tombstone of (target, author)."""
    return TOMBSTONE_PREFIX + target_hex + b"!" + author_hex


def target_key(target_hex: bytes) -> bytes:
    """Return the key of the row that marks a target of tombstones."""
    return TARGET_PREFIX + target_hex


def decode_tombstone(row: Row) -> Tombstone:
    """Return the tombstone in a row. Raises CorruptStoreError."""
    key, value = row
    target_hex, _, author_hex = key[len(TOMBSTONE_PREFIX) :].decode("ascii", "replace").partition("!")
    try:
        target, author = bytes.fromhex(target_hex), bytes.fromhex(author_hex)
    except ValueError:
        target = author = b""
    if (len(target), len(author)) != (HASH_SIZE_BYTES, KEY_SIZE_BYTES):
        raise CorruptStoreError(f"{key[:200]!r} is not the key of a tombstone. Run `cablestore rebuild`")
    return Tombstone.decode(target, author, value)


class Reader:
    """Reader of rows, posts and tombstones in one state of the database.

    `unseal` decrypts local-only posts. Without it `post` does not return them. `generation` is the unique name of the
    database, "" if it is not needed.
    """

    __slots__ = ("_unseal", "blocks", "dialect", "generation", "get", "scan", "source")

    def __init__(
        self,
        source: Source,
        dialect: Dialect,
        unseal: Callable[[bytes], bytes] | None = None,
        generation: str = "",
    ) -> None:
        self.source = source
        self.get = source.get
        self.scan = source.scan
        self.blocks = source.blocks
        self.dialect = dialect
        self._unseal = unseal
        self.generation = generation

    def over(self, source: Source) -> Reader:
        """Return a reader of another source, with the same dialect, `unseal` and `generation`."""
        return Reader(source, self.dialect, self._unseal, self.generation)

    def prefix(self, prefix: bytes, *, reverse: bool = False) -> Iterator[Row]:
        """Yield the rows whose keys begin with `prefix` in key order, or backwards."""
        return self.scan(prefix, after_prefix(prefix), reverse=reverse)

    def in_order(self, prefix: bytes) -> Callable[[bytes], bytes | None]:
        """Return a function that looks up rows under `prefix`. Pass it keys without the prefix, in ascending order.

        It scans these rows once. If most are looked up, that takes a third of the time of separate calls of `get`.
        """
        rows = self.prefix(prefix)
        row = next(rows, None)

        def value(key: bytes) -> bytes | None:
            nonlocal row
            full_key = prefix + key
            while row is not None and row[0] < full_key:
                row = next(rows, None)
            return row[1] if row is not None and row[0] == full_key else None

        return value

    def last(self, prefix: bytes) -> Row | None:
        """Return the last row whose key begins with `prefix`, None if no key does."""
        return next(self.prefix(prefix, reverse=True), None)

    def has(self, hash_hex: bytes) -> bool:
        """Return True if the store has this post and may send it to others."""
        return self.get(DATA_PREFIX + hash_hex) is not None

    def post(self, digest: bytes) -> Post | None:
        """Return the post with this 32-byte hash, None if it is not stored. The post may be local-only."""
        hash_hex = digest.hex().encode()
        raw = self.get(DATA_PREFIX + hash_hex)
        if raw is not None:
            try:
                is_remembered = len(raw) <= limits.MAX_POST_REMEMBERED_SIZE_BYTES
                return (_decoded if is_remembered else decode_post)(raw, self.dialect)
            except DecodeError as error:
                raise _damaged(error, raw, hash_hex) from None
        sealed = self.get(PRIVATE_PREFIX + hash_hex) if self._unseal else None
        return None if sealed is None else self.unseal(sealed)

    def unseal(self, sealed: bytes) -> Post:
        """Return the local-only post in `sealed`."""
        if self._unseal is None:
            raise ValueError("this reader cannot decrypt local-only posts: it was created without `unseal`")
        post = decode_post(self._unseal(sealed), self.dialect)
        post.sealed = sealed
        return post

    def posts(self) -> Iterator[Post]:
        """Yield all posts that are not local-only in order of their hashes, then the local-only posts."""
        for key, raw in self.prefix(DATA_PREFIX):
            try:
                post = decode_post(raw, self.dialect)
            except DecodeError as error:
                raise _damaged(error, raw, key[len(DATA_PREFIX) :]) from None
            yield post
        yield from self.local_only_posts()

    def local_only_posts(self) -> Iterator[Post]:
        """Yield the local-only posts in order of their hashes."""
        for _, sealed in self.prefix(PRIVATE_PREFIX):
            yield self.unseal(sealed)

    def records(self, start: bytes = b"", stop: bytes = AFTER_HEX) -> Iterator[Row]:
        """Yield the rows from which all other rows are derived: posts, sealed posts and tombstones, in order of hashes.

        A tombstone is ordered by its target, before the post with that hash. `start` and `stop` are hex digits: start
        <= hash < stop.
        """
        few = merge(*(self.scan(p + start, p + stop) for p in (TOMBSTONE_PREFIX, PRIVATE_PREFIX)), key=hash_part)
        ahead = next(few, None)
        for row in self.scan(DATA_PREFIX + start, DATA_PREFIX + stop):
            while ahead is not None and hash_part(ahead) <= row[0][_DATA_PREFIX_SIZE:]:
                yield ahead
                ahead = next(few, None)
            yield row
        if ahead is not None:
            yield ahead
        yield from few

    def tombstone(self, target: bytes, author: bytes) -> Tombstone | None:
        """Return the tombstone of (target, author), waiting or effective, None if it does not exist."""
        value = self.get(tombstone_key(target.hex().encode(), author.hex().encode()))
        return None if value is None else Tombstone.decode(target, author, value)

    def tombstones(self, target: bytes | None = None) -> Iterator[Tombstone]:
        """Yield all tombstones, or the tombstones of one target, in key order."""
        prefix = TOMBSTONE_PREFIX if target is None else tombstone_key(target.hex().encode(), b"")
        for row in self.prefix(prefix):
            yield decode_tombstone(row)

    def burial(self, target: bytes) -> Tombstone | None:
        """Return the effective tombstone of `target`, None if the target is not known to be deleted.

        It may be only a claim of another store (see `is_deletion_confirmed`). If tombstones claim several authors,
        return the tombstone of the first author in key order.
        """
        return next((stone for stone in self.tombstones(target) if stone.is_effective), None)

    def is_buried(self, hash_hex: bytes, author: bytes) -> bool:
        """Return True if the post `hash_hex` has an effective tombstone by `author`.

        Every post whose deletion the store confirmed has such a tombstone.
        """
        key = tombstone_key(hash_hex, author.hex().encode())
        value = self.get(key)
        try:
            return value is not None and decode_tombstone((key, value)).is_effective
        except CorruptStoreError:
            return False

    def confirms(self, stone: Tombstone) -> bool:
        """Return True if the post/deletes that a tombstone lists confirm it.

        A missing or damaged post/delete is ignored.
        """
        return all(self._confirms(stone, at_ms, digest) for at_ms, digest in stone.deletions)

    def _confirms(self, stone: Tombstone, at_ms: int, digest: bytes) -> bool:
        try:
            deletion = self.post(digest)
        except CorruptStoreError:
            return True
        if deletion is None:
            return True
        claims = isinstance(deletion.body, Delete) and stone.target in deletion.body.hashes
        return claims and (deletion.author, deletion.timestamp_ms) == (stone.author, at_ms)

    def local(self, name: bytes, key: bytes) -> bytes | None:
        """Return the value of a local row (`cablestore.index.local`), None if it does not exist."""
        return self.get(local_key(name, key))

    def local_rows(self, name: bytes, after: bytes = b"") -> Iterator[Row]:
        """Yield the local rows of a name with keys after `after`. Keys are without the prefix of the name."""
        prefix = local_key(name)
        start = prefix + after + b"\x00" if after else prefix
        for key, value in self.scan(start, after_prefix(prefix)):
            yield key[len(prefix) :], value

    def confirmed_author(self, digest: bytes) -> bytes | None:
        """Return the author of a deleted post if this store had the post and the deletion, else None."""
        return self.local(CONFIRMED, digest.hex().encode())

    def is_deletion_confirmed(self, digest: bytes) -> bool:
        """Return True if this store had a post and its author's deletion. Then it must not request the post again."""
        return self.local(CONFIRMED, digest.hex().encode()) is not None


class SnapshotReader(Reader):
    """Reader of a snapshot. At the end of a `with`, it closes the snapshot.

    Several users in one thread can share it: each calls `keep`, and later `close`.
    """

    source: SnapshotSource
    _kept = 0
    """How often `keep` was called without a `close`."""

    def keep(self) -> Self:
        """Keep the snapshot open until `close` is called once more. Return the reader."""
        self._kept += 1
        return self

    def close(self, *_: object) -> None:
        """End one use of the snapshot. The end of the last use releases it."""
        if self._kept:
            self._kept -= 1
        else:
            self.source.close()

    def __enter__(self) -> Self:
        return self

    __exit__ = close
