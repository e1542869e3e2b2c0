"""Windows that keys and commands open: help, invitation, search results, and mentions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import tzinfo
from typing import Any, Protocol

from textual.screen import Screen

from cablestore.chat.cabal import Cabal
from cablestore.chat.display_limits import MAX_MENTIONS
from cablestore.chat.keys import Keys
from cablestore.chat.lines import CabalChannel
from cablestore.chat.mention_screen import ListedMention, MentionScreen
from cablestore.chat.screens import FoundScreen, HelpScreen, InvitationScreen
from cablestore.store.display import Message


class WindowedClient(Protocol):
    """The client's methods that windows use."""

    def cabal_of(self, place: CabalChannel) -> Cabal:
        """Return the cabal of a channel."""

    def push_screen(
        self, screen: Screen[Any], callback: Callable[[Any], None] | Callable[[Any], Awaitable[None]] | None = None
    ) -> object:
        """Show a window, and call a function with its result."""

    async def show_message(self, place: CabalChannel, message: Message) -> None:
        """Show a message in its channel."""


class Windows:
    """Windows over a client. Methods raise CableStoreError if the store cannot be reached."""

    def __init__(self, client: WindowedClient, open_cabals: Sequence[Cabal], keys: Keys, zone: tzinfo | None) -> None:
        self._client = client
        self._open_cabals = open_cabals
        self._keys = keys
        self._zone = zone

    def show_help(self) -> None:
        """Show keys and commands."""
        self._client.push_screen(HelpScreen(self._keys))

    async def show_invitation(self, place: CabalChannel) -> None:
        """Show the invitation to a cabal."""
        invitation = await self._client.cabal_of(place).invitation()
        self._client.push_screen(InvitationScreen(invitation, self._keys))

    async def show_found(self, place: CabalChannel, text: str) -> None:
        """Search a cabal, and show the results. A chosen message is shown in its channel."""
        page = await self._client.cabal_of(place).search(text)

        async def show(message: Message | None) -> None:
            if message is not None:
                await self._client.show_message(place._replace(channel=message.channel), message)

        self._client.push_screen(FoundScreen(text, page, self._zone), show)

    async def show_mentions(self) -> None:
        """Show the messages of all cabals that mention the user. A chosen message is shown in its channel."""
        found: list[ListedMention] = []
        for number, cabal in enumerate(self._open_cabals):
            label = cabal.label if len(self._open_cabals) > 1 else ""
            found += [
                ListedMention(CabalChannel(number, mention.message.channel), mention, label)
                for mention in await cabal.latest_mentions(MAX_MENTIONS)
            ]
        found.sort(key=lambda each: each.mention.message.cursor, reverse=True)

        async def show(chosen: tuple[CabalChannel, Message] | None) -> None:
            if chosen is not None:
                await self._client.show_message(*chosen)

        self._client.push_screen(MentionScreen(found[:MAX_MENTIONS], self._zone), show)
