"""Deleted: the tombstone of every deletion. It waits for its target, or keeps data that must outlive the target.

    !chat!deleted!<target hash>!<author> -> msgpack [time, hash of the post/delete, nil or [type, time, channel, links]], with a 4th item, a list of [time, hash], if the author deleted the post again later
    !chat!target!<target hash>           -> empty (fold), if the target has tombstones

cable-core has `!chat!deleted!<hash> -> 1`. That row has two faults. Anybody could delete a post of another user with a
post/delete that arrives before the post. And the row loses the links of the deleted post, on which the histories of
other posts depend.

If an author deletes a post several times, the earliest deletion counts, by (timestamp, hash). The next post/deletes, at
most MAX_DELETIONS_LISTED in all, are kept because a channel's history lists them too (wire.md 6.3.2.3). Most new posts
are not targets. For these, one look-up of `!chat!target!<hash>` is sufficient.

Tombstones are not a fold: their skeletons come from removed posts, so the remaining posts do not determine them. A
rebuild only needs the posts and the tombstones.

If the store had the post, the skeleton contains the fields of the post. Otherwise the skeleton is a claim of another
store. If several skeletons are claimed for one author, the skeleton with the smallest encoding is kept, so the order in
which claims arrive has no effect. When the post itself arrives, its fields replace the claim, although the post is
deleted.
"""

from typing import Final

from cablestore.index.database import Row
from cablestore.index.reader import TARGET_PREFIX, TOMBSTONE_PREFIX, Reader, target_key
from cablestore.index.tombstone import Tombstone
from cablestore.index.view import Fold, View
from cablestore.protocol.body import DELETE
from cablestore.protocol.post import Post


def no_parts(_: Post) -> list[Row]:
    """Return no parts: only tombstones have parts in this fold."""
    return []


def dead_parts(tombstone: Tombstone) -> list[Row]:
    """Return the part that marks the target as having a tombstone."""
    return [(target_key(tombstone.target_hex), b"")]


def refold(_reader: Reader, _key: bytes) -> bytes:
    """Return the part of a target. Tombstones are never removed, so it always exists."""
    return b""


VIEW: Final = View(
    name="deleted",
    version=2,
    prefixes=(TOMBSTONE_PREFIX, TARGET_PREFIX),
    answers="whether an arriving post is deleted; the deletion of a post",
    types=frozenset({DELETE}),
    folds=(Fold(prefix=TARGET_PREFIX, types=frozenset(), parts=no_parts, refold=refold, dead_parts=dead_parts),),
)
