"""Deleted: the tombstone of every deletion, waiting for its target or keeping what outlives it.

    !chat!deleted!<target hash>!<author> -> msgpack [time, hash of the post/delete, nil or [type, time, channel, links]]
                                            and, where there are more deletions, a list of their [time, hash]

The seed has `!chat!deleted!<hash> -> 1`. That row can neither hold a deletion that came before its target without
letting anyone delete what others will write, nor tell how other posts' histories run through the deleted one. Of several
deletions of one post by its author the earliest counts, by (timestamp, hash). The next ones, MAX_DELETIONS_LISTED in all,
are kept because a channel's history lists them too (wire.md 6.3.2.3).

Tombstones are kept beside the folds because a part of them, the skeleton, comes from posts that are gone: they are the
one thing besides the posts that a rebuild needs.
"""

from typing import Final

from cablestore.body import DELETE, Delete
from cablestore.errors import CorruptStoreError
from cablestore.post import Post
from cablestore.reader import TOMBSTONE_PREFIX, Reader
from cablestore.tombstone import Tombstone
from cablestore.view import View


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


VIEW: Final = View(
    name="deleted",
    version=2,
    prefixes=(TOMBSTONE_PREFIX,),
    answers="which hashes not to request; what deleted a post",
    types=frozenset({DELETE}),
)
