"""Windows over the client: help, and a question that is answered by yes or no."""

from __future__ import annotations

from datetime import tzinfo
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from cablestore.chat.commands import COMMANDS
from cablestore.chat.safe_text import clean
from cablestore.chat.timeline import local, short_name
from cablestore.store.display import Message
from cablestore.store.searching import SearchHit, SearchPage

KEYS = {
    "Enter": "Send; Ctrl+J begins a new line",
    "Tab": "Complete a name, a #channel or a /command",
    "Up, Down": "What you sent before",
    "Page Up, Page Down": "Scroll; Ctrl+Home and Ctrl+End go to the ends",
    "Ctrl+N, Ctrl+P": "Next and previous channel",
    "F5": "Next channel with unread messages",
    "Escape": "Choose a message with the arrow keys, and back",
    "D, H": "Delete the chosen message, hide it",
    "F4": "Invitation to this cabal",
    "F2": "List of members",
    "F3": "Light or dark",
    "Ctrl+Q": "End",
}


class HelpScreen(ModalScreen[None]):
    """Keys and commands."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,f1,enter", "dismiss", "Close"),
    ]

    def compose(self) -> ComposeResult:
        """Show both tables."""
        table = Table.grid(padding=(0, 3))
        table.add_column(no_wrap=True, style="bold")
        table.add_column()
        for key, meaning in KEYS.items():
            table.add_row(key, meaning)
        table.add_row("", "")
        for name, command in COMMANDS.items():
            table.add_row(Text(f"/{name} {command.arguments}".strip()), command.meaning)
        with VerticalScroll(classes="window") as window:
            window.border_title = "Keys and commands"
            window.border_subtitle = "Escape closes"
            yield Static(table)


class QuestionScreen(ModalScreen[bool]):
    """A question. Dismissed with whether the answer is yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
    ]

    def __init__(self, question: str, quoted: str) -> None:
        super().__init__()
        self._question = question
        self._quoted = quoted

    def compose(self) -> ComposeResult:
        """Show the question and what it is about."""
        with VerticalScroll(classes="window question") as window:
            window.border_title = self._question
            window.border_subtitle = "Y yes, N no"
            yield Static(self._quoted, markup=False)

    def action_answer(self, answer: bool) -> None:
        """Close with the answer."""
        self.dismiss(answer)


class InvitationScreen(ModalScreen[None]):
    """The invitation to a cabal, to copy it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter", "dismiss", "Close"),
        Binding("c", "copy", "Copy"),
    ]

    def __init__(self, invitation: str) -> None:
        super().__init__()
        self._invitation = invitation

    def compose(self) -> ComposeResult:
        """Show the invitation and who may have it."""
        with VerticalScroll(classes="window") as window:
            window.border_title = "Invitation to this cabal"
            window.border_subtitle = "C copies, Escape closes"
            yield Static(self._invitation, markup=False)
            yield Static(
                "Everyone who has this line can join the cabal and read what is written in it.", classes="aside"
            )

    def action_copy(self) -> None:
        """Give the invitation to the terminal's clipboard."""
        self.app.copy_to_clipboard(self._invitation)
        self.query_one(VerticalScroll).border_subtitle = "Copied, if the terminal allows it. Escape closes"


class FoundScreen(ModalScreen[Message | None]):
    """Messages that match a search. Dismissed with the one that was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Close"),
    ]

    def __init__(self, text: str, page: SearchPage, zone: tzinfo | None) -> None:
        super().__init__()
        self._text = text
        self._page = page
        self._zone = zone

    def compose(self) -> ComposeResult:
        """List what was found, the newest first."""
        hits = self._page.hits
        found = OptionList(*(Option(self._line(hit)) for hit in hits), classes="window found", compact=True)
        number = f"the {len(hits)} newest" if self._page.cursor else f"{len(hits) or 'nothing'}"
        found.border_title = Content(f"{number} for {clean(self._text)}")
        left = f"{self._page.pending:,} posts are not searched yet, " if self._page.pending else ""
        found.border_subtitle = f"{left}Enter shows a message, Escape closes"
        yield found

    def _line(self, hit: SearchHit) -> Content:
        message = hit.message
        moment = local(message.timestamp_ms, self._zone)
        head = f"{moment:%Y-%m-%d %H:%M}  #{clean(message.channel)}  {short_name(message.name)}"
        text = [(part, "$accent bold" if is_match else "") for part, is_match in hit.excerpt.parts()]
        return Content.assemble((head, "$text-muted"), "\n  ", *text)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the message."""
        event.stop()
        self.dismiss(self._page.hits[event.option_index].message)
