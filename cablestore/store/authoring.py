"""Own posts as chat clients write them: the body, and what goes with it (links, time, signature, seal)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from cablestore import limits
from cablestore.errors import InvalidPostError
from cablestore.index.engine import Transaction
from cablestore.index.reader import Reader
from cablestore.index.verdict import Verdict
from cablestore.protocol.body import DELETE, Body, Info, Join, Leave, Text, Topic
from cablestore.protocol.crypto import Identity
from cablestore.protocol.post import Post, encode_post
from cablestore.store.key_file import StoreIdentity
from cablestore.views import author, links, membership


class Composer:
    """Maker of posts under a store's own identity. `clock` returns milliseconds since 1970."""

    def __init__(self, store_identity: StoreIdentity, clock: Callable[[], int]) -> None:
        self._identity = store_identity
        self._clock = clock
        self._last_ms: int | None = None
        """Time of the last own post, None while it must be read. Ones far ahead of the clock do not count."""

    @property
    def own_key(self) -> bytes | None:
        """The public key under which posts are written, None while there is no identity."""
        identity = self._identity.known()
        return None if identity is None else identity.public_key

    @property
    def public_key(self) -> bytes:
        """The public key under which posts are written. The identity is made on first use."""
        return self._identity.identity.public_key

    def for_trial(self) -> Composer:
        """Return a composer of posts that are not stored. Without an identity it writes under one that is not kept."""
        return Composer(StoreIdentity(self._identity.known() or Identity.generate(), None), self._clock)

    def compose(self, transaction: Transaction, body: Body) -> list[Post]:
        """Return signed posts that belong into one write, in order. The last one has the given `body`.

        It links to the heads of its channel, and is dated now or just after the last own post. If the author of a text
        or a topic is not a member, a post/join comes first, one millisecond earlier (wire.md 5.4.3).
        """
        reader = transaction.reader
        heads: tuple[bytes, ...] = ()
        if isinstance(body, Text | Topic | Join | Leave):
            channel = reader.dialect.channel_id(body.channel)
            holding = transaction.holding(links.unsettled_group(channel))
            heads = tuple(islice(links.heads(holding, channel), limits.MAX_LINKS_WRITTEN))
            if isinstance(body, Text | Topic) and not self._is_member(reader, channel):
                join_ms = self._time_ms(reader, self._clock() - 1)
                join = self._signed(reader, Join(body.channel), heads, join_ms)
                return [join, self._signed(reader, body, (join.hash,), join_ms + 1)]
        return [self._signed(reader, body, heads, self._time_ms(reader, self._clock()))]

    def came(self, posts: Iterable[Post], verdicts: Iterable[Verdict]) -> None:
        """Note what is stored of posts from elsewhere: the user may have written some of them on another device."""
        own_key = self._identity.known_key
        if any(
            post.author == own_key and verdict is Verdict.ACCEPTED
            for post, verdict in zip(posts, verdicts, strict=True)
        ):
            self.forget()

    def written(self, post: Post) -> None:
        """Note that a post is stored: the next one is dated after it."""
        self._last_ms = post.timestamp_ms

    def forget(self) -> None:
        """Forget when the last own post is dated: the next one reads it from the store."""
        self._last_ms = None

    def _is_member(self, reader: Reader, channel: str) -> bool:
        own = membership.of_user(reader, channel, self.public_key)
        return own is not None and own.is_member

    def _signed(self, reader: Reader, body: Body, heads: tuple[bytes, ...], timestamp_ms: int) -> Post:
        identity = self._identity.identity
        post = encode_post(body, links=heads, timestamp_ms=timestamp_ms, identity=identity, dialect=reader.dialect)
        if post.is_local_only:
            post.sealed = identity.seal(post.raw)
        return post

    def _time_ms(self, reader: Reader, now_ms: int) -> int:
        """Return now, or one millisecond after the last own post if the clock has not advanced since."""
        if self._last_ms is None:
            until_ms = now_ms + limits.MAX_OWN_CLOCK_STEP_MS
            self._last_ms = author.latest_time(reader, self.public_key, before_ms=until_ms)
        lag_ms = self._last_ms - now_ms
        return self._last_ms + 1 if 0 <= lag_ms < limits.MAX_OWN_CLOCK_STEP_MS else now_ms


def changed_info(info: Info, *, name: str | None, accept_role: bool | None, others: Mapping[str, bytes | None]) -> Info:
    """Return an info of which a part is changed. The name "" and None as a value of `others` remove a pair."""
    given = dict(Info.of(name=name or None, accept_role=accept_role).pairs)
    pairs = dict(info.pairs) | given | dict(others) | ({"name": None} if name == "" else {})
    return Info(tuple((key, value) for key, value in pairs.items() if value is not None))


def require_deletable(post: Post, public_key: bytes) -> None:
    """Raise InvalidPostError for a post that a user cannot delete: one of another author, or a deletion."""
    if post.author != public_key:
        raise InvalidPostError(f"the post {post.hash.hex()} is by {post.author.hex()}: only its author can delete it")
    if post.type == DELETE:
        raise InvalidPostError(f"the post {post.hash.hex()} is a post/delete, and a deletion cannot be deleted")
