"""A cabal as the client's screens see it: one protocol, whatever has its store open, and the values that it gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from cablestore.moderation import UserRole
from cablestore.reprs import hex_repr
from cablestore.store.changes import (
    Change,
    MessageAdded,
    MessageDeleted,
    MessageHidden,
    MessageShown,
    ModerationChanged,
    NameChanged,
    UserHidden,
    UserShown,
)
from cablestore.store.display import Message
from cablestore.store.results import Page, ReadState
from cablestore.store.searching import SearchPage

NEWS_WINDOW_S: Final = 0.02
"""What happens within this time is read and drawn together. The first of it does not wait."""
FLOOD_WINDOW_S: Final = 0.08
"""How much longer the next read and the next drawing wait if more happened within that time."""
PrivateAct = Literal["hide", "unhide", "block", "unblock"]
"""Act of moderation for the user alone."""

_EVERYTHING: Final = (NameChanged, UserHidden, UserShown, ModerationChanged)
"""Changes after which any message may look different."""


@dataclass
class CabalNews:
    """Parts of a cabal that may have changed. With `is_all` it is everything."""

    channels: dict[str, int] = field(default_factory=dict)
    """Channels with changed messages, and from which time on; 0 if messages may be gone or hidden."""
    has_lists: bool = False
    is_all: bool = False

    def add(self, change: Change) -> None:
        """Note a change."""
        self.has_lists = True
        if isinstance(change, MessageAdded):
            since = self.channels.get(change.channel, change.message.timestamp_ms)
            self.channels[change.channel] = min(change.message.timestamp_ms, since)
        elif isinstance(change, MessageDeleted | MessageHidden | MessageShown) and change.channel is not None:
            self.channels[change.channel] = 0
        elif isinstance(change, (*_EVERYTHING, MessageDeleted)):
            self.is_all = True

    def join(self, later: CabalNews) -> None:
        """Note what happened later."""
        for channel, since in later.channels.items():
            self.channels[channel] = min(since, self.channels.get(channel, since))
        self.has_lists = self.has_lists or later.has_lists
        self.is_all = self.is_all or later.is_all

    @property
    def is_empty(self) -> bool:
        """Whether nothing changed."""
        return not (self.has_lists or self.is_all)


class PendingNews:
    """The news that nobody took yet. Threads may add and take at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._news = CabalNews()
        self._notify: Callable[[], None] | None = None

    def notify(self, call: Callable[[], None]) -> None:
        """Call a function after each `add`, in the thread that adds."""
        self._notify = call

    def add(self, news: CabalNews) -> None:
        """Note what happened."""
        with self._lock:
            self._news.join(news)
        if self._notify is not None:
            self._notify()

    def take(self) -> CabalNews:
        """Return what happened since the last call. Never waits."""
        with self._lock:
            found, self._news = self._news, CabalNews()
        return found

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened since the last `take`."""
        return self._news.is_empty


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """A channel as the list of channels shows it."""

    name: str
    topic: str = ""
    members: int = 0
    is_joined: bool = False
    unread: int = 0
    mentions: int = 0
    is_muted: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a channel as the list of members shows it."""

    public_key: bytes
    name: str
    role: UserRole
    """The role that somebody gave the user. Each user has authority for itself, which is not meant here."""
    is_hidden: bool
    is_self: bool
    is_blocked: bool = False
    is_same_named: bool = False
    """True if another user has the same name, or one that looks like it."""

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class ChannelDetails:
    """Details of a channel that are shown around its messages."""

    members: list[Member]
    """The members as `Cabal.members` returns them."""
    mentions: frozenset[bytes]
    """The hashes of the latest messages that name the user."""
    same_named: frozenset[bytes]
    """The authors whose name equals another user's in the cabal, or looks like it."""
    read_state: ReadState
    own_name: str
    """The user's name, "" if it chose none."""
    clock_warning: str
    """Warning if the clock of the store's machine may be wrong, "" otherwise."""


@dataclass(frozen=True, slots=True)
class Mention:
    """Message of somebody else that names the user. `sent_ms` is the earliest time at which it can have been sent."""

    message: Message
    is_unread: bool
    sent_ms: int


@dataclass(frozen=True, slots=True)
class UndoneAct:
    """An own act that was undone. The channel is "" if it was on the whole cabal."""

    is_private: bool
    channel: str


@dataclass(frozen=True, slots=True)
class Restriction:
    """Restriction in force: a user or a message that is hidden or blocked. Of a message the author is named."""

    what: str
    public_key: bytes
    name: str
    by_name: str
    is_private: bool
    channel: str
    timestamp_ms: int
    reason: str

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class UserDetails:
    """The channels of a user, and what hides or blocks it."""

    channels: list[str]
    restrictions: list[Restriction]


class Cabal(Protocol):
    """A cabal that is open in the client.

    Methods raise CableStoreError: OwnerGoneError if another process has the store and is gone, what the store raises
    otherwise.
    """

    label: str
    """What the cabal is called on the screen."""

    @property
    def own_key(self) -> bytes:
        """The public key of the user."""

    # --- what happens --------------------------------------------------------------------------

    def notify(self, call: Callable[[], None]) -> None:
        """Call a function, in any thread, whenever there may be news."""

    def take_news(self) -> CabalNews:
        """Return what happened since the last call. Never waits."""

    @property
    def is_busy(self) -> bool:
        """Whether something happened that is not among the news that were taken, as far as is known here."""

    # --- reading -------------------------------------------------------------------------------

    async def page(self, channel: str, limit: int, cursor: str | None = None, *, newest_first: bool = True) -> Page:
        """Return a page of a channel, hidden messages without their text."""

    async def channels(self) -> list[ChannelEntry]:
        """Return all channels: those that the user is a member of first, each group by name."""

    async def members(self, channel: str) -> list[Member]:
        """Return the members of a channel, those with roles first, then by name; at most MAX_MEMBERS_SHOWN."""

    async def details(self, channel: str, authors: Sequence[bytes]) -> ChannelDetails:
        """Return what is shown around the messages of a channel. The authors are those of the messages.

        A client asks for all of it at once, because each question waits for the store, for a thread and for Python's lock.
        """

    async def latest_mentions(self, limit: int) -> list[Mention]:
        """Return the latest messages of all channels that name the user, newest first, without hidden ones."""

    async def read_state(self, channel: str) -> ReadState:
        """Return which messages of a channel are unread."""

    async def search(self, text: str) -> SearchPage:
        """Return the newest messages that match, of all channels. Raises an error that says so without the extra."""

    async def own_name(self) -> str:
        """Return the user's name, "" if it chose none."""

    async def users_named(self, text: str) -> list[Member]:
        """Return the users of a name, and those whose public key begins with these hex digits (4 or more)."""

    async def user_details(self, public_key: bytes) -> UserDetails:
        """Return the channels of a user, and what hides or blocks it."""

    async def restrictions(self) -> list[Restriction]:
        """Return who and what is hidden or blocked for the user, oldest first."""

    # --- writing -------------------------------------------------------------------------------

    async def text(self, channel: str, text: str) -> None:
        """Post a message."""

    async def mark_seen(self, channel: str, seen: Sequence[str], upto: str | None) -> None:
        """Mark messages as read, given by their cursors, and with `upto` the new ones up to there."""

    async def draft(self, channel: str) -> str:
        """Return the text that the user began to write in a channel."""

    async def set_draft(self, channel: str, text: str) -> None:
        """Keep the text that the user began to write in a channel."""

    async def mute(self, channel: str) -> None:
        """Show no unread messages of a channel any more, also after a restart."""

    async def unmute(self, channel: str) -> None:
        """Undo `mute`."""

    async def join(self, channel: str) -> None:
        """Become a member of a channel."""

    async def leave(self, channel: str) -> None:
        """Leave a channel."""

    async def topic(self, channel: str, topic: str) -> None:
        """Set the topic of a channel."""

    async def set_name(self, name: str) -> None:
        """Change the user's name, and nothing else of what it published about itself."""

    async def delete(self, digest: bytes) -> None:
        """Delete an own message, here and on peers."""

    async def moderate(
        self, act: PrivateAct, users: Sequence[bytes] = (), posts: Sequence[bytes] = ()
    ) -> list[UndoneAct]:
        """Hide, unhide, block or unblock users, or hide or unhide single messages, for the user alone.

        To unhide and unblock undoes all own acts, also public ones, and returns them. Raises ModerationError for what
        has no effect.
        """

    # --- peers ---------------------------------------------------------------------------------

    @property
    def connection(self) -> str:
        """What the state of the connection is, in a few words."""

    @property
    def is_connected(self) -> bool:
        """Whether a peer is connected."""

    @property
    def listening(self) -> list[str]:
        """The addresses where peers may connect."""

    async def invitation(self) -> str:
        """Return the text that others join this cabal with. Raises InvitationError if nobody could use it."""
