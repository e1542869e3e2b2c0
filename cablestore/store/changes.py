"""Changes: what a chat client draws again. Each says what is, so applying one twice does no harm.

Changes of two types are never equal, which tuples would be. A type that has the fields of its base needs no decorator:
each takes as long to import as a small module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cablestore.index.local import DRAFT, JUDGED, MUTED, READ, SEED, VALUE
from cablestore.protocol.keys import unescape
from cablestore.reprs import hex_repr
from cablestore.store.cursor import ChangesCursor
from cablestore.store.display import Message, User


@dataclass(frozen=True, slots=True)
class _MessageChange:
    message: Message

    @property
    def channel(self) -> str:
        """The channel of the message."""
        return self.message.channel


class MessageAdded(_MessageChange):
    """Message that arrived and is displayed."""


class MessageHidden(_MessageChange):
    """Message that is here and must not be displayed. It has no text; `message.hidden_by` says why."""


class MessageShown(_MessageChange):
    """Message on which an act of moderation is, and which is displayed."""


@dataclass(frozen=True, slots=True)
class MessageDeleted:
    """Message that is no longer here: deleted by its author, dropped, or discarded to save space.

    `channel` is None if nothing says what the hash was: a discarded post leaves no trace. It may not be a message then.
    """

    hash: bytes
    channel: str | None

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class _ChannelChange:
    channel: str


class ChannelAdded(_ChannelChange):
    """Channel that is there. A client that does not show it yet reads its page."""


class ChannelRemoved(_ChannelChange):
    """Channel that is not there: its posts are all gone, or it is dropped."""


class UnreadChanged(_ChannelChange):
    """Channel whose number of unread messages may have changed."""


class DraftChanged(_ChannelChange):
    """Channel for which the user's draft changed: `CableStore.local.draft` has it."""


class MuteChanged(_ChannelChange):
    """Channel that the user muted or unmuted: `CableStore.local.is_muted` tells."""


@dataclass(frozen=True, slots=True)
class TopicChanged(_ChannelChange):
    """Topic of a channel, "" if it has none."""

    topic: str


@dataclass(frozen=True, slots=True)
class _MembershipChange:
    channel: str
    user: User


class Joined(_MembershipChange):
    """Member of a channel."""


class Left(_MembershipChange):
    """User who is not a member of a channel."""


@dataclass(frozen=True, slots=True)
class _UserChange:
    user: User
    channel: str | None


class RoleChanged(_UserChange):
    """User to whom a role was given or from whom it was taken, as it is in a channel, or with None in the cabal."""


class UserHidden(_UserChange):
    """User on whom an act of moderation is and who is hidden or dropped, in a channel or with None in the cabal.

    Read again the messages of the user, and the members.
    """


class UserShown(_UserChange):
    """User on whom an act of moderation is and who is neither hidden nor dropped. `user.blocked_by` may be set.

    Read again the messages of the user, and the members.
    """


@dataclass(frozen=True, slots=True)
class NameChanged:
    """User who said something of itself. Its name is also that of its earlier messages."""

    user: User


@dataclass(frozen=True, slots=True)
class ModerationChanged:
    """Roles may have changed, and with them all that is hidden: read again what is on the screen."""

    channel: str | None


@dataclass(frozen=True, slots=True)
class LocalChanged:
    """Value of the user's own (`CableStore.local`) that was put or deleted: its name and key."""

    name: str
    key: str


Change = (
    MessageAdded
    | MessageDeleted
    | MessageHidden
    | MessageShown
    | TopicChanged
    | NameChanged
    | Joined
    | Left
    | ChannelAdded
    | ChannelRemoved
    | RoleChanged
    | UserHidden
    | UserShown
    | ModerationChanged
    | UnreadChanged
    | DraftChanged
    | MuteChanged
    | LocalChanged
)


class Changes(NamedTuple):
    """Changes of one read, and the cursor from which the next one continues."""

    changes: list[Change]
    cursor: ChangesCursor


def is_of(change: Change, channel: str) -> bool:
    """Tell whether a change concerns a channel, or the whole cabal."""
    return getattr(change, "channel", None) in (None, channel)


def change_of_local_row(name: bytes, key: bytes) -> Change | None:
    """Return what a client is told when a local row changes, given its name and the rest of its key; None for nothing.

    Only rows that were put with `Plan.set_local(..., noted=True)` come here.
    """
    if name in (SEED, JUDGED):
        return ModerationChanged(None)
    if name == READ:
        return UnreadChanged(unescape(key))
    if name == DRAFT:
        return DraftChanged(unescape(key))
    if name == MUTED:
        return MuteChanged(unescape(key))
    if name == VALUE:
        value_name, _, value_key = key.partition(b"!")
        return LocalChanged(unescape(value_name), unescape(value_key))
    return None
