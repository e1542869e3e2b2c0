"""People who write posts outside of any store, for tests that simulate peers."""

from __future__ import annotations

from itertools import count

from cablestore import LEGACY, Body, Delete, Dialect, Identity, Info, Join, Leave, Post, Text, Topic, encode_post

START_MS = 1_700_000_000_000


class Person:
    """Person with a key. Every post is one second later than the last one, unless its time is given."""

    _clock = count(START_MS, 1000)
    _begins_ms: int | None = None

    def __init__(self, name: str, dialect: Dialect = LEGACY) -> None:
        self.identity = Identity.derive("people", name)
        self.key = self.identity.public_key
        self.dialect = dialect

    @classmethod
    def restart_clock(cls) -> None:
        """Go back to the time of the first call: after the posts that test files create on import."""
        if cls._begins_ms is None:
            cls._begins_ms = next(cls._clock)
        cls._clock = count(cls._begins_ms, 1000)

    def post(self, body: Body, *, at: int | None = None, links: tuple[bytes, ...] = ()) -> Post:
        timestamp_ms = next(self._clock) if at is None else at
        return encode_post(body, links=links, timestamp_ms=timestamp_ms, identity=self.identity, dialect=self.dialect)

    def text(self, channel: str, text: str, *, at: int | None = None, links: tuple[bytes, ...] = ()) -> Post:
        return self.post(Text(channel, text), at=at, links=links)

    def topic(self, channel: str, topic: str, *, at: int | None = None) -> Post:
        return self.post(Topic(channel, topic), at=at)

    def join(self, channel: str, *, at: int | None = None) -> Post:
        return self.post(Join(channel), at=at)

    def leave(self, channel: str, *, at: int | None = None) -> Post:
        return self.post(Leave(channel), at=at)

    def named(self, name: str, *, at: int | None = None) -> Post:
        return self.post(Info.of(name=name), at=at)

    def delete(self, *posts: Post, at: int | None = None) -> Post:
        return self.post(Delete(tuple(post.hash for post in posts)), at=at)


ANN, BOB, CYD = Person("ann"), Person("bob"), Person("cyd")


def raws(*posts: Post) -> list[bytes]:
    return [post.raw for post in posts]
