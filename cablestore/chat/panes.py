"""Panes around the messages: channels, members, the heading, and the last line with the state and the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from textual.app import App
from textual.content import Content
from textual.widgets import Static

from cablestore.chat.cabal import Cabal
from cablestore.chat.entries import ChannelEntry, Member
from cablestore.chat.keys import Keys
from cablestore.chat.line_list import Line, LineList
from cablestore.chat.lines import CabalChannel, Folds, channel_lines, heading, member_line
from cablestore.chat.safe_text import clean
from cablestore.chat.timeline import short_name
from cablestore.plurals import counted

HINTS: Final = {
    "message chosen": "Enter menu   {copy} copy   Escape back   {help} help",
    "without a name": "/nick NAME sets your name   {help} help",
    "typing": "{help} help",
}
"""Text about keys in the last line, for each activity of the user. Names of actions in braces become their keys."""


class Panes:
    """Panes of a client, and their folded channels."""

    def __init__(self, app: App[None], labels: Sequence[str], keys: Keys) -> None:
        """Create the panes of a client for cabals with these labels."""
        self._app = app
        self._labels = labels
        self._keys = keys
        self._unfolded: set[int] = set()
        """Cabals whose channels are all listed."""

    def folds(self, place: CabalChannel) -> Folds:
        """Return the folded channels. The channel at `place` is not folded."""
        return Folds(place, self._unfolded)

    def fold(self, cabal: int) -> None:
        """Toggle whether the list contains the channels of a cabal that are not joined."""
        self._unfolded ^= {cabal}

    def show_lists(
        self,
        channels: Sequence[Sequence[ChannelEntry]],
        members: Sequence[Member],
        place: CabalChannel,
        shown: ChannelEntry,
    ) -> None:
        """Show the channels of all cabals, and the members of the channel at `place`, which `shown` describes."""
        listed = [list(entries) for entries in channels]
        here = listed[place.cabal]
        at = next((at for at, each in enumerate(here) if each.name == shown.name), len(here))
        here[at : at + 1] = [shown]
        lines = channel_lines(listed, self.folds(place), self._labels)
        self._app.query_one("#channels", LineList).show(list(lines), place)
        title = Line(None, counted(len(members), "member"), look="title")
        self._app.query_one("#members", LineList).show([title, *map(member_line, members)])
        self._show("#heading", Content.assemble(*heading(shown)))

    def show_state(self, cabal: Cabal, own_name: str, *, is_chosen: bool) -> None:
        """Show the last line: connections of a cabal, the user's name, and keys. `is_chosen`: a message is chosen."""
        name = clean(own_name) or short_name(cabal.own_key.hex())
        parts = [f"{'●' if cabal.is_connected else '○'} {cabal.connection}", name, *cabal.listening]
        self._show("#state", "   ".join(parts))
        hint = HINTS["message chosen" if is_chosen else "typing" if own_name else "without a name"]
        self._show("#hints", self._keys.shown(hint))

    def _show(self, pane: str, content: str | Content) -> None:
        """Show a text in a pane, unless it is unchanged: Textual lays out the whole screen at each update."""
        static = self._app.query_one(pane, Static)
        if static.content != content:
            static.update(content)

    def toggle_members(self) -> None:
        """Show or hide the members."""
        screen, is_shown = self._app.screen, bool(self._app.query_one("#members").display)
        screen.set_class(not is_shown, "members-shown")
        screen.set_class(is_shown, "members-away")
