"""Which messages archives and exports leave out on demand: those that the store's user and its authorities hid in public.

Private acts do not count. Others would see from what is missing what the user keeps to itself (moderation.md 4.5).
"""

from __future__ import annotations

from typing import Final

from cablestore.index.reader import Reader
from cablestore.moderation import Decisions, StoredActs
from cablestore.moderation.applied import seed_of
from cablestore.protocol.body import TEXT
from cablestore.protocol.post import Post

_NOBODY: Final = b""
"""Key of nobody: no act by it is found, so none is unsealed."""


class HiddenMessages:
    """The messages of one state of a store that are hidden or dropped in public. Other posts are never hidden."""

    def __init__(self, reader: Reader, own_key: bytes | None) -> None:
        """`own_key` is the public key of the store's user, None if it has no identity: then nobody moderates for it."""
        self._decisions = Decisions.read(StoredActs(reader, _NOBODY), own_key or _NOBODY, seed_of(reader))

    def has(self, post: Post) -> bool:
        """Tell whether a post is one of them."""
        if post.type != TEXT:
            return False
        return self._decisions.text_hidden_by(post.hash, post.author, post.channel or "", post.timestamp_ms) is not None
