"""A cabal as the client's screens see it: one class, whether this process or another one has its store open.

The one module that calls a store. Reads and writes run in threads of the cabal, at most one of each at a time: the
event loop that shows keys never waits for the store.
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

from cablestore.chat.amounts import MAX_FOUND, MAX_MEMBERS_SHOWN, MAX_MENTIONS
from cablestore.chat.changes import CabalChanges, PendingChanges
from cablestore.chat.connection_text import connection_text
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
from cablestore.store.display import User
from cablestore.store.queries import Queries
from cablestore.store.results import Page, ReadState
from cablestore.store.searching import SearchPage
from cablestore.store.store import CableStore

T = TypeVar("T")


def _clock_warning(store: CableStore) -> str:
    difference = store.clock_difference()
    return "" if difference is None else difference.warning(store.now_ms())


class Cabal:
    """A cabal that is open in the client. `close` it at the end.

    Methods raise CableStoreError: OwnerGoneError if another process has the store open and is gone, what the store
    raises otherwise.
    """

    def __init__(self, opened: OpenStore, label: str, reopen: Reopen | None = None) -> None:
        """Show a store under a label. `reopen` opens it again if the process that has it open ends."""
        self.label = label
        self._reads = ThreadPoolExecutor(1, thread_name_prefix="chat-read")
        self._writes = ThreadPoolExecutor(1, thread_name_prefix="chat-write")
        self._searches = ThreadPoolExecutor(2, thread_name_prefix="chat-search")
        self._completing: Future[None] | None = None
        """The last completion of the search index."""
        self._unsent: dict[str, str] = {}
        """Drafts by channel that the store does not have yet."""
        self._changing_drafts = threading.Lock()
        self._changes = PendingChanges()
        self._keeper = StoreKeeper(opened, self._changes, reopen, self._send_drafts)

    def close(self) -> None:
        """End the node and the threads, and close the store."""
        self._writes.shutdown(cancel_futures=True)  # what is written last, the node gives to peers
        self._keeper.close()
        for pool in (self._reads, self._searches):
            pool.shutdown(cancel_futures=True)

    @property
    def own_key(self) -> bytes:
        """The public key of the user."""
        return self._keeper.opened.own_key

    # --- what happens --------------------------------------------------------------------------

    def notify(self, on_changes: Callable[[], None], on_state: Callable[[], None]) -> None:
        """Call functions, in any thread, when there may be changes, and when the state of the connection changed."""
        self._changes.notify(on_changes, on_state)

    def take_changes(self) -> CabalChanges:
        """Return what happened since the last call. Never waits."""
        return self._changes.take()

    @property
    def is_busy(self) -> bool:
        """Whether something happened that is not among the changes that were taken, as far as is known here."""
        return not self._changes.is_empty or (not self._keeper.lost and self._keeper.follower.is_busy)

    # --- reading -------------------------------------------------------------------------------

    async def read(self, function: Callable[[CableStore], T]) -> T:
        """Run a function that reads in the thread for reads."""
        return await self._run(self._reads, function)

    async def _run(self, threads: ThreadPoolExecutor, function: Callable[[CableStore], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, self._keeper.run, function)

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
            for channel in state.channels(with_latest=False):
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
                is_same_named=key in self._keeper.follower.same_named,
            )

        return member

    async def details(self, channel: str, authors: Sequence[bytes]) -> ChannelDetails:
        """Return what is shown around the messages of a channel. The authors are those of the messages."""

        def read(store: CableStore) -> ChannelDetails:
            with store.snapshot() as state:  # which does not search all texts for mentions first
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
        """Return the latest messages of all channels that name the user, newest first, without hidden ones."""
        return await self.read(lambda store: latest_mentions(store, limit))

    async def read_state(self, channel: str) -> ReadState:
        """Return which messages of a channel are unread."""
        return await self.read(lambda store: store.read_state(channel))

    async def search(self, text: str) -> SearchPage:
        """Return the newest messages that match, of all channels. Raises MissingExtraError without the extra.

        Words are beginnings of words, as people expect of a box that they type into; in quotes they are whole.
        """
        found = await self._run(self._searches, lambda store: store.search(with_prefixes(text), limit=MAX_FOUND))
        if self._completing is None or self._completing.done():
            self._completing = self._searches.submit(self._complete_search_index)
        return found

    def _complete_search_index(self) -> None:
        """Read what a search left for later, and overwrite the words of removed messages."""
        with suppress(CableStoreError):
            self._keeper.run(lambda store: store.update_search_index(progress=self._keeper.follower.pause))

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
        return await self._run(self._writes, function)

    async def post(self, channel: str, text: str) -> None:
        """Post a message."""
        await self.write(lambda store: store.post(channel, text))

    async def mark_seen(self, channel: str, seen: Sequence[str], upto: str | None) -> None:
        """Mark messages as read, given by their cursors, and with `upto` the new ones up to there."""
        await self.write(lambda store: store.mark_seen(channel, seen, upto=upto))

    async def draft(self, channel: str) -> str:
        """Return the text that the user began to write in a channel."""
        known = self._unsent.get(channel)
        return await self.read(lambda store: store.local.draft(channel)) if known is None else known

    async def set_draft(self, channel: str, text: str) -> None:
        """Keep the text that the user began to write in a channel: here, until the store has it."""
        with self._changing_drafts:
            self._unsent[channel] = text
        with suppress(OwnerGoneError):
            await self.write(partial(self._send_draft, channel, text))

    @property
    def unsent_drafts(self) -> dict[str, str]:
        """The drafts by channel that the store does not have."""
        with self._changing_drafts:
            return dict(self._unsent)

    def _send_drafts(self) -> None:
        """Have the drafts written that a lost store did not get."""
        with suppress(RuntimeError):  # the client ends
            for channel, text in self.unsent_drafts.items():
                self._writes.submit(self._keeper.run, partial(self._send_draft, channel, text))

    def _send_draft(self, channel: str, text: str, store: CableStore) -> None:
        try:
            store.local.set_draft(channel, text)
        except (OwnerGoneError, StoreClosedError):
            raise
        except CableStoreError:  # the store does not accept it
            self._forget_draft(channel, text)
            raise
        self._forget_draft(channel, text)

    def _forget_draft(self, channel: str, text: str) -> None:
        with self._changing_drafts:
            if self._unsent.get(channel) == text:
                del self._unsent[channel]

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

    async def set_topic(self, channel: str, topic: str) -> None:
        """Set the topic of a channel."""
        await self.write(lambda store: store.set_topic(channel, topic))

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

        To unhide and unblock undoes all own acts, also public ones, and returns them. Raises ArgumentError for what
        has no effect.
        """
        return await self.write(lambda store: moderate(store, act, users, posts))

    # --- peers ---------------------------------------------------------------------------------

    @property
    def connection(self) -> str:
        """What the state of the connection is, in a few words."""
        lost = self._keeper.lost
        return f"not connected: {lost}" if lost else connection_text(self._keeper.opened.node.state)

    @property
    def is_connected(self) -> bool:
        """Whether a peer is connected, as far as is known here."""
        node = self._keeper.opened.node.state
        return not self._keeper.lost and node is not None and bool(node.peers)

    @property
    def listening(self) -> Sequence[str]:
        """The addresses where peers may connect."""
        node = self._keeper.opened.node.state
        return () if self._keeper.lost or node is None else node.listening

    async def invitation(self) -> str:
        """Return the text that others join this cabal with. Raises ArgumentError if nobody could use it."""
        node = self._keeper.opened.node.state
        return invitation_text(node, await self.read(lambda store: store.moderation.seed))
