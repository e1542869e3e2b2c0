"""Sync: all posts that may be sent to peers, in the order that all peers share, with sums over ranges (a tree).

    !sync!id!!<mono-ts>          -> hash of the post, for all posts
    !sync!id!<channel>!<mono-ts> -> the same, for the posts of a channel except post/text
    !sync!id!"!<mono-ts>         -> the same, for posts without a channel: post/info, post/delete, moderation
    !sync!sum!<set>!<node>~      -> of each part of a node: label, count u64, XOR u8[32], sum modulo 2^256 u8[32]
    !sync!sum!<set>!~            -> the newest part without a row (size of its name u8, name, the same numbers), then the parts of the set

Each post is in two sets: in the set of all posts, whose name is empty, and in the set of its channel. Posts without a
channel are in the set `"`, which is not a channel's name in keys. The rows of a channel's post/text are in
`!chat!text!`. Local-only posts, and posts dated after LAST_MS, are not in any set.

cable-core's INDEXES.md does not have this view. Set reconciliation needs the fingerprint and the k-th post of any range
(WAKU-SYNC). A node is a prefix of <mono-ts>, and its parts are one digit longer. The whole set and each node with more
than 128 posts have a row. So the sum of any range requires a few rows and the posts near its ends. Only the row of the
set counts the newest part without a row, so that a new post changes one row. Which rows exist depends only on the
posts.
"""

from collections.abc import Iterator
from heapq import merge
from typing import Final

from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.view import Tree, View
from cablestore.protocol.body import ALL_TYPES, TEXT
from cablestore.protocol.keys import NS_PER_MS, SEPARATOR, SORT_TIME_SIZE_BYTES, escape
from cablestore.protocol.post import Post
from cablestore.views import messages

ID_PREFIX: Final = b"!sync!id!"
SUM_PREFIX: Final = b"!sync!sum!"
ALL: Final = b""
"""The set of all posts."""
NO_CHANNEL: Final = b'"'
"""The set of posts without a channel."""
LAST_MS: Final = (2**63 - 2) // NS_PER_MS
"""The latest time in the peers' format, in the year 2262."""


def _may_travel(post: Post) -> bool:
    return post.timestamp_ms <= LAST_MS and not post.is_local_only


def sets(post: Post) -> list[bytes]:
    """Return the names of the sets of a post."""
    return [ALL, post.channel_key or NO_CHANNEL] if _may_travel(post) else []


def rows(post: Post) -> list[Row]:
    """Return the rows of a post in its two sets. A post/text has no row in the set of its channel."""
    if not _may_travel(post):
        return []
    row = (b"!sync!id!!" + post.sort_time, post.hash)
    if post.type == TEXT:
        return [row]
    return [row, (b"!sync!id!%b!%b" % (post.channel_key or NO_CHANNEL, post.sort_time), post.hash)]


def sets_of(channels: frozenset[str] | None) -> list[bytes]:
    """Return the names of the sets that contain the posts of these channels and posts without a channel.

    If `channels` is None, return the name of the set of all posts.
    """
    return [ALL] if channels is None else sorted({NO_CHANNEL, *map(escape, channels)})


def items(reader: Reader, start: bytes, stop: bytes) -> Iterator[Row]:
    """Yield (<set>!<mono-ts>, hash) of the posts of one set with start <= <set>!<mono-ts> < stop, in order."""
    found = _stripped(reader.scan(ID_PREFIX + start, ID_PREFIX + stop), ID_PREFIX)
    if start.startswith((b"!", b'"!')):
        return found
    texts = reader.scan(messages.PREFIX + start, messages.PREFIX + stop)
    return merge(found, _stripped(texts, messages.PREFIX))


def posts_in(reader: Reader, name: bytes, node: bytes, count: int) -> list[bytes]:
    """Return <mono-ts> + hash, 49 + 32 bytes, of each of the `count` posts in `node` of the tree of the set `name`."""
    start = name + b"!" + node
    found = _records(reader, ID_PREFIX + start)
    if len(found) < count:
        found = sorted(found + _records(reader, messages.PREFIX + start))
    if len(found) != count:  # read again in a way that reports damage
        found = [key[-SORT_TIME_SIZE_BYTES:] + digest for key, digest in items(reader, start, start + b"~")]
    return found


def _records(reader: Reader, start: bytes) -> list[bytes]:
    size = SORT_TIME_SIZE_BYTES
    blocks = reader.blocks(start, start + b"~")
    return [key[-size:] + digest for block in blocks for key, digest in block if key[-size - 1 : -size] == SEPARATOR]


def _stripped(rows: Iterator[Row], prefix: bytes) -> Iterator[Row]:
    """Yield rows without the prefix of their keys, and without the rows of deletions among the messages."""
    size = len(prefix)
    return (
        (key[size:], digest)
        for key, digest in rows
        if key[-SORT_TIME_SIZE_BYTES - 1 : -SORT_TIME_SIZE_BYTES] == SEPARATOR
    )


TREE: Final = Tree(prefix=SUM_PREFIX, sets=sets, items=items, sources=(ID_PREFIX, messages.PREFIX))

VIEW: Final = View(
    name="sync",
    version=2,
    prefixes=(ID_PREFIX, SUM_PREFIX),
    answers="Set reconciliation",
    types=ALL_TYPES,
    rows=rows,
    tree=TREE,
)
