"""What clients hear of besides posts: changes of local rows, and what discarded posts were about."""

from __future__ import annotations

from cablestore.index.local import DRAFT, JUDGED, MUTED, READ, SEED, VALUE, local_key
from cablestore.index.plan import Plan
from cablestore.protocol.body import INFO, LINKABLE_TYPES, MODERATION_TYPES, TOPIC
from cablestore.protocol.keys import unescape
from cablestore.store.changes import Change, DraftChanged, LocalChanged, ModerationChanged, MuteChanged, UnreadChanged
from cablestore.views import activity, channel_topic, membership, user_info


def change_of_local_row(name: bytes, key: bytes) -> Change | None:
    """Return what a client is told when a local row changes, given its name and the rest of its key; None for nothing.

    Only rows that were put with `Plan.set_local(..., noted=True)` come here.
    """
    if name in (SEED, JUDGED):
        return ModerationChanged(None)
    if name == READ:
        return UnreadChanged(unescape(key))
    if name == DRAFT:
        return DraftChanged(unescape(key))
    if name == MUTED:
        return MuteChanged(unescape(key))
    if name == VALUE:
        value_name, _, value_key = key.partition(b"!")
        return LocalChanged(unescape(value_name), unescape(value_key))
    return None


def note_discarded(plan: Plan) -> None:
    """Remember which rows the posts changed that a plan discards: nothing says it when they are gone."""
    for post in plan.discarded:
        if post.type in LINKABLE_TYPES:
            plan.touch(activity.channel_key(post))
            plan.touch(membership.PREFIX + post.channel_key + b"!" + post.author_hex)
        if post.type == TOPIC:
            plan.touch(channel_topic.PREFIX + post.channel_key)
        elif post.type == INFO:
            plan.touch(user_info.LATEST_PREFIX + post.author_hex)
        elif post.type in MODERATION_TYPES:
            plan.touch(local_key(JUDGED))
