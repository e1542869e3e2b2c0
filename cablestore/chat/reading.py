"""Reading of the channel that is shown: what the user has seen of it, and where its unread messages begin.

The store knows what is unread. Nothing is remembered here but its last answer.
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
    """The client, as reading sees it."""

    @property
    def is_watched(self) -> bool:
        """True if the user sees the messages: the terminal has the focus, and no window is in front of them."""


class _Seen(NamedTuple):
    """Cursors of unread messages: those on the screen, those that are left, and up to where all new ones are read."""

    on_screen: Sequence[MessageCursor] = ()
    left: Sequence[MessageCursor] = ()
    upto: MessageCursor | None = None


class Reading:
    """State of what the user has seen of the channel that is shown. Methods raise CableStoreError as those of `Cabal` do."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._state = ReadState()
        self._problem = ""
        """Why the last messages could not be marked."""

    async def begin(self) -> None:
        """Begin with another channel: a line is before its first unread message."""
        self._state, self._watched.messages.line = ReadState(), ""
        if await self._ask() and self._state.unread:
            self._watched.messages.line = self._state.unread[0]

    def show_line(self) -> None:
        """Put the line where unread messages begin, after the page that is shown first has come."""
        messages = self._watched.messages
        if self._state.unread and messages.line != (first := self._first(self._state.unread)):
            messages.line = first
            messages.update_rows()

    def refresh(self, state: ReadState) -> None:
        """Take over what the store says of the channel that is shown."""
        self._state = state
        self._move_line(self._seen().left)

    async def _ask(self) -> bool:
        """Ask the store what is unread. False if another channel is shown by now."""
        cabal, channel = self._watched.open_cabal, self._watched.channel
        state = await cabal.read_state(channel)
        if (cabal, channel) != (self._watched.open_cabal, self._watched.channel):
            return False
        self._state = state
        return True

    async def mark(self) -> None:
        """Have the store mark what is on the screen. A problem is raised once."""
        seen = self._seen()
        if not seen.on_screen and seen.upto is None:
            return
        try:
            state = self._state
            await self._watched.open_cabal.mark_seen(self._watched.channel, seen.on_screen, seen.upto)
            self._problem = ""
            if self._state is state:  # it is what the store has by now
                self._state = ReadState(max(seen.upto or state.read_upto, state.read_upto), seen.left)
        except OwnerGoneError:
            pass  # it is marked when the store is back
        except CableStoreError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                raise

    def scrolled(self) -> None:
        """Put the line before the first unread message if the earlier line is out of view."""
        self._move_line(self._state.unread)

    def shown_entry(self, entry: ChannelEntry) -> ChannelEntry:
        """Return the shown channel as its list shows it: without the messages that are being marked."""
        seen = self._seen()
        unread = len(seen.left) if seen.upto is not None else max(0, entry.unread - len(seen.on_screen))
        return replace(entry, unread=unread, mentions=min(entry.mentions, unread))

    @property
    def first_left(self) -> MessageCursor | None:
        """The cursor of the first unread message that is not on the screen."""
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
        """Put the line before the first of these messages. A line that one may be reading at does not move."""
        messages = self._watched.messages
        is_needed = messages.line in self._state.unread or (self._watched.is_watched and messages.has_line_in_view)
        if unread and not is_needed:
            messages.line = self._first(unread)
            messages.update_rows()

    def _first(self, unread: Sequence[MessageCursor]) -> MessageCursor:
        """Return the cursor of the first of these messages as they are read: an answer with a slow clock is not the first.

        Unread messages that are older than all that is held come before those.
        """
        held = [message.cursor for message in self._watched.messages.timeline.messages]
        is_above = self._watched.messages.timeline.has_older and unread[0] < min(held, default="")
        found = () if is_above else set(unread)
        return next((at for at in held if at in found), unread[0])
