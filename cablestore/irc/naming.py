"""Conversations of chat logs: the network and channel of a file, or a private conversation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from cablestore.irc.paths import is_part_of_date, marked_part, plain_channel
from cablestore.irc.people import folded

Names = Mapping[tuple[str, str], str]
"""Channel of a store for each imported network and channel."""

_WEECHAT: Final = re.compile(r"irc\.(?P<network>[^.]+)\.(?P<target>.+)\.weechatlog")
_CLIENTS: Final = frozenset(
    [
        "irssi",
        "irclogs",
        "weechat",
        "znc",
        "xchat",
        "xchatlogs",
        "hexchat",
        "scrollback",
        "mirc",
        "konversation",
        "thelounge",
        "lounge",
        "quassel",
        "supybot",
        "limnoria",
        "eggdrop",
        "energymech",
        "log",
        "logs",
        "irc",
        "channel",
        "channels",
        "channellogs",
        "chat",
        "chats",
        "users",
        "user",
        "default",
        "archive",
        "archives",
        "moddata",
        "public",
    ]
)
"""Names of folders that do not identify a network."""
_NETWORKS: Final = frozenset(
    [
        "libera",
        "liberachat",
        "oftc",
        "freenode",
        "efnet",
        "undernet",
        "quakenet",
        "ircnet",
        "dalnet",
        "rizon",
        "snoonet",
        "espernet",
        "hackint",
        "gamesurge",
        "2600net",
        "gimpnet",
        "gimp",
        "mozilla",
        "geekshed",
        "synirc",
        "esper",
        "swiftirc",
        "euirc",
        "ircsource",
        "irchighway",
        "abjects",
        "darkscience",
        "digitalirc",
        "tilde",
        "tildechat",
        "slashnet",
        "furnet",
        "europnet",
        "simosnap",
        "azzurra",
    ]
)
"""Known networks. A folder above the given path is a network only if it has one of these names."""
_UNIQUE_SUFFIX: Final = re.compile(r"-[0-9a-f-]{8,}$")
_LEAST_SHARED_LINES: Final = 2
_MOST_QUERY_SPEAKERS: Final = 2


@dataclass(frozen=True, slots=True)
class LogEvidence:
    """Evidence for the conversation of a file, from its first lines.

    `speakers` are folded nicks. `talk` contains some messages, each with the nick and text.
    """

    channel: str = ""
    is_channel: bool = False
    is_query: bool = False
    speakers: frozenset[str] = frozenset()
    talk: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Conversation:
    """Channel or private conversation, as named by a path and the lines. `network` is "" if it is unknown."""

    network: str
    name: str
    is_marked: bool
    is_certain: bool = False
    """True if the folder is certainly named after a network."""
    is_unmarked_buffer: bool = False
    """True for a file of WeeChat whose name contains a nick or a server, not a channel."""


def conversation_of(path: PurePath, root: PurePath, line_channel: str) -> Conversation:
    """Return the conversation of a file below the given path `root`. `line_channel` is the channel in its lines, or ""."""
    weechat = _WEECHAT.fullmatch(path.name)
    if weechat is not None:
        name = weechat["target"].lower()
        is_marked = name.startswith(("#", "&"))
        return Conversation(_network(weechat["network"]), name.removeprefix("#"), is_marked, True, not is_marked)
    place = marked_part(path)
    if place is None:
        return Conversation("", line_channel or plain_channel(path), False)
    index, before, name = place
    prefix = _network(before.strip("-_. "))
    if prefix and prefix not in _CLIENTS:
        return Conversation(prefix, line_channel or name, True, True)
    network, is_certain = _network_above(path, index, root)
    return Conversation(network, line_channel or name, True, is_certain)


def _network_above(path: PurePath, index: int, root: PurePath) -> tuple[str, bool]:
    """Return the network that a folder above part `index` of `path` identifies, and True if this is certain.

    The network is "" if no folder may be one. A folder above `root` is a network only if its name is known.
    """
    for position in range(index - 1, 0, -1):
        part = path.parts[position]
        if is_part_of_date(part):
            continue
        name = _network(part)
        if name in _NETWORKS:
            return name, True
        is_below = position >= len(root.parts)
        return ("", False) if name in _CLIENTS or not is_below else (name, False)
    return "", False


def _network(name: str) -> str:
    found = _UNIQUE_SUFFIX.sub("", name.lower()).removeprefix("irc.")
    return re.sub(r"[.\-_ ](?:chat|net|org|com|im|io)$|[^a-z0-9.\-]", "", found)


def is_private(conversation: Conversation, files: Iterable[LogEvidence], *, marks: bool, is_among_marked: bool) -> bool:
    """Return True for a private conversation, given the evidence of all its files.

    `marks` is True if the conversation's client marks channels in file names, `is_among_marked` if other files of the
    import are marked. Without evidence for a channel, an unmarked conversation is private in three cases:
    `is_among_marked` is True, a speaker has the name of the conversation, or `marks` is True and there are at most two
    speakers.
    """
    found = list(files)
    if conversation.is_marked:
        return False
    if conversation.is_unmarked_buffer or any(one.is_query for one in found):
        return True
    if any(one.is_channel or one.channel for one in found):
        return False
    speakers = frozenset().union(*(one.speakers for one in found))
    return is_among_marked or folded(conversation.name) in speakers or (marks and len(speakers) <= _MOST_QUERY_SPEAKERS)


@dataclass(slots=True)
class _Side:
    """Logs of a channel on one network."""

    network: str
    is_certain: bool = False
    formats: set[str] = field(default_factory=set)
    talk: set[tuple[str, str]] = field(default_factory=set)


def channel_names(channel: str, logs: Iterable[tuple[Conversation, str, LogEvidence]], known: Names) -> dict[str, str]:
    """Return the store's channel for each network that has logs of `channel`.

    `logs` contains the conversation, format and evidence of each log, and `known` the channels of earlier imports. Each
    network becomes a separate channel. Two folders are one network if their logs share lines. They are also one
    network if two programs wrote them and not both networks are certain.
    """
    sides: list[_Side] = []
    of: dict[str, _Side] = {}
    for conversation, log_format, evidence in logs:
        new = _Side(conversation.network, conversation.is_certain, {log_format}, set(evidence.talk))
        side = of.get(new.network) or next((side for side in sides if _are_one(side, new)), None)
        if side is None:
            side = new
            sides.append(new)
        else:
            side.formats |= new.formats
            side.talk |= new.talk
            side.network = side.network or new.network
        of[conversation.network] = side
    named = [side for side in sides if side.network]
    return {network: _name(channel, side, len(named), known) for network, side in of.items()}


def _name(channel: str, side: _Side, networks: int, known: Names) -> str:
    before = next((name for (net, own), name in known.items() if own == channel and _similar(net, side.network)), None)
    if before is not None:
        return before
    is_taken = any(name == channel for name in known.values())
    if not side.network or (networks == 1 and not is_taken):
        return channel
    return f"{channel}@{side.network}"


def _are_one(side: _Side, other: _Side) -> bool:
    if not side.network or not other.network or _similar(side.network, other.network):
        return True
    if len(side.talk & other.talk) >= _LEAST_SHARED_LINES:
        return True
    return not (side.is_certain and other.is_certain) and not side.formats & other.formats


def _similar(one: str, other: str) -> bool:
    """Return True for two names of one network, like `libera` and `libera.chat`."""
    short, long = sorted((one.replace(".", ""), other.replace(".", "")), key=len)
    return bool(short) and long.startswith(short)
