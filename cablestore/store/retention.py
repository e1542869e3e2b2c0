"""Retention: choose posts to discard so that a store stays small (wire.md 5.1.5). The store discards them.

A post/delete is never chosen. Without it, the posts that it deleted could return, and peers could not be convinced of
the deletion.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Final

from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.limits import STATE_POSTS_KEPT
from cablestore.protocol.body import ALL_TYPES, DELETE, JOIN, LEAVE
from cablestore.protocol.keys import TYPE_PARTS, time_of
from cablestore.views import author as author_view
from cablestore.views import channel_state, messages, user_info

_OF_MEMBERS: Final = (TYPE_PARTS[JOIN], TYPE_PARTS[LEAVE])
"""Types in the rows of channel state whose posts are superseded by newer posts of their author."""


def chosen(reader: Reader, before_ms: int | None, keep_newest: int | None, by_author: bytes | None) -> Iterator[bytes]:
    """Yield the hashes that the given rules choose, one rule after the other. None means no rule."""
    if before_ms is not None:
        yield from older_than(reader, before_ms)
    if keep_newest is not None:
        yield from beyond_newest(reader, keep_newest)
    if by_author is not None:
        yield from written_by(reader, by_author)


def older_than(reader: Reader, before_ms: int) -> Iterator[bytes]:
    """Yield the hashes of texts dated before `before_ms`, and of superseded state posts dated before it.

    The latest three joins, leaves and infos of each user, and topics of each channel, are kept (wire.md 5.1.5.1).
    """
    for channel in messages.channels(reader):
        for place, digest in messages.texts(reader, channel, newest_first=False):
            if time_of(place) >= before_ms:
                break
            yield digest
    for prefix in (channel_state.MEMBER_PREFIX, channel_state.TOPIC_PREFIX, user_info.PREFIX):
        yield from _superseded(reader.prefix(prefix), before_ms)


def beyond_newest(reader: Reader, keep: int) -> Iterator[bytes]:
    """Yield the hashes of every channel's texts except the `keep` newest."""
    for channel in messages.channels(reader):
        found = messages.texts(reader, channel, newest_first=True)
        yield from (digest for _, digest in islice(found, min(keep, sys.maxsize), None))


def written_by(reader: Reader, author: bytes) -> Iterator[bytes]:
    """Yield the hashes of all posts of one author except deletions."""
    for post_type in sorted(ALL_TYPES - {DELETE}):
        yield from author_view.hashes(reader, author, post_type)


def _superseded(rows: Iterable[Row], before_ms: int) -> Iterator[bytes]:
    """Yield the hashes of rows dated before `before_ms` that are not among the latest three of their group."""
    for group_key, group in groupby(rows, key=lambda row: row[0].rsplit(b"!", 1)[0]):
        if group_key.startswith(channel_state.MEMBER_PREFIX) and group_key.rsplit(b"!", 1)[1] not in _OF_MEMBERS:
            continue  # `older_than` chooses texts by channel, and topics of all authors together
        latest: deque[Row] = deque()
        for row in group:
            latest.append(row)
            if len(latest) > STATE_POSTS_KEPT:
                key, digest = latest.popleft()
                if time_of(key.rsplit(b"!", 1)[1]) >= before_ms:
                    break
                yield digest
