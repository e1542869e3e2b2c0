"""Changes that a chat client displays. Each contains the current value, so applying a change twice is harmless.

Changes are dataclasses, because named tuples of two types can be equal. A subclass without fields has no decorator,
because each decorator slows the import as much as a small module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cablestore.index.local import DECIDED, DRAFT, MUTED, READ, SEED, VALUE
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
    """A message arrived and can be displayed."""


class MessageHidden(_MessageChange):
    """A stored message must not be displayed. Its text is empty; `message.hidden_by` is the action that hides it."""


class MessageShown(_MessageChange):
    """A message can be displayed although it is the target of a moderation action, for example after an undo."""


@dataclass(frozen=True, slots=True)
class MessageDeleted:
    """A message was deleted by its author, dropped, or discarded to save space.

    `channel` is None for a discarded post, which leaves no record. The hash may then belong to a post of another type.
    """

    hash: bytes
    channel: str | None

    __repr__ = hex_repr


@dataclass(frozen=True, slots=True)
class _ChannelChange:
    channel: str


class ChannelAdded(_ChannelChange):
    """A channel exists. Clients that do not show it yet read its first page."""


class ChannelRemoved(_ChannelChange):
    """A channel no longer exists: all its posts were removed, or it was dropped."""


class UnreadChanged(_ChannelChange):
    """The number of unread messages of a channel may have changed."""


class DraftChanged(_ChannelChange):
    """The user's draft for a channel changed. `CableStore.local.draft` returns it."""


class MuteChanged(_ChannelChange):
    """The user muted or unmuted a channel. `CableStore.local.is_muted` returns the current value."""


@dataclass(frozen=True, slots=True)
class TopicChanged(_ChannelChange):
    """The topic of a channel may have changed. `topic` is "" if the channel has none."""

    topic: str


@dataclass(frozen=True, slots=True)
class _MembershipChange:
    channel: str
    user: User


class Joined(_MembershipChange):
    """A user is a member of a channel."""


class Left(_MembershipChange):
    """A user is not a member of a channel."""


@dataclass(frozen=True, slots=True)
class _UserChange:
    user: User
    channel: str | None


class RoleChanged(_UserChange):
    """The role of a user may have changed, in a channel, or in the whole cabal if `channel` is None."""


class UserHidden(_UserChange):
    """A user who is the target of a moderation action is hidden or dropped.

    `channel` is None for the whole cabal. Read the user's messages and the member list again.
    """


class UserShown(_UserChange):
    """A user who is the target of a moderation action is neither hidden nor dropped. `user.blocked_by` may be set.

    `channel` is None for the whole cabal. Read the user's messages and the member list again.
    """


@dataclass(frozen=True, slots=True)
class NameChanged:
    """A user's name or other info may have changed. The name also applies to the user's earlier messages."""

    user: User


@dataclass(frozen=True, slots=True)
class ModerationChanged:
    """Roles, and thus hidden users and messages, may have changed. Read everything on the screen again.

    `channel` is None for the whole cabal.
    """

    channel: str | None


@dataclass(frozen=True, slots=True)
class LocalChanged:
    """A local value (`CableStore.local`) was stored or deleted."""

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
    """Changes, and the cursor from which the next read continues."""

    changes: list[Change]
    cursor: ChangesCursor


def is_of(change: Change, channel: str) -> bool:
    """Return True if a change concerns this channel or the whole cabal."""
    return getattr(change, "channel", None) in (None, channel)


def change_of_local_row(name: bytes, key: bytes) -> Change | None:
    """Return the change to report for the changed local row `!local!<name>!<key>`, None if clients do not need it.

    Callers pass only rows that `Plan.set_local(..., noted=True)` wrote.
    """
    if name in (SEED, DECIDED):
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
