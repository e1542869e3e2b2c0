"""First screen of the client: the channel to show, and instructions for a newcomer. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cablestore.chat.cabal import Cabal
from cablestore.chat.connection_text import OFFLINE
from cablestore.chat.entries import ChannelEntry
from cablestore.chat.keys import Keys
from cablestore.chat.safe_text import clean
from cablestore.chat.timeline import short_name
from cablestore.store.lookup import find_channel

_FIRST_CHANNEL = "default"
_NO_MESSAGES = "No messages yet: write the first one"


def first_channel(typed: str, entries: Sequence[ChannelEntry]) -> str:
    """Return the channel to show first: `typed`, or else `default` if it is joined, or else the first joined channel.

    If none is joined, return `default` if it or no channel exists, otherwise the first channel. Raises NotFoundError
    if `typed` is ambiguous.
    """
    if typed:
        return find_channel(typed, [entry.name for entry in entries])
    known = [entry.name for entry in entries if entry.is_joined] or [entry.name for entry in entries]
    return known[0] if known and _FIRST_CHANNEL not in known else _FIRST_CHANNEL


def note_of(cabal: Cabal, own_name: str, channel: str, entries: Sequence[ChannelEntry], keys: Keys) -> list[str]:
    """Return the lines for a channel without messages. `entries` are all channels of its cabal.

    A user who has a name and knows other channels is not a newcomer, and gets one line.
    """
    if own_name and any(entry.name != channel for entry in entries):
        return [_NO_MESSAGES]
    return [
        f"{_NO_MESSAGES}, and press Enter",
        "",
        *_user(clean(own_name), short_name(cabal.own_key.hex())),
        f"This is #{clean(channel)} in the cabal {clean(cabal.label)}",
        *_connection(cabal.connection, keys),
        "/join CHANNEL opens another channel",
        keys.shown("{help} shows all keys and commands"),
    ]


def _user(own_name: str, digits: str) -> list[str]:
    if own_name:
        return [f"You are {own_name}, key {digits}. /nick NAME changes your name"]
    return [f"You are {digits}, the first digits of your key", "/nick NAME sets your name"]


def _connection(connection: str, keys: Keys) -> list[str]:
    if connection == OFFLINE:
        return ["You are offline. To reach others, start the client with --listen, --connect or --invitation"]
    return [f"Connection: {connection}", keys.shown("{invitation} shows the invitation for new members")]
