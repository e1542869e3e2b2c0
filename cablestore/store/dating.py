"""Timestamps of new posts that replace earlier posts: a name, a topic, a membership, a moderation action.

The latest post by (timestamp, hash) is in effect. A new post must therefore be dated after the post that it replaces.
This applies even if a fast clock dated the replaced post in the future. Peers reject posts dated a week or more in the
future. A new post that would need such a date cannot take effect yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from heapq import merge
from itertools import islice, takewhile
from typing import Final, NamedTuple

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.index.database import Row
from cablestore.index.reader import Reader
from cablestore.moderation.applied import AppliedModeration
from cablestore.moderation.decisions import Decisions
from cablestore.moderation.known import BLOCKING, is_doing
from cablestore.moderation.stored import StoredActs
from cablestore.protocol.acts import ModerationAct
from cablestore.protocol.body import (
    INFO,
    LEAVE,
    MEMBERSHIP_TYPES,
    Block,
    Body,
    Info,
    Join,
    Leave,
    Moderation,
    Role,
    Topic,
    Unblock,
)
from cablestore.protocol.keys import time_of
from cablestore.store.topics import topics_that_count
from cablestore.views import author, channel_state

_HASH_DIGITS: Final = 12
_KEY_DIGITS: Final = 16
_MS_PER_S: Final = 1000
_LAST_DATE_MS: Final = 253_402_300_799_000
"""The last second that a date with a four-digit year can express."""


class DatedPost(NamedTuple):
    """A post that a new post replaces."""

    timestamp_ms: int
    hash: bytes
    author: bytes


class ReplacedPosts(NamedTuple):
    """Posts that a new post replaces, latest first.

    A new post takes effect in this store if it is dated after all posts of `here`. It also takes effect for other users
    if it is dated after all posts of `elsewhere`.
    """

    here: Iterator[DatedPost]
    elsewhere: Iterator[DatedPost]


def date_after(replaced: ReplacedPosts, time_ms: int, now_ms: int, own_key: bytes) -> int:
    """Return `time_ms`, or the time just after the latest replaced post if that is later.

    Raises ArgumentError if the time just after a post of `here` is a week or more ahead of the clock. Posts of
    `elsewhere` with such a time are ignored.
    """
    end_ms = now_ms + limits.MAX_FUTURE_MS
    latest = next(replaced.here, None)
    if latest is not None and latest.timestamp_ms + 1 >= end_ms:
        others = takewhile(lambda other: other.timestamp_ms + 1 >= end_ms, replaced.here)
        raise _not_yet([latest, *islice(others, limits.MAX_POSTS_IN_THE_WAY_LISTED)], own_key)
    known = (post.timestamp_ms for post in replaced.elsewhere if post.timestamp_ms + 1 < end_ms)
    return max(time_ms, latest.timestamp_ms + 1 if latest else 0, next(known, -1) + 1)


def _not_yet(posts: list[DatedPost], own_key: bytes) -> ArgumentError:
    latest, listed = posts[0], posts[: limits.MAX_POSTS_IN_THE_WAY_LISTED]
    is_own = latest.author == own_key
    until_ms = latest.timestamp_ms + 2 - limits.MAX_FUTURE_MS
    if is_own:
        hashes = " ".join(post.hash.hex()[:_HASH_DIGITS] for post in listed if post.author == own_key)
        more = ". These are the first of them: repeat this until the error is gone" if len(posts) > len(listed) else ""
        remedy = f"Run `cablestore delete {hashes}` and try again{more}"
    else:
        key, digest = latest.author.hex()[:_KEY_DIGITS], latest.hash.hex()[:_HASH_DIGITS]
        remedy = f"Hide the post's author (`cablestore hide {key}`), or drop the post (`cablestore drop {digest}`)"
    return ArgumentError(
        f"the new post cannot take effect until {utc(until_ms)}: it must follow {'your' if is_own else 'the'} post "
        f"{latest.hash.hex()[:_HASH_DIGITS]}, which is dated {utc(latest.timestamp_ms)}. Nothing was written. {remedy}"
    )


def utc(time_ms: int) -> str:
    """Format a time for a message, such as `2026-11-27 08:34:21 UTC`."""
    seconds = min(time_ms, _LAST_DATE_MS) / _MS_PER_S
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


# --- replaced posts --------------------------------------------------------------------------------


def replaced_by(reader: Reader, moderation: AppliedModeration | None, body: Body, own_key: bytes) -> ReplacedPosts:
    """Return the posts that a new post of the user replaces. Texts and deletions do not replace posts."""
    match body:
        case Info():
            return ReplacedPosts(_dated(author.newest(reader, own_key, INFO), own_key), iter(()))
        case Topic(channel=name):
            return _topics(reader, moderation, reader.dialect.channel_id(name))
        case Join(channel=name):
            return _own_state(reader, reader.dialect.channel_id(name), own_key, (LEAVE,))
        case Leave(channel=name):
            return _own_state(reader, reader.dialect.channel_id(name), own_key, MEMBERSHIP_TYPES)
        case Role() | Moderation() | Block() | Unblock():
            acts = sorted(_acts(reader, moderation, body, own_key), key=lambda act: act.moment, reverse=True)
            own = [act for act in acts if act.author == own_key]
            opposite = [act for act in acts if act.author != own_key and is_doing(act) is not _is_doing(body)]
            return ReplacedPosts(*(iter([_of_act(act) for act in each]) for each in (own, opposite)))
    return ReplacedPosts(iter(()), iter(()))


def _topics(reader: Reader, moderation: AppliedModeration | None, channel: str) -> ReplacedPosts:
    """Return the topics of a channel: in `here` those that count under `moderation`, in `elsewhere` all."""
    here, elsewhere = topics_that_count(reader, moderation, channel), topics_that_count(reader, None, channel)
    return ReplacedPosts(
        (DatedPost(post.timestamp_ms, post.hash, post.author) for post in here),
        (DatedPost(post.timestamp_ms, post.hash, post.author) for post in elsewhere),
    )


def _own_state(reader: Reader, channel: str, own_key: bytes, post_types: Iterable[int]) -> ReplacedPosts:
    rows = (channel_state.newest(reader, channel, own_key, post_type) for post_type in post_types)
    return ReplacedPosts(iter(merge(*(_dated(each, own_key) for each in rows), reverse=True)), iter(()))


def _dated(rows: Iterable[Row], own_key: bytes) -> Iterator[DatedPost]:
    return (DatedPost(time_of(key.rsplit(b"!", 1)[1]), digest, own_key) for key, digest in rows)


def _of_act(act: ModerationAct) -> DatedPost:
    return DatedPost(act.timestamp_ms, act.hash, act.author)


def _is_doing(body: Body) -> bool:
    return not body.action & 1 if isinstance(body, Moderation) else isinstance(body, Block)


def _acts(
    reader: Reader, moderation: AppliedModeration | None, body: Role | Moderation | Block | Unblock, own_key: bytes
) -> Iterator[ModerationAct]:
    """Yield the stored actions that `body` may replace: those of the same kind on its targets.

    For a role, only the user's own assignments are yielded: if several authors assign roles, the highest role is in
    effect, not the latest.
    """
    decisions = Decisions.read(StoredActs(reader, own_key), own_key) if moderation is None else moderation.decisions
    match body:
        case Role(channel=name, recipient=user):
            context = reader.dialect.channel_id(name) if name else None
            yield from decisions.own_roles(user, context)
        case Moderation(channel=name, recipients=targets, action=action):
            context = reader.dialect.channel_id(name) if name else None
            for target in targets or (context or "",):
                yield from decisions.acts_on(target, action & ~1, context)
        case Block(recipients=users) | Unblock(recipients=users):
            for user in users:
                yield from decisions.acts_on(user, BLOCKING, None)
