"""A post as the payload of a 14/WAKU2-MESSAGE: its content topic, its time, its deterministic hash. Pure.

A content topic is `/cable/1/channel-NAME/cable` with the channel's name percent-encoded, and `/cable/1/everyone/cable`
for posts without a channel. The name is that by which the dialect compares channels: all posts of a channel are under
one topic.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from cablestore.errors import ArchiveError
from cablestore.index.latest import NS_PER_MS
from cablestore.limits import MAX_ARCHIVED_TIMESTAMP_MS, MAX_CHANNEL_CODEPOINTS
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.post import Post

PUBSUB_TOPIC: Final = "/cable/1/archive"
"""The pubsub topic that message hashes are made with. Posts never travel over Waku; the hash needs one."""

EVERYONE_TOPIC: Final = "/cable/1/everyone/cable"
"""The content topic of posts without a channel."""

_CHANNEL_PREFIX: Final = "/cable/1/channel-"
_SUFFIX: Final = "/cable"
_TOPICS_REMEMBERED: Final = 4096


class Message(NamedTuple):
    """One post as a message.

    `payload` is the whole post, `content_topic` that of its channel, `timestamp_ns` the post's own time, `post_hash` its
    32-byte hash.
    """

    payload: bytes
    content_topic: str
    timestamp_ns: int
    post_hash: bytes

    @property
    def author(self) -> bytes:
        """The post's author, a public key of 32 bytes."""
        return self.payload[:KEY_SIZE_BYTES]

    @property
    def timestamp_ms(self) -> int:
        """The post's time in milliseconds since 1970."""
        return self.timestamp_ns // NS_PER_MS

    @property
    def hash(self) -> bytes:
        """The message's deterministic hash, 32 bytes. It is another than the post's."""
        return message_hash(PUBSUB_TOPIC, self.payload, self.content_topic, None, self.timestamp_ns)


def message_of(post: Post) -> Message:
    """Return the message that a post travels in.

    Raises ArchiveError for a post that is in no archive: one that its author keeps to itself (moderation.md 4.5), or of
    a time after `limits.MAX_ARCHIVED_TIMESTAMP_MS`.
    """
    if post.is_local_only:
        raise ArchiveError(f"{post!r} is local-only, it must not leave the store of its author. Leave it out")
    if post.timestamp_ms > MAX_ARCHIVED_TIMESTAMP_MS:
        raise ArchiveError(
            f"{post!r} is of {post.timestamp_ms} ms, archives hold up to {MAX_ARCHIVED_TIMESTAMP_MS}. Leave it out"
        )
    return Message(post.raw, content_topic(post.channel or None), post.timestamp_ms * NS_PER_MS, post.hash)


@lru_cache(_TOPICS_REMEMBERED)
def content_topic(channel: str | None) -> str:
    """Return the content topic of a channel, or with None that of posts without one.

    Raises ArchiveError for a name that no channel has: of 0 or more than 64 code points, or none that UTF-8 can write.
    """
    if channel is None:
        return EVERYONE_TOPIC
    if not 1 <= len(channel) <= MAX_CHANNEL_CODEPOINTS:
        raise ArchiveError(f"a channel's name has 1 to {MAX_CHANNEL_CODEPOINTS} code points, not {len(channel)}")
    try:
        return f"{_CHANNEL_PREFIX}{quote(channel, safe='')}{_SUFFIX}"
    except UnicodeEncodeError as error:
        raise ArchiveError(f"the channel's name {channel!r} is no text that UTF-8 can write: {error.reason}") from None


def channel_of(topic: str) -> str | None:
    """Return the channel that a content topic is of, None for that of posts without one.

    Raises ArchiveError for anything that `content_topic` does not write, other spellings of the same name included.
    """
    if topic == EVERYONE_TOPIC:
        return None
    name = topic.removeprefix(_CHANNEL_PREFIX).removesuffix(_SUFFIX)
    try:
        channel = unquote(name, errors="strict")
        if content_topic(channel) == topic:
            return channel
    except (UnicodeDecodeError, ArchiveError):
        pass
    raise ArchiveError(
        f"the content topic {topic[:100]!r} is none of ours, which are {EVERYONE_TOPIC} and {_CHANNEL_PREFIX}NAME{_SUFFIX}"
    )


def message_hash(
    pubsub_topic: str, payload: bytes, content_topic: str, meta: bytes | None, timestamp_ns: int | None
) -> bytes:
    """Return the 32-byte deterministic hash of a message (14/WAKU2-MESSAGE).

    An absent `meta` adds nothing, an absent timestamp eight zero bytes, as in nwaku and go-waku. The fields are not
    delimited: the hash proves nothing about where one ends. Raises ArchiveError for a timestamp beyond 64 bits.
    """
    try:
        time = (timestamp_ns or 0).to_bytes(8, "big", signed=True)
    except OverflowError:
        raise ArchiveError(f"the timestamp is {timestamp_ns} ns, which are more than 64 bits") from None
    return hashlib.sha256(
        b"".join((pubsub_topic.encode(), payload, content_topic.encode(), meta or b"", time))
    ).digest()
