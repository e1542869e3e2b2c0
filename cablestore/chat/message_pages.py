"""Reading of pages of the shown channel into the view."""

from __future__ import annotations

from typing import Protocol

from cablestore.chat.cabal import Cabal
from cablestore.chat.changes import CabalChanges
from cablestore.chat.display_limits import MAX_HELD, PAGE_MESSAGES, SCREENS_FOLLOWED
from cablestore.chat.message_list import MessageList
from cablestore.errors import CableStoreError
from cablestore.store.cursor import MessageCursor
from cablestore.store.display import Message


class Shown(Protocol):
    """The client's methods that pages use."""

    @property
    def open_cabal(self) -> Cabal:
        """Cabal that is shown."""

    @property
    def channel(self) -> str:
        """Channel that is shown."""

    @property
    def messages(self) -> MessageList:
        """View of the messages."""


class MessagePages:
    """Pages of the shown channel. All methods raise CableStoreError if the store is unreachable.

    A page is discarded if another channel, or another part of the channel, is shown when it arrives.
    """

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    async def read_newest(self, changed_from_ms: int = 0, limit: int = PAGE_MESSAGES) -> None:
        """Show the end of the channel. Keep older loaded messages only if the page begins before `changed_from_ms`."""
        shown, timeline = self._shown, self._shown.messages.timeline
        page = await shown.open_cabal.page(shown.channel, limit)
        if timeline is shown.messages.timeline:
            keeps_older = bool(page.messages) and page.messages[-1].timestamp_ms < changed_from_ms
            timeline.set_newest(page.messages, has_older=page.cursor is not None, keeps_older=keeps_older)
            shown.messages.update_rows()

    async def read_oldest(self) -> None:
        """Show the beginning of the channel."""
        shown, timeline = self._shown, self._shown.messages.timeline
        page = await shown.open_cabal.page(shown.channel, PAGE_MESSAGES, newest_first=False)
        if timeline is shown.messages.timeline:
            timeline.set_window(page.messages, has_newer=page.cursor is not None)
            shown.messages.show_start()

    async def read_around(self, message: Message) -> None:
        """Show a message with the messages around it, and choose it."""
        open_cabal, timeline = self._shown.open_cabal, self._shown.messages.timeline
        older = await open_cabal.page(message.channel, PAGE_MESSAGES, message.cursor)
        newer = await open_cabal.page(message.channel, PAGE_MESSAGES, message.cursor, newest_first=False)
        if timeline is self._shown.messages.timeline:
            timeline.set_window([message, *newer.messages], has_newer=newer.cursor is not None)
            timeline.add_older(older.messages, has_older=older.cursor is not None)
            self._shown.messages.show_message(message)

    async def read_unread(self, cursor: MessageCursor) -> None:
        """Show an unread message, given by its cursor, below the line of unread messages."""
        open_cabal, messages = self._shown.open_cabal, self._shown.messages
        timeline, channel = messages.timeline, self._shown.channel
        older = await open_cabal.page(channel, PAGE_MESSAGES, cursor)
        before = older.messages[0].cursor if older.messages else None
        newer = await open_cabal.page(channel, PAGE_MESSAGES, before, newest_first=False)
        if timeline is messages.timeline:
            timeline.set_window(newer.messages, has_newer=newer.cursor is not None)
            timeline.add_older(older.messages, has_older=older.cursor is not None)
            messages.line = cursor
            messages.show_line()

    async def read_next(self, *, older: bool) -> None:
        """Read the page before or after the loaded messages."""
        messages = self._shown.messages
        timeline = messages.timeline
        if not timeline.messages:
            messages.is_loading = False
            return
        cursor = timeline.messages[0 if older else -1].cursor
        try:
            page = await self._shown.open_cabal.page(self._shown.channel, PAGE_MESSAGES, cursor, newest_first=older)
        except CableStoreError:
            self._shown.messages.is_loading = False
            raise
        if timeline is not self._shown.messages.timeline:
            return
        if timeline.messages and cursor == timeline.messages[0 if older else -1].cursor:
            if older:
                timeline.add_older(page.messages, has_older=page.cursor is not None)
            else:
                timeline.add_newer(page.messages, has_newer=page.cursor is not None)
        self._shown.messages.page_loaded()

    async def apply(self, changes: CabalChanges) -> None:
        """Draw the changes in the channel."""
        earliest_ms = 0 if changes.is_all else changes.channels.get(self._shown.channel)
        if earliest_ms is None:
            return
        timeline = self._shown.messages.timeline
        if self._shown.messages.is_at_end and not timeline.has_newer:
            limit = SCREENS_FOLLOWED * max(self._shown.messages.size.height, 1)
            await self.read_newest(earliest_ms, min(limit, PAGE_MESSAGES))
        elif changes.is_all or earliest_ms <= max((message.timestamp_ms for message in timeline.messages), default=-1):
            await self._read_window()
        else:
            timeline.has_newer = True

    async def _read_window(self) -> None:
        """Read the loaded messages again, while the view is not at the end of the channel."""
        shown, timeline = self._shown, self._shown.messages.timeline
        if not timeline.messages:
            await self.read_newest()
            return
        after = timeline.messages[0].cursor if timeline.has_older else None
        page = await shown.open_cabal.page(shown.channel, MAX_HELD, after, newest_first=False)
        if timeline is shown.messages.timeline:
            timeline.set_window(page.messages, has_newer=page.cursor is not None)
            shown.messages.update_rows()
