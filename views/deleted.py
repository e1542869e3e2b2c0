"""Deleted: the tombstone of every deletion, waiting for its target or keeping what outlives it.

    !chat!deleted!<target hash>!<author> -> msgpack [time, hash of the post/delete, nil or [type, time, channel, links]]
                                             and, where there are more deletions, a list of their [time, hash]
    !chat!target!<target hash>           -> empty (fold): there are tombstones of it

The seed has `!chat!deleted!<hash> -> 1`. That row can neither hold a deletion that came before its target without
letting anyone delete what others will write, nor tell how other posts' histories run through the deleted one. Of several
deletions of one post by its author the earliest counts, by (timestamp, hash). The next ones, MAX_DELETIONS_LISTED in all,
are kept because a channel's history lists them too (wire.md 6.3.2.3). Most posts that come are no target, which one look-up
by hash alone tells.

Tombstones are kept beside the folds because a part of them, the skeleton, comes from posts that are gone: they are the
one thing besides the posts that a rebuild needs.

A skeleton is the post's own where the store saw the post. Otherwise it is what another store told: of several the one with
the least encoding, under each author that was told of. Such a row is a function of what was told, whatever the order. It
gives way to the post when it comes, alive or dead.
"""

from typing import Final

from cablestore.body import DELETE, Delete
from cablestore.errors import CorruptStoreError
from cablestore.post import Post
from cablestore.reader import (
    TARGET_PREFIX,
    TOMBSTONE_PREFIX,
    Reader,
    Row,
    decode_tombstone,
    target_key,
    tombstone_key,
)
from cablestore.tombstone import Tombstone
from cablestore.view import Fold, View


def tombstones(post: Post) -> list[Tombstone]:
    """Return the waiting tombstones that a post/delete sets, none for other types."""
    if not isinstance(post.body, Delete):
        return []
    return [Tombstone(target, post.author, post.timestamp_ms, post.hash) for target in dict.fromkeys(post.body.hashes)]


def is_borne_out(reader: Reader, stone: Tombstone) -> bool:
    """Tell whether a tombstone's post/deletes say what it claims. One that is not here is believed."""
    return all(_says_so(reader, stone, at_ms, digest) for at_ms, digest in stone.deletions)


def _says_so(reader: Reader, stone: Tombstone, at_ms: int, digest: bytes) -> bool:
    try:
        deletion = reader.post(digest)
    except CorruptStoreError:
        return True
    if deletion is None:
        return True
    claims = isinstance(deletion.body, Delete) and stone.target in deletion.body.hashes
    return claims and (deletion.author, deletion.timestamp_ms) == (stone.author, at_ms)


def is_buried(reader: Reader, hash_hex: bytes, author: bytes) -> bool:
    """Tell whether there is an effective tombstone of (target, author): what a store saw dead has one."""
    key = tombstone_key(hash_hex, author.hex().encode())
    value = reader.get(key)
    try:
        return value is not None and decode_tombstone((key, value)).is_effective
    except CorruptStoreError:
        return False


def no_parts(_: Post) -> list[Row]:
    """Return that no post has a part in the fold: tombstones alone do."""
    return []


def dead_parts(tombstone: Tombstone) -> list[Row]:
    """Return that there is a tombstone of the target."""
    return [(target_key(tombstone.target_hex), b"")]


def refold(_reader: Reader, _key: bytes) -> bytes:
    """Return that there is a tombstone: none is ever removed."""
    return b""


VIEW: Final = View(
    name="deleted",
    version=2,
    prefixes=(TOMBSTONE_PREFIX, TARGET_PREFIX),
    answers="which posts are dead when they come; what deleted a post",
    types=frozenset({DELETE}),
    folds=(Fold(prefix=TARGET_PREFIX, types=frozenset(), parts=no_parts, refold=refold, dead_parts=dead_parts),),
)
