"""Posts of one's own, as chat clients write them: what is said, and what goes with it (links, time, signature, seal)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from cablestore import limits
from cablestore.index.reader import Reader
from cablestore.protocol.body import Body, Join, Leave, Text, Topic
from cablestore.protocol.post import Post, encode_post
from cablestore.store.key_file import StoreIdentity
from cablestore.views import author, links, membership


class Composer:
    """Makes posts of a store's owner. `clock` returns milliseconds since 1970."""

    def __init__(self, store_identity: StoreIdentity, clock: Callable[[], int]) -> None:
        self._identity = store_identity
        self._clock = clock
        self._last_ms: int | None = None

    def compose(self, reader: Reader, body: Body) -> list[Post]:
        """Return signed posts that belong into one write, in their order: the last is the one that `body` is for.

        It is linked to the heads of its channel, and dated now or just after the last own post. Before a text or a topic
        by who is no member stands a post/join, a millisecond earlier (wire.md 5.4.3).
        """
        heads: tuple[bytes, ...] = ()
        if isinstance(body, Text | Topic | Join | Leave):
            channel = reader.dialect.channel_id(body.channel)
            heads = tuple(islice(links.heads(reader, channel), limits.MAX_LINKS_WRITTEN))
            if isinstance(body, Text | Topic) and not self._is_member(reader, channel):
                join_ms = self._time_ms(reader, self._clock() - 1)
                join = self._signed(reader, Join(body.channel), heads, join_ms)
                return [join, self._signed(reader, body, (join.hash,), join_ms + 1)]
        return [self._signed(reader, body, heads, self._time_ms(reader, self._clock()))]

    def written(self, post: Post) -> None:
        """Date the next post behind this one, which is stored now."""
        self._last_ms = post.timestamp_ms

    def _is_member(self, reader: Reader, channel: str) -> bool:
        own = membership.of_user(reader, channel, self._identity.identity.public_key)
        return own is not None and own.is_member

    def _signed(self, reader: Reader, body: Body, heads: tuple[bytes, ...], timestamp_ms: int) -> Post:
        identity = self._identity.identity
        post = encode_post(body, links=heads, timestamp_ms=timestamp_ms, identity=identity, dialect=reader.dialect)
        if post.is_local_only:
            post.sealed = identity.seal(post.raw)
        return post

    def _time_ms(self, reader: Reader, now_ms: int) -> int:
        """Return now, or one millisecond after the last own post where the clock has not gone on since."""
        if self._last_ms is None:
            self._last_ms = author.latest_time(reader, self._identity.identity.public_key)
        behind_ms = self._last_ms - now_ms
        return self._last_ms + 1 if 0 <= behind_ms < limits.MAX_OWN_CLOCK_STEP_MS else now_ms
