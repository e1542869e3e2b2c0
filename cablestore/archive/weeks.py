"""Splitting of sorted posts into weeks, and encoding of a week's posts as messages and archives.

Posts are records (`export.writer`), from a store or from exports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from cablestore.archive.format.archive import Archive, encode_archive
from cablestore.archive.format.chunks import OversizeMessage, chunks
from cablestore.archive.format.period import Period, week_of
from cablestore.archive.format.profile import Profile, Topic
from cablestore.export.writer import HASH_AT, POST_AT, TYPE_AT, place_of, record_start
from cablestore.index.tombstone import Tombstone, tombstones
from cablestore.protocol.body import BEGIN_WITH_CHANNEL, DELETE, INFO
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.dialect import ARCHIVES_CHANNEL, Dialect
from cablestore.protocol.keys import NS_PER_MS
from cablestore.protocol.post import SIGNED_FROM, decode_post
from cablestore.protocol.waku import WakuMessage, content_topic, message_of

_LINKS_AT: Final = POST_AT + SIGNED_FROM
_BODY_AT: Final = _LINKS_AT + 1 + 1 + 6
"""Offset of a post's body in a record, if the post has no links and its fields have their usual length."""
_TIME_AT: Final = 2
_WITHOUT_CHANNEL: Final = frozenset({DELETE, INFO})


def by_week(lists: Iterable[list[bytes]], now_ms: int) -> Iterator[tuple[Period, list[bytes]]]:
    """Yield each week that has posts and ended by `now_ms`, with the records of its posts, oldest first.

    `lists` contain records in order of time and hash.
    """
    period, end, week = Period(0, 0), b"", list[bytes]()
    for records in lists:
        at = 0
        while at < len(records):
            if records[at] >= end:
                if week:
                    yield period, week
                period, week = week_of(place_of(records[at])[0]), []
                if period.to_ms > now_ms:
                    return
                end = record_start(period.to_ms, bytes(HASH_SIZE_BYTES))
            stop = bisect_left(records, end, at)
            week += records[at:stop]
            at = stop
    if week:
        yield period, week


def topics_in(records: Iterable[bytes], dialect: Dialect) -> set[str]:
    """Return the content topics of posts, except archive announcements. Raises the errors of `message_of`."""
    found = set()
    names: set[bytes] = set()
    for record in records:
        name = _usual_channel(record)
        if name is not None:
            names.add(name)
        elif record[TYPE_AT] not in _WITHOUT_CHANNEL:
            found.add(message_of(decode_post(record[POST_AT:], dialect)).content_topic)
    found |= {content_topic(dialect.channel_id(name.decode())) for name in names}
    return found - {content_topic(ARCHIVES_CHANNEL)}


def messages_of(records: Iterable[bytes], dialect: Dialect) -> Iterator[WakuMessage]:
    """Yield the messages of posts, except archive announcements.

    To save time, a post is decoded only if `_usual_channel` returns None for it. Raises the errors of `message_of`.
    """
    topics: dict[bytes, str] = {}
    reserved = content_topic(ARCHIVES_CHANNEL)
    for record in records:
        raw = record[POST_AT:]
        digest = record[HASH_AT:TYPE_AT]
        name = _usual_channel(record)
        if name is None:
            message = message_of(decode_post(raw, dialect, digest))
        else:
            if (topic := topics.get(name)) is None:
                topic = topics[name] = content_topic(dialect.channel_id(name.decode()))
            message = WakuMessage(raw, topic, _time_ms(record) * NS_PER_MS, digest)
        if message.content_topic != reserved:
            yield message


def _usual_channel(record: bytes) -> bytes | None:
    """Return the channel name at the beginning of a post's body, or None if the post must be decoded to find it.

    The bodies of texts, topics, joins and leaves begin with the channel name. The offset of the body is known if three
    fields have their usual length: fewer than 128 links, one byte of type, and six bytes of time (1971 to 2109).
    """
    links = record[_LINKS_AT]
    if record[TYPE_AT] in BEGIN_WITH_CHANNEL and links < 0x80 and record[_TIME_AT] > 0 == record[_TIME_AT - 1]:
        at = _BODY_AT + 32 * links
        size_bytes = record[at]
        if size_bytes < 0x80:
            return record[at + 1 : at + 1 + size_bytes]
    return None


def archives_of(
    profile: Profile,
    period: Period,
    topics: tuple[Topic, ...],
    messages: Iterable[WakuMessage],
    stones: Mapping[bytes, Sequence[Tombstone]],
    key: bytes | None,
) -> tuple[list[Archive], list[bytes]]:
    """Return the archives of a week's sorted messages, and the hashes of posts that are too large for any archive.

    `stones` maps the hash of a post/delete to its tombstones. Other arguments and errors are as in `encode_archive`.
    """
    archives, oversize = [], []
    for chunk in chunks(messages):
        if isinstance(chunk, OversizeMessage):
            oversize.append(chunk.message.post_hash)
        else:
            laid = [stone for message in chunk for stone in stones.get(message.post_hash, ())] if stones else ()
            archives.append(encode_archive(profile, period, topics, chunk, key, laid))
    return archives, oversize


def stones_by(
    records: Iterable[bytes], dialect: Dialect, known: Callable[[Tombstone], Tombstone | None]
) -> dict[bytes, list[Tombstone]]:
    """Return the tombstones of the post/deletes among these records, by the hash of the post/delete.

    `known` is called with the tombstone that a post/delete claims, and returns the effective tombstone of the store. It
    returns None if another post/delete created that tombstone, or if the store never had the target.
    """
    found: dict[bytes, list[Tombstone]] = {}
    for record in records:
        if record[TYPE_AT] == DELETE:
            post = decode_post(record[POST_AT:], dialect, record[HASH_AT:TYPE_AT])
            laid = [stone for claim in tombstones(post) if (stone := known(claim)) is not None]
            if laid:
                found[post.hash] = laid
    return found


def _time_ms(record: bytes) -> int:
    """Return the time of a post from its record, which stores it as a varint of six bytes in reverse order."""
    a, b, c, d, e, f = record[_TIME_AT:HASH_AT]
    return a << 35 | (b & 0x7F) << 28 | (c & 0x7F) << 21 | (d & 0x7F) << 14 | (e & 0x7F) << 7 | f & 0x7F
