"""Window with the latest messages of all cabals that mention the user."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import ClassVar, Final, NamedTuple

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from cablestore.chat.entries import Mention
from cablestore.chat.lines import CabalChannel
from cablestore.chat.safe_text import clean, fit
from cablestore.chat.timeline import local, short_name
from cablestore.plurals import counted
from cablestore.store.display import Message

_TEXT_CELLS: Final = 160


class ListedMention(NamedTuple):
    """Mention and its channel, with the label of its cabal if there are several."""

    place: CabalChannel
    mention: Mention
    label: str


class MentionScreen(ModalScreen[tuple[CabalChannel, Message] | None]):
    """Window with the messages that mention the user. Its result is the chosen message and its channel."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
    ]

    def __init__(self, found: Sequence[ListedMention], zone: tzinfo | None) -> None:
        super().__init__()
        self._found = found
        self._zone = zone

    def compose(self) -> ComposeResult:
        """List the messages."""
        options = [Option(_line(each, self._zone)) for each in self._found]
        listed = OptionList(*options, classes="window found", compact=True)
        unread = sum(each.mention.is_unread for each in self._found)
        title = f"{counted(len(options), 'message')} with mentions of you, {unread:,} unread"
        listed.border_title = title if options else "No mentions of you yet"
        listed.border_subtitle = "Enter shows a message, Escape closes" if options else "Escape closes"
        yield listed

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Dismiss the window with the message."""
        event.stop()
        chosen = self._found[event.option_index]
        if self.is_active:  # ignores a second Enter
            self.dismiss((chosen.place, chosen.mention.message))


def _line(found: ListedMention, zone: tzinfo | None) -> Content:
    message, is_unread = found.mention.message, found.mention.is_unread
    when = f"{local(message.timestamp_ms, zone):%Y-%m-%d %H:%M}"
    label = f"  {clean(found.label)}" if found.label else ""
    name = short_name(message.name)
    head = f"{'●' if is_unread else ' '} {when}  #{clean(message.channel)}  {name}{label}"
    text = message.text if message.emote is None else f"* {name} {message.emote}"
    shown = fit(" ".join(clean(text, lines=True).split()), _TEXT_CELLS)
    return Content.assemble((head, "$accent bold" if is_unread else "$text-muted"), "\n  ", shown)
