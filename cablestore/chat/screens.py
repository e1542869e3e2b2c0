"""Windows over the client: help, a question, actions, an invitation, and search results.

Keys that type text have no effect in a window: the client forwards typed text to the typing box.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import tzinfo
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from cablestore.chat.commands import COMMANDS
from cablestore.chat.keys import Keys
from cablestore.chat.safe_text import clean
from cablestore.chat.timeline import local, short_name
from cablestore.plurals import counted
from cablestore.store.display import Message
from cablestore.store.emotes import shown_parts
from cablestore.store.searching import SearchHit, SearchPage

FIXED_KEYS = {
    "Enter": "Send; Ctrl+J begins a new line",
    "Tab": "Complete a name, a #channel or a /command",
    "Up, Down": "Recall sent messages",
    "Escape": "Choose a message with the arrow keys, or stop",
    "Enter on a message": "Copy, hide, show again or delete it",
    "Right, Left": "Expand or collapse the chosen message",
    "Ctrl+Y": "Confirm a deletion",
}


class HelpScreen(ModalScreen[None]):
    """Window with keys and commands."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "Close"),
    ]

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys

    def on_key(self, event: events.Key) -> None:
        """Close the window with a key that opens the help."""
        if event.key in self._keys.of["help"]:
            event.stop()
            self.dismiss()

    def compose(self) -> ComposeResult:
        """Show both tables."""
        table = Table.grid(padding=(0, 3))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for key, meaning in (*FIXED_KEYS.items(), *self._keys.table()):
            table.add_row(key, meaning)
        table.add_row("", "")
        for name, command in COMMANDS.items():
            table.add_row(Text(f"/{name} {command.arguments}".strip()), command.meaning)
        with VerticalScroll(classes="window") as window:
            window.border_title = "Keys and commands"
            window.border_subtitle = "Escape closes"
            yield Static(table)


class QuestionScreen(ModalScreen[bool]):
    """Question before an action that cannot be undone. Its result is True if the user confirms.

    The key that confirms does not type text. A key pressed before the question is visible is ignored.
    """

    def __init__(self, question: str, quoted: str) -> None:
        super().__init__()
        self._question = question
        self._quoted = quoted

    def compose(self) -> ComposeResult:
        """Show the question and the quoted message."""
        with VerticalScroll(classes="window question") as window:
            window.border_title = self._question
            window.border_subtitle = "Ctrl+Y yes, Escape no"
            yield _Quoted(self._quoted, markup=False)

    def on_key(self, event: events.Key) -> None:
        """Dismiss the window with the answer."""
        if event.key == "escape" or (event.key == "ctrl+y" and event.time > self.query_one(_Quoted).drawn_at_s):
            event.stop()
            self.dismiss(event.key == "ctrl+y")


class _Quoted(Static):
    """Text that records when it was first drawn."""

    drawn_at_s = math.inf

    def render_lines(self, crop: Region) -> list[Strip]:
        """Draw the text."""
        self.drawn_at_s = min(self.drawn_at_s, time.monotonic())
        return super().render_lines(crop)


class ActionsScreen(ModalScreen[str | None]):
    """Menu of actions on a message. Its result is the name of the chosen action."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
    ]

    def __init__(self, title: str, actions: Mapping[str, str]) -> None:
        super().__init__()
        self._title = title
        self._actions = actions

    def compose(self) -> ComposeResult:
        """List the descriptions of the actions."""
        options = [Option(meaning, id=name) for name, meaning in self._actions.items()]
        listed = OptionList(*options, classes="window question", compact=True)
        listed.border_title = Content(self._title)
        listed.border_subtitle = "Enter chooses, Escape closes"
        yield listed

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Dismiss the window with the action."""
        event.stop()
        if self.is_active:  # ignores a second Enter
            self.dismiss(event.option_id)


class InvitationScreen(ModalScreen[None]):
    """Window with the invitation to a cabal, to copy it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "Close"),
    ]

    def __init__(self, invitation: str, keys: Keys) -> None:
        super().__init__()
        self._invitation = invitation
        self._keys = keys

    def compose(self) -> ComposeResult:
        """Show the invitation, and a warning about sharing it."""
        with VerticalScroll(classes="window") as window:
            window.border_title = "Invitation to this cabal"
            window.border_subtitle = self._keys.shown("{copy} copies, Escape closes")
            yield Static(self._invitation, markup=False)
            yield Static("Anyone with this invitation can join the cabal and read its messages.", classes="aside")

    def on_key(self, event: events.Key) -> None:
        """Copy the invitation to the terminal's clipboard."""
        if event.key not in self._keys.of["copy"]:
            return
        event.stop()
        event.prevent_default()
        self.app.copy_to_clipboard(self._invitation)
        self.query_one(VerticalScroll).border_subtitle = "Copied, if the terminal allows it. Escape closes"


class FoundScreen(ModalScreen[Message | None]):
    """Window with the messages that match a search. Its result is the chosen message."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
    ]

    def __init__(self, text: str, page: SearchPage, zone: tzinfo | None) -> None:
        super().__init__()
        self._text = text
        self._page = page
        self._zone = zone

    def compose(self) -> ComposeResult:
        """List the search results, newest first."""
        hits = self._page.hits
        found = OptionList(*(Option(self._line(hit)) for hit in hits), classes="window found", compact=True)
        newest = "newest " if self._page.cursor else ""
        number = counted(len(hits), f"{newest}result") if hits else "no results"
        found.border_title = Content(f"{number} for {clean(self._text)}")
        left = f"{counted(self._page.pending, 'post')} not indexed yet, " if self._page.pending else ""
        found.border_subtitle = f"{left}Enter shows a message, Escape closes"
        yield found

    def _line(self, hit: SearchHit) -> Content:
        message = hit.message
        moment = local(message.timestamp_ms, self._zone)
        sign, parts = ("", hit.excerpt.parts()) if message.emote is None else ("* ", shown_parts(hit.excerpt.parts()))
        head = f"{moment:%Y-%m-%d %H:%M}  #{clean(message.channel)}  {sign}{short_name(message.name)}"
        text = [(part, "$accent bold" if is_match else "") for part, is_match in parts]
        return Content.assemble((head, "$text-muted"), "\n  ", *text)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Dismiss the window with the message."""
        event.stop()
        if self.is_active:  # ignores a second Enter
            self.dismiss(self._page.hits[event.option_index].message)
