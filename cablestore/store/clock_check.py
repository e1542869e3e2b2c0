"""Estimate of the difference between the local clock and the clocks of other users, based on stored texts.

A text cannot be older than the texts that it links to, and cannot arrive before it is written. Two observations
therefore show that clocks differ:

* a text of another user is dated in the future: the local clock is slow, or the author's is fast;
* an answer of another user to a text of the local user is dated before that text: the local clock is fast, or the
  author's is slow.

A single user may be wrong. A difference is reported if at least `limits.MIN_CLOCK_WITNESSES` users agree. They must
also outnumber the users whose texts of the same time show no difference. The age of the texts is not evidence: the
cabal may be quiet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from statistics import median_low
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.index.reader import Reader
from cablestore.protocol.body import TEXT
from cablestore.protocol.keys import after_prefix, time_floor
from cablestore.protocol.post import Post
from cablestore.store.dating import utc
from cablestore.views import author, links, sync

_UNITS_MS: Final = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000))


class ClockDifference(NamedTuple):
    """Difference between the local clock and the clocks of `users` other users. The true difference may be larger.

    `ahead_ms` is negative if the local clock is slow. `now_ms` is the local time of the comparison.
    """

    ahead_ms: int
    users: int
    now_ms: int

    def warning(self) -> str:
        """Return a warning for the user, in one line."""
        unit, size_ms = next((each for each in _UNITS_MS if abs(self.ahead_ms) >= each[1]), _UNITS_MS[-1])
        number = round(abs(self.ahead_ms) / size_ms)
        way = "ahead of" if self.ahead_ms > 0 else "behind"
        return (
            f"the clock of this machine may be wrong: it shows {utc(self.now_ms)}, which is about {number} "
            f"{unit}{'s' * (number != 1)} {way} the messages of {self.users} other users. Check date, time and time "
            "zone"
        )


def clock_difference(reader: Reader, own_key: bytes | None, now_ms: int) -> ClockDifference | None:
    """Compare the local clock with the clocks of users who wrote recently.

    Returns None if too few of these users show a difference.
    """
    return _slow_by(reader, own_key, now_ms) or (_fast_by(reader, own_key, now_ms) if own_key else None)


def _slow_by(reader: Reader, own_key: bytes | None, now_ms: int) -> ClockDifference | None:
    from_ms = now_ms + limits.CLOCK_TOLERANCE_MS + 1
    later_ms: dict[bytes, int] = {}
    for text in _texts(reader, from_ms, None):
        if text.author != own_key:
            later_ms.setdefault(text.author, text.timestamp_ms - now_ms)
    if len(later_ms) < limits.MIN_CLOCK_WITNESSES:
        return None
    by_ms = median_low(later_ms.values())
    # If the local clock is right, about as many other users wrote in the period of the same length before `now_ms`.
    others = {text.author for text in _texts(reader, max(now_ms - by_ms, 0), from_ms)} - later_ms.keys() - {own_key}
    return ClockDifference(-by_ms, len(later_ms), now_ms) if len(later_ms) > len(others) else None


def _fast_by(reader: Reader, own_key: bytes, now_ms: int) -> ClockDifference | None:
    """Return by how much the local clock is fast, derived from answers that are dated before the user's texts.

    Returns None if too few users show that, or if a text of the user is dated in the future: then the clock was
    corrected since.
    """
    earlier_ms: dict[bytes, int] = {}
    from_ms = max(now_ms - limits.CLOCK_MEMORY_MS, 0)
    own = author.between(reader, own_key, (TEXT,), from_ms, limits.MAX_TIMESTAMP_MS, newest_first=True)
    for text in filter(None, map(reader.post, islice(own, limits.MAX_CLOCK_TEXTS_READ // 10))):
        if text.timestamp_ms > now_ms + limits.CLOCK_TOLERANCE_MS:
            return None
        answers = {post.author: text.timestamp_ms - post.timestamp_ms for post in _answers(reader, text)}
        earlier_ms = answers | earlier_ms  # for each author, the answer to the user's latest text counts
    earlier_ms.pop(own_key, None)
    found = [by_ms for by_ms in earlier_ms.values() if by_ms > limits.CLOCK_TOLERANCE_MS]
    if len(found) < limits.MIN_CLOCK_WITNESSES or 2 * len(found) <= len(earlier_ms):
        return None
    return ClockDifference(median_low(found), len(found), now_ms)


def _texts(reader: Reader, from_ms: int, to_ms: int | None) -> Iterator[Post]:
    """Yield the texts with `from_ms` <= time < `to_ms` (None: no bound) of all channels, latest first.

    At most `limits.MAX_CLOCK_TEXTS_READ` posts of all types are read.
    """
    prefix = sync.ID_PREFIX + sync.ALL + b"!"
    stop = after_prefix(prefix) if to_ms is None else prefix + time_floor(to_ms)
    rows = reader.scan(prefix + time_floor(from_ms), stop, reverse=True)
    for _, digest in islice(rows, limits.MAX_CLOCK_TEXTS_READ):
        post = reader.post(digest)
        if post is not None and post.type == TEXT:
            yield post


def _answers(reader: Reader, text: Post) -> Iterator[Post]:
    for digest in islice(links.linking(reader, text.hash), limits.MAX_CLOCK_TEXTS_READ // 10):
        post = reader.post(digest)
        if post is not None and post.type == TEXT and post.channel_key == text.channel_key:
            yield post
