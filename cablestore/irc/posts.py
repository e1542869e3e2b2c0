"""A channel's log as signed posts: their authors, times and links. Pure; the same log always makes the same posts.

Every nick has a key that is derived from a seed phrase. A user that changes its nick keeps its key until it leaves. A
user that joins, or speaks without having joined, has the key of its nick. Each post links to the one before it in its
channel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, tzinfo
from functools import lru_cache
from typing import Final

from cablestore import limits
from cablestore.irc.dates import SMALL_STEP_MS, Clock, Stamp
from cablestore.irc.formats import LineKind, LogLine, shortened
from cablestore.protocol.body import Body, Info, Join, Leave, Text, Topic
from cablestore.protocol.crypto import Identity
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post, encode_post

EXAMPLES_KEPT: Final = 3
"""Lines of unknown meaning that are reported."""
_SKIPPED: Final = frozenset({LineKind.MODE, LineKind.NOTICE, LineKind.UNSIGNED_TOPIC, LineKind.CLIENT})


class NickKeys:
    """Keys of all nicks under one seed phrase."""

    def __init__(self, seed_phrase: str) -> None:
        self.identity = lru_cache(maxsize=16_384)(lambda nick: Identity.derive(seed_phrase, nick))


@dataclass(slots=True)
class Skips:
    """Counts of skipped lines by reason, and of texts that were cut to the protocol's limit."""

    reasons: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    examples: list[str] = field(default_factory=list)
    """The first lines of unknown meaning, shortened."""

    def not_understood(self, text: str) -> None:
        """Count a line of unknown meaning."""
        self.reasons["not understood"] += 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(shortened(text))


@dataclass
class LogConverter:
    """Converter of a channel's log to posts: call `begin_file` for each file, then `posts` for each line, in order."""

    channel: str
    nick_keys: NickKeys
    dialect: Dialect
    skips: Skips
    _clock: Clock = field(default_factory=Clock)
    _keys: dict[str, str] = field(default_factory=dict)
    """Of everyone in the channel: present nick to the nick whose key is used."""
    _names: dict[str, str] = field(default_factory=dict)
    """The name in the last post/info of each key."""
    _last: tuple[bytes, ...] = ()
    _time_ms: int = 0

    def begin_file(self, day: date, face_hours: int, zone: tzinfo) -> None:
        """Begin a file at the start of a day, with a clock of 12 or 24 hours in a zone."""
        self._clock.begin(day, face_hours, zone)
        self._time_ms = -1

    def posts(self, line: LogLine | None, text: str) -> Iterator[Post]:
        """Yield the posts of a line. `text` is reported if the line is not understood."""
        if line is None or self._is_of_a_server(line):
            self.skips.not_understood(text)
        elif line.kind in _SKIPPED:
            self.skips.reasons[line.kind.value] += 1
        elif line.kind is LineKind.SAY and not line.text:
            self.skips.reasons["empty message"] += 1
        else:
            self._tick(line.time)
            yield from self._said(line)

    def _is_of_a_server(self, line: LogLine) -> bool:
        """Tell whether a line without a time looks like an action of a nick that is not in the channel."""
        return line.kind is LineKind.ACTION and line.time is None and line.nick not in self._keys

    def _tick(self, stamp: Stamp | None) -> None:
        """Advance to the line's time, or by one millisecond if that is needed to keep the order of lines."""
        now_ms = self._clock.tick(stamp)
        self._time_ms = now_ms if now_ms < self._time_ms - SMALL_STEP_MS else max(now_ms, self._time_ms + 1)

    def _said(self, line: LogLine) -> Iterator[Post]:
        if line.kind is LineKind.DAY:
            return
        if line.kind is LineKind.RENAME:
            self._keys[line.text] = self._keys.pop(line.nick, line.nick)
            yield from self._introduced(line.text)
            return
        yield from self._introduced(line.nick)
        match line.kind:
            case LineKind.SAY | LineKind.ACTION:
                text = line.text if line.kind is LineKind.SAY else f"/me {line.text}"
                for piece in self._pieces(text):
                    yield self._signed(line.nick, Text(self.channel, piece))
            case LineKind.TOPIC:
                yield self._signed(
                    line.nick, Topic(self.channel, self._fitting(line.text, limits.MAX_TOPIC_CODEPOINTS))
                )
            case LineKind.JOIN:
                yield self._signed(line.nick, Join(self.channel))
            case LineKind.LEAVE:
                yield self._signed(line.nick, Leave(self.channel))
                del self._keys[line.nick]

    def _introduced(self, nick: str) -> Iterator[Post]:
        """Yield a post/info with the nick, unless the key has this name already."""
        key = self._keys.setdefault(nick, nick)
        if self._names.get(key) != nick:
            self._names[key] = nick
            yield self._signed(nick, Info.of(name=self._fitting(nick, limits.MAX_USER_NAME_CODEPOINTS)))

    def _signed(self, nick: str, body: Body) -> Post:
        links = () if isinstance(body, Info) else self._last
        identity = self.nick_keys.identity(self._keys[nick])
        post = encode_post(body, links=links, timestamp_ms=self._time_ms, identity=identity, dialect=self.dialect)
        self._time_ms += 1
        if post.is_linkable:
            self._last = (post.hash,)
        return post

    def _pieces(self, text: str) -> Iterator[str]:
        """Cut a text at the protocol's limit, between code points."""
        data = text.encode()
        self.skips.cut += len(data) > limits.MAX_TEXT_SIZE_BYTES
        while len(data) > limits.MAX_TEXT_SIZE_BYTES:
            piece = data[: limits.MAX_TEXT_SIZE_BYTES].decode(errors="ignore")
            yield piece
            data = data[len(piece.encode()) :]
        yield data.decode()

    def _fitting(self, text: str, codepoints: int) -> str:
        self.skips.cut += len(text) > codepoints
        return text[:codepoints]
