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

from cablestore.index.database import Row
from cablestore.index.reader import TARGET_PREFIX, TOMBSTONE_PREFIX, Reader, target_key
from cablestore.index.tombstone import Tombstone
from cablestore.index.view import Fold, View
from cablestore.protocol.body import DELETE
from cablestore.protocol.post import Post


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
