"""Activity: numbers of live posts by day and by channel (tallies).

    !activity!day!<day, 9 digits, 0 is 1970-01-01> -> msgpack list of counts by number of post type
    !activity!channel!<channel>                    -> the same, only for texts, topics, joins and leaves

A list contains the counts of types 0 to 9, and further counts up to the last that is not 0.

cable-core's INDEXES.md does not have this view. The list of channels is read from it, with one row for each channel.
cable-core reads that list from the membership rows, one for each member. A channel exists as long as it has a join,
leave, text or topic.
"""

from collections.abc import Iterator
from typing import Final

from cablestore.index.reader import Reader
from cablestore.index.view import Tally, View, decode_counts
from cablestore.protocol.body import ALL_TYPES, LINKABLE_TYPES
from cablestore.protocol.keys import escape, number_in, unescape
from cablestore.protocol.post import Post

DAY_PREFIX: Final = b"!activity!day!"
CHANNEL_PREFIX: Final = b"!activity!channel!"
DAY_MS: Final = 86_400_000


def day_key(post: Post) -> bytes:
    """Return the key of the day of the post's timestamp."""
    return b"!activity!day!%09d" % (post.timestamp_ms // DAY_MS)


def channel_key(post: Post) -> bytes:
    """Return the key of the post's channel."""
    return CHANNEL_PREFIX + post.channel_key


def days(reader: Reader) -> Iterator[tuple[int, list[int]]]:
    """Yield (start of the day in milliseconds, counts by type) for every day with posts, oldest first."""
    for key, value in reader.prefix(DAY_PREFIX):
        yield number_in(key[len(DAY_PREFIX) :]) * DAY_MS, decode_counts(value)


def between(reader: Reader, from_ms: int, to_ms: int) -> list[int]:
    """Return the counts by type of all days that overlap with from <= timestamp < to."""
    first, last = from_ms // DAY_MS, (to_ms - 1) // DAY_MS
    rows = reader.scan(DAY_PREFIX + b"%09d" % first, DAY_PREFIX + b"%09d" % (last + 1))
    return [
        sum(counts) for counts in zip(decode_counts(None), *(decode_counts(value) for _, value in rows), strict=True)
    ]


def channels(reader: Reader) -> Iterator[tuple[str, list[int]]]:
    """Yield (channel, counts by type) for every channel, sorted by the bytes of its name."""
    for key, value in reader.prefix(CHANNEL_PREFIX):
        yield unescape(key[len(CHANNEL_PREFIX) :]), decode_counts(value)


def of_channel(reader: Reader, channel: str) -> list[int]:
    """Return the counts by type of one channel, zeros if it is unknown."""
    return decode_counts(reader.get(CHANNEL_PREFIX + escape(channel)))


VIEW: Final = View(
    name="activity",
    version=1,
    prefixes=(DAY_PREFIX, CHANNEL_PREFIX),
    answers="Channel List Request; statistics",
    tallies=(
        Tally(prefix=DAY_PREFIX, types=ALL_TYPES, key=day_key),
        Tally(prefix=CHANNEL_PREFIX, types=LINKABLE_TYPES, key=channel_key),
    ),
)
