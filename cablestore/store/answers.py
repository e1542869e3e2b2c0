"""Answers to the requests of Cable peers, read from one state of the store. `cablestore.peers` encodes them.

The generators yield as they read, so memory does not grow with the answer. Answers never contain local-only posts:
their bytes have a different key prefix, and the views read here do not list them. Answers also leave out dropped posts
(moderation.md 4.4.6), even before they are removed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from cablestore.index.drops import AppliedDrops, is_dropped_in_order, post_key
from cablestore.index.local import DROP, DROPPED, SWEPT
from cablestore.index.reader import Reader, data_key
from cablestore.index.verdict import Verdict
from cablestore.moderation.applied import AppliedModeration
from cablestore.protocol import cable_js
from cablestore.protocol.body import BLOCK, DELETE, MODERATION_TYPES, UNBLOCK
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post
from cablestore.views import activity, channel_topic, membership, messages, moderation, user_info

_ENDLESS: Final = sys.maxsize
"""The largest count that `islice` accepts. A peer may send a larger number."""

_ROWS_AT_ONCE: Final = 1000
_NO_DROPS: Final = AppliedDrops()


def post_request(reader: Reader, hashes: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of the requested posts that are stored, in the order of the request (wire.md 6.3.2.1)."""
    going = _going(reader)
    for digest in hashes:
        raw = reader.get(data_key(digest.hex().encode()))
        if raw is not None and not (going and _is_going(reader, going, digest)):
            yield raw


def _staying(reader: Reader, hashes: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the hashes in `hashes`, except those of dropped posts that are still stored."""
    going = _going(reader)
    return (digest for digest in hashes if not _is_going(reader, going, digest)) if going else hashes


def _going(reader: Reader) -> AppliedDrops:
    """Return the drops whose posts are not all removed yet. Other drops are not read, because there may be many."""
    return _NO_DROPS if reader.local(SWEPT, b"") is not None else AppliedDrops.under_way(reader)


def _is_going(reader: Reader, going: AppliedDrops, digest: bytes) -> bool:
    post = reader.post(digest)
    return post is not None and going.of(post) is not None


def channel_time_range(
    reader: Reader, channel: str, time_start_ms: int, time_end_ms: int, limit: int = 0
) -> Iterator[bytes]:
    """Yield the hashes of a channel's texts and deletions in a time range, end excluded (wire.md 6.3.2.3).

    Yields at most `limit` hashes, newest first. A `time_end_ms` or `limit` of 0 means no bound.
    """
    end_ms = time_end_ms if time_end_ms > 0 else None
    channel = reader.dialect.channel_id(channel)
    found = _staying(reader, messages.hashes(reader, channel, time_start_ms, end_ms, at_once=limit or _ROWS_AT_ONCE))
    return islice(found, min(limit, _ENDLESS)) if limit > 0 else found


def channel_state(reader: Reader, channel: str, *, may_be_cable_js: bool = False) -> Iterator[bytes]:
    """Yield the hashes of the posts that describe the current state of a channel (wire.md 5.4.4, 6.3.2.4).

    The first hash is the latest post/topic. The latest post/join or post/leave of each user who was ever in the channel
    follows, and the latest post/info of each member. The cost does not depend on the length of the history. With
    `may_be_cable_js`, topics and infos that crash cable.js are left out.
    """
    return _staying(reader, _state_of(reader, reader.dialect.channel_id(channel), may_be_cable_js=may_be_cable_js))


def _state_of(reader: Reader, channel: str, *, may_be_cable_js: bool) -> Iterator[bytes]:
    topic = channel_topic.latest(reader, channel)
    if topic is not None and not (may_be_cable_js and not cable_js.handles_topic(topic[0])):
        yield topic[1]
    for member in membership.of_channel(reader, channel):
        if member.announced_by is not None:
            yield member.announced_by
        info = user_info.latest_hash(reader, member.author) if member.is_member else None
        if info is not None and not (may_be_cable_js and not _handles_info_of(reader, member.author)):
            yield info


def _handles_info_of(reader: Reader, author: bytes) -> bool:
    latest = user_info.latest(reader, author)
    return latest is None or cable_js.handles_info(latest[0])


def is_safe_for_cable_js(reader: Reader, digest: bytes) -> bool:
    """Return True if cable.js can read a post, or if the post is not stored."""
    raw = reader.get(data_key(digest.hex().encode()))
    return raw is None or cable_js.handles_post(raw)


def channel_list(reader: Reader, offset: int = 0, limit: int = 0) -> Iterator[str]:
    """Yield the names of known channels, sorted by their bytes (wire.md 6.3.2.5).

    Skips the first `offset` names and yields at most `limit`; a `limit` of 0 means no limit. Dropped channels are left
    out (moderation.md 5.1.3.7).
    """
    is_dropped = is_dropped_in_order(reader)
    names = (name for name, _ in activity.channels(reader) if not is_dropped(name))
    offset = min(offset, _ENDLESS)
    return islice(names, offset, min(offset + limit, _ENDLESS) if limit > 0 else None)


def moderation_state(reader: Reader, channels: Iterable[str], oldest_ms: int = 0) -> Iterator[bytes]:
    """Yield the hashes of the current moderation of channels and of the whole cabal (moderation.md 5.2.1.1).

    Every post/block and post/unblock comes first, regardless of `oldest_ms`. Then, for the whole cabal and for each
    channel, come the relevant roles and actions with timestamp >= `oldest_ms`:

    * each user's latest role for a recipient, unless the recipient declines roles (4.2.3, 4.2.4);
    * actions that their authors have not undone for all targets (4.4.2). A repeated action does not undo the earlier
      action, so both are yielded.

    Each part is sorted from oldest to newest, the order in which posts must be applied (4.2.5, 4.4.4). Each hash is
    yielded once. The keys contain all required fields, so posts are not read. One row is read for each post since
    `oldest_ms`. For each action, targets are looked up until one is found for which the action counts.

    The caller decides which peers receive the answer. A peer should be a member of one of the channels. A post/block
    with notify=0 must not reach the users that it blocks (5.1.4).
    """
    yield from moderation.blocks(reader)
    for channel in dict.fromkeys(("", *map(reader.dialect.channel_id, channels))):
        for act in moderation.acts(reader, channel, oldest_ms):
            if moderation.is_relevant(reader, act):
                yield act.hash


def concerns_moderation(post: Post, channels: frozenset[str], oldest_ms: int, dialect: Dialect) -> bool:
    """Return True if a new post matches a live Moderation State Request (moderation.md 5.2.1.1, future = 1).

    `channels` and `oldest_ms` are those of the request. It is not checked here whether the post was undone or its
    recipient declines roles: see `is_relevant_moderation`.
    """
    if post.type not in MODERATION_TYPES or post.is_local_only:
        return False
    if post.type in (BLOCK, UNBLOCK):
        return True
    return post.timestamp_ms >= oldest_ms and post.channel in {"", *map(dialect.channel_id, channels)}


def is_relevant_moderation(reader: Reader, post: Post) -> bool:
    """Return True if `moderation_state` yields the post for its channel and time, once the post is stored."""
    if post.type in (BLOCK, UNBLOCK):
        return not post.is_local_only
    act = moderation.act_of(post)
    return act is not None and moderation.is_relevant(reader, act)


def worth_requesting(reader: Reader, hashes: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the hashes of a response that this store should request, each once.

    Skips stored posts, posts whose deletion is confirmed, and dropped posts, including posts that an action dropped
    before they arrived (moderation.md 4.4.6).
    """
    remembers = next(reader.local_rows(DROPPED), None) is not None
    for digest in dict.fromkeys(hashes):
        if reader.has(digest.hex().encode()) or is_deleted_here(reader, digest):
            continue
        if not (remembers and is_dropped_here(reader, digest)) and reader.local(DROP, post_key(digest)) is None:
            yield digest


def appraised(reader: Reader, applied: AppliedModeration | None, post: Post) -> Verdict:
    """Return ACCEPTED if peers may forward a post with a valid signature, otherwise the verdict that forbids it."""
    if post.is_local_only:
        return Verdict.LOCAL_ONLY
    if is_deleted_here(reader, post.hash) or is_deleted_by_author(reader, post):
        return Verdict.DELETED
    rejection = None if applied is None else applied.rejection(post)
    return Verdict.ACCEPTED if rejection is None else rejection[0]


def is_deleted_here(reader: Reader, digest: bytes) -> bool:
    """Return True if this store had a post and its author's deletion. Such a post is neither requested nor forwarded.

    A deletion that waits for its target does not count: anyone can write it, and the author of the target is not known
    yet. Unsigned skeletons from other stores do not count either.
    """
    return reader.is_deletion_confirmed(digest)


def is_deleted_by_author(reader: Reader, post: Post) -> bool:
    """Return True if the author's post/delete of this post is stored. A post/delete itself cannot be deleted."""
    return post.type != DELETE and reader.tombstone(post.hash, post.author) is not None


def is_dropped_here(reader: Reader, digest: bytes) -> bool:
    """Return True if a drop removed or rejected a post in this store. The post is neither requested nor forwarded."""
    return reader.local(DROPPED, digest.hex().encode()) is not None


def time_of(reader: Reader, digest: bytes) -> int | None:
    """Return the claimed time of a post that is stored, or whose deletion is confirmed. None if it is unknown."""
    post = reader.post(digest)
    if post is not None:
        return post.timestamp_ms
    stone = reader.burial(digest) if reader.is_deletion_confirmed(digest) else None
    return stone.skeleton.timestamp_ms if stone is not None and stone.skeleton is not None else None
