"""The data store: the bytes of every post, by hash.

    !data!<hash>    -> the signed post
    !private!<hash> -> a local-only post of the store's own user, sealed (moderation.md 4.5.2)

All other rows of views can be rebuilt from these rows and the tombstones. Local-only posts have a separate prefix.
Answers and exports read only `!data!`, so they cannot disclose local-only posts.
"""

from typing import Final

from cablestore.index.database import Row
from cablestore.index.reader import DATA_PREFIX, PRIVATE_PREFIX, record_key
from cablestore.index.view import View
from cablestore.protocol.body import ALL_TYPES
from cablestore.protocol.post import Post


def rows(post: Post) -> list[Row]:
    """Return the row of the post itself."""
    if post.is_local_only and post.sealed is None:
        raise ValueError("a local-only post must be sealed before it is stored")
    return [(record_key(post), post.sealed or post.raw)]


VIEW: Final = View(
    name="data",
    version=1,
    prefixes=(DATA_PREFIX, PRIVATE_PREFIX),
    answers="Post Request; a post by hash",
    types=ALL_TYPES,
    rows=rows,
)
