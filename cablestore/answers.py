"""Answers to the requests of Cable peers, from one state of the store. Pure; the wire is not spoken here.

Every function yields as it reads, so that memory does not grow with what is asked for. Local-only posts are never given
away: their bytes stand under a prefix that nothing here reads, and the views that name their hashes are not asked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from cablestore.reader import Reader, data_key
from cablestore.views import activity, channel_topic, membership, messages, user_info

_ENDLESS: Final = sys.maxsize
"""More than any store holds. A peer's number may be greater still, and Python's own limit is this one."""


def post_request(reader: Reader, hashes: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of the requested posts that are here, in the order of the request (wire.md 6.3.2.1)."""
    for digest in hashes:
        raw = reader.get(data_key(digest.hex().encode()))
        if raw is not None:
            yield raw


def channel_time_range(
    reader: Reader, channel: str, time_start_ms: int, time_end_ms: int, limit: int = 0
) -> Iterator[bytes]:
    """Yield the hashes of a channel's texts and deletions with time_start <= timestamp < time_end (wire.md 6.3.2.3).

    Newest first, at most `limit`. A `time_end_ms` of 0 is no end, a `limit` of 0 no limit.
    """
    end_ms = time_end_ms if time_end_ms > 0 else None
    found = messages.hashes(reader, reader.dialect.channel_id(channel), time_start_ms, end_ms)
    return islice(found, min(limit, _ENDLESS)) if limit > 0 else found


def channel_state(reader: Reader, channel: str) -> Iterator[bytes]:
    """Yield the hashes that describe a channel now (wire.md 5.4.4, 6.3.2.4).

    The latest post/topic; then for each user who was ever in the channel the latest post/join or post/leave, and for
    members the latest post/info. Each costs one row, whatever the length of the history.
    """
    channel = reader.dialect.channel_id(channel)
    topic = channel_topic.latest(reader, channel)
    if topic is not None:
        yield topic[1]
    for member in membership.of_channel(reader, channel):
        if member.announced_by is not None:
            yield member.announced_by
        info = user_info.latest_hash(reader, member.author) if member.is_member else None
        if info is not None:
            yield info


def channel_list(reader: Reader, offset: int = 0, limit: int = 0) -> Iterator[str]:
    """Yield the names of known channels, sorted by their bytes (wire.md 6.3.2.5).

    The first `offset` are skipped, at most `limit` given; a `limit` of 0 is no limit.
    """
    names = (name for name, _ in activity.channels(reader))
    offset = min(offset, _ENDLESS)
    return islice(names, offset, min(offset + limit, _ENDLESS) if limit > 0 else None)


def worth_requesting(reader: Reader, hashes: Iterable[bytes]) -> Iterator[bytes]:
    """Yield those hashes of a response that the store lacks and that are not known to be deleted, each once.

    A deletion that waits for its target does not count: anyone can write one, and who wrote the target is not known yet.
    """
    for digest in dict.fromkeys(hashes):
        hash_hex = digest.hex().encode()
        if not reader.has(hash_hex) and reader.burial(digest) is None:
            yield digest
