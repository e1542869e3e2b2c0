"""What typed texts do: post a message, run a command. It says what the client shall show next, and draws nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from cablestore.chat import commands
from cablestore.chat.cabal import PrivateAct, ShownChannel
from cablestore.errors import CableStoreError


class Client(ShownChannel, Protocol):
    """The client, as commands see it."""

    async def show_channel(self, channel: str) -> None:
        """Show a channel of the same cabal."""

    async def show_found(self, text: str) -> None:
        """Show the messages that match a search."""

    async def show_invitation(self) -> None:
        """Show the invitation to the cabal."""

    def show_help(self) -> None:
        """Show keys and commands."""

    def show_end(self) -> None:
        """Show the newest messages."""

    async def ask_to_delete_last(self) -> None:
        """Ask whether the last own message shall be deleted."""

    async def end(self) -> None:
        """End the client."""


class CommandRunner:
    """Runs what is typed, on the cabal and in the channel that are shown."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._simple: dict[str, Callable[[], Awaitable[None] | None]] = {
            "delete": client.ask_to_delete_last,
            "help": client.show_help,
            "invite": client.show_invitation,
            "quit": client.end,
        }

    async def run(self, text: str) -> None:
        """Post a message, or run a command. Raises CableStoreError if that is not possible."""
        typed = commands.read(text)
        client, open_cabal = self._client, self._client.open_cabal
        match typed.command:
            case "":
                await open_cabal.text(client.channel, typed.argument.rstrip())
                client.show_end()
            case "join":
                await self._join(typed.argument.removeprefix("#"))
            case "leave":
                await open_cabal.leave(typed.argument.removeprefix("#") or client.channel)
            case "mute" | "unmute":
                await self._mute(typed)
            case "topic":
                await open_cabal.topic(client.channel, typed.argument)
            case "nick":
                await open_cabal.set_name(typed.argument)
            case "search":
                await client.show_found(typed.argument)
            case "hide" | "unhide" | "block" | "unblock":
                await self._moderate(typed)
            case simple:
                waiting = self._simple[simple]()
                if waiting is not None:
                    await waiting

    async def _join(self, channel: str) -> None:
        await self._client.open_cabal.join(channel)
        await self._client.show_channel(channel)

    async def _mute(self, typed: commands.Typed) -> None:
        client, open_cabal = self._client, self._client.open_cabal
        channel = typed.argument.removeprefix("#") or client.channel
        if channel != client.channel and all(entry.name != channel for entry in await open_cabal.channels()):
            raise CableStoreError(f"there is no channel {channel!r} here: Tab completes the names of those that are")
        await (open_cabal.mute if typed.command == "mute" else open_cabal.unmute)(channel)

    async def _moderate(self, typed: commands.Typed) -> None:
        open_cabal = self._client.open_cabal
        found = await open_cabal.users_named(typed.argument)
        if len(found) != 1:
            many = ", ".join(member.public_key.hex()[:16] for member in found[:4])
            raise CableStoreError(
                f"{typed.argument!r} may be any of {many}: write the first digits of one"
                if found
                else f"no user here is called {typed.argument!r}, or has a public key that begins so"
            )
        await open_cabal.moderate(cast(PrivateAct, typed.command), users=[found[0].public_key])
