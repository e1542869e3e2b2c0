"""Drops: which posts moderation removes from this store, and which of their fields are kept (moderation.md 4.4.6).

Drops are local rows. A drop does not leave a tombstone, and the node does not send it to peers:

    !local!drop!user!<pubkey>     -> msgpack [act, exempt or nil, until_ms or nil, place or nil]
    !local!drop!channel!<channel> -> the same
    !local!drop!post!<hash>       -> the same
    !local!swept!                 -> empty; exists if the posts of all drops are removed, or nothing is dropped
    !local!undrop!                -> position up to which the remembered posts were compared with the drops
    !local!dropped!<hash>         -> msgpack [author, act, type, timestamp_ms, channel or nil, links, was stored]
    !local!dropped-link!<channel>!<linked hash>!<hash> -> empty, for the links of remembered posts
    !local!dropped-head!<channel>!<hash>               -> empty, for posts that were heads when they were removed
    !local!refused!               -> number of remembered posts that were never stored
    !local!act!<pubkey>!<mono-ts> -> record of an action or role of a dropped user, without its reason

`act` is the hash of the action that drops. If another user's action drops, `exempt` is the local user, whose posts are
then hidden instead of removed. A drop with `until_ms` applies to posts dated up to that time: `post/unblock` with
`undrop=0` leaves such a drop. `place` is the position at which the removal continues, nil after the last post was
removed.

A post/delete is never dropped, because deletions depend on it. A moderation post is dropped only if its author is and
if it has a reason, which is free text. The store keeps its other fields, because decisions depend on them. It also
keeps the statement about roles in a dropped post/info (`cablestore.index.consents`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from cablestore.errors import CorruptStoreError
from cablestore.index.local import DROP, DROPPED, DROPPED_HEAD, DROPPED_LINK, REFUSED, local_key, number_in
from cablestore.index.packing import pack, unpack
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Skeleton
from cablestore.protocol.body import (
    DELETE,
    LINKABLE_TYPES,
    MODERATION_TYPES,
    TEXT,
    TOPIC,
    Block,
    Moderation,
    Role,
    Unblock,
)
from cablestore.protocol.keys import escape, unescape, unhex
from cablestore.protocol.post import Post

KEPT_TYPES: Final = MODERATION_TYPES | {DELETE}
"""Types of posts that decisions and deletions need: a block does not reject them if they are dated before the block."""
_POST_TYPES: Final = frozenset({TEXT, TOPIC})
"""Types of posts that can be dropped individually (moderation.md 5.1.3.6)."""
USER, CHANNEL, POST = b"user!", b"channel!", b"post!"
"""Prefixes of the keys of drops."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A drop of a user, a channel or a post. See the module's docstring."""

    act: bytes
    exempt: bytes | None
    until_ms: int | None = None
    place: bytes | None = b""

    def removes(self, author: bytes, timestamp_ms: int) -> bool:
        """Return True if the drop removes a post of this author and time."""
        return author != self.exempt and (self.until_ms is None or timestamp_ms <= self.until_ms)

    def is_same(self, other: Drop | None) -> bool:
        """Return True if another drop removes the same posts of its target."""
        return other is not None and (self.exempt, self.until_ms) == (other.exempt, other.until_ms)


class PostFields(NamedTuple):
    """Fields of a post that decide whether it is dropped."""

    hash: bytes
    author: bytes
    type: int
    channel: str | None
    timestamp_ms: int


def is_kept(post: Post | PostFields) -> bool:
    """Return True if a post is never dropped: a post/delete, or a moderation post without a reason.

    `PostFields` lack the reason. They are remembered only for moderation posts that had one.
    """
    if isinstance(post, Post) and isinstance(post.body, (Role, Moderation, Block, Unblock)):
        return not post.body.reason
    return post.type == DELETE


@dataclass(frozen=True, slots=True)
class AppliedDrops:
    """Drops that apply, by user, channel and post."""

    users: Mapping[bytes, Drop] = field(default_factory=dict)
    channels: Mapping[str, Drop] = field(default_factory=dict)
    posts: Mapping[bytes, Drop] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return True if at least one drop applies."""
        return bool(self.users or self.channels or self.posts)

    def of(self, post: Post | PostFields) -> Drop | None:
        """Return the drop that removes a post, None if it is kept."""
        if is_kept(post):
            return None
        found = [self.users.get(post.author)]
        if post.type in LINKABLE_TYPES:
            found.append(self.channels.get(post.channel or ""))
        if post.type in _POST_TYPES:
            found.append(self.posts.get(post.hash))
        return next((drop for drop in found if drop and drop.removes(post.author, post.timestamp_ms)), None)

    @classmethod
    def of_rows(cls, rows: Mapping[bytes, Drop]) -> Self:
        """Return the drops in local rows, given by their keys without the prefix `!local!drop!`."""
        users, channels, posts = {}, {}, {}
        for key, drop in rows.items():
            if key.startswith(USER):
                users[unhex(key[len(USER) :])] = drop
            elif key.startswith(CHANNEL):
                channels[unescape(key[len(CHANNEL) :])] = drop
            else:
                posts[unhex(key[len(POST) :])] = drop
        return cls(users, channels, posts)

    @classmethod
    def under_way(cls, reader: Reader) -> Self:
        """Return the drops whose posts are not all removed yet. Reads and answers must filter these posts."""
        return cls.of_rows({key: drop for key, drop in stored_drops(reader) if drop.place is not None})


def user_key(user: bytes) -> bytes:
    """Return the key of a user's drop, without the prefix `!local!drop!`."""
    return USER + user.hex().encode()


def channel_key(channel: str) -> bytes:
    """Return the key of a channel's drop, without the prefix `!local!drop!`."""
    return CHANNEL + escape(channel)


def post_key(digest: bytes) -> bytes:
    """Return the key of a post's drop, without the prefix `!local!drop!`."""
    return POST + digest.hex().encode()


def stored_drops(reader: Reader) -> Iterator[tuple[bytes, Drop]]:
    """Yield each drop in local rows, with its key without the prefix `!local!drop!`."""
    for key, value in reader.local_rows(DROP):
        yield key, decode_drop(key, value)


def decode_drop(key: bytes, value: bytes) -> Drop:
    """Return the drop in a local row. Raises CorruptStoreError."""
    match unpack(value):
        case [bytes() as act, bytes() | None as spared, int() | None as until_ms, bytes() | None as place]:
            return Drop(act, spared, until_ms, place)
    raise _damaged("drop", key)


def is_dropped_in_order(reader: Reader) -> Callable[[str], bool]:
    """Return a function that returns True for a dropped channel, even if its posts are not removed yet.

    The channels must be passed in the order of their names' bytes.
    """
    value = reader.in_order(local_key(DROP, CHANNEL))
    return lambda channel: value(escape(channel)) is not None


def encode_drop(drop: Drop) -> bytes:
    """Return the value of a drop's local row."""
    return pack([drop.act, drop.exempt, drop.until_ms, drop.place])


@dataclass(frozen=True, slots=True)
class DroppedPost:
    """Remembered fields of a post that was dropped, or rejected because of a drop. Histories of channels need them."""

    hash: bytes
    author: bytes
    act: bytes
    skeleton: Skeleton
    was_held: bool

    @classmethod
    def of(cls, post: Post, act: bytes, *, was_held: bool) -> Self:
        """Return the fields to remember of `post`, dropped by the action `act`. `was_held` means that it was stored."""
        return cls(post.hash, post.author, act, Skeleton.of(post), was_held)

    @property
    def fields(self) -> PostFields:
        """The fields that decide whether the post is still dropped."""
        bones = self.skeleton
        return PostFields(self.hash, self.author, bones.type, bones.channel, bones.timestamp_ms)

    @property
    def hash_hex(self) -> bytes:
        """The hash as a key part."""
        return self.hash.hex().encode()

    def rows(self) -> list[tuple[bytes, bytes, bytes]]:
        """Return (name, key, value) of the local rows that remember the post."""
        value = pack([self.author, self.act, *self.skeleton.fields(), self.was_held])
        found = [(DROPPED, self.hash_hex, value)]
        if self.skeleton.is_linkable:
            channel = escape(self.skeleton.channel or "")
            found += [
                (DROPPED_LINK, b"!".join((channel, linked.hex().encode(), self.hash_hex)), b"")
                for linked in dict.fromkeys(self.skeleton.links)
            ]
        return found

    @property
    def head_row(self) -> tuple[bytes, bytes, bytes]:
        """(name, key, value) of the local row of a post that was a head of its channel."""
        return DROPPED_HEAD, escape(self.skeleton.channel or "") + b"!" + self.hash_hex, b""


def dropped_post(reader: Reader, digest: bytes) -> DroppedPost | None:
    """Return the remembered part of a dropped post, None if it is not remembered."""
    key = digest.hex().encode()
    value = reader.local(DROPPED, key)
    return None if value is None else decode_dropped(key, value)


def dropped_posts(reader: Reader, after: bytes = b"") -> Iterator[DroppedPost]:
    """Yield the remembered posts whose hashes (hex digits) follow `after`, in order."""
    for key, value in reader.local_rows(DROPPED, after):
        yield decode_dropped(key, value)


def decode_dropped(key: bytes, value: bytes) -> DroppedPost:
    """Return the remembered post in a local row. Raises CorruptStoreError."""
    fields: Any = unpack(value)
    match fields:
        case [
            bytes() as author,
            bytes() as act,
            int() as kind,
            int() as time_ms,
            str() | None as channel,
            [*links],
            was,
        ]:
            skeleton = Skeleton(kind, time_ms, channel, tuple(links))
            return DroppedPost(unhex(key), author, act, skeleton, bool(was))
    raise _damaged("dropped post", key)


def rejected_count(reader: Reader) -> int:
    """Return the number of remembered posts that were rejected and never stored."""
    return number_in(reader.local(REFUSED, b""))


def _damaged(what: str, key: bytes) -> CorruptStoreError:
    shown = key.decode(errors="backslashreplace")
    return CorruptStoreError(f"the local row of the {what} {shown} is damaged. Run `cablestore rebuild`")
