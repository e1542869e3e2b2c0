"""Actions on one message: copy, hide, show again, delete. The user chooses them from a menu, not with letter keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from textual.screen import Screen

from cablestore.chat.cabal import Cabal
from cablestore.chat.display_limits import PAGE_MESSAGES
from cablestore.chat.lines import CabalChannel
from cablestore.chat.marked_text import copied
from cablestore.chat.safe_text import clean, fit
from cablestore.chat.screens import ActionsScreen, QuestionScreen
from cablestore.chat.timeline import short_name
from cablestore.errors import CableStoreError
from cablestore.store.display import Message

T = TypeVar("T")
_QUOTED: Final = 300
_TITLE: Final = 40


class ActingClient(Protocol):
    """The client's methods that these actions use."""

    def cabal_of(self, place: CabalChannel) -> Cabal:
        """Return the cabal of a channel."""

    def show_notice(self, text: str) -> None:
        """Show a line above the typing box."""

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text to the terminal's clipboard."""

    def do(self, work: Callable[[], Awaitable[None]]) -> object:
        """Run work after earlier requests."""

    def run_dialog(self, work: Callable[[], Awaitable[None]]) -> object:
        """Run work that waits for the user."""

    async def answer_of(self, screen: Screen[T]) -> T | None:
        """Show a window and return its result, or None if the user cancels."""


class MessageActions:
    """Actions on single messages, in the cabal of the message, even if the client shows another cabal meanwhile."""

    def __init__(self, client: ActingClient) -> None:
        self._client = client

    def copy(self, marked: str | None, chosen: Message | None) -> None:
        """Copy a selected text, or else the chosen message."""
        text = marked or ("" if chosen is None else copied(chosen))
        if text:
            self._client.copy_to_clipboard(text)
        self._client.show_notice(
            "Copied, if the terminal allows it" if text else "Nothing to copy. Escape chooses a message"
        )

    async def choose(self, open_cabal: Cabal, message: Message) -> None:
        """Show the menu of a message, and run the chosen action."""
        actions = possible_actions(message, open_cabal.own_key)
        title = fit(f"{short_name(message.name)}: {_quoted(message)}".replace("\n", " "), _TITLE)
        match await self._client.answer_of(ActionsScreen(title, actions)):
            case "copy":
                self.copy("", message)
            case "hide":
                self._client.do(partial(self._hide, open_cabal, message))
            case "unhide":
                self._client.do(partial(self._show_again, open_cabal, message))
            case "delete":
                await self._delete(open_cabal, message)

    async def delete_last(self, place: CabalChannel) -> None:
        """Request confirmation to delete the user's last message.

        Raises CableStoreError if the message is not near the end of the channel.
        """
        open_cabal = self._client.cabal_of(place)
        page = await open_cabal.page(place.channel, PAGE_MESSAGES)
        own = next((message for message in page.messages if message.author == open_cabal.own_key), None)
        if own is None:
            raise CableStoreError(
                "None of your messages is near the end of the channel. Scroll to a message, choose it with Escape and "
                "the arrow keys, and press Enter"
            )
        self._client.run_dialog(partial(self._delete, open_cabal, own))

    async def _delete(self, open_cabal: Cabal, message: Message) -> None:
        """Delete a message of the user after confirmation."""
        question = QuestionScreen("Delete this message, here and on peers?", _quoted(message))
        if await self._client.answer_of(question):
            self._client.do(partial(open_cabal.delete, message.hash))

    async def _hide(self, open_cabal: Cabal, message: Message) -> None:
        await open_cabal.moderate("hide", posts=[message.hash])
        self._client.show_notice("The message is hidden, only for you. To show it again, press Enter on it")

    async def _show_again(self, open_cabal: Cabal, message: Message) -> None:
        """Undo the hiding of one message. Raises CableStoreError if its author is hidden."""
        author = await open_cabal.find_users(message.author.hex())
        if any(each.is_hidden for each in author):
            name = short_name(message.name)
            raise CableStoreError(f"All messages of {name} are hidden. /unhide {name} shows them")
        await open_cabal.moderate("unhide", posts=[message.hash])
        self._client.show_notice("The message is shown again")


def possible_actions(message: Message, own_key: bytes) -> dict[str, str]:
    """Return the descriptions of the actions that a message allows, by name: harmless actions first."""
    if message.is_hidden:
        return {"unhide": "Show it again"}
    actions = {"copy": "Copy its text"}
    if message.author == own_key:
        return actions | {"delete": "Delete it, here and on peers"}
    return actions | {"hide": "Hide it, only for you"}


def _quoted(message: Message) -> str:
    return "hidden" if message.is_hidden else fit(clean(message.text, lines=True), _QUOTED)
