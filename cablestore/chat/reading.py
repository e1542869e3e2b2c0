"""Read state of the shown channel: the messages that the user has seen, and the beginning of unread messages.

The store records the unread messages. This module caches only the store's last answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from cablestore.chat.entries import ChannelEntry
from cablestore.chat.message_pages import Shown
from cablestore.errors import CableStoreError, OwnerGoneError
from cablestore.store.cursor import MessageCursor
from cablestore.store.results import ReadState


class Watched(Shown, Protocol):
    """The client's methods that reading uses."""

    @property
    def is_watched(self) -> bool:
        """True if the user sees the messages: the terminal has the focus, and no window covers them."""


class _Seen(NamedTuple):
    """Cursors of the visible and the remaining unread messages. All new messages up to the cursor `upto` are read."""

    on_screen: Sequence[MessageCursor] = ()
    left: Sequence[MessageCursor] = ()
    upto: MessageCursor | None = None


class Reading:
    """Read state of the shown channel. Methods raise the errors of `Cabal`."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._state = ReadState()
        self._problem = ""
        """Error of the last attempt to mark messages as read, or "" after a success."""

    async def begin(self) -> None:
        """Read the state of a newly shown channel, and put the line of unread messages before the first of them."""
        self._state, self._watched.messages.line = ReadState(), ""
        if await self._read() and self._state.unread:
            self._watched.messages.line = self._state.unread[0]

    def show_line(self) -> None:
        """Move the line of unread messages to the first of them. Call this after the channel's first page was read."""
        messages = self._watched.messages
        if self._state.unread and messages.line != (first := self._first(self._state.unread)):
            messages.line = first
            messages.update_rows()

    def refresh(self, state: ReadState) -> None:
        """Set the read state of the shown channel, and move the line of unread messages if the user does not see it."""
        self._state = state
        self._move_line(self._seen().left)

    async def _read(self) -> bool:
        """Read the state from the store. Return False if another channel is shown meanwhile."""
        cabal, channel = self._watched.open_cabal, self._watched.channel
        state = await cabal.read_state(channel)
        if (cabal, channel) != (self._watched.open_cabal, self._watched.channel):
            return False
        self._state = state
        return True

    async def mark(self) -> None:
        """Mark the visible messages as read. Raises each error only once, and ignores OwnerGoneError."""
        seen = self._seen()
        if not seen.on_screen and seen.upto is None:
            return
        try:
            state = self._state
            await self._watched.open_cabal.mark_seen(self._watched.channel, seen.on_screen, seen.upto)
            self._problem = ""
            if self._state is state:  # the expected state until the store reports it
                self._state = ReadState(max(seen.upto or state.read_upto, state.read_upto), seen.left)
        except OwnerGoneError:
            pass  # marked when the store is available again
        except CableStoreError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                raise

    def scrolled(self) -> None:
        """Move the line to the first unread message, unless the user may be reading at the line."""
        self._move_line(self._state.unread)

    def shown_entry(self, entry: ChannelEntry) -> ChannelEntry:
        """Return the entry of the shown channel without the messages that are being marked."""
        seen = self._seen()
        unread = len(seen.left) if seen.upto is not None else max(0, entry.unread - len(seen.on_screen))
        return replace(entry, unread=unread, mentions=min(entry.mentions, unread))

    @property
    def first_left(self) -> MessageCursor | None:
        """Cursor of the first unread message that is not visible, or None without such a message."""
        left = self._seen().left
        return self._first(left) if left else None

    def _seen(self) -> _Seen:
        state, messages = self._state, self._watched.messages
        if not (state.unread and self._watched.is_watched):
            return _Seen(left=state.unread)
        in_view = {message.cursor for message in messages.in_view()}
        held = messages.timeline.messages
        follows = messages.is_at_end and not messages.timeline.has_newer and state.unread[-1] > state.read_upto
        upto = max((message.cursor for message in held), default=None) if follows else None
        left = [at for at in state.unread if at not in in_view and not (upto and state.read_upto < at <= upto)]
        return _Seen([at for at in state.unread if at in in_view], left, upto)

    def _move_line(self, unread: Sequence[MessageCursor]) -> None:
        """Move the line of unread messages to the first of `unread`, unless the user may be reading at the line."""
        messages = self._watched.messages
        is_needed = messages.line in self._state.unread or (self._watched.is_watched and messages.has_line_in_view)
        if unread and not is_needed:
            messages.line = self._first(unread)
            messages.update_rows()

    def _first(self, unread: Sequence[MessageCursor]) -> MessageCursor:
        """Return that cursor in `unread` whose message is displayed first.

        An answer whose author's clock is slow has an early cursor, but is displayed after the message that it answers.
        Unread messages before all loaded messages come first.
        """
        held = [message.cursor for message in self._watched.messages.timeline.messages]
        is_above = self._watched.messages.timeline.has_older and unread[0] < min(held, default="")
        found = () if is_above else set(unread)
        return next((at for at in held if at in found), unread[0])
