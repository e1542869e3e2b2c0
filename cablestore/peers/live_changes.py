"""Changes for live requests, derived from entries of the arrival log.

A live time range receives new texts, and deletions in its channel. A live channel state receives new state, and after a
deletion the post that becomes current (wire.md 6.3.2.4). A live moderation request receives new roles, actions and
blocks, and the roles of a user who accepts roles again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from cablestore.index import arrival_log
from cablestore.index.arrival_log import EventKind
from cablestore.index.consents import user_of_row
from cablestore.index.log_position import LogPosition
from cablestore.index.notes import noted_key
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Skeleton, Tombstone
from cablestore.protocol import cable_js
from cablestore.protocol.body import INFO, JOIN, LEAVE, MEMBERSHIP_TYPES, MODERATION_TYPES, TEXT, TOPIC, Delete
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.message import ModerationRequest, Request, StateRequest, TimeRangeRequest
from cablestore.protocol.post import Post
from cablestore.store import answers
from cablestore.views import acts, channel_topic, membership, user_info
from cablestore.views.membership import Membership

MAX_ENTRIES: Final = 1_000
"""Maximum number of log entries in one read."""


class Subject(Enum):
    """The kind of live request that receives a change."""

    CHAT = "chat"
    STATE = "state"
    MODERATION = "moderation"
    MODERATION_AGAIN = "moderation again"
    """Actions that were undone may apply again, so the whole state must be sent again."""
    CONSENT = "consent"
    """A user accepted or declined roles, which can change the moderators. Used only in this node, not sent to peers."""
    PRIVATE = "private"
    """A local-only action of the local user. Only this node uses it, and never sends it to peers."""


class LiveChange(NamedTuple):
    """A hash to announce to live requests. `post` is set for moderation actions.

    `sequence` is the number of its log entry: a peer that received a later state already has it.
    """

    subject: Subject
    channel: str
    hash: bytes
    timestamp_ms: int
    post: Post | None = None
    sequence: int = 0
    is_safe_for_cable_js: bool = True
    """True if cable.js can handle the post."""
    is_new: bool = False
    """True for a post that was just stored, False for an older post that becomes current after a deletion."""
    is_own: bool = False
    """True for a new post of the local user."""


def changes_of(
    reader: Reader,
    after: int,
    state_channels: frozenset[str],
    own_key: bytes | None = None,
    most: int = MAX_ENTRIES,
) -> tuple[list[LiveChange], int]:
    """Return the changes after entry `after`, and the number of the last entry that was read.

    `state_channels` are the channels with live state requests. A new name of a user is a change in each of these
    channels that the user has joined. `own_key` is the public key of the local user. `most` limits the number of
    entries. Raises CorruptStoreError.
    """
    found: dict[tuple[Subject, str, bytes], LiveChange] = {}
    new: dict[bytes, bool] = {}
    for entry in islice(arrival_log.entries(reader, after), most):
        after = entry.sequence
        if entry.kind is EventKind.ACCEPTED:
            post = reader.post(entry.hash)
            if post is not None and post.is_local_only:
                _note(found, entry.sequence, [LiveChange(Subject.PRIVATE, "", post.hash, post.timestamp_ms, post)])
            elif post is not None:
                new[post.hash] = post.author == own_key
                _note(found, entry.sequence, _of_post(reader, post, state_channels))
        elif entry.kind is EventKind.DELETED:
            stone = reader.burial(entry.hash)
            if stone is not None and stone.skeleton is not None:
                _note(found, entry.sequence, _of_deletion(reader, stone, stone.skeleton, state_channels))
        elif entry.kind is EventKind.LOCAL:
            user = user_of_row(noted_key(reader, entry.hash) or b"")
            if user is not None:
                _note(found, entry.sequence, _of_consent(reader, user))
    changes = [
        item._replace(
            is_safe_for_cable_js=_is_safe_for_cable_js(reader, item),
            is_new=item.hash in new,
            is_own=new.get(item.hash, False),
        )
        for item in found.values()
    ]
    return changes, after


def hashes_since(reader: Reader, request: Request, place: LogPosition) -> list[bytes] | None:
    """Return the hashes that the live `request` receives for the changes after `place` in the arrival log.

    Return None if `place` is no longer valid, or more than `MAX_ENTRIES` entries follow. Also return None if the
    whole state must be sent again.
    """
    later = arrival_log.next_sequence(reader) - 1 - place.sequence
    if later > MAX_ENTRIES or not place.holds_in(reader):
        return None
    if not later:
        return []
    channel = request.channel if isinstance(request, TimeRangeRequest | StateRequest) else ""
    channel_id = reader.dialect.channel_id(channel)
    changes, _ = changes_of(
        reader, place.sequence, frozenset([channel_id] if isinstance(request, StateRequest) else [])
    )
    if isinstance(request, ModerationRequest):
        if any(item.subject is Subject.MODERATION_AGAIN for item in changes):
            return None
        return [item.hash for item in changes if concerns(request, item, reader.dialect)]
    return [item.hash for item in changes if item.channel == channel_id and concerns(request, item, reader.dialect)]


def concerns(request: Request, item: LiveChange, dialect: Dialect) -> bool:
    """Return True if the live `request` receives `item`. It must be for the item's channel, or for moderation."""
    match item.subject, request:
        case Subject.CHAT, TimeRangeRequest(_, _, start_ms):
            return item.timestamp_ms >= start_ms
        case Subject.STATE, StateRequest():
            return True
        case Subject.MODERATION, ModerationRequest(_, channels, _, oldest_ms) if item.post is not None:
            return answers.concerns_moderation(item.post, frozenset(channels), oldest_ms, dialect)
    return False


def _is_safe_for_cable_js(reader: Reader, item: LiveChange) -> bool:
    """Return True if cable.js can handle the post. For texts and deletions, only the channel can crash it."""
    is_plain = item.subject is Subject.CHAT
    return cable_js.handles_channel(item.channel) and (is_plain or answers.is_safe_for_cable_js(reader, item.hash))


def _note(found: dict[tuple[Subject, str, bytes], LiveChange], sequence: int, changes: Iterable[LiveChange]) -> None:
    """Add the changes of log entry `sequence` to `found`. Keep equal changes, such as those of a deletion, once."""
    for item in changes:
        found[item.subject, item.channel, item.hash] = item._replace(sequence=sequence)


def _of_post(reader: Reader, post: Post, state_channels: frozenset[str]) -> Iterator[LiveChange]:
    channel = post.channel
    if post.type in MODERATION_TYPES and answers.is_relevant_moderation(reader, post):
        yield LiveChange(Subject.MODERATION, channel or "", post.hash, post.timestamp_ms, post)
    elif post.type == INFO:
        if acts.may_change_roles(reader, post):
            yield from _of_consent(reader, post.author)
        yield from _of_info(reader, post.author, post.hash, post.timestamp_ms, state_channels)
    elif channel is not None and post.type in MEMBERSHIP_TYPES:
        is_chat = post.type == TEXT
        yield LiveChange(Subject.CHAT if is_chat else Subject.STATE, channel, post.hash, post.timestamp_ms)
        if channel in state_channels and post.type != LEAVE:
            member = membership.of_user(reader, channel, post.author)
            # After a post/join, a text or topic changes no membership. Without one, it may make the user a member.
            if member is not None and (post.type == JOIN or not member.has_joined):
                yield from _of_newcomer(reader, member, channel, post.timestamp_ms)
    elif isinstance(post.body, Delete):
        yield from _of_targets(reader, post, post.body.hashes)


def _of_consent(reader: Reader, user: bytes) -> Iterator[LiveChange]:
    """Yield CONSENT for each role of a user, and also the role if the user accepts roles (moderation.md 5.2.1.1)."""
    accepts = not acts.has_declined(reader, user)
    for act in acts.roles_for(reader, user):
        yield LiveChange(Subject.CONSENT, "", user, 0)
        post = reader.post(act.hash) if accepts else None
        if post is not None and answers.is_relevant_moderation(reader, post):
            yield LiveChange(Subject.MODERATION, post.channel or "", post.hash, post.timestamp_ms, post)


def _of_targets(reader: Reader, deletion: Post, targets: Iterable[bytes]) -> Iterator[LiveChange]:
    """Yield `deletion` as a change of the channel of each target, if the history of that channel lists it."""
    for target in targets:
        stone = reader.tombstone(target, deletion.author)
        is_listed = stone is not None and (deletion.timestamp_ms, deletion.hash) in stone.deletions
        dead = stone.skeleton if stone is not None and is_listed else None
        if dead is not None and dead.channel:
            yield LiveChange(Subject.CHAT, dead.channel, deletion.hash, deletion.timestamp_ms)


def _of_newcomer(reader: Reader, member: Membership, channel: str, timestamp_ms: int) -> Iterator[LiveChange]:
    """Yield the post/info of a user who became a member of a channel: it is now part of the channel's state."""
    info = user_info.latest_hash(reader, member.author) if member.is_member else None
    if info is not None:
        yield LiveChange(Subject.STATE, channel, info, timestamp_ms)


def _of_info(
    reader: Reader, author: bytes, digest: bytes, timestamp_ms: int, channels: frozenset[str]
) -> Iterator[LiveChange]:
    for channel in channels:
        member = membership.of_user(reader, channel, author)
        if member is not None and member.is_member:
            yield LiveChange(Subject.STATE, channel, digest, timestamp_ms)


def _of_deletion(
    reader: Reader, stone: Tombstone, dead: Skeleton, state_channels: frozenset[str]
) -> Iterator[LiveChange]:
    """Yield the deletions of the post `dead`, and the posts that become current instead of it."""
    if dead.channel:  # a channel's history also lists deletions of roles and actions
        for at_ms, digest in stone.deletions:
            yield LiveChange(Subject.CHAT, dead.channel, digest, at_ms)
        yield from _of_what_counts_instead(reader, stone.author, dead, dead.channel, state_channels)
    if dead.type in MODERATION_TYPES:
        yield LiveChange(Subject.MODERATION_AGAIN, "", stone.target, dead.timestamp_ms)
    elif dead.type == INFO:
        yield from _of_consent(reader, stone.author)  # the deleted post may have declined roles
        instead = user_info.latest_hash(reader, stone.author)
        if instead is not None:
            yield from _of_info(reader, stone.author, instead, dead.timestamp_ms, state_channels)


def _of_what_counts_instead(
    reader: Reader, author: bytes, dead: Skeleton, channel: str, state_channels: frozenset[str]
) -> Iterator[LiveChange]:
    instead: bytes | None = None
    if dead.type == TOPIC:
        latest = channel_topic.latest(reader, channel)
        instead = latest[1] if latest is not None else None
    elif dead.type in (JOIN, LEAVE):
        member = membership.of_user(reader, channel, author)
        instead = member.announced_by if member is not None else None
        if member is not None and dead.type == LEAVE and channel in state_channels:
            yield from _of_newcomer(reader, member, channel, dead.timestamp_ms)
    if instead is not None:
        yield LiveChange(Subject.STATE, channel, instead, dead.timestamp_ms)
