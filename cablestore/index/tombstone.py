"""Tombstones: the data of a deletion, and the remains of the deleted post.

A post is dead when a post/delete by its own author names it, in either order of arrival. Until the target arrives, the
tombstone waits under (target, author), so that a user cannot delete other users' posts in advance. After the target has
arrived, its skeleton remains: the histories of other posts depend on it, and its channel, time and links are not in
live posts.

A skeleton received without its post is an unsigned claim of another store. It is used until the post itself replaces
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from cablestore.errors import CorruptStoreError
from cablestore.index.packing import pack, unpack
from cablestore.limits import MAX_CHANNEL_CODEPOINTS, MAX_DELETIONS_LISTED, MAX_POST_SIZE_BYTES, MAX_TIMESTAMP_MS
from cablestore.protocol.body import DELETE, LEAST_CHANNEL_CODEPOINTS, LINKABLE_TYPES, TYPE_NAMES, Delete
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import escape, sort_time
from cablestore.protocol.post import SIGNED_FROM, Post
from cablestore.reprs import hex_repr


@dataclass(frozen=True, slots=True)
class Skeleton:
    """Remains of a deleted post. `channel` is the comparable name of its channel, or None if it has no channel."""

    type: int
    timestamp_ms: int
    channel: str | None
    links: tuple[bytes, ...]

    __repr__ = hex_repr

    @classmethod
    def of(cls, post: Post) -> Self:
        """Return the skeleton of a post."""
        return cls(post.type, post.timestamp_ms, post.channel, post.links)

    def fields(self) -> list[Any]:
        """Return the skeleton's fields in a tombstone's row: [type, timestamp_ms, channel or nil, links]."""
        return [self.type, self.timestamp_ms, self.channel, list(self.links)]

    @property
    def is_linkable(self) -> bool:
        """True if the post was part of its channel's history (wire.md 5.1.2.1)."""
        return self.type in LINKABLE_TYPES


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The deletion of `target` by `author`, both 32 bytes.

    `deleted_by` is the hash of the earliest post/delete of the target, by (timestamp, hash), and `deleted_at_ms` its
    time. `later` lists the (time, hash) of the next post/deletes, at most MAX_DELETIONS_LISTED in total.
    """

    target: bytes
    author: bytes
    deleted_at_ms: int
    deleted_by: bytes
    skeleton: Skeleton | None = None
    later: tuple[tuple[int, bytes], ...] = ()

    __repr__ = hex_repr

    @property
    def deletions(self) -> tuple[tuple[int, bytes], ...]:
        """The (time, hash) of each listed post/delete of the target, the earliest first."""
        return ((self.deleted_at_ms, self.deleted_by), *self.later)

    @property
    def is_effective(self) -> bool:
        """True if this store had the target, or another store claims it.

        Otherwise the tombstone waits for the target.
        """
        return self.skeleton is not None

    @property
    def target_hex(self) -> bytes:
        """The target as a key part."""
        return self.target.hex().encode()

    @property
    def channel_key(self) -> bytes:
        """The target's channel as a key part, b"" if it has none or is unknown."""
        return escape(self.skeleton.channel) if self.skeleton and self.skeleton.channel else b""

    @property
    def deletion_rows(self) -> list[tuple[bytes, bytes]]:
        """The sort time and hash of each deletion, for rows in order of time."""
        return [(sort_time(at_ms, digest.hex().encode()), digest) for at_ms, digest in self.deletions]

    def for_export(self) -> Self:
        """Return the tombstone for exports and archives, with only the earliest deletion.

        The later deletions follow from posts.
        """
        return replace(self, later=()) if self.later else self

    def merge(self, other: Self) -> Self:
        """Merge two tombstones of one (target, author). Commutative, associative, idempotent.

        Of two different skeletons, keep the skeleton with the smaller encoding, because either may be true.
        """
        (at, by), *later = sorted({*self.deletions, *other.deletions})[:MAX_DELETIONS_LISTED]
        told = [skeleton for skeleton in (self.skeleton, other.skeleton) if skeleton is not None]
        skeleton = min(told, key=_encoding, default=None)
        return replace(self, deleted_at_ms=at, deleted_by=by, skeleton=skeleton, later=tuple(later))

    def encode(self) -> bytes:
        """Return the row's value: msgpack [deleted_at_ms, deleted_by, skeleton or nil], then `later`, if any."""
        skeleton = None if self.skeleton is None else self.skeleton.fields()
        later = [list(map(list, self.later))] if self.later else []
        return pack([self.deleted_at_ms, self.deleted_by, skeleton, *later])

    @classmethod
    def decode(cls, target: bytes, author: bytes, value: bytes) -> Self:
        """Decode the result of `encode`. Raises CorruptStoreError."""
        match unpack(value):
            case [int() as at, bytes() as by, bones, *more]:
                skeleton, later = _skeleton_of(bones), _later_of(more)
                if later is not None and (skeleton is not None or bones is None):
                    return cls(target, author, at, by, skeleton, later)
        raise CorruptStoreError(f"the row of the tombstone of {target.hex()} is damaged. Run `cablestore rebuild`")

    @classmethod
    def read(cls, item: Any) -> Self:
        """Read [target, author, `encode` value of a `for_export` tombstone] from another store.

        Raises ValueError if `item` is malformed, or has values that posts and deletions cannot have: views cannot
        derive rows from such values.
        """
        match item:
            case [bytes() as target, bytes() as author, bytes() as value] if _are_hashes([target, author]):
                try:
                    stone = cls.decode(target, author, value)
                    if _can_be(stone) and stone.encode() == value:
                        return stone
                except (CorruptStoreError, TypeError, OverflowError):
                    pass
        raise ValueError("invalid tombstone: expected [target, author, value]")


def _skeleton_of(fields: Any) -> Skeleton | None:
    match fields:
        case [int() as kind, int() as time, str() | None as channel, list() as links]:
            return Skeleton(kind, time, channel, tuple(links))
    return None


def _later_of(more: Sequence[Any]) -> tuple[tuple[int, bytes], ...] | None:
    """Return (time, hash) of each later deletion in `more`, the optional last item of a row. None if it is invalid."""
    match more:
        case []:
            return ()
        case [[*entries]] if entries and all(map(_is_deletion, entries)):
            return tuple((time, digest) for time, digest in entries)
    return None


def _is_deletion(entry: Any) -> bool:
    match entry:
        case [int(), bytes()]:
            return True
    return False


def tombstones(post: Post) -> list[Tombstone]:
    """Return the waiting tombstones of a post/delete, [] for other types."""
    if not isinstance(post.body, Delete):
        return []
    return [Tombstone(target, post.author, post.timestamp_ms, post.hash) for target in dict.fromkeys(post.body.hashes)]


def _encoding(skeleton: Skeleton) -> bytes:
    return pack(skeleton.fields())


def _can_be(stone: Tombstone) -> bool:
    bones = stone.skeleton
    return (
        0 <= stone.deleted_at_ms <= MAX_TIMESTAMP_MS
        and _are_hashes([stone.deleted_by])
        and not stone.later
        and (
            bones is None
            or (
                bones.type in TYPE_NAMES
                and bones.type != DELETE
                and 0 <= bones.timestamp_ms <= MAX_TIMESTAMP_MS
                and _can_have(bones.type, bones.channel)
                and SIGNED_FROM + len(bones.links) * HASH_SIZE_BYTES < MAX_POST_SIZE_BYTES
                and _are_hashes(bones.links)
            )
        )
    )


def _can_have(kind: int, channel: str | None) -> bool:
    """Return True if a post of this type can have this channel. None stands for a post without a channel."""
    least = LEAST_CHANNEL_CODEPOINTS.get(kind)
    if least is None or channel is None:
        return least is None and channel is None
    return least <= len(channel) <= MAX_CHANNEL_CODEPOINTS


def _are_hashes(values: Sequence[Any]) -> bool:
    return all(type(value) is bytes and len(value) == HASH_SIZE_BYTES for value in values)
