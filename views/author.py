"""Author: all posts of each author, by type and time.

    !author!<pubkey>!<type>!<mono-ts> -> hash of the post

Posts of every type have a row here, local-only ones too, so that all posts of an author can be found and discarded.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.view import ALL_TYPES, View
from cablestore.protocol.keys import after_prefix, time_floor, time_of
from cablestore.protocol.post import Post

PREFIX: Final = b"!author!"


def rows(post: Post) -> list[Row]:
    """Return the row of any post."""
    return [(b"!author!%b!%d!%b" % (post.author_hex, post.type, post.sort_time), post.hash)]


def hashes(reader: Reader, author: bytes, post_type: int | None = None) -> Iterator[bytes]:
    """Yield the hashes of an author's posts of one type in order of time.

    Without a type, yield all posts, type by type.
    """
    prefix = PREFIX + author.hex().encode() + b"!" + (b"" if post_type is None else b"%d!" % post_type)
    for _, digest in reader.prefix(prefix):
        yield digest


def between(reader: Reader, author: bytes, post_types: Iterable[int], from_ms: int, to_ms: int) -> Iterator[bytes]:
    """Yield the hashes of an author's posts of these types with from <= timestamp < to, type by type."""
    prefix = PREFIX + author.hex().encode() + b"!"
    for post_type in post_types:
        start, stop = (prefix + b"%d!" % post_type + time_floor(bound_ms) for bound_ms in (from_ms, to_ms))
        for _, digest in reader.scan(start, stop):
            yield digest


def latest_time(reader: Reader, author: bytes, *, before_ms: int) -> int:
    """Return the latest timestamp below `before_ms` of the author's posts, 0 if there are none."""
    prefix = PREFIX + author.hex().encode() + b"!"
    latest = 0
    for post_type in ALL_TYPES:
        start = prefix + b"%d!" % post_type
        row = next(reader.scan(start, start + time_floor(before_ms), reverse=True), None)
        if row is not None:
            latest = max(latest, time_of(row[0].rsplit(b"!", 1)[1]))
    return latest


def authors(reader: Reader) -> Iterator[bytes]:
    """Yield the public key of every author. Each costs one read, however many posts there are."""
    start, stop = PREFIX, after_prefix(PREFIX)
    while (row := next(reader.scan(start, stop), None)) is not None:
        author_hex = row[0][len(PREFIX) :].split(b"!", 1)[0]
        yield bytes.fromhex(author_hex.decode())
        start = after_prefix(PREFIX + author_hex + b"!")


VIEW: Final = View(
    name="author",
    version=1,
    prefixes=(PREFIX,),
    answers="posts of an author; users",
    types=ALL_TYPES,
    rows=rows,
)
