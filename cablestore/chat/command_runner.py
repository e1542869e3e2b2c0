"""What typed texts do: post a message, run a command. It says what the client shall show next, and draws nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from cablestore.chat import commands
from cablestore.chat.cabal import Cabal, PrivateAct
from cablestore.chat.lines import ChannelPlace
from cablestore.errors import CableStoreError


class Client(Protocol):
    """The client, as commands see it."""

    def cabal_of(self, place: ChannelPlace) -> Cabal:
        """Return the cabal of a channel."""

    async def show_channel(self, place: ChannelPlace) -> None:
        """Show a channel."""

    async def show_found(self, place: ChannelPlace, text: str) -> None:
        """Show the messages of a cabal that match a search."""

    async def show_invitation(self, place: ChannelPlace) -> None:
        """Show the invitation to a cabal."""

    def show_help(self) -> None:
        """Show keys and commands."""

    def show_end(self, place: ChannelPlace) -> None:
        """Show the newest messages of a channel, if it is the one that is shown."""

    async def ask_to_delete_last(self, place: ChannelPlace) -> None:
        """Ask whether the last own message of a channel shall be deleted."""

    async def end(self) -> None:
        """End the client."""


class CommandRunner:
    """Runner of what is typed, on the cabal and in the channel where it was sent: another one may be shown by now."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._simple: dict[str, Callable[[ChannelPlace], Awaitable[None] | None]] = {
            "delete": client.ask_to_delete_last,
            "help": lambda _: client.show_help(),
            "invite": client.show_invitation,
            "quit": lambda _: client.end(),
        }

    async def run(self, text: str, place: ChannelPlace) -> None:
        """Post a message, or run a command. Raises CableStoreError if that is not possible."""
        typed = commands.read(text)
        client, open_cabal = self._client, self._client.cabal_of(place)
        match typed.command:
            case "":
                await open_cabal.text(place.channel, typed.argument.rstrip())
                client.show_end(place)
            case "join":
                await open_cabal.join(commands.channel_of(typed))
                await client.show_channel(place._replace(channel=commands.channel_of(typed)))
            case "leave":
                await open_cabal.leave(commands.channel_of(typed) or place.channel)
            case "mute" | "unmute":
                await self._mute(typed, place)
            case "topic":
                await open_cabal.topic(place.channel, typed.argument)
            case "nick":
                await open_cabal.set_name(typed.argument)
            case "search":
                await client.show_found(place, typed.argument)
            case "hide" | "unhide" | "block" | "unblock":
                await self._moderate(typed, open_cabal)
            case simple:
                waiting = self._simple[simple](place)
                if waiting is not None:
                    await waiting

    async def _mute(self, typed: commands.Typed, place: ChannelPlace) -> None:
        open_cabal, channel = self._client.cabal_of(place), commands.channel_of(typed) or place.channel
        if channel != place.channel and all(entry.name != channel for entry in await open_cabal.channels()):
            raise CableStoreError(f"there is no channel {channel!r} here: Tab completes the names of those that are")
        await (open_cabal.mute if typed.command == "mute" else open_cabal.unmute)(channel)

    async def _moderate(self, typed: commands.Typed, open_cabal: Cabal) -> None:
        found = await open_cabal.users_named(typed.argument)
        if len(found) != 1:
            many = ", ".join(member.public_key.hex()[:16] for member in found[:4])
            raise CableStoreError(
                f"{typed.argument!r} may be any of {many}: write the first digits of one"
                if found
                else f"no user here is called {typed.argument!r}, or has a public key that begins so"
            )
        await open_cabal.moderate(cast(PrivateAct, typed.command), users=[found[0].public_key])
