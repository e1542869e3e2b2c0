"""Sweeping: remove dropped posts in bounded batches, and remember data about them.

Each batch is one write, which includes the position at which the next batch continues. An interrupted sweep resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from cablestore import limits
from cablestore.index.database import Row
from cablestore.index.drops import (
    CHANNEL,
    POST,
    USER,
    AppliedDrops,
    Drop,
    DroppedPost,
    dropped_post,
    dropped_posts,
    encode_drop,
    rejected_count,
)
from cablestore.index.local import ACT, DROP, REFUSED, UNDROP, local_key
from cablestore.index.plan import Plan
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone, tombstones
from cablestore.moderation import consents
from cablestore.moderation.applied import AppliedModeration, act_key, remembered_act
from cablestore.protocol.acts import ModerationAct
from cablestore.protocol.body import DELETE
from cablestore.protocol.keys import after_prefix, unhex
from cablestore.protocol.post import Post
from cablestore.views import author as author_view
from cablestore.views import channel_state, links
from cablestore.views.acts import act_in, record_of

_HASH_DIGITS: Final = 32
"""Number of the hash's digits in a `<mono-ts>`."""
_Remains = list[tuple[bytes, bytes, bytes]]


def sweep(plan: Plan, moderation: AppliedModeration, reader: Reader) -> tuple[AppliedModeration, int]:
    """Add one batch of removals to a plan over the state of `reader`. `moderation.is_sweeping` must be True.

    If nothing is left to remove, compare a batch of remembered posts with the drops instead, and forget those that are
    no longer dropped. Return the moderation after the batch, and the number of posts that were read.
    """
    drops = AppliedDrops.of_rows(moderation.drops)
    left, left_size_bytes = limits.MAX_BATCH_POSTS, limits.MAX_BATCH_SIZE_BYTES
    swept = dict(moderation.drops)
    for key, drop in moderation.drops.items():
        if drop.place is not None and left > 0 and left_size_bytes > 0:
            place, read, size_bytes = _remove_some(plan, drops, reader, key, drop.place, left, left_size_bytes)
            left -= max(read, 1)
            left_size_bytes -= size_bytes
            swept[key] = replace(drop, place=place)
            plan.set_local(DROP, key, encode_drop(swept[key]))
    if left < limits.MAX_BATCH_POSTS:
        remembers = moderation.remembers or bool(plan.remembered)
        return replace(moderation, drops=swept, remembers=remembers), limits.MAX_BATCH_POSTS - left
    compared = list(islice(dropped_posts(reader, reader.local(UNDROP, b"") or b""), limits.MAX_BATCH_POSTS))
    for known in compared:
        if drops.of(known.fields) is None:
            forget(plan, known)
    is_comparing = len(compared) == limits.MAX_BATCH_POSTS
    plan.set_local(UNDROP, b"", compared[-1].hash_hex if is_comparing else None)
    return replace(moderation, is_comparing=is_comparing), max(len(compared), 1)


def _remove_some(
    plan: Plan, drops: AppliedDrops, reader: Reader, key: bytes, place: bytes, most: int, most_size_bytes: int
) -> tuple[bytes | None, int, int]:
    """Remove the next posts of the drop with the key `key`: read up to `most` posts and about `most_size_bytes`.

    `place` is the position at which the previous batch ended, b"" for the first batch. Return the new position (None at
    the end), the number of posts that were read, and the size of those that are still stored. A post that an earlier
    drop of the plan removed is not removed again.
    """
    read = size_bytes = 0
    for row_key, digest in _rows_of(reader, key, place):
        post = plan.reader.post(digest)
        read += 1
        if post is not None:
            drop = drops.of(post)
            size_bytes += len(post.raw)
            if drop is not None:
                plan.drop(post, _remains(reader, post, drop))
        if read >= most or size_bytes >= most_size_bytes:
            return row_key, read, size_bytes
    return None, read, size_bytes


def _rows_of(reader: Reader, key: bytes, place: bytes) -> Iterator[Row]:
    """Return the rows (key, hash of a post) of the user, channel or post that the key `key` of a drop names.

    For a user or a channel, only rows after the row with the key `place` are returned.
    """
    if key.startswith(POST):
        return iter([(key, unhex(key[len(POST) :]))])
    if key.startswith(USER):
        prefix = author_view.PREFIX + key[len(USER) :] + b"!"
    else:
        prefix = channel_state.MEMBER_PREFIX + key[len(CHANNEL) :] + b"!"
    return reader.scan(place + b"\x00" if place else prefix, after_prefix(prefix))


def _remains(reader: Reader, post: Post, drop: Drop) -> _Remains:
    """Return the local rows that will remember `post`, a stored post that `drop` removes."""
    known = DroppedPost.of(post, drop.act, was_held=True)
    rows = known.rows() + _act_rows(post)
    return [*rows, known.head_row] if post.is_linkable and links.is_head(reader, post) else rows


def remember_rejected(plan: Plan, post: Post, act: bytes | None) -> None:
    """Remember data about a rejected post in local rows: its statement about roles if it is a post/info.

    If it is dropped, `act` is the hash of the action that drops it. Then its fields are remembered too, for at most
    `limits.MAX_REJECTED_REMEMBERED` posts, and its own action, for at most `limits.MAX_BLOCKED_ACTIONS` per user.
    """
    rows: _Remains = [] if act is None else _rejected_act_rows(plan.reader, post)
    count = rejected_count(plan.reader)
    if act is not None and count < limits.MAX_REJECTED_REMEMBERED:
        known = DroppedPost.of(post, act, was_held=False)
        if plan.reader.local(known.rows()[0][0], known.hash_hex) is None:
            rows += [*known.rows(), (REFUSED, b"", b"%d" % (count + 1))]
    if consents.remember(plan, post, is_new=True) or rows:
        plan.remember(post, rows)


def _act_rows(post: Post) -> _Remains:
    act = remembered_act(post)
    return [] if act is None else [(ACT, act_key(post), record_of(act))]


def _rejected_act_rows(reader: Reader, post: Post) -> _Remains:
    rows = _act_rows(post)
    if not rows or reader.local(ACT, act_key(post)) is not None:
        return []
    known = reader.prefix(local_key(ACT, post.author_hex + b"!"))
    is_at_limit = next(islice(known, limits.MAX_BLOCKED_ACTIONS - 1, None), None) is not None
    return [] if is_at_limit else rows


def forget(plan: Plan, known: DroppedPost) -> None:
    """Remove the local rows that remember the post `known`, which is stored again, deleted or no longer dropped."""
    for name, key, _ in (*known.rows(), known.head_row):
        plan.set_local(name, key, None)
    if not known.was_held:
        plan.set_local(REFUSED, b"", b"%d" % max(rejected_count(plan.reader) - 1, 0))


def bury_dropped(plan: Plan) -> list[ModerationAct]:
    """Replace remembered posts by tombstones, if the plan contains their authors' deletions.

    Return the forgotten actions and roles.
    """
    unsaid: list[ModerationAct] = []
    for stone in [stone for post in plan.added if post.type == DELETE for stone in tombstones(post)]:
        unsaid += _unsay_act(plan, stone)
        known = dropped_post(plan.reader, stone.target)
        laid = plan.reader.tombstone(stone.target, stone.author)
        if known is None or known.author != stone.author or laid is None:
            continue
        forget(plan, known)
        plan.confirm_deletion(replace(laid, skeleton=known.skeleton))
    return unsaid


def _unsay_act(plan: Plan, stone: Tombstone) -> Iterator[ModerationAct]:
    """Yield the remembered action whose deletion `stone` records, if there is one, and remove its local row."""
    rows = plan.reader.prefix(local_key(ACT, stone.author.hex().encode() + b"!"))
    for key, record in [row for row in rows if row[0].endswith(stone.target_hex[:_HASH_DIGITS])]:
        plan.set_local(ACT, key[len(local_key(ACT)) :], None)
        yield act_in(record)
