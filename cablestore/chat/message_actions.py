"""What is done with one message: copy, hide, show again, delete. Each act is chosen from a menu, none by a letter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeVar

from textual.screen import Screen

from cablestore.chat.amounts import PAGE_MESSAGES
from cablestore.chat.cabal import Cabal
from cablestore.chat.lines import ChannelPlace
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
    """The client, as these actions see it."""

    def cabal_of(self, place: ChannelPlace) -> Cabal:
        """Return the cabal of a channel."""

    def tell(self, text: str) -> None:
        """Show a line over the typing box."""

    def copy_to_clipboard(self, text: str) -> None:
        """Give a text to the terminal's clipboard."""

    def do(self, work: Callable[[], Awaitable[None]]) -> object:
        """Do work after what was asked for earlier."""

    def ask(self, work: Callable[[], Awaitable[None]]) -> object:
        """Do work that waits for the user."""

    async def answer_of(self, screen: Screen[T]) -> T | None:
        """Show a window and return its result."""


class MessageActions:
    """Actions on single messages, in the cabal where they were chosen: another one may be shown by now."""

    def __init__(self, client: ActingClient) -> None:
        self._client = client

    def copy(self, marked: str | None, chosen: Message | None) -> None:
        """Copy a marked text, or else the chosen message."""
        text = marked or ("" if chosen is None else copied(chosen))
        if text:
            self._client.copy_to_clipboard(text)
        self._client.tell("Copied, if the terminal allows it" if text else "Nothing to copy: Escape chooses a message")

    async def choose(self, open_cabal: Cabal, message: Message) -> None:
        """Show the menu of a message, and do what is chosen there."""
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

    async def delete_last(self, place: ChannelPlace) -> None:
        """Begin to ask whether to delete the last own message. Raises CableStoreError if there are many after it."""
        open_cabal = self._client.cabal_of(place)
        page = await open_cabal.page(place.channel, PAGE_MESSAGES)
        own = next((message for message in page.messages if message.author == open_cabal.own_key), None)
        if own is None:
            raise CableStoreError(
                "none of your messages is near. Scroll to one, choose it with Escape and the arrow keys, and press Enter"
            )
        self._client.ask(partial(self._delete, open_cabal, own))

    async def _delete(self, open_cabal: Cabal, message: Message) -> None:
        """Delete an own message after a question."""
        question = QuestionScreen("Delete this message, here and on peers?", _quoted(message))
        if await self._client.answer_of(question):
            self._client.do(partial(open_cabal.delete, message.hash))

    async def _hide(self, open_cabal: Cabal, message: Message) -> None:
        await open_cabal.moderate("hide", posts=[message.hash])
        self._client.tell("Hidden, for you alone. Enter on the message shows it again")

    async def _show_again(self, open_cabal: Cabal, message: Message) -> None:
        """Undo the hiding of one message. Raises CableStoreError if its author is hidden, which this does not undo."""
        author = await open_cabal.find_users(message.author.hex())
        if any(each.is_hidden for each in author):
            name = short_name(message.name)
            raise CableStoreError(f"all messages of {name} are hidden: /unhide {name} shows them")
        await open_cabal.moderate("unhide", posts=[message.hash])
        self._client.tell("Shown again")


def possible_actions(message: Message, own_key: bytes) -> dict[str, str]:
    """Return the meanings of the actions that a message allows, by name: harmless ones first."""
    if message.is_hidden:
        return {"unhide": "Show it again"}
    actions = {"copy": "Copy its text"}
    if message.author == own_key:
        return actions | {"delete": "Delete it, here and on peers"}
    return actions | {"hide": "Hide it, for you alone"}


def _quoted(message: Message) -> str:
    return "hidden" if message.is_hidden else fit(clean(message.text, lines=True), _QUOTED)
