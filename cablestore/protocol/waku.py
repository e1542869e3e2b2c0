"""Posts as Waku messages (14/WAKU2-MESSAGE): content topic, time, deterministic hash, and encoding.

A content topic is `/cable/1/channel-NAME/cable` with the channel's name percent-encoded, and `/cable/1/everyone/cable`
for posts without a channel. The name is the comparable name in the dialect, so all posts of a channel have the same
topic.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from cablestore.errors import ArchiveError
from cablestore.limits import MAX_ARCHIVED_TIMESTAMP_MS, MAX_CHANNEL_CODEPOINTS
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.post import Post
from cablestore.protocol.protobuf import BOOL, BYTES, SINT64, STRING, Document, Field

PUBSUB_TOPIC: Final = "/cable/1/archive"
"""The pubsub topic in message hashes. Posts are not sent over Waku, but the hash needs a topic."""

EVERYONE_TOPIC: Final = "/cable/1/everyone/cable"
"""The content topic of posts without a channel."""

_CHANNEL_PREFIX: Final = "/cable/1/channel-"
_SUFFIX: Final = "/cable"
TOPICS_REMEMBERED: Final = 4_096
"""Maximum number of content topics, with their hashes, that are cached instead of computed for each message."""

WAKU_MESSAGE: Final = Document(
    "WakuMessage",
    Field(1, "payload", BYTES),
    Field(2, "content_topic", STRING),
    Field(10, "timestamp", SINT64, has_presence=True),
    Field(11, "meta", BYTES, has_presence=True),
    Field(31, "ephemeral", BOOL, has_presence=True),
)
"""14/WAKU2-MESSAGE without version (3) and rate_limit_proof (21), which posts do not have."""


class WakuMessage(NamedTuple):
    """A post as a Waku message.

    `payload` is the whole post, `content_topic` the topic of its channel, `timestamp_ns` the post's time, `post_hash`
    its 32-byte hash.
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
        """The message's deterministic hash, 32 bytes. It differs from the post's hash."""
        return message_hash(PUBSUB_TOPIC, self.payload, self.content_topic, None, self.timestamp_ns)


def message_of(post: Post) -> WakuMessage:
    """Return a post as a message.

    Raises ArchiveError for posts that archives cannot contain: local-only posts (moderation.md 4.5), and posts dated
    after `limits.MAX_ARCHIVED_TIMESTAMP_MS`.
    """
    if post.is_local_only:
        raise ArchiveError(f"local-only posts cannot leave their store: {post!r}. Exclude the post")
    if post.timestamp_ms > MAX_ARCHIVED_TIMESTAMP_MS:
        raise ArchiveError(
            f"{post!r} is dated {post.timestamp_ms} ms, the maximum in archives is {MAX_ARCHIVED_TIMESTAMP_MS} ms. "
            "Exclude the post"
        )
    return WakuMessage(post.raw, content_topic(post.channel or None), post.timestamp_ms * NS_PER_MS, post.hash)


@lru_cache(TOPICS_REMEMBERED)
def content_topic(channel: str | None) -> str:
    """Return the content topic of a channel, or EVERYONE_TOPIC for None.

    Raises ArchiveError for a name of 0 or more than 64 code points, and for a name that cannot be encoded as UTF-8.
    """
    if channel is None:
        return EVERYONE_TOPIC
    if not 1 <= len(channel) <= MAX_CHANNEL_CODEPOINTS:
        raise ArchiveError(f"the channel name has {len(channel)} code points, expected 1 to {MAX_CHANNEL_CODEPOINTS}")
    try:
        return f"{_CHANNEL_PREFIX}{quote(channel, safe='')}{_SUFFIX}"
    except UnicodeEncodeError as error:
        raise ArchiveError(f"the channel name {channel!r} cannot be encoded in UTF-8: {error.reason}") from None


def message_hash(
    pubsub_topic: str, payload: bytes, content_topic: str, meta: bytes | None, timestamp_ns: int | None
) -> bytes:
    """Return the 32-byte deterministic hash of a message (14/WAKU2-MESSAGE).

    An absent `meta` adds nothing and an absent timestamp adds eight zero bytes, as in nwaku and go-waku. The fields are
    not delimited: the hash does not prove where a field ends. Raises ArchiveError for a timestamp beyond 64 bits.
    """
    try:
        time = (timestamp_ns or 0).to_bytes(8, "big", signed=True)
    except OverflowError:
        raise ArchiveError(f"the timestamp {timestamp_ns} ns does not fit into 64 bits") from None
    return hashlib.sha256(
        b"".join((pubsub_topic.encode(), payload, content_topic.encode(), meta or b"", time))
    ).digest()


# --- the bytes of a message -----------------------------------------------------------------------


class ReceivedWakuMessage(NamedTuple):
    """The fields of a message from another program, without checks. An absent time is 0."""

    payload: bytes
    content_topic: str
    timestamp_ns: int
    meta: bytes | None
    is_ephemeral: bool


def encode_waku(message: WakuMessage) -> bytes:
    """Return the bytes of a message."""
    payload, content_topic, timestamp_ns, _ = message
    return WAKU_MESSAGE.encode(payload, content_topic, timestamp_ns)


def decode_waku(data: bytes) -> ReceivedWakuMessage:
    """Decode the bytes of a message. Raises ArchiveError if they are malformed."""
    payload, content_topic, timestamp_ns, meta, is_ephemeral = WAKU_MESSAGE.decode(data)
    return ReceivedWakuMessage(payload, content_topic, timestamp_ns or 0, meta, bool(is_ephemeral))
