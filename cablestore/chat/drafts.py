"""Unsent drafts, which are written to their stores after a short delay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol

from cablestore.chat.cabal import Cabal
from cablestore.chat.lines import CabalChannel
from cablestore.chat.safe_text import clean
from cablestore.errors import CableStoreError

_DELAY_S: Final = 0.3
"""Delay between a key press and writing the draft. Including the write, the draft is stored within a second."""


class Box(Protocol):
    """The typing box's methods that drafts use."""

    def take_draft(self) -> str | None:
        """Return the text if it was changed since it was shown or taken, otherwise None."""


class TypingClient(Protocol):
    """The client's methods that drafts use."""

    @property
    def typing(self) -> Box:
        """Typing box."""

    @property
    def place(self) -> CabalChannel:
        """Channel that is shown."""

    def do(self, work: Callable[[], Awaitable[None]]) -> object:
        """Run work after earlier requests."""

    def set_timer(self, delay: float, callback: Callable[[], None]) -> object:
        """Call a function after a delay in seconds."""


class Drafts:
    """Drafts by channel that are not in their stores yet."""

    def __init__(self, client: TypingClient, open_cabals: Sequence[Cabal]) -> None:
        self._client = client
        self._open_cabals = open_cabals
        self._unwritten: dict[CabalChannel, str] = {}
        self._is_due = False
        """True while a timer runs for the next write."""

    async def read(self, place: CabalChannel) -> str:
        """Return the draft of a channel. Raises CableStoreError if its store is unreachable."""
        draft = self._unwritten.get(place)
        return await self._open_cabals[place.cabal].draft(place.channel) if draft is None else draft

    def take(self) -> None:
        """Record the typed text as the draft of the shown channel, and write it."""
        if self._note():
            self._client.do(self._write)

    def keep(self, place: CabalChannel, text: str) -> None:
        """Record a text that cannot be sent as the draft of a channel, unless the channel has an unwritten draft."""
        if not self._unwritten.get(place):
            self._unwritten[place] = text
            self._client.do(self._write)

    def write_soon(self) -> None:
        """Record the typed text, and write it after a short delay, including later changes."""
        if self._note() and not self._is_due:
            self._is_due = True
            self._client.set_timer(_DELAY_S, self._on_timer)

    async def write_last(self) -> str:
        """Write all drafts at the end. Return lines to print with the rejected drafts, or ""."""
        self._note()
        try:
            await self._write()
        except CableStoreError as error:
            return _report(self._unwritten, error)
        return ""

    def _note(self) -> bool:
        draft = self._client.typing.take_draft()
        if draft is not None:
            self._unwritten[self._client.place] = draft
        return draft is not None

    def _on_timer(self) -> None:
        self._is_due = False
        self._client.do(self._write)

    async def _write(self) -> None:
        """Write all drafts. Raises CableStoreError if a store rejects a draft. The draft then remains in memory."""
        problem: CableStoreError | None = None
        for place, draft in list(self._unwritten.items()):
            try:
                await self._open_cabals[place.cabal].set_draft(place.channel, draft)
            except CableStoreError as error:
                problem = error
                continue
            if self._unwritten.get(place) is draft:
                del self._unwritten[place]
        if problem is not None:
            raise problem


def _report(drafts: Mapping[CabalChannel, str], error: Exception) -> str:
    lines = [f"  #{clean(place.channel)}: {clean(text, lines=True)}" for place, text in drafts.items() if text]
    return "\n".join([f"cablestore: cannot save unsent drafts: {error}", *lines])
