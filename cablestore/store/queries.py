"""Read methods for chat clients. `Snapshot` reads one fixed state, and `CableStore` reads the current state."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain, islice
from typing import get_args

import blake3

from cablestore import limits
from cablestore.arguments import (
    Time,
    check,
    check_choice,
    check_given,
    check_id,
    check_instance,
    check_integer,
    checked_window,
)
from cablestore.closable import Closable
from cablestore.errors import CorruptStoreError, CursorError
from cablestore.index import arrival_log
from cablestore.index.database import Row, SnapshotSource
from cablestore.index.engine import Engine
from cablestore.index.local import PREFIX as LOCAL_PREFIX
from cablestore.index.meta import SIZES_KEY, decode_sizes
from cablestore.index.reader import PRIVATE_PREFIX, TOMBSTONE_PREFIX, Reader, data_key, decode_tombstone, hash_part
from cablestore.index.tombstone import Tombstone
from cablestore.moderation.applied import AppliedModeration
from cablestore.protocol.body import ALL_TYPES, TEXT, TYPE_NAMES, Text
from cablestore.protocol.dialect import RESERVED_CHANNELS
from cablestore.protocol.keys import after_prefix, escape, is_sort_time, unhex
from cablestore.protocol.post import Post
from cablestore.store import lookup, mentions
from cablestore.store.causal_order import causal_order, known_skeleton
from cablestore.store.cursor import ChangesCursor, MessageCursor, cursor_of
from cablestore.store.display import Display, Hidden, Message, User
from cablestore.store.inspection import Inspection
from cablestore.store.known_positions import KnownPositions, PositionCache
from cablestore.store.message_order import MessageOrder
from cablestore.store.read_marks import Unread
from cablestore.store.results import Channel, ChannelOrder, Event, Page, ReadState, Stats
from cablestore.views import activity, channel_state, links, messages
from cablestore.views import author as author_view


class Queries(Inspection):
    """Read methods of a store. Times are milliseconds since 1970; hashes and public keys are 32 raw bytes."""

    @abstractmethod
    def _moderation(self) -> AppliedModeration | None:
        """Return the moderation of the state that was read last, or of a newer state. None in an unmoderated store."""

    @abstractmethod
    def _own_key(self) -> bytes | None:
        """Return the public key of the store's user, None if the store has no key."""

    @abstractmethod
    def _known_positions(self, reader: Reader) -> KnownPositions:
        """Return the cached message order of the state that is read."""

    def get(self, digest: bytes) -> Post | None:
        """Return the post with this hash, None if it is not stored. It may be a local-only post of the user."""
        check_id("digest", digest)
        with self._reading() as reader:
            post = reader.post(digest)
            return post if post is None or Display(reader, self._moderation()).is_here(post) else None

    def find_hashes(self, hex_digits: str, limit: int = 10, *, with_deleted: bool = False) -> list[bytes]:
        """Return up to `limit` hashes of stored posts that begin with `hex_digits`, to resolve an abbreviated hash.

        The result includes local-only posts of the user. `with_deleted` adds deleted posts.
        """
        check(hex_digits=hex_digits, limit=limit, with_deleted=with_deleted)
        digits = hex_digits.encode("ascii", "replace")
        with self._reading() as reader:
            rows = chain(reader.prefix(data_key(digits)), reader.prefix(PRIVATE_PREFIX + digits))
            found = [unhex(hash_part(row)) for row in islice(rows, limit)]
            if with_deleted:
                stones = map(decode_tombstone, reader.prefix(TOMBSTONE_PREFIX + digits))
                found += islice(dict.fromkeys(stone.target for stone in stones if stone.is_effective), limit)
        return found[:limit]

    def deletion(self, digest: bytes) -> Tombstone | None:
        """Return the tombstone of a post, None if the store knows of no deletion.

        The tombstone may be an unsigned claim of another store.
        """
        check_id("digest", digest)
        with self._reading() as reader:
            return reader.burial(digest)

    def resolve(self, post: Post) -> Message:
        """Return a post/text as a message with the current name of its author. Raises ArgumentError for other types."""
        check_instance("post", post, Post)
        check_instance("post", post.body, Text, f"a post/text, not a post/{TYPE_NAMES[post.type]}")
        with self._reading() as reader:
            return Display(reader, self._moderation()).message(post)

    def messages(
        self,
        channel: str,
        limit: int = 50,
        *,
        newest_first: bool = True,
        cursor: MessageCursor | None = None,
        after_ms: Time | None = None,
        before_ms: Time | None = None,
        hidden: Hidden = "omit",
    ) -> Page:
        """Return up to `limit` messages (at most `limits.MAX_PAGE_MESSAGES`) of a channel, in the order of their times.

        Only messages with `after_ms` <= time < `before_ms` are returned. Both bounds are milliseconds since 1970 or
        datetimes with a time zone.

        A message never precedes a message that it links to (`store.message_order`). If a message is dated too early, it
        follows the message that it answers, and the time of the answered message applies.

        `cursor` is the cursor of a page or of a message. The page continues after it, towards older messages with
        `newest_first`, otherwise towards newer messages. Raises CursorError for an invalid cursor.

        By default, hidden messages are left out. `hidden="mark"` returns them without their text, and "show" returns
        them with it; `Message.hidden_by` contains the author and the reason. A page reads at most
        `limits.MAX_PAGE_ROWS_READ` messages, or `limit` if that is more. It may therefore contain fewer messages than
        `limit` although a next page exists.
        """
        check(channel=channel, limit=limit, newest_first=newest_first, hidden=hidden)
        start_ms, end_ms = checked_window(after_ms, before_ms)
        limit = min(limit, limits.MAX_PAGE_MESSAGES)
        with self._reading() as reader:
            channel = reader.dialect.channel_id(channel)
            place = None if cursor is None else place_of(cursor)
            display = Display(reader, self._moderation())
            order = MessageOrder(reader, channel, self._known_positions(reader))
            rows = order.texts(
                place,
                newest_first=newest_first,
                start_ms=start_ms,
                end_ms=end_ms,
                at_once=limit + limits.MAX_ROWS_AHEAD,
            )
            shown = (
                (at, display.shown(order.post(digest) or _must_have(reader, digest), hidden)) for at, digest in rows
            )
            return _page(reader, shown, limit)

    def causal_messages(
        self,
        channel: str,
        after_ms: Time,
        before_ms: Time | None = None,
        *,
        skew_ms: int = limits.CAUSAL_SKEW_MS,
        hidden: Hidden = "omit",
    ) -> list[Message]:
        """Return the messages of a time window in causal order: each message follows the messages that it links to.

        Returns at most the newest `limits.MAX_CAUSAL_POSTS` messages. `skew_ms` is explained in `store.causal_order`,
        and `hidden` in `messages`.
        """
        check(channel=channel, after_ms=after_ms, skew_ms=skew_ms, hidden=hidden)
        start_ms, end_ms = checked_window(after_ms, before_ms)
        with self._reading() as reader:
            channel = reader.dialect.channel_id(channel)
            found = messages.texts(reader, channel, newest_first=True, start_ms=start_ms, end_ms=end_ms)
            hashes = [digest for _, (_, digest) in zip(range(limits.MAX_CAUSAL_POSTS), found, strict=False)]
            display = Display(reader, self._moderation())
            ordered = causal_order(reader, hashes, start_ms, skew_ms)
            shown = (display.shown(_must_have(reader, digest), hidden) for digest in ordered)
            return [message for message in shown if message is not None]

    def channels(
        self,
        *,
        member: bytes | None = None,
        with_reserved: bool = False,
        order: ChannelOrder = "name",
        with_latest: bool = True,
    ) -> Iterator[Channel]:
        """Yield the channels that a client shows, sorted by the bytes of their names or with the latest message first.

        With `member`, the public key of a user, yields only the channels of which the user is a member.

        Dropped channels are left out. `dialect.RESERVED_CHANNELS` are left out unless `with_reserved` is True; peers
        receive them (`answers.channel_list`). Numbers of posts include posts of dropped users until these posts are
        removed. Use `with_latest=False` if `Channel.last_message` is not needed: a store that is open in another
        process sends this message with each channel.
        """
        check(with_reserved=with_reserved, with_latest=with_latest)
        check_choice("order", order, get_args(ChannelOrder))
        check_given(member=member)
        return self._sorted_channels(member, order, with_reserved=with_reserved, with_latest=with_latest)

    def _sorted_channels(
        self, member: bytes | None, order: ChannelOrder, *, with_reserved: bool, with_latest: bool
    ) -> Iterator[Channel]:
        with self._reading() as reader:
            display = Display(reader, self._moderation())
            found = self._channels(reader, display, member, with_reserved=with_reserved, with_latest=with_latest)
            if order == "activity":
                found = iter(sorted(found, key=lambda each: _cursor_of(display.last_message(each.name)), reverse=True))
            yield from found

    def _last_message(self, channel: str) -> Message | None:
        with self._reading() as reader:
            return Display(reader, self._moderation()).last_message(channel)

    def _channels(
        self, reader: Reader, display: Display, member: bytes | None, *, with_reserved: bool, with_latest: bool
    ) -> Iterator[Channel]:
        read_latest = self._last_message if with_latest else None
        own_key = self._own_key()
        unread = Unread(reader, self._moderation(), own_key)
        for name, topic, members, counts in display.channels(member):
            if name in RESERVED_CHANNELS and not with_reserved:
                continue
            texts, mentioning, latest = 0, 0, None
            if held := counts[TEXT]:
                texts, mentioning, latest = unread.texts(name, held), unread.mentions(name), read_latest
            is_joined = own_key is not None and display.is_member(own_key, name)
            yield Channel(name, topic, members, _by_name(counts), texts, mentioning, is_joined, latest)

    def find_channel(self, text: str) -> str:
        """Return the name of the stored or dropped channel that a user typed, otherwise the typed name.

        The comparison ignores case, Unicode form, surrounding spaces and a leading `#`. Raises NotFoundError if several
        channels match equally well.
        """
        check(text=text)
        with self._reading() as reader:
            name = lookup.typed_channel(text)
            if any(activity.of_channel(reader, reader.dialect.channel_id(name))):
                return name  # without reading all channels
            moderation = self._moderation()
            acted_on = () if moderation is None else moderation.decisions.contexts()
            return lookup.find_channel(text, {found for found, _ in activity.channels(reader)}.union(acted_on))

    def read_state(self, channel: str) -> ReadState:
        """Return the read mark of a channel and the cursors of its unread messages."""
        check(channel=channel)
        with self._reading() as reader:
            unread = Unread(reader, self._moderation(), self._own_key())
            mark, places = unread.places(reader.dialect.channel_id(channel))
            return ReadState(MessageCursor(mark.decode()), [MessageCursor(place.decode()) for place in places])

    def mentions(self, limit: int = 50, *, cursor: MessageCursor | None = None, channel: str | None = None) -> Page:
        """Return up to `limit` messages of others that mention the user, newest first, of all channels or one channel.

        A text mentions the user by the user's name at that time, as a word or after an `@`, ignoring case. The first
        `naming.KEY_DIGITS` or more hex digits of the public key, as a word, are a mention too. `cursor` is the cursor
        of a page or a message, after which the page continues. Hidden messages are left out. Raises CursorError for an
        invalid cursor.
        """
        check(limit=limit)
        check_given(channel=channel)
        limit = min(limit, limits.MAX_PAGE_MESSAGES)
        place = None if cursor is None else place_of(cursor)
        with self._reading() as reader:
            channel_key = None if channel is None else escape(reader.dialect.channel_id(channel))
            display = Display(reader, self._moderation())
            posts = ((at, reader.post(digest)) for at, digest in mentions.newest(reader, place, channel_key))
            shown = ((at, None if post is None else display.shown(post, "omit")) for at, post in posts)
            return _page(reader, shown, limit)

    def members(self, channel: str) -> Iterator[User]:
        """Yield the members of a channel with their roles in it, in order of public keys, without dropped users."""
        check(channel=channel)
        return self._members(channel)

    def _members(self, channel: str) -> Iterator[User]:
        with self._reading() as reader:
            yield from Display(reader, self._moderation()).members(reader.dialect.channel_id(channel))

    def users(self) -> Iterator[User]:
        """Yield all authors of posts with their roles in the cabal, in order of public keys, without dropped users."""
        with self._reading() as reader:
            display = Display(reader, self._moderation())
            for public_key in author_view.authors(reader):
                if not display.is_gone(public_key):
                    yield display.user(public_key)

    def find_users(self, text: str) -> list[User]:
        """Return the users that match a typed name, or the first 4 to 64 hex digits of the public key.

        The comparison of names ignores case, Unicode form, surrounding spaces and a leading `@`. Several users may have
        the same name, and a name of hex digits may begin another user's key. So let the user choose. Dropped users and
        users without stored posts are found only by all 64 digits.
        """
        check(text=text)
        if (key := lookup.typed_key(text)) is not None:
            return [self.user(key)]
        return lookup.find_users(text, self.users())

    def user(self, public_key: bytes, channel: str | None = None) -> User:
        """Return a user with the role and state in a channel, or by default in the whole cabal.

        The name of an unknown user is the public key in hex.
        """
        check_id("public_key", public_key)
        check_given(channel=channel)
        with self._reading() as reader:
            context = None if channel is None else reader.dialect.channel_id(channel)
            return Display(reader, self._moderation()).user(public_key, context)

    def topic(self, channel: str) -> str:
        """Return a channel's topic, or "" if it has none."""
        check(channel=channel)
        with self._reading() as reader:
            return Display(reader, self._moderation()).topic(reader.dialect.channel_id(channel))

    def posts_by(
        self, public_key: bytes, *, post_type: int | None = None, channel: str | None = None
    ) -> Iterator[Post]:
        """Yield the posts of an author, sorted by type and time, optionally of one type, one channel, or both.

        The posts of the store's user include local-only posts, which never leave the store: see `Post.is_local_only`.
        """
        check_id("public_key", public_key)
        check_given(channel=channel)
        if post_type is not None:
            check_integer("post_type", post_type, 0, max(ALL_TYPES))
        return self._posts_by(public_key, post_type, channel)

    def _posts_by(self, public_key: bytes, post_type: int | None, channel: str | None) -> Iterator[Post]:
        with self._reading() as reader:
            if channel is None:
                hashes = author_view.hashes(reader, public_key, post_type)
            else:
                hashes = channel_state.by_author(reader, reader.dialect.channel_id(channel), public_key, post_type)
            display = Display(reader, self._moderation())
            yield from filter(display.is_here, (_must_have(reader, digest) for digest in hashes))

    def heads(self, channel: str) -> list[bytes]:
        """Return the hashes of a channel's heads: posts to which no other post links yet.

        A new post links to them (wire.md 5.1.2.1).
        """
        check(channel=channel)
        with self._reading() as reader:
            return list(links.heads(reader, reader.dialect.channel_id(channel)))

    def missing(self, channel: str) -> Iterator[bytes]:
        """Yield the hashes to which posts of a channel link, if the posts are neither stored, deleted nor dropped."""
        check(channel=channel)
        return self._missing(channel)

    def _missing(self, channel: str) -> Iterator[bytes]:
        with self._reading() as reader:
            for digest in links.missing(reader, reader.dialect.channel_id(channel)):
                if known_skeleton(reader, digest) is None:
                    yield digest

    def links(self, digest: bytes, *, incoming: bool = False) -> tuple[bytes, ...]:
        """Return the hashes to which a stored or deleted post links, () for an unknown post.

        With `incoming`, returns the hashes of the posts that link to it, including deleted posts.
        """
        check_id("digest", digest)
        check(incoming=incoming)
        with self._reading() as reader:
            if incoming:
                return tuple(links.linking(reader, digest))
            known = known_skeleton(reader, digest)
            return () if known is None else known.links

    @property
    def cursor(self) -> ChangesCursor:
        """Cursor of this state. `changes` and `next_changes` return the changes after it."""
        with self._reading() as reader:
            return cursor_of(reader)

    def events(self, after: int = 0, *, timeout_s: float | None = None) -> Iterator[Event]:
        """Yield the events of posts after number `after`, oldest first: entries of the arrival log.

        Entries of local changes are left out; `changes` reports them. A fixed state does not get later events, so this
        method does not wait and ignores `timeout_s`.
        """
        check(after=after)
        check_given(timeout_s=timeout_s)
        return self._events(after)

    def _events(self, after: int) -> Iterator[Event]:
        with self._reading() as reader:
            while found := events_after(reader, self._moderation(), after):
                yield from found
                after = found[-1].sequence

    def dump(self) -> Iterator[Row]:
        """Yield every (key, value) row in key order, without the arrival log and local rows."""
        with self._reading() as reader:
            start = b""
            for prefix in (arrival_log.PREFIX, LOCAL_PREFIX):
                yield from reader.scan(start, prefix)
                start = after_prefix(prefix)
            yield from reader.scan(start, b"\xff")

    def dump_digest(self) -> str:
        """Return the BLAKE3 hash of `dump` in hex. Stores with the same posts and tombstones have the same digest."""
        hasher = blake3.blake3()
        for key, value in self.dump():
            hasher.update(b"%d:%d:" % (len(key), len(value)) + key + value)
        return hasher.hexdigest()


class Snapshot(Queries, Closable):
    """One fixed state of a store, which later writes do not change. Close it, or use it in a `with`.

    The functions in `cablestore.store.answers` accept its `reader`.
    """

    def __init__(
        self,
        source: SnapshotSource,
        reader: Reader,
        moderation: AppliedModeration | None = None,
        own_key: bytes | None = None,
        memory: PositionCache | None = None,
    ) -> None:
        check_instance("reader", reader, Reader, "a Reader. CableStore.snapshot returns a Snapshot")
        self._source = source
        self.reader = reader
        self._judged = moderation
        self._own = own_key
        self._memory = memory or PositionCache()
        self._places: KnownPositions | None = None

    @property
    def last_sequence(self) -> int:
        """Number of the latest event of the arrival log in this state, 0 before the first event."""
        return arrival_log.next_sequence(self.reader) - 1

    def close(self) -> None:
        """Release the state. Later reads raise StoreClosedError."""
        self._source.close()

    def _reading(self) -> AbstractContextManager[Reader]:
        return contextlib.nullcontext(self.reader)

    def _moderation(self) -> AppliedModeration | None:
        return self._judged

    def _own_key(self) -> bytes | None:
        return self._own

    def _known_positions(self, reader: Reader) -> KnownPositions:
        if self._places is None:
            self._places = self._memory.of(reader)
        return self._places


def events_after(reader: Reader, moderation: AppliedModeration | None, after: int) -> list[Event]:
    """Return up to `limits.MAX_EVENTS_READ` events of posts after number `after`, oldest first."""
    found = zip(range(limits.MAX_EVENTS_READ), arrival_log.post_entries(reader, after), strict=False)
    display = Display(reader, moderation)
    posts = ((entry, reader.post(entry.hash)) for _, entry in found)
    return [Event(*entry, post if post and display.is_here(post) else None) for entry, post in posts]


def stats_of(engine: Engine, reader: Reader) -> Stats:
    """Return statistics of a store. They are stored in rows, so posts are not read."""
    days = list(activity.days(reader))
    disk_size_bytes = {
        view.name: sum(engine.approximate_size_bytes(prefix, after_prefix(prefix)) for prefix in view.prefixes)
        for view in engine.catalog.views
    }
    return Stats(
        posts=_by_name([sum(counts) for counts in zip(*(counts for _, counts in days), strict=True)]),
        channels=sum(name not in RESERVED_CHANNELS for name, _ in activity.channels(reader)),
        views=decode_sizes(reader.get(SIZES_KEY)),
        disk_size_bytes=disk_size_bytes,
        last_sequence=engine.next_sequence - 1,
        days=[(day_ms, sum(counts)) for day_ms, counts in days],
    )


def _by_name(counts: list[int]) -> dict[str, int]:
    return {TYPE_NAMES[post_type]: count for post_type, count in enumerate(counts) if count}


def _cursor_of(message: Message | None) -> str:
    return "" if message is None else message.cursor


def place_of(cursor: MessageCursor) -> bytes:
    """Return the sort time in a message cursor. Raises CursorError if the cursor is invalid."""
    if not isinstance(cursor, str) or not is_sort_time(cursor):
        raise CursorError(
            f"invalid message cursor: {repr(cursor)[:80]}. Use the `cursor` of a `Page` or a `Message`, or None to "
            "begin"
        )
    return cursor.encode()


def _page(reader: Reader, shown: Iterable[tuple[bytes, Message | None]], limit: int) -> Page:
    """Return a page of up to `limit` messages from `shown`: (sort time, message or None if it is left out).

    The cursor of the page is the sort time of the last row that was read, None if `shown` ended first.
    """
    found: list[Message] = []
    for read, (at, message) in enumerate(shown, 1):
        if message is not None:
            found.append(message)
        if len(found) == limit or read >= max(limit, limits.MAX_PAGE_ROWS_READ):
            return Page(found, MessageCursor(at.decode()), cursor_of(reader))
    return Page(found, None, cursor_of(reader))


def _must_have(reader: Reader, digest: bytes) -> Post:
    post = reader.post(digest)
    if post is None:
        raise CorruptStoreError(
            f"a view refers to the post {digest.hex()}, which is not stored. Run `cablestore check`, then `cablestore "
            "rebuild`"
        )
    return post
