"""Windows over the client: help, and a question that is answered by yes or no."""

from __future__ import annotations

from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from cablestore.chat.commands import COMMANDS

KEYS = {
    "Enter": "Send; Ctrl+J begins a new line",
    "Tab": "Complete a name, a #channel or a /command",
    "Up, Down": "What you sent before",
    "Page Up, Page Down": "Scroll; Ctrl+Home and Ctrl+End go to the ends",
    "Ctrl+N, Ctrl+P": "Next and previous channel",
    "Escape": "Choose a message with the arrow keys, and back",
    "D, H": "Delete the chosen message, hide it",
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
