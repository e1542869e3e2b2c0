"""Channel topic: the present topic of a channel (fold over channel state).

    !channel!topic!<channel> -> moment (timestamp u64, hash u8[32]) | topic in UTF-8

The latest post/topic by (timestamp, hash) counts. An empty topic is a cleared topic (wire.md 5.4.2).
"""

from collections.abc import Callable
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.reader import Reader
from cablestore.index.view import View, latest_fold, split_latest
from cablestore.protocol.body import TOPIC, Topic
from cablestore.protocol.keys import escape
from cablestore.protocol.post import Post
from cablestore.views.channel_state import TOPIC_PREFIX

PREFIX: Final = b"!channel!topic!"


def channel_of(post: Post) -> bytes:
    """Return the post's channel as a key part."""
    return post.channel_key


def topic_of(post: Post) -> bytes:
    """Return the topic that a post/topic sets."""
    return post.body.topic.encode() if isinstance(post.body, Topic) else b""


def latest(reader: Reader, channel: str) -> tuple[str, bytes] | None:
    """Return a channel's topic and the hash of the post that set it, None if it was never set."""
    return _decode(channel, reader.get(PREFIX + escape(channel)))


def latest_in_order(reader: Reader) -> Callable[[str], tuple[str, bytes] | None]:
    """Return a function like `latest`. Pass channels to it in the order of their names' bytes."""
    value = reader.in_order(PREFIX)
    return lambda channel: _decode(channel, value(escape(channel)))


def _decode(channel: str, value: bytes | None) -> tuple[str, bytes] | None:
    if value is None:
        return None
    digest, topic = split_latest(value)
    try:
        return topic.decode(), digest
    except UnicodeDecodeError:
        raise CorruptStoreError(f"the topic of {channel!r} is damaged. Run `cablestore rebuild`") from None


VIEW: Final = View(
    name="channel_topic",
    version=1,
    prefixes=(PREFIX,),
    answers="Channel State Request (topic); the topic",
    folds=(latest_fold(prefix=PREFIX, types=frozenset({TOPIC}), group=channel_of, says=topic_of, rows=TOPIC_PREFIX),),
)
