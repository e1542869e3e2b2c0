"""Topics of a channel that apply for the store's user. Topics of blocked, dropped or hidden users do not count.

Exception: a hidden user's topic counts if no other user's topic does, because hiding concerns messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from cablestore import limits
from cablestore.index.reader import Reader
from cablestore.moderation.applied import AppliedModeration
from cablestore.protocol.body import Topic
from cablestore.protocol.post import Post
from cablestore.views import channel_state


def topic_of(reader: Reader, moderation: AppliedModeration, channel: str) -> str:
    """Return the topic of a channel, "" if none counts."""
    found = next(topics_that_count(reader, moderation, channel), None)
    if found is None:
        found = next(topics_that_count(reader, moderation, channel, also_hidden=True), None)
    return found.body.topic if found is not None and isinstance(found.body, Topic) else ""


def topics_that_count(
    reader: Reader, moderation: AppliedModeration | None, channel: str, *, also_hidden: bool = False
) -> Iterator[Post]:
    """Yield the post/topics that count among the latest `limits.MAX_TOPICS_READ` of a channel, latest first."""
    for digest in islice(channel_state.topics(reader, channel), limits.MAX_TOPICS_READ):
        post = reader.post(digest)
        if post is not None and (moderation is None or moderation.counts_topic(post, also_hidden=also_hidden)):
            yield post
