"""Retention: choose posts to discard so that a store stays small (wire.md 5.1.5). The store discards them.

A post/delete is never chosen. Without it, the posts that it deleted could return, and the store could not prove the
deletion to peers.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice
from typing import Final, NamedTuple

from cablestore.index.batches import Progress, no_progress
from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.limits import STATE_POSTS_KEPT
from cablestore.protocol.body import ALL_TYPES, DELETE, JOIN, LEAVE
from cablestore.protocol.keys import TYPE_PARTS, time_of, unescape
from cablestore.views import author as author_view
from cablestore.views import channel_state, messages, user_info

_OF_MEMBERS: Final = (TYPE_PARTS[JOIN], TYPE_PARTS[LEAVE])
"""Types in the rows of channel state whose posts are superseded by newer posts of their author."""
_CHANNEL_PART: Final = 3
"""Index of the channel among the parts of a key in the view of channel state."""


def chosen(reader: Reader, before_ms: int | None, keep_newest: int | None, by_author: bytes | None) -> Iterator[bytes]:
    """Yield the hashes of the posts that each parameter chooses: see `CableStore.prune`.

    A parameter that is None chooses no posts. A post that several parameters choose is yielded several times.
    """
    if before_ms is not None:
        yield from older_than(reader, lambda _: before_ms)
    if keep_newest is not None:
        yield from beyond_newest(reader, keep_newest)
    if by_author is not None:
        yield from written_by(reader, by_author)


class ChosenPosts(NamedTuple):
    """Posts of one type in one channel that are chosen to be discarded. Infos belong to the channel ""."""

    channel: str
    type_name: str
    posts: int
    first_ms: int
    last_ms: int


def summary(reader: Reader, hashes: Iterable[bytes], progress: Progress = no_progress) -> list[ChosenPosts]:
    """Count the posts in `hashes` by channel and type. Each post counts once; deletions and unknown posts do not."""
    found: dict[tuple[str, str], ChosenPosts] = {}
    seen: set[bytes] = set()
    for digest in hashes:
        progress(1)
        post = None if digest in seen else reader.post(digest)
        seen.add(digest)
        if post is None or post.type == DELETE:
            continue
        key = (post.channel or "", post.type_name)
        known = found.get(key, ChosenPosts(*key, 0, post.timestamp_ms, post.timestamp_ms))
        found[key] = known._replace(
            posts=known.posts + 1,
            first_ms=min(known.first_ms, post.timestamp_ms),
            last_ms=max(known.last_ms, post.timestamp_ms),
        )
    return [found[key] for key in sorted(found)]


def older_than(reader: Reader, oldest_ms: Callable[[str], int]) -> Iterator[bytes]:
    """Yield the hashes of texts dated before the oldest date of their channel, and of superseded state posts.

    The latest three joins, leaves and infos of each user are kept, and the latest three topics of each channel (wire.md
    5.1.5.1). Infos belong to the channel "".
    """
    for channel in messages.channels(reader):
        before_ms = oldest_ms(channel)
        for place, digest in messages.texts(reader, channel, newest_first=False):
            if time_of(place) >= before_ms:
                break
            yield digest
    for prefix in (channel_state.MEMBER_PREFIX, channel_state.TOPIC_PREFIX):
        yield from _superseded(reader.prefix(prefix), lambda key: oldest_ms(unescape(key.split(b"!")[_CHANNEL_PART])))
    infos_before_ms = oldest_ms("")
    yield from _superseded(reader.prefix(user_info.PREFIX), lambda _: infos_before_ms)


def beyond_newest(reader: Reader, keep: int) -> Iterator[bytes]:
    """Yield the hashes of every channel's texts except the `keep` newest."""
    for channel in messages.channels(reader):
        found = messages.texts(reader, channel, newest_first=True)
        yield from (digest for _, digest in islice(found, min(keep, sys.maxsize), None))


def written_by(reader: Reader, author: bytes) -> Iterator[bytes]:
    """Yield the hashes of all posts of one author except deletions."""
    for post_type in sorted(ALL_TYPES - {DELETE}):
        yield from author_view.hashes(reader, author, post_type)


def _superseded(rows: Iterable[Row], before_ms_of: Callable[[bytes], int]) -> Iterator[bytes]:
    """Yield the hashes of state posts that are not among the latest three of their group and are dated too early.

    A group is the rows whose keys differ only in their last part, the time. `before_ms_of` returns the oldest time that
    is kept in a group, given the common part of its keys.
    """
    for group_key, group in groupby(rows, key=lambda row: row[0].rsplit(b"!", 1)[0]):
        if group_key.startswith(channel_state.MEMBER_PREFIX) and group_key.rsplit(b"!", 1)[1] not in _OF_MEMBERS:
            continue  # `older_than` chooses texts and topics by channel, from other rows
        before_ms = before_ms_of(group_key)
        latest: deque[Row] = deque()
        for row in group:
            latest.append(row)
            if len(latest) > STATE_POSTS_KEPT:
                key, digest = latest.popleft()
                if time_of(key.rsplit(b"!", 1)[1]) >= before_ms:
                    break
                yield digest
