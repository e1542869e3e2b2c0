"""Alerts for new messages that mention the user: the bell, and a notification."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from textual import events

from cablestore.chat.cabal import Cabal
from cablestore.chat.display_limits import MAX_MENTIONS
from cablestore.chat.entries import ChannelEntry, Mention
from cablestore.chat.lines import CabalChannel
from cablestore.chat.notifications import notification
from cablestore.chat.settings import ChatSettings
from cablestore.chat.timeline import short_name

ALERT_PAUSE_S: Final = 10
"""Pause after an alert. Mentions during the pause only raise the count in the channel list."""
LIVE_MS: Final = 600_000
"""Maximum age of a message that causes an alert. Older messages come from a sync."""
PRESENT_S: Final = 300
"""Time after a key press during which the user is present, if the terminal does not report its focus."""


class AlertingClient(Protocol):
    """The client's methods that alerts use."""

    @property
    def place(self) -> CabalChannel:
        """Channel that is shown."""

    @property
    def is_watched(self) -> bool:
        """True if the user sees the messages: the terminal has the focus, and no window covers them."""

    def cabal_of(self, place: CabalChannel) -> Cabal:
        """Return the cabal of a channel."""

    def bell(self) -> None:
        """Ring the bell of the terminal."""

    def send_sequence(self, sequence: str) -> None:
        """Send an escape sequence to the terminal."""


class Alerts:
    """Alerts of a client, at most one per ALERT_PAUSE_S.

    Messages that are already unread at the first `check` do not cause alerts.
    """

    def __init__(self, client: AlertingClient, settings: ChatSettings, environ: Mapping[str, str]) -> None:
        self._client = client
        self._settings = settings
        self._environ = environ
        self._known: dict[int, set[bytes]] = {}
        """Hashes of the unread messages that mention the user, by the number of the cabal."""
        self._knows_focus = False
        self._input_at_s = time.monotonic()
        self._quiet_until_s = 0.0

    def note(self, event: events.Event) -> None:
        """Record that the user is present, or that the terminal reports its focus."""
        if isinstance(event, events.AppFocus | events.AppBlur):
            self._knows_focus = True
        elif isinstance(event, events.InputEvent | events.Paste):
            self._input_at_s = time.monotonic()

    async def check(self, channels: Sequence[Sequence[ChannelEntry]]) -> None:
        """Alert the user to new mentions in the channels of all cabals. Raises the errors of `Cabal`."""
        if not (self._settings.bell or self._settings.notifications):
            return
        new: list[Mention] = []
        for number, entries in enumerate(channels):
            new += await self._new_in(number, {each.name for each in entries if each.mentions and not each.is_muted})
        if new and time.monotonic() >= self._quiet_until_s:
            self._quiet_until_s = time.monotonic() + ALERT_PAUSE_S
            self._alert(new)

    async def _new_in(self, number: int, names: set[str]) -> list[Mention]:
        """Return the new mentions in the channels `names` of cabal `number`, except those that the user sees."""
        found: list[Mention] = []
        if names:
            cabal = self._client.cabal_of(CabalChannel(number, ""))
            found = [each for each in await cabal.latest_mentions(MAX_MENTIONS) if each.is_unread]
        hashes = {each.message.hash for each in found}
        known = self._known.get(number, hashes)
        self._known[number] = hashes
        since_ms = time.time_ns() // 1_000_000 - LIVE_MS
        return [
            each
            for each in found
            if each.message.hash not in known
            and each.message.channel in names
            and each.sent_ms >= since_ms
            and not self._looks_at(CabalChannel(number, each.message.channel))
        ]

    def _looks_at(self, place: CabalChannel) -> bool:
        is_there = self._knows_focus or time.monotonic() - self._input_at_s < PRESENT_S
        return is_there and self._client.is_watched and place == self._client.place

    def _alert(self, new: Sequence[Mention]) -> None:
        if self._settings.bell:
            self._client.bell()
        if self._settings.notifications:
            message, name = new[0].message, short_name(new[0].message.name)
            more = f", and {len(new) - 1} more" if len(new) > 1 else ""
            text = message.text if message.emote is None else f"{name} {message.emote}"
            title = f"{name} in #{message.channel}{more}"
            if sequence := notification(title, text, self._environ):
                self._client.send_sequence(sequence)
