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
from cablestore.post import Post
from cablestore.reader import TOMBSTONE_PREFIX
from cablestore.tombstone import Tombstone
from cablestore.view import View


def tombstones(post: Post) -> list[Tombstone]:
    """Return the waiting tombstones that a post/delete sets, none for other types."""
    if not isinstance(post.body, Delete):
        return []
    return [Tombstone(target, post.author, post.timestamp_ms, post.hash) for target in dict.fromkeys(post.body.hashes)]


VIEW: Final = View(
    name="deleted",
    version=1,
    prefixes=(TOMBSTONE_PREFIX,),
    answers="which hashes not to request; what deleted a post",
    types=frozenset({DELETE}),
)
