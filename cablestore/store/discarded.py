"""Notes of the rows that discarded posts change, so that clients are notified of the changes."""

from __future__ import annotations

from cablestore.index.local import DECIDED, local_key
from cablestore.index.plan import Plan
from cablestore.protocol.body import INFO, LINKABLE_TYPES, MODERATION_TYPES, TOPIC
from cablestore.views import activity, channel_topic, membership, user_info


def note_discarded(plan: Plan) -> None:
    """Note in `plan` the rows that its discarded posts change. After the write, they could no longer be determined."""
    for post in plan.discarded:
        if post.type in LINKABLE_TYPES:
            plan.touch(activity.channel_key(post))
            plan.touch(membership.PREFIX + post.channel_key + b"!" + post.author_hex)
        if post.type == TOPIC:
            plan.touch(channel_topic.PREFIX + post.channel_key)
        elif post.type == INFO:
            plan.touch(user_info.LATEST_PREFIX + post.author_hex)
        elif post.type in MODERATION_TYPES:
            plan.touch(local_key(DECIDED))
