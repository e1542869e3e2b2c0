"""Deleted: the tombstone of every deletion, waiting for its target or keeping what outlives it.

    !chat!deleted!<target hash>!<author> -> msgpack [time, hash of the post/delete, nil or [type, time, channel, links]]

The seed has `!chat!deleted!<hash> -> 1`. That row can neither hold a deletion that came before its target without
letting anyone delete what others will write, nor tell how other posts' histories run through the deleted one. Of several
deletions of one post by its author the earliest counts, by (timestamp, hash).

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
    """Tell whether a tombstone's post/delete says what it claims. One that is not here is believed."""
    try:
        deletion = reader.post(stone.deleted_by)
    except CorruptStoreError:
        return True
    if deletion is None:
        return True
    claims = isinstance(deletion.body, Delete) and stone.target in deletion.body.hashes
    return claims and (deletion.author, deletion.timestamp_ms) == (stone.author, stone.deleted_at_ms)


VIEW: Final = View(
    name="deleted",
    version=1,
    prefixes=(TOMBSTONE_PREFIX,),
    answers="which hashes not to request; what deleted a post",
    types=frozenset({DELETE}),
)
