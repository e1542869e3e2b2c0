"""Channels and members as lines of lists, and the order of channels."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.chat.entries import ChannelEntry, Member
from cablestore.chat.line_list import Line
from cablestore.chat.safe_text import clean
from cablestore.chat.timeline import short_name, with_key_digits
from cablestore.moderation import UserRole
from cablestore.plurals import counted
from cablestore.store.naming import KEY_DIGITS

_ROLES: Final = {UserRole.ADMIN: "admin", UserRole.MOD: "mod"}


class CabalChannel(NamedTuple):
    """Channel, with the number of its cabal."""

    cabal: int
    channel: str


class FoldLine(NamedTuple):
    """Key of the line that shows or folds the channels of a cabal that are not joined."""

    folded_cabal: int


def _capped(count: int) -> str:
    return str(count) if count < limits.MAX_UNREAD_COUNTED else f"{limits.MAX_UNREAD_COUNTED - 1}+"


def channel_line(cabal: int, entry: ChannelEntry) -> Line:
    """Return the line of a channel, with its number of mentions or of unread messages.

    A muted channel shows neither number. A channel that is not joined shows only mentions.
    """
    place, name = CabalChannel(cabal, entry.name), f"#{clean(entry.name)}"
    if entry.is_muted:
        return Line(place, name, look="quiet")
    if entry.mentions:
        return Line(place, name, f"@{_capped(entry.mentions)}", "call")
    if not entry.is_joined:
        return Line(place, name, look="quiet")
    return Line(place, name, _capped(entry.unread), "strong") if entry.unread else Line(place, name)


def channel_lines(channels: Sequence[Sequence[ChannelEntry]], folds: Folds, labels: Sequence[str]) -> Iterator[Line]:
    """Yield the channels of each cabal as lines: the joined channels, the fold line, the other visible channels."""
    for number, (entries, label) in enumerate(zip(channels, labels, strict=True)):
        if len(labels) > 1:
            yield Line(None, clean(label), look="title")
        yield from (channel_line(number, entry) for entry in entries if entry.is_joined)
        others = [entry for entry in entries if not entry.is_joined]
        shown = [entry for entry in others if folds.shows(number, entry, entries)]
        if folds.can_fold(entries) and (len(shown) < len(others) or folds.is_open(number)):
            sign = "▾" if folds.is_open(number) else "▸"
            yield Line(FoldLine(number), f"{sign} {counted(len(others), 'other channel')}", look="quiet")
        yield from (channel_line(number, entry) for entry in shown)


class Folds:
    """Folded channels of the lists. By default, channels that are not joined are folded."""

    def __init__(self, place: CabalChannel, unfolded: Collection[int]) -> None:
        """Fold the lists of all cabals except the numbers `unfolded`. The channel at `place` is always shown."""
        self._place = place
        self._unfolded = unfolded

    def is_open(self, cabal: int) -> bool:
        """Return True if all channels of a cabal are shown."""
        return cabal in self._unfolded

    @staticmethod
    def can_fold(entries: Sequence[ChannelEntry]) -> bool:
        """Return True if some but not all channels are joined. A newcomer sees all channels."""
        return any(entry.is_joined for entry in entries) and not all(entry.is_joined for entry in entries)

    def shows(self, cabal: int, entry: ChannelEntry, entries: Sequence[ChannelEntry]) -> bool:
        """Return True if the list shows a channel. It always shows channels with mentions that are not muted."""
        is_named = entry.mentions > 0 and not entry.is_muted
        is_here = CabalChannel(cabal, entry.name) == self._place
        return entry.is_joined or is_named or is_here or self.is_open(cabal) or not self.can_fold(entries)

    def places(self, channels: Sequence[Sequence[ChannelEntry]]) -> list[tuple[CabalChannel, ChannelEntry]]:
        """Return the visible channels of all cabals, in the order of the list."""
        return [
            (CabalChannel(number, entry.name), entry)
            for number, each in enumerate(channels)
            for entry in each
            if self.shows(number, entry, each)
        ]

    def next(self, channels: Sequence[Sequence[ChannelEntry]], by: int) -> CabalChannel | None:
        """Return the channel that is `by` lines further in the list, or None for an empty list.

        The list wraps around.
        """
        places = [place for place, _ in self.places(channels)]
        at = places.index(self._place) if self._place in places else -1
        return places[(at + by) % len(places)] if places else None

    def next_unread(self, channels: Sequence[Sequence[ChannelEntry]]) -> CabalChannel | None:
        """Return the next channel with a badge, or None without such a channel. The list wraps around."""
        entries = self.places(channels)
        at = next((at for at, (each, _) in enumerate(entries) if each == self._place), -1)
        others = entries[at + 1 :] + entries[: max(at, 0)]
        return next((place for place, entry in others if channel_line(place.cabal, entry).badge), None)


def heading(entry: ChannelEntry) -> list[tuple[str, str]]:
    """Return the heading of a channel as styled parts: its name, a mark if it is muted, and its topic."""
    about = "muted  " * entry.is_muted + clean(entry.topic)
    return [(f"#{clean(entry.name)}", "bold"), ("  ", ""), (about, "$text-muted")]


def member_line(member: Member) -> Line:
    """Return the line of a member: `@` for a role, and the state at the right end."""
    name, key = short_name(member.name), member.public_key
    sign = "@" if member.role in _ROLES else " "
    state = "blocked" if member.is_blocked else "hidden" if member.is_hidden else _ROLES.get(member.role, "")
    look = "quiet" if member.is_hidden or member.is_blocked else "strong" if member.is_self else "plain"
    badge = "you" if member.is_self and not state else state
    if member.is_same_named:
        return Line(key.hex()[:KEY_DIGITS], sign + with_key_digits(name, key), badge, look)
    return Line(name, sign + name, badge, look)
