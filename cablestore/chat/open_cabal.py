"""A cabal whose store this process has open: its store, its node, its threads. The one module that calls a store.

Reads and writes run in threads of the cabal, at most one of each at a time: the event loop that shows keys never
waits for the store. What happens in the store is gathered as `CabalNews`, whose size has a bound: after a flood it says
only that everything may have changed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Final, TypeVar

from cablestore.chat.amounts import MAX_EVENTS, MAX_FOUND, MAX_MEMBERS_SHOWN, MAX_MENTIONS
from cablestore.chat.cabal import CabalNews, ChannelEntry, Member, PendingNews, PrivateAct
from cablestore.chat.hosting import HostedNode, WatchedNode
from cablestore.errors import CableStoreError, ChangesCursorError, InvitationError, StoreClosedError
from cablestore.moderation import Seed
from cablestore.peers import Address, Invitation
from cablestore.store.changes import Change
from cablestore.store.display import User
from cablestore.store.queries import Page
from cablestore.store.searching import SearchPage
from cablestore.store.store import CableStore

T = TypeVar("T")

_GATHER_S: Final = 0.05
"""How long events are gathered before they are looked at, so that a flood costs few reads."""
_PAUSE_S: Final = 0.02
"""Pause of long work after each part, in which others use the store."""


def _names_a_host(address: Address) -> bool:
    """Tell whether others may connect to an address where a node listens: not to 0.0.0.0, which is all of its own."""
    try:
        return not ip_address(address.host.partition("%")[0]).is_unspecified
    except ValueError:
        return True


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

    def take_news(self) -> CabalNews:
        """Return what happened since the last call. Never waits."""
        return self._news.take()

    @property
    def is_busy(self) -> bool:
        """Whether something happened that is not among the news that were taken."""
        return not self._news.is_empty or self._searcher.is_alive() or self._seen != self._store.last_sequence

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
                    self._closing.wait(_GATHER_S)
                    seen, before = self._store.last_sequence, seen
                    cursor = self._gather(cursor, is_flood=seen - before > MAX_EVENTS)
                    self._seen = seen
                self._woken.wait()
                self._woken.clear()  # what wakes is looked for after this

    def _gather(self, cursor: str, *, is_flood: bool) -> str:
        """Take what changed after a cursor into the news. Returns the next cursor."""
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

    async def page_from(self, channel: str, start_ms: int, limit: int) -> Page:
        """Return the messages of a channel from a time on, oldest first."""
        return await self.read(
            lambda store: store.messages(channel, limit, start_ms=start_ms, newest_first=False, hidden="mark")
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
        return await self.read(lambda store: self._members(store, channel))

    def _members(self, store: CableStore, channel: str) -> list[Member]:
        found = [self._member(user) for _, user in zip(range(MAX_MEMBERS_SHOWN), store.members(channel), strict=False)]
        return sorted(found, key=lambda member: (-member.role, member.name.casefold(), member.public_key))

    def _member(self, user: User) -> Member:
        return Member(user.public_key, user.name, user.role, user.is_hidden, user.public_key == self.own_key)

    async def mentions(self, channel: str) -> frozenset[bytes]:
        """Return the hashes of the latest messages of a channel that name the user."""

        def read(store: CableStore) -> frozenset[bytes]:
            with store.snapshot() as state:  # which does not search all texts first
                return frozenset(message.hash for message in state.mentions(MAX_MENTIONS, channel=channel).messages)

        return await self.read(read)

    async def search(self, text: str) -> SearchPage:
        """Return the newest messages that match, of all channels. Raises MissingExtraError without the extra."""
        search = partial(self._store.search, text, limit=MAX_FOUND)
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
        """Return the users of a name, or else those whose public key begins with these hex digits (4 or more)."""
        return await self.read(lambda store: self._users_named(store, text.removeprefix("@")))

    def _users_named(self, store: CableStore, text: str) -> list[Member]:
        users = list(store.users())
        found = [user for user in users if user.name == text]
        if not found and len(text) >= 4:
            found = [user for user in users if user.public_key.hex().startswith(text.lower())]
        return [self._member(user) for user in found]

    # --- writing -------------------------------------------------------------------------------

    async def write(self, function: Callable[[CableStore], T]) -> T:
        """Run a function that writes in the thread for writes. Raises what the store raises."""
        return await asyncio.get_running_loop().run_in_executor(self._writes, function, self._store)

    async def text(self, channel: str, text: str) -> None:
        """Post a message."""
        await self.write(lambda store: store.text(channel, text))

    async def mark_read(self, channel: str, upto: str) -> None:
        """Mark a channel as read up to a message, given by its cursor."""
        await self.write(lambda store: store.mark_read(channel, upto))

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

    async def moderate(self, act: PrivateAct, users: Sequence[bytes] = (), posts: Sequence[bytes] = ()) -> None:
        """Hide, unhide, block or unblock users, or hide or unhide single messages.

        This is for the user alone. The act stays here.
        """

        def run(store: CableStore) -> None:
            moderator = store.moderation
            match act:
                case "hide":
                    moderator.hide(users=users, posts=posts, private=True)
                case "unhide":
                    moderator.unhide(users=users, posts=posts, private=True)
                case "block":
                    moderator.block(users, private=True)
                case "unblock":
                    moderator.unblock(users, private=True)

        await self.write(run)

    # --- peers ---------------------------------------------------------------------------------

    @property
    def connection(self) -> str:
        """What the state of the connection is, in a few words."""
        if self._node is None:
            return "offline"
        peers = self._node.peers
        if not peers:
            return "connecting" if self._node.connect else "no peers yet"
        in_step = sum(peer.is_in_step is True for peer in peers)
        number = f"{len(peers)} peer{'' if len(peers) == 1 else 's'}"
        silent = sum(peer.no_answer_s > 0 for peer in peers)
        if silent:
            return f"{number}, {silent} not answering"
        return number + (", in step" if in_step == len(peers) else "")

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
