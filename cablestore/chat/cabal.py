"""Access to a cabal for the client's screens. This or another process has the cabal's store open.

The screens call a store only through this module. Threads read, write and search, so the event loop does not wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TypeVar

from cablestore.chat.changes import CabalChanges, PendingChanges
from cablestore.chat.connection_text import connection_text
from cablestore.chat.display_limits import MAX_FOUND, MAX_MEMBERS_SHOWN, MAX_MENTIONS
from cablestore.chat.entries import (
    ChannelDetails,
    ChannelEntry,
    Member,
    Mention,
    PrivateAct,
    Restriction,
    UndoneAct,
    UserDetails,
)
from cablestore.chat.inviting import invitation_text
from cablestore.chat.keeper import OpenStore, Reopen, StoreKeeper
from cablestore.chat.mention_reading import latest_mentions
from cablestore.chat.private_acts import moderate, restrictions, users_typed
from cablestore.errors import CableStoreError, OwnerGoneError, StoreClosedError
from cablestore.moderation import UserRole
from cablestore.search.query import with_prefixes
from cablestore.store.cursor import MessageCursor
from cablestore.store.display import User
from cablestore.store.queries import Queries
from cablestore.store.results import Page, ReadState
from cablestore.store.searching import SearchPage
from cablestore.store.store import CableStore

T = TypeVar("T")


def _clock_warning(store: CableStore) -> str:
    difference = store.clock_difference()
    return "" if difference is None else difference.warning()


class Cabal:
    """Cabal that is open in the client. Call `close` at the end.

    Methods raise the errors of the store, and OwnerGoneError if the process that has the store open exited or hangs.
    """

    def __init__(self, opened: OpenStore, label: str, reopen: Reopen | None = None) -> None:
        """Show a store under a label. `reopen` reopens it after the process that has it open exits."""
        self.label = label
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="chat-read")
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="chat-write")
        self._searches = ThreadPoolExecutor(2, thread_name_prefix="chat-search")
        self._completing: Future[None] | None = None
        """Result of the latest run of `_complete_search_index`."""
        self._unsent: dict[str, str] = {}
        """Drafts by channel that are not stored yet."""
        self._changing_drafts = threading.Lock()
        self._changes = PendingChanges()
        self._keeper = StoreKeeper(opened, self._changes, reopen, self._send_drafts)

    def close(self) -> None:
        """Stop the node and the threads, and close the store."""
        self._writes.shutdown(cancel_futures=True)  # before the node stops, which sends the last writes to peers
        self._keeper.close()
        for pool in (self._reads, self._searches):
            pool.shutdown(cancel_futures=True)

    @property
    def own_key(self) -> bytes:
        """Public key of the user."""
        return self._keeper.opened.own_key

    # --- changes ---------------------------------------------------------------------------------

    def notify(self, on_changes: Callable[[], None], on_state: Callable[[], None]) -> None:
        """Set callbacks for possible changes and for a changed state of the connection. Any thread may call them."""
        self._changes.notify(on_changes, on_state)

    def take_changes(self) -> CabalChanges:
        """Return the changes since the last call, without waiting."""
        return self._changes.take()

    @property
    def is_busy(self) -> bool:
        """True if `take_changes` has not returned the changes of all known events yet."""
        return not self._changes.is_empty or (not self._keeper.lost and self._keeper.follower.is_busy)

    # --- reading -------------------------------------------------------------------------------

    async def read(self, function: Callable[[CableStore], T]) -> T:
        """Run a function that reads, in the thread for reads."""
        return await self._run(self._reads, function)

    async def _run(self, threads: ThreadPoolExecutor, function: Callable[[CableStore], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, self._keeper.run, function)

    async def page(
        self, channel: str, limit: int, cursor: MessageCursor | None = None, *, newest_first: bool = True
    ) -> Page:
        """Return a page of a channel. Hidden messages are returned without their text."""
        return await self.read(
            lambda store: store.messages(channel, limit, cursor=cursor, newest_first=newest_first, hidden="mark")
        )

    async def channels(self) -> list[ChannelEntry]:
        """Return all channels: first the joined channels by name, then the other channels by name."""
        return await self.read(lambda store: sorted(self._channels(store), key=lambda entry: not entry.is_joined))

    def _channels(self, store: CableStore) -> Iterator[ChannelEntry]:
        muted = set(store.local.muted())
        for channel in store.channels(with_latest=False):
            yield ChannelEntry(
                channel.name,
                channel.topic,
                channel.members,
                is_joined=channel.is_joined,
                unread=channel.unread,
                mentions=channel.mentions,
                is_muted=channel.name in muted,
            )

    async def members(self, channel: str) -> list[Member]:
        """Return up to MAX_MEMBERS_SHOWN members of a channel, by role and then by name."""
        return await self.read(lambda store: self._members(store, store, channel))

    def _members(self, store: CableStore, state: Queries, channel: str) -> list[Member]:
        member = self._member_reader(store)
        found = [member(user) for user in islice(state.members(channel), MAX_MEMBERS_SHOWN)]
        return sorted(found, key=lambda member: (-member.role, member.name.casefold(), member.public_key))

    def _member_reader(self, store: CableStore) -> Callable[[User], Member]:
        """Return a function that converts a user to a member."""
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
                is_same_named=key in self._keeper.follower.same_named,
            )

        return member

    async def details(self, channel: str, authors: Sequence[bytes]) -> ChannelDetails:
        """Return the details shown around the messages of a channel. `authors` wrote the loaded messages."""

        def read(store: CableStore) -> ChannelDetails:
            with store.snapshot() as state:  # without a snapshot, the store would search all texts for mentions first
                return ChannelDetails(
                    self._members(store, state, channel),
                    frozenset(message.hash for message in state.mentions(MAX_MENTIONS, channel=channel).messages),
                    self._keeper.follower.same_named & frozenset(authors),
                    state.read_state(channel),
                    state.user(self.own_key).info.name or "",
                    _clock_warning(store),
                )

        return await self.read(read)

    async def latest_mentions(self, limit: int) -> list[Mention]:
        """Return the latest visible messages of all channels that mention the user, newest first."""
        return await self.read(lambda store: latest_mentions(store, limit))

    async def read_state(self, channel: str) -> ReadState:
        """Return the unread messages of a channel."""
        return await self.read(lambda store: store.read_state(channel))

    async def search(self, text: str) -> SearchPage:
        """Return the newest matching messages of all channels. Raises MissingExtraError if an extra is not installed.

        Words match as prefixes, and quoted words match as a whole.
        """
        found = await self._run(self._searches, lambda store: store.search(with_prefixes(text), limit=MAX_FOUND))
        if self._completing is None or self._completing.done():
            self._completing = self._searches.submit(self._complete_search_index)
        return found

    def _complete_search_index(self) -> None:
        """Index the posts that the last search left unindexed, and remove the words of removed messages."""
        with suppress(CableStoreError):
            self._keeper.run(lambda store: store.update_search_index(progress=self._keeper.follower.pause))

    async def own_name(self) -> str:
        """Return the user's name, or "" if the user has no name."""
        return await self.read(lambda store: store.user(self.own_key).info.name or "")

    async def find_users(self, text: str) -> list[Member]:
        """Return the users with this name, and users whose public key begins with these hex digits (4 or more)."""
        return await self.read(lambda store: list(map(self._member_reader(store), users_typed(store, text))))

    async def user_details(self, public_key: bytes) -> UserDetails:
        """Return the channels of a user, and the actions that hide or block the user."""

        def read(store: CableStore) -> UserDetails:
            found = [each for each in restrictions(store) if each.public_key == public_key]
            joined = store.channels(member=public_key, with_latest=False)
            return UserDetails([channel.name for channel in joined], found)

        return await self.read(read)

    async def restrictions(self) -> list[Restriction]:
        """Return the users and messages that are hidden or blocked for the user, oldest action first."""
        return await self.read(restrictions)

    # --- writing -------------------------------------------------------------------------------

    async def write(self, function: Callable[[CableStore], T]) -> T:
        """Run a function that writes, in the thread for writes. Raises the errors of the store."""
        return await self._run(self._writes, function)

    async def post(self, channel: str, text: str) -> None:
        """Post a message."""
        await self.write(lambda store: store.post(channel, text))

    async def mark_seen(self, channel: str, seen: Sequence[MessageCursor], upto: MessageCursor | None) -> None:
        """Mark the messages with these cursors as read, and with `upto` also all new messages up to that cursor."""
        await self.write(lambda store: store.mark_seen(channel, seen, upto=upto))

    async def draft(self, channel: str) -> str:
        """Return the draft of a channel."""
        known = self._unsent.get(channel)
        return await self.read(lambda store: store.local.draft(channel)) if known is None else known

    async def set_draft(self, channel: str, text: str) -> None:
        """Save the draft of a channel. If the store is lost, the draft is saved when the store can be used again."""
        with self._changing_drafts:
            self._unsent[channel] = text
        with suppress(OwnerGoneError):
            await self.write(partial(self._send_draft, channel, text))

    @property
    def unsent_drafts(self) -> dict[str, str]:
        """Drafts that are not in the store yet, by channel."""
        with self._changing_drafts:
            return dict(self._unsent)

    def _send_drafts(self) -> None:
        """Write the drafts that could not be written while the store was lost."""
        with suppress(RuntimeError):  # the client exits
            for channel, text in self.unsent_drafts.items():
                self._writes.submit(self._keeper.run, partial(self._send_draft, channel, text))

    def _send_draft(self, channel: str, text: str, store: CableStore) -> None:
        try:
            store.local.set_draft(channel, text)
        except (OwnerGoneError, StoreClosedError):
            raise
        except CableStoreError:  # the store rejects it
            self._forget_draft(channel, text)
            raise
        self._forget_draft(channel, text)

    def _forget_draft(self, channel: str, text: str) -> None:
        with self._changing_drafts:
            if self._unsent.get(channel) == text:
                del self._unsent[channel]

    async def mute(self, channel: str) -> None:
        """Hide the unread count of a channel. The store keeps this setting."""
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

    async def set_topic(self, channel: str, topic: str) -> None:
        """Set the topic of a channel."""
        await self.write(lambda store: store.set_topic(channel, topic))

    async def set_name(self, name: str) -> None:
        """Change the user's name. Other published properties remain unchanged."""
        await self.write(lambda store: store.set_name(name))

    async def delete(self, digest: bytes) -> None:
        """Delete a message of the user from this store and from peers."""
        await self.write(lambda store: store.delete(digest))

    async def moderate(
        self, act: PrivateAct, users: Sequence[bytes] = (), posts: Sequence[bytes] = ()
    ) -> list[UndoneAct]:
        """Hide, unhide, block or unblock users, or hide or unhide single messages, only for the user.

        `unhide` and `unblock` undo all actions of the user on the targets, including public actions. Returns the undone
        actions. Raises ArgumentError for an action without effect.
        """
        return await self.write(lambda store: moderate(store, act, users, posts))

    # --- peers ---------------------------------------------------------------------------------

    @property
    def connection(self) -> str:
        """State of the connection in a few words."""
        lost = self._keeper.lost
        return f"not connected: {lost}" if lost else connection_text(self._keeper.opened.node.state)

    @property
    def is_connected(self) -> bool:
        """True if a peer is known to be connected."""
        node = self._keeper.opened.node.state
        return not self._keeper.lost and node is not None and bool(node.peers)

    @property
    def listening(self) -> Sequence[str]:
        """Addresses at which peers may connect."""
        node = self._keeper.opened.node.state
        return () if self._keeper.lost or node is None else node.listening

    async def invitation(self) -> str:
        """Return the invitation to this cabal. Raises ArgumentError: see `invitation_text`."""
        node = self._keeper.opened.node.state
        return invitation_text(node, await self.read(lambda store: store.moderation.seed))
