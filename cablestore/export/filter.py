"""Selection of the posts and tombstones of a filtered export.

A post passes if it matches all given filters: channel, author, time. These posts without a channel match any channel
filter:

* post/info, if the store contains a membership of its author in one of the channels, or its author ever declined roles
* post/role and post/moderation for the whole cabal, and all post/block and post/unblock

A post/delete passes if one of its tombstones passes. Without a channel filter, it also passes if its author and time
match. On request, messages that public moderation hides are omitted.

A tombstone passes if its target is unknown, or if its skeleton matches the filters. So the post/delete of every
selected tombstone passes too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from cablestore.arguments import checked_window
from cablestore.export.manifest import Filters
from cablestore.index.reader import Reader
from cablestore.index.tombstone import Tombstone, tombstones
from cablestore.protocol.acts import Consent
from cablestore.protocol.body import DELETE, INFO, MODERATION_TYPES
from cablestore.protocol.post import Post
from cablestore.views import acts, membership

_AUTHORS_REMEMBERED = 10_000


class Selection:
    """Filters of an export, applied to one state of a store. Channel names are in the form of `Dialect.channel_id`."""

    def __init__(self, reader: Reader, filters: Filters, is_hidden: Callable[[Post], bool] | None = None) -> None:
        """`is_hidden` returns True for hidden posts. It is called only if the filters omit hidden messages."""
        self._reader = reader
        self._filters = filters
        self._start_ms, _ = checked_window(filters.after_ms, None)
        _, self._end_ms = checked_window(None, filters.before_ms)  # a window that ends before it starts is empty
        self._is_hidden = is_hidden if filters.without_hidden else None
        self._is_known_here = lru_cache(_AUTHORS_REMEMBERED)(self._find_author)

    def includes_post(self, post: Post) -> bool:
        """Return True if a post passes."""
        if post.type == DELETE:
            return self._includes_deletion(post)
        if self._is_hidden is not None and self._is_hidden(post):
            return False
        return self._matches(post.author, post.timestamp_ms, post.type, post.channel)

    def includes_tombstone(self, stone: Tombstone) -> bool:
        """Return True if a tombstone passes."""
        bones = stone.skeleton
        return bones is None or self._matches(stone.author, bones.timestamp_ms, bones.type, bones.channel)

    def includes_consent(self, said: Consent) -> bool:
        """Return True if the post/info of a statement about roles would pass."""
        return self._matches(said.user, said.timestamp_ms, INFO, None)

    def _includes_deletion(self, post: Post) -> bool:
        if not self._filters.channels and self._is_by_and_when(post.author, post.timestamp_ms):
            return True
        laid = (self._reader.tombstone(stone.target, stone.author) for stone in tombstones(post))
        return any(stone is not None and self.includes_tombstone(stone) for stone in laid)

    def _matches(self, author: bytes, timestamp_ms: int, post_type: int, channel: str | None) -> bool:
        return self._is_by_and_when(author, timestamp_ms) and self._is_where(author, post_type, channel)

    def _is_by_and_when(self, author: bytes, timestamp_ms: int) -> bool:
        filters = self._filters
        return (
            (not filters.authors or author in filters.authors)
            and self._start_ms <= timestamp_ms
            and (self._end_ms is None or timestamp_ms < self._end_ms)
        )

    def _is_where(self, author: bytes, post_type: int, channel: str | None) -> bool:
        channels = self._filters.channels
        if not channels or channel in channels:
            return True
        if post_type == INFO:
            return self._is_known_here(author)
        return post_type in MODERATION_TYPES and not channel

    def _find_author(self, author: bytes) -> bool:
        """Return True if an author has a membership in a channel of the filters, or ever declined roles.

        Without the statement that declines roles, the roles would apply again.
        """
        if any(membership.of_user(self._reader, channel, author) is not None for channel in self._filters.channels):
            return True
        return any(not consent.accepts for consent in acts.all_consents_of(self._reader, author))
