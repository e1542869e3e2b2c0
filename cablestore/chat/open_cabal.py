"""A cabal whose store this process has open: its store, its node, its threads. The one module that calls a store.

Reads and writes run in threads of the cabal, at most one of each at a time: the event loop that shows keys never
waits for the store. What happens in the store is gathered as `CabalNews`, whose size has a bound: after a flood it says
only that everything may have changed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from itertools import islice
from typing import Final, TypeVar

from cablestore.chat.amounts import MAX_EVENTS, MAX_FOUND, MAX_MEMBERS_SHOWN, MAX_MENTIONS
from cablestore.chat.cabal import (
    FLOOD_WINDOW_S,
    NEWS_WINDOW_S,
    CabalNews,
    ChannelDetails,
    ChannelEntry,
    Member,
    Mention,
    PendingNews,
    PrivateAct,
    Restriction,
    UndoneAct,
    UserDetails,
)
from cablestore.chat.connection_text import OFFLINE, connection_text
from cablestore.chat.hosting import HostedNode, WatchedNode
from cablestore.chat.mention_reading import latest_mentions
from cablestore.chat.name_watch import NameWatch
from cablestore.chat.private_acts import moderate, restrictions, users_typed
from cablestore.errors import CableStoreError, ChangesCursorError, InvitationError, StoreClosedError
from cablestore.moderation import Seed, UserRole
from cablestore.peers import Address, Invitation
from cablestore.search.query import with_prefixes
from cablestore.store.changes import Change
from cablestore.store.display import User
from cablestore.store.queries import Queries
from cablestore.store.results import Page, ReadState
from cablestore.store.searching import SearchPage
from cablestore.store.store import CableStore

T = TypeVar("T")

_PAUSE_S: Final = 0.02
"""Pause of long work after each part, in which others use the store."""


def _names_a_host(address: Address) -> bool:
    """Tell whether others may connect to an address where a node listens: not to 0.0.0.0, which is all of its own."""
    try:
        return not ip_address(address.host.partition("%")[0]).is_unspecified
    except ValueError:
        return True


def _clock_warning(store: CableStore) -> str:
    difference = store.clock_difference()
    return "" if difference is None else difference.warning(store.now_ms())


class OpenCabal:
    """A `Cabal` of a store that is open, with the node that connects it to peers, if there is one.

    At the end, `close` also closes the store, and `stop` leaves it open.
    """

    def __init__(self, store: CableStore, label: str, node: HostedNode | WatchedNode | None = None) -> None:
        """Show an open store under a label. A hosted node is closed with the store."""
        self.label = label
        self._own_key: Final = store.identity.public_key
        self._store = store
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="chat-read")
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="chat-write")
        self._searches = ThreadPoolExecutor(2, thread_name_prefix="chat-search")
        self._completing: Future[None] | None = None
        """The last completion of the search index."""
        self._news = PendingNews()
        self._seen = store.last_sequence
        """The number of the last event that is in the news."""
        self._closing = threading.Event()
        self._woken = threading.Event()
        """Set when something was written, and when the threads have to end."""
        self._unwatch = store.watch(self._woken.set)
        self._names = NameWatch(store, lambda: self._news.add(CabalNews(is_all=True)))
        self._hosted = node if isinstance(node, HostedNode) else None
        self._node: WatchedNode | None = node.watched if isinstance(node, HostedNode) else node
        self._follower = threading.Thread(target=self._follow, name="chat-follow", daemon=True)
        self._searcher = threading.Thread(target=self._find_mentions, name="chat-mentions", daemon=True)
        for thread in (self._follower, self._searcher):
            thread.start()

    def stop(self) -> None:
        """End the threads. The store stays open."""
        self._closing.set()
        self._unwatch()
        self._woken.set()
        for pool in (self._writes, self._reads, self._searches):
            pool.shutdown(cancel_futures=True)
        for thread in (self._follower, self._searcher):
            thread.join()
        self._names.stop()

    def close(self) -> None:
        """End the node and the threads, and close the store."""
        self._closing.set()
        self._writes.shutdown(cancel_futures=True)  # what is written last, the node gives to peers
        if self._hosted is not None:
            self._hosted.close()
        self.stop()
        self._store.close()

    @property
    def own_key(self) -> bytes:
        """The public key of the user."""
        return self._own_key

    # --- what happens --------------------------------------------------------------------------

    def notify(self, call: Callable[[], None]) -> None:
        """Call a function, in any thread, whenever there may be news."""
        self._news.notify(call)

    def take_news(self) -> CabalNews:
        """Return what happened since the last call. Never waits."""
        return self._news.take()

    @property
    def is_busy(self) -> bool:
        """Whether something happened that is not among the news that were taken."""
        works = self._searcher.is_alive() or self._names.is_busy
        return not self._news.is_empty or works or self._seen != self._store.last_sequence

    @property
    def seen(self) -> int:
        """The number of the last event that is among the news, taken or not."""
        return self._seen

    @property
    def last_sequence(self) -> int:
        """The number of the last event in the store."""
        return self._store.last_sequence

    def _follow(self) -> None:
        with suppress(StoreClosedError):
            cursor, seen = self._store.cursor, self._seen
            while not self._closing.is_set():
                if self._store.last_sequence != seen:
                    began_s = time.monotonic()
                    seen, before = self._store.last_sequence, seen
                    cursor = self._gather(cursor, seen, is_flood=seen - before > MAX_EVENTS)
                    self._closing.wait(max(NEWS_WINDOW_S, time.monotonic() - began_s))
                    if self._woken.is_set():
                        self._closing.wait(FLOOD_WINDOW_S)
                self._woken.wait()
                self._woken.clear()  # what wakes is looked for after this

    def _gather(self, cursor: str, seen: int, *, is_flood: bool) -> str:
        """Take what changed after a cursor, at least up to an event, into the news. Returns the next cursor."""
        changes: list[Change] = []
        if is_flood:
            cursor = self._store.cursor
        else:
            try:
                changes, cursor = self._store.next_changes(cursor, timeout_s=0)
            except ChangesCursorError:  # the store was rebuilt
                cursor, is_flood = self._store.cursor, True
        news = CabalNews(is_all=is_flood)
        for change in changes:
            news.add(change)
        if news.is_all:
            self._names.renew()
        self._seen = seen  # before those who wait for the news are woken
        self._news.add(news)
        return cursor

    def _find_mentions(self) -> None:
        """Search the texts that were stored before mentions were looked for. It goes on at the next start."""
        with suppress(StoreClosedError):
            self._store.find_mentions(self._pause)
            self._news.add(CabalNews(is_all=True))

    def _pause(self, _: int) -> None:
        """Let others use the store after a part of long work. Raises StoreClosedError at the end."""
        if self._closing.wait(_PAUSE_S):
            raise StoreClosedError

    # --- reading -------------------------------------------------------------------------------

    async def read(self, function: Callable[[CableStore], T]) -> T:
        """Run a function that reads in the thread for reads."""
        return await asyncio.get_running_loop().run_in_executor(self._reads, function, self._store)

    async def page(self, channel: str, limit: int, cursor: str | None = None, *, newest_first: bool = True) -> Page:
        """Return a page of a channel, hidden messages without their text."""
        return await self.read(
            lambda store: store.messages(channel, limit, cursor=cursor, newest_first=newest_first, hidden="mark")
        )

    async def channels(self) -> list[ChannelEntry]:
        """Return all channels: those that the user is a member of first, each group by name."""
        return await self.read(lambda store: sorted(self._channels(store), key=lambda entry: not entry.is_joined))

    def _channels(self, store: CableStore) -> Iterator[ChannelEntry]:
        muted = set(store.local.muted())
        with store.snapshot() as state:
            joined = set(state.joined_channels(self.own_key))
            for channel in state.channels():
                name = channel.name
                yield ChannelEntry(
                    name,
                    channel.topic,
                    channel.members,
                    is_joined=name in joined,
                    unread=channel.unread,
                    mentions=channel.mentions,
                    is_muted=name in muted,
                )

    async def members(self, channel: str) -> list[Member]:
        """Return the members of a channel, those with roles first, then by name; at most MAX_MEMBERS_SHOWN."""
        return await self.read(lambda store: self._members(store, store, channel))

    def _members(self, store: CableStore, state: Queries, channel: str) -> list[Member]:
        member = self._member_reader(store)
        found = [member(user) for user in islice(state.members(channel), MAX_MEMBERS_SHOWN)]
        return sorted(found, key=lambda member: (-member.role, member.name.casefold(), member.public_key))

    def _member_reader(self, store: CableStore) -> Callable[[User], Member]:
        """Return the function that makes a member of a user."""
        seed = store.moderation.seed
        own_role = UserRole.USER if seed is None else dict(seed.roles).get(self.own_key, UserRole.USER)

        def member(user: User) -> Member:
            key = user.public_key
            is_self = key == self.own_key
            return Member(
                key,
                user.name,
                own_role if is_self else user.role,
                user.is_hidden,
                is_self,
                is_blocked=user.is_blocked,
                is_same_named=key in self._names.same_named,
            )

        return member

    async def details(self, channel: str, authors: Sequence[bytes]) -> ChannelDetails:
        """Return what is shown around the messages of a channel. The authors are those of the messages."""

        def read(store: CableStore) -> ChannelDetails:
            with store.snapshot() as state:  # which does not search all texts for mentions first
                return ChannelDetails(
                    self._members(store, state, channel),
                    frozenset(message.hash for message in state.mentions(MAX_MENTIONS, channel=channel).messages),
                    self._names.same_named & frozenset(authors),
                    state.read_state(channel),
                    state.user(self.own_key).info.name or "",
                    _clock_warning(store),
                )

        return await self.read(read)

    async def latest_mentions(self, limit: int) -> list[Mention]:
        """Return the latest messages of all channels that name the user, newest first, without hidden ones."""
        return await self.read(lambda store: latest_mentions(store, limit))

    async def read_state(self, channel: str) -> ReadState:
        """Return which messages of a channel are unread."""
        return await self.read(lambda store: store.read_state(channel))

    async def search(self, text: str) -> SearchPage:
        """Return the newest messages that match, of all channels. Raises MissingExtraError without the extra.

        Words are beginnings of words, as people expect of a box that they type into; in quotes they are whole.
        """
        search = partial(self._store.search, with_prefixes(text), limit=MAX_FOUND)
        found = await asyncio.get_running_loop().run_in_executor(self._searches, search)
        if self._completing is None or self._completing.done():
            self._completing = self._searches.submit(self._complete_search_index)
        return found

    def _complete_search_index(self) -> None:
        """Read what a search left for later, and overwrite the words of removed messages."""
        with suppress(CableStoreError):
            self._store.update_search_index(progress=self._pause)

    async def own_name(self) -> str:
        """Return the user's name, "" if it chose none."""
        return await self.read(lambda store: store.user(self.own_key).info.name or "")

    async def users_named(self, text: str) -> list[Member]:
        """Return the users of a name, and those whose public key begins with these hex digits (4 or more)."""
        return await self.read(lambda store: list(map(self._member_reader(store), users_typed(store, text))))

    async def user_details(self, public_key: bytes) -> UserDetails:
        """Return the channels of a user, and what hides or blocks it."""

        def read(store: CableStore) -> UserDetails:
            found = [each for each in restrictions(store) if each.public_key == public_key]
            return UserDetails(list(store.joined_channels(public_key)), found)

        return await self.read(read)

    async def restrictions(self) -> list[Restriction]:
        """Return who and what is hidden or blocked for the user, oldest first."""
        return await self.read(restrictions)

    # --- writing -------------------------------------------------------------------------------

    async def write(self, function: Callable[[CableStore], T]) -> T:
        """Run a function that writes in the thread for writes. Raises what the store raises."""
        return await asyncio.get_running_loop().run_in_executor(self._writes, function, self._store)

    async def text(self, channel: str, text: str) -> None:
        """Post a message."""
        await self.write(lambda store: store.text(channel, text))

    async def mark_seen(self, channel: str, seen: Sequence[str], upto: str | None) -> None:
        """Mark messages as read, given by their cursors, and with `upto` the new ones up to there."""
        await self.write(lambda store: store.mark_seen(channel, seen, upto=upto))

    async def draft(self, channel: str) -> str:
        """Return the text that the user began to write in a channel."""
        return await self.read(lambda store: store.local.draft(channel))

    async def set_draft(self, channel: str, text: str) -> None:
        """Keep the text that the user began to write in a channel."""
        await self.write(lambda store: store.local.set_draft(channel, text))

    async def mute(self, channel: str) -> None:
        """Show no unread messages of a channel any more, also after a restart."""
        await self.write(lambda store: store.local.mute(channel))

    async def unmute(self, channel: str) -> None:
        """Undo `mute`."""
        await self.write(lambda store: store.local.unmute(channel))

    async def join(self, channel: str) -> None:
        """Become a member of a channel."""
        await self.write(lambda store: store.join(channel))

    async def leave(self, channel: str) -> None:
        """Leave a channel."""
        await self.write(lambda store: store.leave(channel))

    async def topic(self, channel: str, topic: str) -> None:
        """Set the topic of a channel."""
        await self.write(lambda store: store.topic(channel, topic))

    async def set_name(self, name: str) -> None:
        """Change the user's name, and nothing else of what it published about itself."""
        await self.write(lambda store: store.set_name(name))

    async def delete(self, digest: bytes) -> None:
        """Delete an own message, here and on peers."""
        await self.write(lambda store: store.delete(digest))

    async def moderate(
        self, act: PrivateAct, users: Sequence[bytes] = (), posts: Sequence[bytes] = ()
    ) -> list[UndoneAct]:
        """Hide, unhide, block or unblock users, or hide or unhide single messages, for the user alone.

        To unhide and unblock undoes all own acts, also public ones, and returns them. Raises ModerationError for what
        has no effect.
        """
        return await self.write(lambda store: moderate(store, act, users, posts))

    # --- peers ---------------------------------------------------------------------------------

    @property
    def connection(self) -> str:
        """What the state of the connection is, in a few words."""
        if self._node is None:
            return OFFLINE
        node = self._node
        is_encrypted = node.cabal_key is not None
        return connection_text(node.peers, node.dials, is_dialling=bool(node.connect), is_encrypted=is_encrypted)

    @property
    def is_connected(self) -> bool:
        """Whether a peer is connected."""
        return self._node is not None and bool(self._node.peers)

    @property
    def listening(self) -> list[str]:
        """The addresses where peers may connect."""
        return [] if self._node is None else [str(address) for address in self._node.listening]

    async def invitation(self) -> str:
        """Return the text that others join this cabal with. Raises InvitationError if nobody could use it."""
        if self._node is None:
            raise InvitationError("this client is offline: start it with --listen, --connect or --invitation")
        node = self._node

        def read(store: CableStore) -> str:
            seed = store.moderation.seed
            is_in_force = seed is not None and seed.revoked_at_ms is None
            peers = tuple(dict.fromkeys((*filter(_names_a_host, node.listening), *node.connect)))
            text = Seed(seed.roles, 0).write() if seed is not None and is_in_force else b""
            return str(Invitation(node.cabal_key, peers, text))

        return await self.read(read)
