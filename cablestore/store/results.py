"""Results of reads: pages, channels, events, statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from cablestore.index.arrival_log import EventKind
from cablestore.index.meta import Size
from cablestore.protocol.post import Post
from cablestore.reprs import hex_repr
from cablestore.store.cursor import ChangesCursor, MessageCursor
from cablestore.store.display import Message

ChannelOrder = Literal["name", "activity"]
"""The order of a list of channels: by name, or latest message first, with the channels without messages last."""


class Page(NamedTuple):
    """Messages in the requested order, and the cursor of the next page, None at the end.

    `changes_cursor` is the cursor of the state that was read: pass it to `changes` or `next_changes` for later changes.

    A page before the end may contain few messages, or none, if most are hidden.
    """

    messages: list[Message]
    cursor: MessageCursor | None
    changes_cursor: ChangesCursor = ChangesCursor("")


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel: its topic ("" if it has none), its number of members, and its number of posts of each type.

    `is_joined` is True if the store's user is a member.

    `unread` counts the texts of others that are not hidden and came after the channel was marked read
    (`CableStore.mark_read`). `mentions` counts the unread texts that name the user. Both are exact below
    `limits.MAX_UNREAD_COUNTED`. The value `limits.MAX_UNREAD_COUNTED` means this number or more. A channel that was
    never marked is unread from its beginning.
    """

    name: str
    topic: str
    members: int
    posts: dict[str, int]
    unread: int = 0
    mentions: int = 0
    is_joined: bool = False
    _latest: Callable[[str], Message | None] | None = field(default=None, repr=False, compare=False)

    @property
    def last_message(self) -> Message | None:
        """The latest message that is not hidden, None if the latest `limits.MAX_PAGE_ROWS_READ` are all hidden.

        Each access reads the store. With `cablestore.aio`, the message was read with the channel.
        """
        return None if self._latest is None else self._latest(self.name)


def with_last_message(channel: Channel) -> Channel:
    """Read the latest message of a channel, and return the channel with this message."""
    message = channel.last_message
    return replace(channel, _latest=lambda _: message)


class ReadState(NamedTuple):
    """Read mark of a channel, and the cursors of its unread messages.

    `read_upto` is the read mark, "" if the channel was never marked. `unread` lists the cursors from the oldest to the
    newest message, at most `limits.MAX_UNREAD_COUNTED`. Cursors before the mark belong to late messages.
    """

    read_upto: MessageCursor = MessageCursor("")
    unread: Sequence[MessageCursor] = ()


@dataclass(frozen=True, slots=True)
class WriteState:
    """State of a store's writes.

    `failure` is the reason why the last write failed, "" if the store accepts writes. Each further write tries again.
    `failed_writes` counts the failed writes since the store was opened.
    """

    failure: str
    failed_writes: int


class Event(NamedTuple):
    """One entry of the arrival log. `post` is None if the post is no longer stored."""

    sequence: int
    kind: EventKind
    hash: bytes
    post: Post | None

    def __repr__(self) -> str:
        return hex_repr(self)


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of a store.

    `views` contains the number of rows and bytes of each view. `days` lists (start of the day in milliseconds since
    1970, number of posts) for each day with posts.
    """

    posts: dict[str, int]
    channels: int
    views: dict[str, Size]
    disk_size_bytes: dict[str, int]
    last_sequence: int
    days: list[tuple[int, int]]
