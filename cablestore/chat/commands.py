"""What is typed: commands, how they are read, and how words are completed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from cablestore.errors import CableStoreError


class Command(NamedTuple):
    """A command of the typing box."""

    arguments: str
    meaning: str


COMMANDS: Final = {
    "join": Command("CHANNEL", "Become a member of a channel and show it"),
    "leave": Command("[CHANNEL]", "Leave this channel, or another one"),
    "mute": Command("[CHANNEL]", "Show no unread number for this channel or another"),
    "unmute": Command("[CHANNEL]", "Show it again"),
    "topic": Command("TEXT", "Set the topic of this channel; without a text, clear it"),
    "nick": Command("NAME", "Change your name"),
    "hide": Command("USER", "Hide the messages of a user, for you alone"),
    "unhide": Command("USER", "Show them again"),
    "block": Command("USER", "Take nothing from a user any more, for you alone"),
    "unblock": Command("USER", "Take posts of a user again"),
    "search": Command("TEXT", "Search all channels; Enter shows a message in its channel"),
    "invite": Command("", "Show the invitation to this cabal, to copy it"),
    "delete": Command("", "Delete your last message in this channel, after a question"),
    "help": Command("", "Show keys and commands"),
    "quit": Command("", "End the client"),
}
"""By name, in the order of the help."""
_OF_A_CHANNEL: Final = ("/join ", "/leave ", "/mute ", "/unmute ")


class Typed(NamedTuple):
    """Meaning of a typed text: a command with its argument, or a message if `command` is empty."""

    command: str
    argument: str


class UnknownCommandError(CableStoreError):
    """A typed command that there is not."""


def read(text: str) -> Typed:
    """Return what a typed text asks for. A message that begins with / is typed as //. Raises UnknownCommandError."""
    if not text.startswith("/") or text.startswith("//"):
        return Typed("", text[1:] if text.startswith("//") else text)
    name, _, argument = text[1:].partition(" ")
    if name not in COMMANDS:
        raise UnknownCommandError(
            f"/{name} is no command: /help lists them; a message that begins with / begins with //"
        )
    command, argument = COMMANDS[name], argument.strip()
    if not argument and command.arguments and not command.arguments.startswith("[") and name != "topic":
        raise UnknownCommandError(f"/{name} needs more: /{name} {command.arguments}")
    return Typed(name, argument)


def joined_channel(text: str) -> str:
    """Return the channel that a typed text joins, "" if it joins none."""
    with suppress(UnknownCommandError):
        typed = read(text)
        if typed.command == "join":
            return channel_of(typed)
    return ""


def channel_of(typed: Typed) -> str:
    """Return the channel that the argument of a command names, "" if it names none."""
    return typed.argument.removeprefix("#")


def completions(text: str, channels: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the texts that a typed text, up to the cursor, may become: by commands, channels or names of users."""
    start = max(text.rfind(" "), text.rfind("\n")) + 1
    head, word = text[:start], text[start:]
    if not word:
        return []
    if not head and word.startswith("/"):
        return [f"/{name} " for name in COMMANDS if name.startswith(word[1:])]
    if word.startswith("#") or head in _OF_A_CHANNEL:
        sign = "#" if word.startswith("#") and head not in _OF_A_CHANNEL else ""
        wanted = word.removeprefix("#")
        return [f"{head}{sign}{name} " for name in channels if _begins(name, wanted)]
    sign, wanted = ("@", word[1:]) if word.startswith("@") else ("", word)
    end = " " if head or sign else ": "
    return [f"{head}{sign}{name}{end}" for name in sorted(set(names), key=str.casefold) if _begins(name, wanted)]


def _begins(name: str, wanted: str) -> bool:
    return name.casefold().startswith(wanted.casefold())


class SentTexts:
    """Texts that were sent, newest last, and a place among them."""

    _KEPT = 200

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._place = 0
        self._draft = ""

    def add(self, text: str) -> None:
        """Add a text that was sent."""
        if not self._texts or self._texts[-1] != text:
            self._texts.append(text)
        del self._texts[: -self._KEPT]
        self._place = len(self._texts)

    def step(self, by: int, shown: str) -> str | None:
        """Return the text that is `by` steps away, None at an end. What is typed now comes back at the newest end."""
        place = self._place + by
        if not 0 <= place <= len(self._texts):
            return None
        if self._place == len(self._texts):
            self._draft = shown
        self._place = place
        return self._draft if place == len(self._texts) else self._texts[place]
