"""Posts of one's own, as chat clients write them: what is said, and what goes with it (links, time, signature, seal)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import islice

from cablestore import limits
from cablestore.body import Body, Info, Join, Leave, Text, Topic
from cablestore.identity import Owner
from cablestore.post import Post, encode_post
from cablestore.reader import Reader
from cablestore.views import author, links


class Authoring(ABC):
    """Something that can write posts under an identity of its own. With `sync` they are on the disk on return."""

    @abstractmethod
    def write(self, body: Body, *, sync: bool = True) -> Post:
        """Sign and store a post, linked to what is the latest of its channel here."""

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

    def compose(self, reader: Reader, body: Body) -> Post:
        """Return a signed post, linked to the heads of its channel, dated now or just after the last own post."""
        heads: tuple[bytes, ...] = ()
        if isinstance(body, Text | Topic | Join | Leave):
            channel = reader.dialect.channel_id(body.channel)
            heads = tuple(islice(links.heads(reader, channel), limits.MAX_LINKS_WRITTEN))
        identity = self._owner.identity
        post = encode_post(
            body, links=heads, timestamp_ms=self._time_ms(reader), identity=identity, dialect=reader.dialect
        )
        if post.is_local_only:
            post.sealed = identity.seal(post.raw)
        return post

    def written(self, post: Post) -> None:
        """Date the next post behind this one, which is stored now."""
        self._last_ms = post.timestamp_ms

    def _time_ms(self, reader: Reader) -> int:
        """Return now, or one millisecond after the last own post where the clock has not gone on since."""
        if self._last_ms is None:
            self._last_ms = author.latest_time(reader, self._owner.identity.public_key)
        now_ms = self._clock()
        behind_ms = self._last_ms - now_ms
        return self._last_ms + 1 if 0 <= behind_ms < limits.MAX_OWN_CLOCK_STEP_MS else now_ms
