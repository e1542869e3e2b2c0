"""What the client's screens show of a cabal: channels, members, mentions and restrictions as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cablestore.moderation import UserRole
from cablestore.reprs import hex_repr
from cablestore.store.display import Message
from cablestore.store.results import ReadState

PrivateAct = Literal["hide", "unhide", "block", "unblock"]
"""Act of moderation for the user alone."""


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
