"""Messages: the texts of a channel in order of time, and the deletions in it.

    !chat!text!<channel>!<mono-ts>          -> hash of the post/text
    !chat!text!<channel>!<mono-ts>!<target> -> hash of the post/delete that deleted <target> in this channel

A post/delete does not contain a channel. It has a row in the channel of each deleted post that the store has had. The
row follows from the tombstone. If a post was deleted several times, the earliest MAX_DELETIONS_LISTED deletions have
rows. A post/delete that deleted several posts of a channel has as many adjacent rows, and readers return the hash once.
"""

from collections.abc import Iterator
from typing import Final

from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone
from cablestore.index.view import View
from cablestore.limits import MAX_TIMESTAMP_MS
from cablestore.protocol.body import TEXT
from cablestore.protocol.keys import after_prefix, escape, time_floor, unescape
from cablestore.protocol.post import Post

PREFIX: Final = b"!chat!text!"


def rows(post: Post) -> list[Row]:
    """Return the row of a post/text."""
    return [(b"!chat!text!%b!%b" % (post.channel_key, post.sort_time), post.hash)]


def dead_rows(tombstone: Tombstone) -> list[Row]:
    """Return a row for each deletion of the target, in the channel of the target."""
    channel_key = tombstone.channel_key
    if not channel_key:
        return []
    rows = tombstone.deletion_rows
    return [(PREFIX + b"!".join((channel_key, place, tombstone.target_hex)), digest) for place, digest in rows]


def hashes(
    reader: Reader, channel: str, start_ms: int = 0, end_ms: int | None = None, *, at_once: int = 0
) -> Iterator[bytes]:
    """Yield the hashes of a channel's texts and deletions with start <= timestamp < end, each once, newest first."""
    start, stop = _bounds(PREFIX + escape(channel) + b"!", start_ms, end_ms)
    previous = None
    for _, digest in reader.scan(start, stop, reverse=True, at_once=at_once):
        if digest != previous:
            yield digest
        previous = digest


def texts(
    reader: Reader,
    channel: str,
    after: bytes | None = None,
    before: bytes | None = None,
    *,
    newest_first: bool,
    start_ms: int = 0,
    end_ms: int | None = None,
    at_once: int = 0,
) -> Iterator[tuple[bytes, bytes]]:
    """Yield (sort time, hash) of a channel's post/text with start <= timestamp < end.

    `after` and `before` are sort times. Only texts strictly between them are yielded. The first `at_once` rows are read
    in one operation.
    """
    prefix = PREFIX + escape(channel) + b"!"
    start, stop = _bounds(prefix, start_ms, end_ms)
    if after is not None:
        start = max(start, prefix + after + b"~")
    if before is not None:
        stop = min(stop, prefix + before)
    for key, digest in reader.scan(start, stop, reverse=newest_first, at_once=at_once):
        place = key[len(prefix) :]
        if b"!" not in place:
            yield place, digest


def channels(reader: Reader, first: str = "") -> Iterator[str]:
    """Yield the name of every channel with messages, in order of names, starting at `first`.

    Each channel costs one read, regardless of the number of messages.
    """
    start, stop = PREFIX + escape(first), after_prefix(PREFIX)
    while (row := next(reader.scan(start, stop), None)) is not None:
        channel_key = row[0][len(PREFIX) :].split(b"!", 1)[0]
        yield unescape(channel_key)
        start = after_prefix(PREFIX + channel_key + b"!")


def _bounds(prefix: bytes, start_ms: int, end_ms: int | None) -> tuple[bytes, bytes]:
    start = prefix + time_floor(min(start_ms, MAX_TIMESTAMP_MS + 1))
    return start, after_prefix(prefix) if end_ms is None else prefix + time_floor(min(end_ms, MAX_TIMESTAMP_MS + 1))


VIEW: Final = View(
    name="messages",
    version=2,
    prefixes=(PREFIX,),
    answers="Channel Time Range Request; pages of messages",
    types=frozenset({TEXT}),
    rows=rows,
    dead_rows=dead_rows,
)
