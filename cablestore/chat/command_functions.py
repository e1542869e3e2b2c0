"""Implementation of the commands. Each function returns a report for the user, or an empty string.

Commands without effect report that nothing changed. Changes that are visible on the screen are not reported.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from cablestore.chat.cabal import Cabal
from cablestore.chat.entries import ChannelEntry, Member, PrivateAct, Restriction, UndoneAct
from cablestore.chat.lines import CabalChannel, member_line
from cablestore.chat.timeline import local, short_name
from cablestore.errors import CableStoreError, NotFoundError
from cablestore.plurals import counted
from cablestore.store.emotes import as_emote
from cablestore.store.lookup import find_channel, require_one, typed_channel, typed_name

_SEPARATORS: Final = re.compile(r"\s*,\s*|\s+(?=#)")
_CLEARS: Final = frozenset({"-", "-delete"})
"""Arguments that clear a topic. WeeChat and irssi use `-delete`."""
_KEY_DIGITS: Final = 16


class CommandWindows(Protocol):
    """The client's windows that commands use."""

    def show_help(self) -> None:
        """Show keys and commands."""

    async def show_invitation(self, place: CabalChannel) -> None:
        """Show the invitation to a cabal."""

    async def show_found(self, place: CabalChannel, text: str) -> None:
        """Show the messages of a cabal that match a search."""

    async def show_mentions(self) -> None:
        """Show the messages of all cabals that mention the user."""


class Client(Protocol):
    """The client's methods that commands use."""

    @property
    def windows(self) -> CommandWindows:
        """Windows of the client."""

    def cabal_of(self, place: CabalChannel) -> Cabal:
        """Return the cabal of a channel."""

    async def show_channel(self, place: CabalChannel) -> None:
        """Show a channel."""

    def show_end(self, place: CabalChannel) -> None:
        """Show the newest messages of a channel, if it is shown."""

    async def confirm_delete_last(self, place: CabalChannel) -> None:
        """Request confirmation to delete the user's last message in a channel.

        Raises CableStoreError if the message is not near the end of the channel.
        """

    async def end(self) -> None:
        """Exit the client."""


class Request(NamedTuple):
    """Typed command or message: its argument, and the channel in which it was typed."""

    client: Client
    place: CabalChannel
    argument: str

    @property
    def cabal(self) -> Cabal:
        """Cabal of the channel."""
        return self.client.cabal_of(self.place)


Do = Callable[[Request], Awaitable[str]]
"""Implementation of a command. Returns the report to show, or "". Raises CableStoreError if it fails."""


# --- messages -------------------------------------------------------------------------------------


async def say(request: Request) -> str:
    """Post a message."""
    await request.cabal.post(request.place.channel, request.argument)
    request.client.show_end(request.place)
    return ""


async def emote(request: Request) -> str:
    """Post an emote."""
    return await say(request._replace(argument=as_emote(request.argument)))


async def delete(request: Request) -> str:
    """Delete the user's last message, after confirmation."""
    await request.client.confirm_delete_last(request.place)
    return ""


async def search(request: Request) -> str:
    """Search all channels."""
    await request.client.windows.show_found(request.place, request.argument)
    return ""


async def mentions(request: Request) -> str:
    """Show the messages that mention the user."""
    await request.client.windows.show_mentions()
    return ""


# --- channels -------------------------------------------------------------------------------------


def channels_in(argument: str, known: Iterable[str]) -> list[str]:
    """Return the channels in an argument: `#a, #b`, `#a #b`, or a known name that contains a comma or a space.

    Raises NotFoundError if the argument does not name a channel.
    """
    names = list(known)
    if typed_channel(argument) and (whole := find_channel(argument, names)) in names:
        return [whole]
    found = [find_channel(part, names) for part in _SEPARATORS.split(argument) if typed_channel(part)]
    if not found:
        raise NotFoundError(f"No channel name found in {argument!r}. Type a name, with or without #")
    return list(dict.fromkeys(found))


async def join(request: Request) -> str:
    """Join channels, and show the last channel."""
    known = {entry.name: entry for entry in await request.cabal.channels()}
    names = channels_in(request.argument, known)
    old = [name for name in names if name in known and known[name].is_joined]
    for name in names:
        if name not in old:
            await request.cabal.join(name)
    await request.client.show_channel(request.place._replace(channel=names[-1]))
    return f"Nothing changed: you are already in {_listed(old)}" if old == names else ""


async def leave(request: Request) -> str:
    """Leave the named channels, or the shown channel. If one of them is not joined, leave none and raise an error."""
    entries = await request.cabal.channels()
    names = _named_or_shown(request, entries)
    joined = {entry.name for entry in entries if entry.is_joined}
    others = [name for name in names if name not in joined]
    if others:
        raise CableStoreError(f"Cannot leave {_listed(others)}: you are not a member. Nothing changed")
    for name in names:
        await request.cabal.leave(name)
    return f"You left {_listed(names)}. The store keeps the messages. /join CHANNEL rejoins"


async def close(request: Request) -> str:
    """Leave a channel, and show the next joined channel."""
    entries = await request.cabal.channels()
    name = _one_or_shown(request, entries)
    names = [entry.name for entry in entries]
    after = names.index(name) + 1 if name in names else 0
    others = [entry for entry in (*entries[after:], *entries[:after]) if entry.name != name]
    following = next((entry.name for entry in others if entry.is_joined), others[0].name if others else "")
    if name == request.place.channel and not following:
        raise CableStoreError(f"Cannot close #{name}: it is the only channel. /leave leaves it, /quit quits the client")
    is_joined = any(entry.name == name and entry.is_joined for entry in entries)
    if is_joined:
        await request.cabal.leave(name)
    elif name != request.place.channel:
        raise CableStoreError(f"Cannot close #{name}: you are not a member, and it is not shown. Nothing changed")
    if name == request.place.channel:
        await request.client.show_channel(request.place._replace(channel=following))
    return f"You left {_listed([name])}" if is_joined else ""


async def names(request: Request) -> str:
    """List the members of a channel."""
    name = _one_or_shown(request, await request.cabal.channels())
    members = await request.cabal.members(name)
    listed = ", ".join(member_line(member).text.strip() for member in members)
    return f"{counted(len(members), 'member')} of #{name}{': ' * bool(members)}{listed}"


async def topic(request: Request) -> str:
    """Show, set or clear the topic of the channel."""
    name = request.place.channel
    shown = next((entry.topic for entry in await request.cabal.channels() if entry.name == name), "")
    if not request.argument:
        return f"Topic of #{name}: {shown}" if shown else f"#{name} has no topic. /topic TEXT sets the topic"
    wanted = "" if request.argument in _CLEARS else request.argument
    if wanted == shown:
        return f"Nothing changed: #{name} {'already has this topic' if shown else 'has no topic'}"
    await request.cabal.set_topic(name, wanted)
    return "" if wanted else f"The topic of #{name} is cleared. It was: {shown}"


async def mute(request: Request) -> str:
    """Hide the unread count of a channel."""
    return await _mute(request, is_muted=True)


async def unmute(request: Request) -> str:
    """Show the unread count of a channel again."""
    return await _mute(request, is_muted=False)


async def _mute(request: Request, *, is_muted: bool) -> str:
    entries = await request.cabal.channels()
    name = _one_or_shown(request, entries)
    entry = next((entry for entry in entries if entry.name == name), ChannelEntry(name))
    word = "muted" if is_muted else "unmuted"
    if entry.is_muted is is_muted:
        return f"Nothing changed: #{name} is {'already' if is_muted else 'not'} muted"
    await (request.cabal.mute if is_muted else request.cabal.unmute)(name)
    return f"#{name} is {word}"


def _named_or_shown(request: Request, entries: Sequence[ChannelEntry]) -> list[str]:
    """Return the known channels in the argument, or the shown channel. Raises NotFoundError for an unknown channel."""
    if not request.argument:
        return [request.place.channel]
    known = {request.place.channel, *(entry.name for entry in entries)}
    found = channels_in(request.argument, known)
    if unknown := [name for name in found if name not in known]:
        raise NotFoundError(f"Channel not found: {_listed(unknown)}. Tab completes the names of existing channels")
    return found


def _one_or_shown(request: Request, entries: Sequence[ChannelEntry]) -> str:
    found = _named_or_shown(request, entries)
    if len(found) > 1:
        raise NotFoundError(f"Expected one channel, got {len(found)}: {_listed(found)}")
    return found[0]


def _listed(channels: Iterable[str]) -> str:
    return ", ".join(f"#{name}" for name in channels)


# --- users ----------------------------------------------------------------------------------------


async def nick(request: Request) -> str:
    """Show or change the user's name."""
    before, name = await request.cabal.own_name(), typed_name(request.argument)
    if not name:
        return f"Your name is {before}" if before else "You have no name. /nick NAME sets your name"
    if name == before:
        return f"Nothing changed: your name is already {name}"
    await request.cabal.set_name(name)
    alike = [each for each in await request.cabal.find_users(name) if not each.is_self]
    warning = f". Another user also has this name: {_key_of(alike[0])}. Choose a different name" if alike else ""
    return f"Your name is {name}{warning}"


async def whois(request: Request) -> str:
    """Show the public key, role and channels of a user."""
    member = await _user(request)
    found = await request.cabal.user_details(member.public_key)
    lines = [
        f"{short_name(member.name)}{' (you)' * member.is_self}: {member.role.name.lower()}",
        f"public key {member.public_key.hex()}",
        f"in {_listed(found.channels)}" if found.channels else "not in a channel",
        *(_restriction_line(each) for each in found.restrictions),
    ]
    return "\n".join(lines)


async def hide(request: Request) -> str:
    """Hide the messages of a user."""
    member = await _moderate(request, "hide")
    return f"{_described(member)} is hidden, only for you. /unhide {short_name(member.name)} undoes it"


async def block(request: Request) -> str:
    """Reject all further posts of a user."""
    member = await _moderate(request, "block")
    return f"{_described(member)} is blocked, only for you. /unblock {short_name(member.name)} undoes it"


async def unhide(request: Request) -> str:
    """Undo all actions of the user that hide another user."""
    return await _undo(request, "unhide", "hide", "hid")


async def unblock(request: Request) -> str:
    """Undo all actions of the user that block another user."""
    return await _undo(request, "unblock", "block", "blocked")


async def hidden(request: Request) -> str:
    """List hidden users and messages."""
    return await _restrictions(request, "hidden")


async def blocked(request: Request) -> str:
    """List blocked users."""
    return await _restrictions(request, "blocked")


async def _moderate(request: Request, act: PrivateAct) -> Member:
    member = await _user(request)
    if member.is_self:
        raise CableStoreError(f"You cannot {act} yourself. Choose another user")
    await request.cabal.moderate(act, users=[member.public_key])
    return member


async def _undo(request: Request, act: PrivateAct, noun: str, past: str) -> str:
    member = await _user(request)
    undone = await request.cabal.moderate(act, users=[member.public_key])
    if not undone:
        state = "hidden" if noun == "hide" else "blocked"
        return f"{_described(member)} is no longer {state} for you. Other members {past} this user"
    return f"{_described(member)}: undid {' and '.join(_undone(each, noun) for each in undone)}"


def _undone(act: UndoneAct, noun: str) -> str:
    where = f" in #{act.channel}" if act.channel else ""
    return f"your {'private' if act.is_private else 'public'} {noun}{where}"


async def _restrictions(request: Request, word: str) -> str:
    found = [each for each in await request.cabal.restrictions() if each.what.startswith(word)]
    if not found:
        return f"Nobody is {word}"
    return "\n".join(f"{short_name(each.name)} {_key_of(each)}: {_restriction_line(each)}" for each in found)


def _restriction_line(each: Restriction) -> str:
    how = " privately" if each.is_private else ""
    where = f" in #{each.channel}" if each.channel else ""
    reason = f": {each.reason}" if each.reason else ""
    return f"{each.what}{how}{where} by {short_name(each.by_name)}, {local(each.timestamp_ms, None):%Y-%m-%d}{reason}"


async def _user(request: Request) -> Member:
    return require_one(request.argument, await request.cabal.find_users(request.argument))


def _described(member: Member) -> str:
    name = short_name(member.name)
    digits = member.public_key.hex()
    return name if digits.startswith(name) else f"{name} ({digits[:8]})"


def _key_of(user: Member | Restriction) -> str:
    return user.public_key.hex()[:_KEY_DIGITS]


# --- the client -----------------------------------------------------------------------------------


async def invite(request: Request) -> str:
    """Show the invitation to the cabal."""
    await request.client.windows.show_invitation(request.place)
    return ""


async def end(request: Request) -> str:
    """Exit the client."""
    await request.client.end()
    return ""
