"""Channels and members as lines of lists, and which channel is next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.chat.cabal import ChannelEntry, Member
from cablestore.chat.line_list import Line
from cablestore.chat.safe_text import clean
from cablestore.chat.timeline import short_name
from cablestore.moderation import UserRole

_ROLE_SIGNS: Final = {UserRole.ADMIN: "@", UserRole.MOD: "+", UserRole.USER: ""}


class ChannelPlace(NamedTuple):
    """Place that is shown: a cabal, by its number, and a channel of it."""

    cabal: int
    channel: str


def counted(count: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _capped(count: int) -> str:
    return str(count) if count < limits.MAX_UNREAD_COUNTED else f"{limits.MAX_UNREAD_COUNTED - 1}+"


def channel_line(cabal: int, entry: ChannelEntry) -> Line:
    """Return a channel as a line, with its number of mentions or else of unread messages; a muted one has neither."""
    if entry.is_muted:
        return Line(ChannelPlace(cabal, entry.name), f"#{clean(entry.name)}", look="quiet")
    if entry.mentions:
        look = "call"
    elif entry.unread:
        look = "strong"
    else:
        look = "plain" if entry.is_joined else "quiet"
    badge = f"@{_capped(entry.mentions)}" if entry.mentions else _capped(entry.unread) if entry.unread else ""
    return Line(ChannelPlace(cabal, entry.name), f"#{clean(entry.name)}", badge, look)


def heading(entry: ChannelEntry) -> list[tuple[str, str]]:
    """Return what is over the messages of a channel, with styles: its name, whether it is muted, its topic."""
    about = "muted  " * entry.is_muted + clean(entry.topic)
    return [(f"#{clean(entry.name)}", "bold"), ("  ", ""), (about, "$text-muted")]


def listed(channels: Sequence[Sequence[ChannelEntry]]) -> list[tuple[ChannelPlace, ChannelEntry]]:
    """Return the channels of all cabals in the order of the list."""
    return [(ChannelPlace(number, entry.name), entry) for number, each in enumerate(channels) for entry in each]


def next_unread(channels: Sequence[Sequence[ChannelEntry]], place: ChannelPlace) -> ChannelPlace | None:
    """Return the next channel after a place that has unread messages and is not muted; after the last, the first."""
    entries = listed(channels)
    at = next((at for at, (each, _) in enumerate(entries) if each == place), -1)
    others = entries[at + 1 :] + entries[: max(at, 0)]
    return next((each for each, entry in others if entry.unread and not entry.is_muted), None)


def member_line(member: Member) -> Line:
    """Return a member as a line, with a sign for its role."""
    name = short_name(member.name)
    look = "quiet" if member.is_hidden else "strong" if member.is_self else "plain"
    return Line(name, f"{_ROLE_SIGNS[member.role]:1}{name}", look=look)
