"""Latest messages that name the user, as a client lists them and alerts the user to them."""

from __future__ import annotations

from cablestore import limits
from cablestore.chat.entries import Mention
from cablestore.store.display import Message
from cablestore.store.queries import Queries
from cablestore.store.results import ReadState
from cablestore.store.store import CableStore

_MOST_PAGES = 10
"""Pages that are read at most: those of a flood by hidden users are empty."""


def latest_mentions(store: CableStore, limit: int) -> list[Mention]:
    """Return up to `limit` messages of others that name the user, newest first, without hidden ones."""
    with store.snapshot() as state:  # which does not search all texts first
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
    """Unread messages of a channel. Those beyond the counted ones are after them."""

    def __init__(self, state: ReadState) -> None:
        self._cursors = set(state.unread)
        self._beyond = state.unread[-1] if len(state.unread) >= limits.MAX_UNREAD_COUNTED else None

    def has(self, message: Message) -> bool:
        return message.cursor in self._cursors or (self._beyond is not None and message.cursor > self._beyond)


def _sent_ms(state: Queries, message: Message) -> int:
    """Return the earliest time at which a message can have been sent: by its own clock, and by those that it answers."""
    linked = filter(None, map(state.get, message.links))
    return max(message.timestamp_ms, *(post.timestamp_ms for post in linked), 0)
