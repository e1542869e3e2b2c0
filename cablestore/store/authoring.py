"""Posts of the user: build a post from its body, with links, timestamp, signature and encryption."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.index.engine import Transaction
from cablestore.index.reader import Reader
from cablestore.index.verdict import Verdict
from cablestore.moderation.applied import AppliedModeration
from cablestore.protocol.body import DELETE, Body, Info, Join, Leave, Text, Topic
from cablestore.protocol.crypto import Identity
from cablestore.protocol.post import Post, sign_post
from cablestore.store.dating import date_after, replaced_by
from cablestore.store.key_file import StoreIdentity
from cablestore.store.naming import require_visible
from cablestore.views import author, links, membership


class Composer:
    """Builder of posts under the store's own identity. `clock` returns milliseconds since 1970."""

    def __init__(self, store_identity: StoreIdentity, clock: Callable[[], int]) -> None:
        self._identity = store_identity
        self._clock = clock
        self._last_ms: int | None = None
        """Time of the user's last post that is not far ahead of the clock. None if it must be read from the store."""

    @property
    def own_key(self) -> bytes | None:
        """Public key of the identity that signs posts, or None without an identity."""
        identity = self._identity.load()
        return None if identity is None else identity.public_key

    @property
    def public_key(self) -> bytes:
        """Public key of the identity that signs posts. The first use creates a missing identity."""
        return self._identity.identity.public_key

    def for_trial(self) -> Composer:
        """Return a composer for posts of a dry run.

        If the store has no identity, the composer uses a temporary identity.
        """
        return Composer(StoreIdentity(self._identity.load() or Identity.generate(), None), self._clock)

    def compose(self, transaction: Transaction, body: Body, moderation: AppliedModeration | None) -> list[Post]:
        """Return the signed posts of one write, in order. The last post contains `body`.

        The last post links to the heads of its channel. It is dated at the current time or just after the user's last
        post, and after the posts that it replaces. If the author of a text or a topic is not a member, a post/join
        precedes it, normally dated one millisecond earlier (wire.md 5.4.3). In this case, the join links to the heads,
        and the text or topic links to the join.

        Raises ArgumentError in three cases: the author of a post/leave is not a member, so the post would create the
        channel for everyone; a replaced post is dated too far ahead; or the name of a user or a channel is invisible.
        """
        reader, now_ms = transaction.reader, self._clock()
        identity = self._identity.identity
        own_key = identity.public_key
        heads: tuple[bytes, ...] = ()
        if isinstance(body, Text | Topic | Join | Leave):
            channel = reader.dialect.channel_id(body.channel)
            if isinstance(body, Leave) and not _is_member(reader, channel, own_key):
                raise ArgumentError(f"cannot leave {body.channel!r}: you are not a member. Nothing was written")
            joins = isinstance(body, Text | Topic) and not _is_member(reader, channel, own_key)
            if joins or isinstance(body, Join):
                require_visible("channel", body.channel)
            holding = transaction.holding(links.unsettled_group(channel))
            with_dropped = moderation is None or moderation.remembers
            found = links.heads(holding, channel, with_dropped=with_dropped)
            heads = tuple(islice(found, limits.MAX_LINKS_WRITTEN))
            if joins:
                join = Join(body.channel)
                free_ms = self._time_ms(reader, own_key, now_ms - 1)
                date_ms = date_after(replaced_by(reader, moderation, join, own_key), free_ms, now_ms, own_key)
                joined = _signed(reader, join, heads, date_ms, identity)
                date_ms = date_after(replaced_by(reader, moderation, body, own_key), free_ms + 1, now_ms, own_key)
                return [joined, _signed(reader, body, (joined.hash,), date_ms, identity)]
        free_ms = self._time_ms(reader, own_key, now_ms)
        date_ms = date_after(replaced_by(reader, moderation, body, own_key), free_ms, now_ms, own_key)
        post = _signed(reader, body, heads, date_ms, identity)
        if isinstance(body, Info):  # after encoding, which rejects names that are not UTF-8
            require_visible("user", body.name)
        return [post]

    def note_ingested(self, posts: Iterable[Post], verdicts: Iterable[Verdict]) -> None:
        """Call `forget` if one of `posts` is the user's, such as a post from another device, and was accepted."""
        own_key = self._identity.known_key
        for post, verdict in zip(posts, verdicts, strict=True):
            if post.author == own_key and verdict is Verdict.ACCEPTED:
                self.forget()
                return

    def written(self, post: Post) -> None:
        """Record a stored post of the user. The next post is dated after it, unless it is far ahead of the clock."""
        if post.timestamp_ms < self._clock() + limits.MAX_OWN_CLOCK_STEP_MS:
            self._last_ms = post.timestamp_ms

    def forget(self) -> None:
        """Forget the time of the user's last post. The next post reads it from the store."""
        self._last_ms = None

    def _time_ms(self, reader: Reader, own_key: bytes, now_ms: int) -> int:
        """Return the current time, or one millisecond after the user's last post if the clock has not advanced."""
        if self._last_ms is None:
            until_ms = now_ms + limits.MAX_OWN_CLOCK_STEP_MS
            self._last_ms = author.latest_time(reader, own_key, before_ms=until_ms)
        lag_ms = self._last_ms - now_ms
        return self._last_ms + 1 if 0 <= lag_ms < limits.MAX_OWN_CLOCK_STEP_MS else now_ms


def _is_member(reader: Reader, channel: str, user: bytes) -> bool:
    own = membership.of_user(reader, channel, user)
    return own is not None and own.is_member


def _signed(reader: Reader, body: Body, heads: tuple[bytes, ...], timestamp_ms: int, identity: Identity) -> Post:
    post = sign_post(body, heads, timestamp_ms, identity, reader.dialect)
    if post.is_local_only:
        post.sealed = identity.seal(post.raw)
    return post


def changed_info(info: Info, *, name: str | None, accept_role: bool | None, others: Mapping[str, bytes | None]) -> Info:
    """Return `info` with the given values. A `name` or `accept_role` of None leaves the value unchanged.

    The name "" removes the name, and None as the value of a key in `others` removes the key. Raises ArgumentError if
    `others` contains a key that has an argument of its own.
    """
    for key, argument in (("name", "name"), ("accept-role", "accept_role")):
        if key in others:
            raise ArgumentError(f"invalid argument others: it contains the key {key!r}. Use the argument {argument}")
    given = dict(Info.of(name=name or None, accept_role=accept_role).pairs)
    pairs = dict(info.pairs) | given | dict(others) | ({"name": None} if name == "" else {})
    return Info(tuple((key, value) for key, value in pairs.items() if value is not None))


def require_deletable(post: Post, public_key: bytes) -> None:
    """Raise ArgumentError for a post that a user cannot delete: a post of another author, or a post/delete."""
    if post.author != public_key:
        raise ArgumentError(
            f"the author of the post {post.hash.hex()} is {post.author.hex()}. Only the author can delete it"
        )
    if post.type == DELETE:
        raise ArgumentError(f"the post {post.hash.hex()} is a post/delete. Deletions cannot be deleted")
