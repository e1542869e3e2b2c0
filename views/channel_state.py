"""Channel state: all posts that start or end membership of a channel, and all topics.

    !state!member!<channel>!<pubkey>!<type>!<mono-ts> -> hash of the post/join, post/leave, post/text or post/topic
    !state!topic!<channel>!<mono-ts>                  -> hash of the post/topic

In cable-core's keys, the time is before the public key. cable-core reads one row, so it finds only one member. Here the
latest post of each member is the last row of a range. The type is before the time, so that the latest join or leave is
found in one step, regardless of later posts. A text and a topic imply joining (wire.md 5.4.3).
"""

from collections.abc import Iterator
from typing import Final

from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.view import View
from cablestore.protocol.body import LINKABLE_TYPES, MEMBERSHIP_TYPES, TOPIC
from cablestore.protocol.keys import TYPE_PARTS, escape, time_floor
from cablestore.protocol.post import Post

MEMBER_PREFIX: Final = b"!state!member!"
TOPIC_PREFIX: Final = b"!state!topic!"


def rows(post: Post) -> list[Row]:
    """Return the row of the author's membership and, for a post/topic, the row of the topic."""
    kind = TYPE_PARTS[post.type]
    member = b"!state!member!%b!%b!%b!%b" % (post.channel_key, post.author_hex, kind, post.sort_time)
    if post.type != TOPIC:
        return [(member, post.hash)]
    return [(member, post.hash), (TOPIC_PREFIX + post.channel_key + b"!" + post.sort_time, post.hash)]


def prefix_in(group: bytes, post_type: int | None = None) -> bytes:
    """Return the prefix of the keys of `group`, which is `<channel>!<pubkey>`.

    With `post_type`, return the prefix of the keys of this type, which continue with the `<mono-ts>`. Otherwise, the
    keys continue with the type and the `<mono-ts>`.
    """
    prefix = b"%b%b!" % (MEMBER_PREFIX, group)
    return prefix if post_type is None else b"%b%b!" % (prefix, TYPE_PARTS[post_type])


def _prefix_of(channel: str, author: bytes, post_type: int | None = None) -> bytes:
    return prefix_in(escape(channel) + b"!" + author.hex().encode(), post_type)


def latest_of_types(reader: Reader, group: bytes) -> Iterator[tuple[int, Row]]:
    """Yield (type, row) of the latest row of each type that decides membership, under `<channel>!<pubkey>`."""
    for post_type in MEMBERSHIP_TYPES:
        row = reader.last(prefix_in(group, post_type))
        if row is not None:
            yield post_type, row


def by_author(reader: Reader, channel: str, author: bytes, post_type: int | None = None) -> Iterator[bytes]:
    """Yield the hashes of an author's posts in a channel, of one type or of all types, sorted by type and time."""
    for _, digest in reader.prefix(_prefix_of(channel, author, post_type)):
        yield digest


def newest(reader: Reader, channel: str, author: bytes, post_type: int) -> Iterator[Row]:
    """Yield the rows of an author's posts of a type in a channel, latest first."""
    yield from reader.prefix(_prefix_of(channel, author, post_type), reverse=True)


def between(reader: Reader, channel: str, author: bytes, post_type: int, from_ms: int, to_ms: int) -> Iterator[bytes]:
    """Yield the hashes of an author's posts of a type in a channel with from <= timestamp < to, oldest first."""
    prefix = _prefix_of(channel, author, post_type)
    for _, digest in reader.scan(prefix + time_floor(from_ms), prefix + time_floor(to_ms)):
        yield digest


def topics(reader: Reader, channel: str) -> Iterator[bytes]:
    """Yield the hashes of the post/topic of a channel, newest first."""
    for _, digest in reader.prefix(TOPIC_PREFIX + escape(channel) + b"!", reverse=True):
        yield digest


VIEW: Final = View(
    name="channel_state",
    version=1,
    prefixes=(MEMBER_PREFIX, TOPIC_PREFIX),
    answers="earlier membership and topic after a deletion; posts of an author in a channel",
    types=LINKABLE_TYPES,
    rows=rows,
)
