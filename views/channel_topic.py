"""Channel topic: the topic of a channel now (fold over channel state).

    !channel!topic!<channel> -> moment (8 bytes of timestamp, 32 of hash) | topic in UTF-8

The latest post/topic by (timestamp, hash) wins. An empty topic is a topic that was cleared (wire.md 5.4.2).
"""

from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.latest import ORDER_KEY_SIZE_BYTES, order_key
from cablestore.index.reader import Reader
from cablestore.index.view import Fold, View
from cablestore.protocol.body import TOPIC, Topic
from cablestore.protocol.keys import escape
from cablestore.protocol.post import Post
from cablestore.views.channel_state import TOPIC_PREFIX

PREFIX: Final = b"!channel!topic!"


def parts(post: Post) -> list[Row]:
    """Return what a post/topic says."""
    topic = post.body.topic if isinstance(post.body, Topic) else ""
    return [(PREFIX + post.channel_key, order_key(post.timestamp_ms, post.hash) + topic.encode())]


def refold(reader: Reader, key: bytes) -> bytes | None:
    """Find the latest post/topic that is left."""
    row = reader.last(TOPIC_PREFIX + key[len(PREFIX) :] + b"!")
    post = None if row is None else reader.post(row[1])
    return None if post is None else parts(post)[0][1]


def latest(reader: Reader, channel: str) -> tuple[str, bytes] | None:
    """Return a channel's topic and the hash of the post that set it, None where none ever did."""
    value = reader.get(PREFIX + escape(channel))
    if value is None:
        return None
    try:
        return value[ORDER_KEY_SIZE_BYTES:].decode(), value[8:ORDER_KEY_SIZE_BYTES]
    except UnicodeDecodeError:
        raise CorruptStoreError(f"the topic of {channel!r} is damaged. Run `cablestore rebuild`") from None


VIEW: Final = View(
    name="channel_topic",
    version=1,
    prefixes=(PREFIX,),
    answers="Channel State Request (topic); the topic",
    folds=(Fold(prefix=PREFIX, types=frozenset({TOPIC}), parts=parts, refold=refold),),
)
