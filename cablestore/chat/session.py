"""One cabal that is open in the client: its store, its node, its threads. The one module that calls a store.

Reads and writes run in threads of the session, at most one of each at a time: the event loop that shows keys never
waits for the store. What happens in the store is gathered as `News`, whose size has a bound: after a flood it says
only that everything may have changed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeVar

from cablestore.chat.hosting import HostedNode, Hosting
from cablestore.errors import StoreClosedError
from cablestore.index.arrival_log import EventKind
from cablestore.moderation import UserRole
from cablestore.protocol.body import Text
from cablestore.store.display import User
from cablestore.store.queries import Event, Page
from cablestore.store.store import CableStore

T = TypeVar("T")

MAX_EVENTS: Final = 500
"""Events that are looked at one by one. After more than these, everything that is shown is read again."""
_GATHER_S: Final = 0.05
"""How long events are gathered before they are looked at, so that a flood costs few reads."""
_LOOK_S: Final = 0.5
"""How often the thread that waits for events sees that the session ends."""
MAX_MEMBERS_SHOWN: Final = 500


@dataclass
class News:
    """What may have changed: channels with new messages and the earliest time of these, or everything."""

    channels: dict[str, int] = field(default_factory=dict)
    is_all: bool = False

    def add(self, event: Event) -> None:
        """Note what an event may have changed."""
        post = event.post
        if event.kind is EventKind.DELETED or post is None or not isinstance(post.body, Text):
            self.is_all = True
            return
        channel = post.channel or ""
        self.channels[channel] = min(post.timestamp_ms, self.channels.get(channel, post.timestamp_ms))

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not self.channels and not self.is_all


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """A channel as the list of channels shows it."""

    name: str
    topic: str = ""
    members: int = 0
    is_joined: bool = False
    unread: int = 0
    mentions: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a channel as the list of members shows it."""

    public_key: bytes
    name: str
    role: UserRole
    is_hidden: bool
    is_self: bool


class Session:
    """A store that is open, with its node if it hosts one. `close` it at the end."""

    def __init__(self, store: CableStore, label: str, hosting: Hosting | None = None) -> None:
        """Show an open store under a label. Raises NodeError if the node cannot start."""
        self.label: Final = label
        self.own_key: Final = store.identity.public_key
        self._store = store
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="chat-read")
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="chat-write")
        self._news = News()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._node = None if hosting is None else HostedNode(store, hosting)
        self._follower = threading.Thread(target=self._follow, name="chat-follow", daemon=True)
        self._follower.start()

    def close(self) -> None:
        """End the node and the threads, and close the store."""
        self._closing.set()
        if self._node is not None:
            self._node.close()
        for pool in (self._writes, self._reads):
            pool.shutdown(cancel_futures=True)
        self._follower.join()
        self._store.close()

    # --- what happens --------------------------------------------------------------------------

    def take_news(self) -> News:
        """Return what happened since the last call. Never waits."""
        with self._lock:
            found, self._news = self._news, News()
        return found

    def _follow(self) -> None:
        after = self._store.last_sequence
        while not self._closing.is_set():
            try:
                if not self._store.wait(after, _LOOK_S):
                    continue
                self._closing.wait(_GATHER_S)
                after = self._gather(after)
            except StoreClosedError:
                return

    def _gather(self, after: int) -> int:
        latest = self._store.last_sequence
        is_flood = latest - after > MAX_EVENTS
        events = [] if is_flood else self._store.events(after)
        with self._lock:
            if is_flood:
                self._news.is_all = True
            for event in events:
                self._news.add(event)
        return events[-1].sequence if events else latest

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
        with store.snapshot() as state:
            joined = set(state.joined_channels(self.own_key))
            for channel in state.channels():
                yield ChannelEntry(channel.name, channel.topic, channel.members, channel.name in joined)

    async def members(self, channel: str) -> list[Member]:
        """Return the members of a channel, those with roles first, then by name; at most MAX_MEMBERS_SHOWN."""
        return await self.read(lambda store: self._members(store, channel))

    def _members(self, store: CableStore, channel: str) -> list[Member]:
        found = [self._member(user) for _, user in zip(range(MAX_MEMBERS_SHOWN), store.members(channel), strict=False)]
        return sorted(found, key=lambda member: (-member.role, member.name.casefold(), member.public_key))

    def _member(self, user: User) -> Member:
        return Member(user.public_key, user.name, user.role, user.is_hidden, user.public_key == self.own_key)

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
        self,
        act: str,
        users: Sequence[bytes] = (),
        posts: Sequence[bytes] = (),
    ) -> None:
        """Hide, unhide, block or unblock users, or hide single messages: `act` is the name of a method of Moderator.

        This is for the user alone. The act stays here.
        """

        def run(store: CableStore) -> None:
            if act in {"hide", "unhide"}:
                getattr(store.moderation, act)(users=users, posts=posts, private=True)
            else:
                getattr(store.moderation, act)(users, private=True)

        await self.write(run)

    # --- peers ---------------------------------------------------------------------------------

    @property
    def connection(self) -> str:
        """What the state of the connection is, in a few words."""
        if self._node is None:
            return "offline"
        peers = self._node.peers
        if peers:
            return f"{peers} peer{'' if peers == 1 else 's'}"
        return "connecting" if self._node.hosting.connect else "no peers yet"

    @property
    def is_connected(self) -> bool:
        """Whether a peer is connected."""
        return self._node is not None and self._node.peers > 0

    @property
    def listening(self) -> list[str]:
        """The addresses where peers may connect."""
        return [] if self._node is None else [str(address) for address in self._node.listening]
