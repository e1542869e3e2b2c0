"""Conversion of a channel's log to signed posts: authors, times and links. Pure; equal logs produce equal posts.

Each post links to the previous post of its channel, stored or new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cablestore import limits
from cablestore.irc.dates import MINUTE_MS, SECOND_MS, SMALL_STEP_MS
from cablestore.irc.events import WITHOUT_SECONDS_MS, LogEvent, Skips
from cablestore.irc.lines import LineKind
from cablestore.irc.people import Person, Roster, folded, have_different_masks, stem
from cablestore.irc.stored import LOGGER_SKEW_MS, StoredPost
from cablestore.protocol.body import Body, Info, Join, Leave, Text, Topic
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post, encode_post

_NEVER: Final = -1


@dataclass
class LogConverter:
    """Converter of a channel's events to posts: call `begin_file` for each file, then `posts` for each event."""

    channel: str
    roster: Roster
    dialect: Dialect
    skips: Skips
    _present: dict[str, Person] = field(default_factory=dict)
    """People in the channel, by folded nick."""
    _tips: tuple[bytes, ...] = ()
    """Posts to which the next post links."""
    _new_tip: bytes | None = None
    _time_ms: int = _NEVER
    _file: int = 0
    known_names: int = 0
    """Number of post/infos of the log that are already stored."""

    def begin_file(self, number: int, tips: tuple[bytes, ...] | None, *, is_later: bool = True) -> None:
        """Begin file `number`.

        Its first post links to the stored posts `tips`. If `tips` is None, it links to the last post of the previous file.
        If `is_later`, the file begins after the previous file, and people who were present may still be present.
        """
        self._file, self._time_ms = number, _NEVER
        if tips is not None:
            self._tips, self._new_tip = tips, None
        if not is_later:
            self._present.clear()

    def posts(self, event: LogEvent, stored: StoredPost | None) -> Iterator[Post]:
        """Yield the new posts of an event. `stored` is its stored post, if any."""
        if event.line and stored is None and folded(event.nick) not in self._present:
            self.skips.not_understood(event.line)  # the name of a server, not a nick
            return
        if stored is not None:
            self._advance(stored.timestamp_ms)
            self._note(event, stored)
            return
        self._advance(event.at_ms)
        if event.unit_ms == MINUTE_MS:
            self._time_ms += max(0, WITHOUT_SECONDS_MS - self._time_ms % SECOND_MS)
        if event.kind is LineKind.RENAME:
            person = self._renamed(event)
            if not person.is_named:  # a later import recognizes the person by this name
                yield from self._introduced(person, event.nick, event)
            self._present.pop(folded(event.nick), None)
            self._present[folded(event.text)] = person
            yield from self._introduced(person, event.text, event)
            return
        person = self._person(event)
        yield from self._introduced(person, event.nick, event)
        yield self._signed(person, self._body(event))
        self._see(event, person)

    def _advance(self, now_ms: int) -> None:
        """Advance to a time, at least by 1 ms to keep the order of lines. A step back of over SMALL_STEP_MS is kept."""
        self._time_ms = now_ms if now_ms < self._time_ms - SMALL_STEP_MS else max(now_ms, self._time_ms + 1)

    def _note(self, event: LogEvent, stored: StoredPost) -> None:
        """Record an event whose post is already stored."""
        self.known_names += stored.person.meets_stored_name(stored.timestamp_ms)
        if stored.digest is not None:
            self._tips = (stored.digest,)
        self._see(event, stored.person)

    def _see(self, event: LogEvent, person: Person) -> None:
        if event.kind in (LineKind.LEAVE, LineKind.QUIT):
            self._present.pop(folded(event.nick), None)
        else:
            self._present[folded(event.nick)] = person
        if event.mask:
            person.mask = event.mask

    def _person(self, event: LogEvent) -> Person:
        here = self._present.get(folded(event.nick))
        if here is not None and not have_different_masks(here.mask, event.mask):
            return here
        return self.roster.find(event.nick, self._time_ms, event.mask, self._present.values())

    def _renamed(self, event: LogEvent) -> Person:
        """Return the person of a nick change: in the channel, else known from another log, else found by nick."""
        here = self._present.get(folded(event.nick))
        if here is not None:
            return here
        known = [person for person in self.roster.named(event.text) if self._took(person, event.text, event)]
        had = (person for person in known if person.had(stem(event.nick), event.at_ms + event.unit_ms))
        return next(had, None) or next(iter(known), None) or self._person(event)

    def _took(self, person: Person, nick: str, event: LogEvent) -> bool:
        """Return True if an earlier log or the store shows that the person took `nick` at about the time of `event`."""
        start_ms = event.at_ms // event.unit_ms * event.unit_ms
        end_ms = start_ms + event.unit_ms + LOGGER_SKEW_MS
        return person.took(_name(nick), start_ms - LOGGER_SKEW_MS, end_ms, self._file)

    def _introduced(self, person: Person, nick: str, event: LogEvent) -> Iterator[Post]:
        """Yield a post/info with the nick, unless the person already has this name."""
        known = person.nick_at(self._time_ms)
        may_be_stored = known or event.kind is LineKind.RENAME
        if known == _name(nick) or (may_be_stored and self._took(person, nick, event)):
            self.known_names += person.meets_stored_name(self._time_ms)
            return
        self.skips.cut += len(nick) > limits.MAX_USER_NAME_CODEPOINTS
        self.roster.take(person, _name(nick), self._time_ms, self._file)
        yield self._signed(person, Info.of(name=_name(nick)))

    def _body(self, event: LogEvent) -> Body:
        match event.kind:
            case LineKind.SAY | LineKind.ACTION:
                return Text(self.channel, event.text)
            case LineKind.TOPIC:
                return Topic(self.channel, event.text)
            case LineKind.JOIN:
                return Join(self.channel)
        return Leave(self.channel)

    def _signed(self, person: Person, body: Body) -> Post:
        links = () if isinstance(body, Info) else self._links()
        post = encode_post(
            body, links=links, timestamp_ms=self._time_ms, identity=person.identity, dialect=self.dialect
        )
        self._time_ms += 1
        if post.is_linkable:
            self._tips, self._new_tip = (), post.hash
        return post

    def _links(self) -> tuple[bytes, ...]:
        return self._tips if self._new_tip is None else (self._new_tip, *self._tips)


def _name(nick: str) -> str:
    return nick[: limits.MAX_USER_NAME_CODEPOINTS]
