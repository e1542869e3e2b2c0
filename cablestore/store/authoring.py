"""Posts of one's own, as chat clients write them: what is said, and what goes with it (links, time, signature, seal)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import islice

from cablestore import limits
from cablestore.index.reader import Reader
from cablestore.protocol.body import Body, Info, Join, Leave, Text, Topic
from cablestore.protocol.post import Post, encode_post
from cablestore.store.key_file import Owner
from cablestore.views import author, links, membership


class Authoring(ABC):
    """Something that can write posts under an identity of its own. With `sync` they are on the disk on return."""

    @abstractmethod
    def write(self, body: Body, *, sync: bool = True) -> Post:
        """Sign and store a post, linked to what is the latest of its channel here.

        A text or a topic by who is no member of the channel is preceded by a post/join, in the same write (wire.md 5.4.3).
        """

    def text(self, channel: str, text: str, *, sync: bool = True) -> Post:
        """Write a message of at most 4096 bytes to a channel."""
        return self.write(Text(channel, text), sync=sync)

    def topic(self, channel: str, topic: str, *, sync: bool = True) -> Post:
        """Set a channel's topic; "" clears it."""
        return self.write(Topic(channel, topic), sync=sync)

    def join(self, channel: str, *, sync: bool = True) -> Post:
        """Become a member of a channel."""
        return self.write(Join(channel), sync=sync)

    def leave(self, channel: str, *, sync: bool = True) -> Post:
        """Cease to be a member of a channel."""
        return self.write(Leave(channel), sync=sync)

    def info(
        self,
        *,
        name: str | None = None,
        accept_role: bool | None = None,
        others: Mapping[str, bytes] | None = None,
        sync: bool = True,
    ) -> Post:
        """Say all that there is to say of oneself: what is left out is back at its default (wire.md 6.2.4)."""
        known = Info.of(name=name, accept_role=accept_role)
        return self.write(Info((*known.pairs, *(others or {}).items())), sync=sync)


class Composer:
    """Makes posts of a store's owner. `clock` returns milliseconds since 1970."""

    def __init__(self, owner: Owner, clock: Callable[[], int]) -> None:
        self._owner = owner
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
        own = membership.of_user(reader, channel, self._owner.identity.public_key)
        return own is not None and own.is_member

    def _signed(self, reader: Reader, body: Body, heads: tuple[bytes, ...], timestamp_ms: int) -> Post:
        identity = self._owner.identity
        post = encode_post(body, links=heads, timestamp_ms=timestamp_ms, identity=identity, dialect=reader.dialect)
        if post.is_local_only:
            post.sealed = identity.seal(post.raw)
        return post

    def _time_ms(self, reader: Reader, now_ms: int) -> int:
        """Return now, or one millisecond after the last own post where the clock has not gone on since."""
        if self._last_ms is None:
            self._last_ms = author.latest_time(reader, self._owner.identity.public_key)
        behind_ms = self._last_ms - now_ms
        return self._last_ms + 1 if 0 <= behind_ms < limits.MAX_OWN_CLOCK_STEP_MS else now_ms
