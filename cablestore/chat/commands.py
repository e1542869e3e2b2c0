"""Table of commands, parsing of typed text, and completion of words. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from cablestore.chat import command_functions
from cablestore.chat.command_functions import Client, Do, Request
from cablestore.chat.lines import CabalChannel
from cablestore.errors import ArgumentError, CableStoreError
from cablestore.store.naming import folded


async def _help(request: Request) -> str:
    if request.argument:
        return explained(request.argument)
    request.client.windows.show_help()
    return ""


class Command(NamedTuple):
    """Command of the typing box. An argument in brackets is optional."""

    arguments: str
    meaning: str
    do: Do
    aliases: tuple[str, ...] = ()

    @property
    def needs_argument(self) -> bool:
        """True if the command requires an argument."""
        return bool(self.arguments) and not self.arguments.startswith("[")


COMMANDS: Final = {
    "join": Command(
        "CHANNEL, ...", "Become a member of channels and show the last one", command_functions.join, ("j",)
    ),
    "leave": Command("[CHANNEL, ...]", "Leave this channel, or others", command_functions.leave, ("part",)),
    "close": Command(
        "[CHANNEL]", "Leave this channel or another, and show the next joined channel", command_functions.close
    ),
    "names": Command("[CHANNEL]", "List the members of this channel or another", command_functions.names),
    "topic": Command(
        "[TEXT]", "Show the topic of this channel, or set it; /topic - clears it", command_functions.topic
    ),
    "mute": Command("[CHANNEL]", "Hide the unread count of this channel or another", command_functions.mute),
    "unmute": Command("[CHANNEL]", "Show the unread count of this channel or another", command_functions.unmute),
    "me": Command("TEXT", "Describe an action: /me waves is shown as * ann waves", command_functions.emote),
    "nick": Command("[NAME]", "Change your name, or show it", command_functions.nick, ("name",)),
    "whois": Command("USER", "Show the public key, role and channels of a user", command_functions.whois),
    "hide": Command("USER", "Hide the messages of a user, only for you", command_functions.hide, ("ignore",)),
    "unhide": Command(
        "USER", "Show the messages of a user again: undo all your hides", command_functions.unhide, ("unignore",)
    ),
    "hidden": Command("", "List hidden users and messages, with author and reason", command_functions.hidden),
    "block": Command("USER", "Reject all posts of a user, only for you", command_functions.block),
    "unblock": Command("USER", "Accept the posts of a user again: undo all your blocks", command_functions.unblock),
    "blocked": Command("", "List blocked users, with author and reason", command_functions.blocked),
    "search": Command(
        "TEXT",
        'Search all channels for words with this prefix, or "quoted" words; Enter shows a message',
        command_functions.search,
    ),
    "mentions": Command(
        "", "List the messages that mention you, in all channels; Enter shows a message", command_functions.mentions
    ),
    "invite": Command("", "Show the invitation to this cabal, to copy it", command_functions.invite),
    "delete": Command("", "Delete your last message in this channel, after confirmation", command_functions.delete),
    "help": Command("[COMMAND]", "Show keys and commands, or explain one command", _help),
    "quit": Command("[REASON]", "Quit the client; the reason is not sent", command_functions.end, ("exit",)),
}
"""Commands by name, in the order of the help."""
_BY_NAME: Final = COMMANDS | {alias: each for each in COMMANDS.values() for alias in each.aliases}
_NO_PRIVATE: Final = "Messages cannot be private: all members of the cabal can read every channel"
_ELSEWHERE: Final = {
    **dict.fromkeys(("msg", "query", "notice", "dm", "whisper"), _NO_PRIVATE),
    **dict.fromkeys(
        ("kick", "ban", "unban", "op", "deop", "voice", "devoice", "mode"),
        "`cablestore role`, `hide`, `drop` and `block` moderate; /hide and /block apply only for you",
    ),
    **dict.fromkeys(
        ("list", "channels"), "The list on the left shows the channels; /help shows the key for the next channel"
    ),
    **dict.fromkeys(("away", "back"), "The client does not report whether you are away"),
    **dict.fromkeys(("connect", "server", "disconnect", "reconnect"), "Start the client with --connect HOST:PORT"),
    **dict.fromkeys(("who", "users"), "/names lists the members of a channel, and `cablestore users` lists all users"),
    "clear": "/help shows the key for the newest messages",
    "window": "/help shows the keys for the next and the previous channel",
}
"""IRC commands that the client does not have, with their alternatives."""
_OF_CHANNELS: Final = tuple(name for name, each in _BY_NAME.items() if each.arguments.strip("[]").startswith("CHANNEL"))
_OF_USERS: Final = tuple(name for name, each in _BY_NAME.items() if each.arguments == "USER")
_MAX_NAME_CHARACTERS: Final = 80
"""Maximum length of a completed name. Names of users and channels are not longer."""


class Typed(NamedTuple):
    """Parsed text: a command with its argument, or a message if `command` is empty."""

    command: str
    argument: str


def read(text: str) -> Typed:
    """Parse a typed text. Raises ArgumentError for an invalid command.

    A text that begins with // is a message that begins with /. A path such as /etc/hosts is also a message.
    """
    if not text.startswith("/") or text.startswith("//"):
        return Typed("", text[1:] if text.startswith("//") else text)
    name, argument = (*re.split(r"\s", text[1:], maxsplit=1), "")[:2]
    if not name or "/" in name:
        return Typed("", text)
    name, argument = name.lower(), argument.strip()
    if name not in _BY_NAME:
        instead = _ELSEWHERE.get(name, "/help lists all commands")
        raise ArgumentError(f"Unknown command /{name}. {instead}. Type // to send a text that begins with /")
    command = _BY_NAME[name]
    if command.needs_argument and not argument:
        raise ArgumentError(f"/{name} needs an argument: /{name} {command.arguments}. {command.meaning}")
    if not command.arguments and argument:
        raise ArgumentError(f"/{name} does not accept an argument: {argument!r}. {command.meaning}: /{name}")
    return Typed(next(each for each in COMMANDS if COMMANDS[each] is command), argument)


async def run(text: str, client: Client, place: CabalChannel) -> str:
    """Post a message or run a command in a channel. Return the report to show. Raises CableStoreError if it fails."""
    typed = read(text)
    do = COMMANDS[typed.command].do if typed.command else command_functions.say
    return await do(Request(client, place, typed.argument))


def explained(name: str) -> str:
    """Return the help on one command. Raises ArgumentError for an unknown command."""
    wanted = name.strip().removeprefix("/").lower()
    if wanted not in _BY_NAME:
        raise ArgumentError(f"Unknown command /{wanted}. {_ELSEWHERE.get(wanted, '/help lists all commands')}")
    command = _BY_NAME[wanted]
    others = [each for each, known in _BY_NAME.items() if known is command and each != wanted]
    also = f" Other names: {', '.join(f'/{each}' for each in others)}." if others else ""
    return f"{f'/{wanted} {command.arguments}'.strip()}: {command.meaning}.{also}"


def is_a_message(text: str) -> bool:
    """Return True if a typed text is a message, emote or topic. The client keeps such a text if it cannot be sent."""
    with suppress(ArgumentError):
        return read(text).command in ("", "me", "topic")
    return False


def joined_channel(text: str, known: Iterable[str]) -> str:
    """Return the channel to show after a typed text joined channels, or ""."""
    with suppress(CableStoreError):
        typed = read(text)
        if typed.command == "join":
            return command_functions.channels_in(typed.argument, known)[-1]
    return ""


# --- completion -----------------------------------------------------------------------------------


def completions(text: str, channels: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the possible completions of a text up to the cursor: commands, channels or names of users.

    Names can contain spaces. The longest suffix of the text with which a name begins is completed.
    """
    if text.startswith("/") and not text.startswith("//") and not re.search(r"\s", text):
        return [f"/{name} " for name in _BY_NAME if name.startswith(text[1:].lower())]
    command = re.match(r"/(\S+)\s", text)
    name = command[1].lower() if command else ""
    users = sorted(set(names), key=folded)
    for at in _word_starts(text):
        head, begun = text[:at], text[at:]
        if name in _OF_CHANNELS or head.endswith("#"):
            found, end = [each for each in channels if _begins(each, begun)], " "
        else:
            is_address = not head.strip() and name not in _OF_USERS
            found, end = [each for each in users if _begins(each, begun)], ": " if is_address else " "
        if found:
            return [f"{head}{each}{end}" for each in found]
    return []


def _word_starts(text: str) -> Iterator[int]:
    """Yield the starts of words in the text, the earliest first: after a space, `@`, `#`, or a bracket."""
    first = max(0, len(text) - _MAX_NAME_CHARACTERS)
    for at in range(first, len(text)):
        starts = at == 0 or not (text[at - 1].isalnum() or text[at - 1] == "_")
        if starts and not text[at].isspace() and text[at] not in "@#":
            yield at


def _begins(name: str, begun: str) -> bool:
    return folded(name).startswith(folded(begun))


class SentTexts:
    """History of sent texts, newest last, with a current position."""

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
        """Move by `by` steps, and return the text at the new position, or None beyond an end.

        The unsent text `shown` follows the newest text, so that the user can return to it.
        """
        place = self._place + by
        if not 0 <= place <= len(self._texts):
            return None
        if self._place == len(self._texts):
            self._draft = shown
        self._place = place
        return self._draft if place == len(self._texts) else self._texts[place]
