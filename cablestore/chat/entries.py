"""Values of a cabal that the client's screens show: channels, members, mentions and restrictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cablestore.moderation import UserRole
from cablestore.reprs import hex_repr
from cablestore.store.display import Message
from cablestore.store.results import ReadState

PrivateAct = Literal["hide", "unhide", "block", "unblock"]
"""Moderation action that applies only to the user."""


@dataclass(frozen=True, slots=True)
class ChannelEntry:
    """Channel in the list of channels."""

    name: str
    topic: str = ""
    members: int = 0
    is_joined: bool = False
    unread: int = 0
    mentions: int = 0
    is_muted: bool = False


@dataclass(frozen=True, slots=True)
class Member:
    """Member in the list of members."""

    public_key: bytes
    name: str
    role: UserRole
    """Role assigned by others. It does not include the authority that each user has over itself."""
    is_hidden: bool
    is_self: bool
    is_blocked: bool = False
    is_same_named: bool = False
    """True if another user has an equal or similar name."""

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class ChannelDetails:
    """Details of a channel that are shown around its messages."""

    members: list[Member]
    """Members as returned by `Cabal.members`."""
    mentions: frozenset[bytes]
    """Hashes of the latest messages that mention the user."""
    same_named: frozenset[bytes]
    """Authors whose name equals or resembles another user's name in the cabal."""
    read_state: ReadState
    own_name: str
    """Name of the user, or "" if the user has no name."""
    clock_warning: str
    """Warning if the clock of the store's machine may be wrong, otherwise ""."""


@dataclass(frozen=True, slots=True)
class Mention:
    """Message of another user that mentions the user. `sent_ms` is its earliest possible time."""

    message: Message
    is_unread: bool
    sent_ms: int


@dataclass(frozen=True, slots=True)
class UndoneAct:
    """Action of the user that was undone. The channel is "" if it applied to the whole cabal."""

    is_private: bool
    channel: str


@dataclass(frozen=True, slots=True)
class Restriction:
    """Restriction that applies: a hidden or blocked user, or a hidden message.

    `public_key` and `name` identify the user, or the author of the message.
    """

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
    """Channels of a user, and the actions that hide or block the user."""

    channels: list[str]
    restrictions: list[Restriction]
