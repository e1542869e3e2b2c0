"""Find lines that are already stored, by comparing time, nick and text with the posts of other imported logs.

Two logs of one channel are either parts of one log, in which a line has the same time, or logs of two programs. The
clocks of programs differ by seconds, and a program may write times without seconds. Equal lines are counted: if two of three
equal lines are stored, the third is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from cablestore.index.reader import Reader
from cablestore.irc.dates import MINUTE_MS, SECOND_MS
from cablestore.irc.events import LogEvent, unit_of
from cablestore.irc.lines import LineKind
from cablestore.irc.people import NickHistory, Person, Roster, folded
from cablestore.protocol.body import INFO, JOIN, LEAVE, TEXT, TOPIC, Info, Text, Topic
from cablestore.protocol.post import Post
from cablestore.views import author, channel_state, links, messages

LOGGER_SKEW_MS: Final = 10 * SECOND_MS
"""Maximum difference between the times that two programs write for one line, apart from omitted seconds."""
_LEAST_NEAR_LINES: Final = 2
"""Minimum number of lines that differ from posts only in their times, if another program wrote the log."""
_MOST_TIPS: Final = 8
"""Maximum number of heads of a channel to which a later log links."""
TYPES: Final[Mapping[LineKind, int]] = {
    LineKind.SAY: TEXT,
    LineKind.ACTION: TEXT,
    LineKind.TOPIC: TOPIC,
    LineKind.JOIN: JOIN,
    LineKind.LEAVE: LEAVE,
    LineKind.QUIT: LEAVE,
}
"""Type of the post of a line."""

Deletions = Mapping[tuple[bytes, str, int], Sequence[int]]
"""Times of deleted posts by author, channel and type."""


class StoredPost(NamedTuple):
    """Stored post of a line. `digest` is None for a deleted post."""

    timestamp_ms: int
    digest: bytes | None
    person: Person


def nicks_of_authors(reader: Reader) -> dict[bytes, NickHistory]:
    """Return the names of all authors of a store, with the times at which they took them."""
    found: dict[bytes, NickHistory] = {}
    for key in author.authors(reader):
        posts = filter(None, map(reader.post, author.hashes(reader, key, INFO)))
        nicks = [(post.timestamp_ms, post.body.name) for post in posts if isinstance(post.body, Info)]
        found[key] = [(at_ms, nick) for at_ms, nick in nicks if nick]
    return found


def deletions(reader: Reader) -> Deletions:
    """Return the times of all deleted posts of a store."""
    found: dict[tuple[bytes, str, int], list[int]] = {}
    for stone in reader.tombstones():
        bones = stone.skeleton
        if bones is not None and bones.channel is not None:
            found.setdefault((stone.author, bones.channel, bones.type), []).append(bones.timestamp_ms)
    return found


class StoredChannel:
    """Posts of a channel in one state of a store. Each matches at most one line."""

    def __init__(self, reader: Reader, channel: str, roster: Roster, deleted: Deletions) -> None:
        self._reader = reader
        self._channel = reader.dialect.channel_id(channel)
        self._roster = roster
        self._deleted = deleted
        self._used: dict[bytes, int] = {}
        self._used_deletions: set[tuple[bytes, int, int]] = set()

    def tips(self, before_ms: int) -> tuple[bytes, ...]:
        """Return the posts to which a new post at `before_ms` links: older heads, or else the last older text."""
        heads = (self._reader.post(digest) for digest in links.heads(self._reader, self._channel))
        older = sorted((head.timestamp_ms, head.hash) for head in heads if head and head.timestamp_ms < before_ms)
        if older:
            return tuple(digest for _, digest in older[-_MOST_TIPS:])
        rows = messages.texts(self._reader, self._channel, newest_first=True, end_ms=before_ms, at_once=1)
        return tuple(digest for _, digest in [row for row in [next(rows, None)] if row])

    def match(self, events: Sequence[LogEvent]) -> list[StoredPost | None]:
        """Return the stored post of each event in a part of a file, or None for new events."""
        matching = _Matching(events, self._around(events))
        matching.match_equal_times()
        matching.match_other_program()
        found = matching.found
        for index, event in enumerate(events):
            if found[index] is None and event.kind in TYPES:
                found[index] = self._deletion_of(event)
        start_ms = max((event.at_ms for event in events), default=0) - 2 * MINUTE_MS
        self._used = {digest: at_ms for digest, at_ms in self._used.items() if at_ms >= start_ms}
        self._used |= {post.digest: post.timestamp_ms for post in found if post is not None and post.digest}
        return found

    def _around(self, events: Sequence[LogEvent]) -> Iterator[tuple[_Key, StoredPost]]:
        """Yield the unmatched stored posts of all people in the events, around the time range of the events, with keys."""
        acts = [event for event in events if event.kind in TYPES]
        if not acts:
            return
        from_ms = max(0, min(event.at_ms for event in acts) - MINUTE_MS - LOGGER_SKEW_MS)
        to_ms = max(event.at_ms for event in acts) + MINUTE_MS + LOGGER_SKEW_MS
        people = dict.fromkeys(person for event in acts for person in self._roster.named(event.nick))
        for person in people:
            for post_type in (TEXT, TOPIC, JOIN, LEAVE):
                key = person.identity.public_key
                for digest in channel_state.between(self._reader, self._channel, key, post_type, from_ms, to_ms):
                    post = self._reader.post(digest)
                    if post is not None and digest not in self._used:
                        nick = folded(person.nick_at(post.timestamp_ms))
                        yield (nick, post_type, _text_of(post)), StoredPost(post.timestamp_ms, digest, person)

    def _deletion_of(self, event: LogEvent) -> StoredPost | None:
        """Return the deleted post of a line, or None.

        The text of the post is not available, so the time must be equal.
        """
        if not self._deleted:
            return None
        for person in self._roster.named(event.nick):
            key = person.identity.public_key
            for at_ms in self._deleted.get((key, self._channel, TYPES[event.kind]), ()):
                use = (key, TYPES[event.kind], at_ms)
                if _is_same_time(event, at_ms) and use not in self._used_deletions:
                    self._used_deletions.add(use)
                    return StoredPost(at_ms, None, person)
        return None


_Key = tuple[str, int, str]
"""Nick, type and text."""


class _Matching:
    """Events of a part of a file, and the unmatched stored posts."""

    def __init__(self, events: Sequence[LogEvent], stored: Iterable[tuple[_Key, StoredPost]]) -> None:
        self._events = events
        self._left: dict[_Key, list[StoredPost]] = {}
        for key, post in stored:
            self._left.setdefault(key, []).append(post)
        for posts in self._left.values():
            posts.sort(key=lambda post: post.timestamp_ms)
        self.found: list[StoredPost | None] = [None] * len(events)

    def match_equal_times(self) -> None:
        """Match lines with posts whose times are equal, at the precision of both logs."""
        for index, event, posts in self._open():
            found = next((post for post in posts if _is_same_time(event, post.timestamp_ms)), None)
            if found is not None:
                posts.remove(found)
                self.found[index] = found

    def match_other_program(self) -> None:
        """Match lines with posts whose times differ by seconds, if another program wrote the log of the posts.

        This is assumed if only one of the two logs contains seconds, or if at least two lines, and at least half of the
        new lines between the stored posts, differ from a post only by their time.
        """
        near: list[tuple[int, list[StoredPost], StoredPost]] = []
        for index, event, posts in self._open():
            found = min(
                (post for post in posts if _distance_ms(event, post.timestamp_ms) <= LOGGER_SKEW_MS),
                key=lambda post: _distance_ms(event, post.timestamp_ms),
                default=None,
            )
            if found is None:
                continue
            posts.remove(found)
            if unit_of(found.timestamp_ms) != event.unit_ms:
                self.found[index] = found
            else:
                near.append((index, posts, found))
        if len(near) >= max(_LEAST_NEAR_LINES, self._open_between(near) / 2):
            for index, _, found in near:
                self.found[index] = found

    def _open(self) -> Iterator[tuple[int, LogEvent, list[StoredPost]]]:
        """Yield the events without a post for which unmatched posts have the same key: index, event, and these posts."""
        if not self._left:
            return
        for index, event in enumerate(self._events):
            if self.found[index] is None and event.kind in TYPES:
                posts = self._left.get((folded(event.nick), TYPES[event.kind], event.text))
                if posts:
                    yield index, event, posts

    def _open_between(self, near: list[tuple[int, list[StoredPost], StoredPost]]) -> int:
        """Return the number of events without a post in the time range of the unmatched posts and of those in `near`."""
        times = [post.timestamp_ms for posts in self._left.values() for post in posts]
        times += [found.timestamp_ms for _, _, found in near]
        if not times:
            return 0
        first_ms, last_ms = min(times) - LOGGER_SKEW_MS, max(times) + LOGGER_SKEW_MS
        return sum(
            self.found[index] is None and event.kind in TYPES and first_ms <= event.at_ms <= last_ms
            for index, event in enumerate(self._events)
        )


def _text_of(post: Post) -> str:
    body = post.body
    return body.text if isinstance(body, Text) else body.topic if isinstance(body, Topic) else ""


def _is_same_time(event: LogEvent, timestamp_ms: int) -> bool:
    unit_ms = max(event.unit_ms, unit_of(timestamp_ms))
    return event.at_ms // unit_ms == timestamp_ms // unit_ms


def _distance_ms(event: LogEvent, timestamp_ms: int) -> int:
    """Return the gap between the second or minute of an event and that of a post, or 0 if they overlap."""
    unit_ms, other_ms = event.unit_ms, unit_of(timestamp_ms)
    start_ms, other_start_ms = event.at_ms // unit_ms * unit_ms, timestamp_ms // other_ms * other_ms
    return max(0, start_ms - other_start_ms - other_ms, other_start_ms - start_ms - unit_ms)
