"""Author: all posts of each author, by type and time.

    !author!<pubkey>!<type>!<mono-ts> -> hash of the post

Posts of every type have a row, even local-only posts, so that all posts of an author can be discarded.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.view import View
from cablestore.protocol.body import ALL_TYPES
from cablestore.protocol.keys import TYPE_PARTS, after_prefix, time_floor, time_of, unhex
from cablestore.protocol.post import Post

PREFIX: Final = b"!author!"


def rows(post: Post) -> list[Row]:
    """Return the row of any post."""
    return [(b"!author!%b!%b!%b" % (post.author_hex, TYPE_PARTS[post.type], post.sort_time), post.hash)]


def prefix_of(author: bytes, post_type: int | None = None) -> bytes:
    """Return the prefix of the keys of an author's posts of one type or of all types.

    With `post_type`, only the `<mono-ts>` follows the prefix, otherwise the type and the `<mono-ts>`.
    """
    prefix = PREFIX + author.hex().encode() + b"!"
    return prefix if post_type is None else b"%b%b!" % (prefix, TYPE_PARTS[post_type])


def hashes(reader: Reader, author: bytes, post_type: int | None = None) -> Iterator[bytes]:
    """Yield the hashes of an author's posts of one type in order of time.

    Without a type, yield all posts, type by type.
    """
    for _, digest in reader.prefix(prefix_of(author, post_type)):
        yield digest


def newest(reader: Reader, author: bytes, post_type: int) -> Iterator[Row]:
    """Yield the rows of an author's posts of one type, latest first."""
    yield from reader.prefix(prefix_of(author, post_type), reverse=True)


def between(
    reader: Reader, author: bytes, post_types: Iterable[int], from_ms: int, to_ms: int, *, newest_first: bool = False
) -> Iterator[bytes]:
    """Yield the hashes of an author's posts of these types with from <= timestamp < to, type by type."""
    for post_type in post_types:
        start, stop = (prefix_of(author, post_type) + time_floor(bound_ms) for bound_ms in (from_ms, to_ms))
        for _, digest in reader.scan(start, stop, reverse=newest_first):
            yield digest


def latest_time(reader: Reader, author: bytes, *, before_ms: int) -> int:
    """Return the latest timestamp below `before_ms` of the author's posts, 0 if such posts do not exist."""
    prefix = prefix_of(author)
    latest = 0
    for post_type in ALL_TYPES:
        start = prefix + TYPE_PARTS[post_type] + b"!"
        row = next(reader.scan(start, start + time_floor(before_ms), reverse=True), None)
        if row is not None:
            latest = max(latest, time_of(row[0].rsplit(b"!", 1)[1]))
    return latest


def authors(reader: Reader) -> Iterator[bytes]:
    """Yield the public key of every author. Each costs one read, regardless of the number of posts."""
    start, stop = PREFIX, after_prefix(PREFIX)
    while (row := next(reader.scan(start, stop), None)) is not None:
        author_hex = row[0][len(PREFIX) :].split(b"!", 1)[0]
        yield unhex(author_hex)
        start = after_prefix(PREFIX + author_hex + b"!")


VIEW: Final = View(
    name="author",
    version=1,
    prefixes=(PREFIX,),
    answers="posts of an author; users",
    types=ALL_TYPES,
    rows=rows,
)
