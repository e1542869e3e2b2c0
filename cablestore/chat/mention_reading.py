"""Latest messages that mention the user, for lists and alerts."""

from __future__ import annotations

from cablestore import limits
from cablestore.chat.entries import Mention
from cablestore.store.display import Message
from cablestore.store.queries import Queries
from cablestore.store.results import ReadState
from cablestore.store.store import CableStore

_MOST_PAGES = 10
"""Maximum number of pages to read. A page is empty if all its messages are hidden, so one page may not suffice."""


def latest_mentions(store: CableStore, limit: int) -> list[Mention]:
    """Return up to `limit` visible messages of others that mention the user, newest first."""
    with store.snapshot() as state:  # without a snapshot, the store would search all texts for mentions first
        messages: list[Message] = []
        cursor = None
        for _ in range(_MOST_PAGES):
            page = state.mentions(limit - len(messages), cursor=cursor)
            messages += page.messages
            cursor = page.cursor
            if cursor is None or len(messages) >= limit:
                break
        unread = {channel: _Unread(state.read_state(channel)) for channel in {message.channel for message in messages}}
        return [Mention(each, unread[each.channel].has(each), _sent_ms(state, each)) for each in messages]


class _Unread:
    """Unread messages of a channel. Only the first MAX_UNREAD_COUNTED of them are counted."""

    def __init__(self, state: ReadState) -> None:
        self._cursors = set(state.unread)
        self._beyond = state.unread[-1] if len(state.unread) >= limits.MAX_UNREAD_COUNTED else None

    def has(self, message: Message) -> bool:
        return message.cursor in self._cursors or (self._beyond is not None and message.cursor > self._beyond)


def _sent_ms(state: Queries, message: Message) -> int:
    """Return the earliest possible time of a message: the latest timestamp of the message and its linked posts."""
    linked = filter(None, map(state.get, message.links))
    return max(message.timestamp_ms, *(post.timestamp_ms for post in linked), 0)
