"""Messages that archives and exports leave out on request: hidden publicly by the store's user or its authorities.

Private actions do not count. Otherwise, the missing messages would reveal them to other users (moderation.md 4.5).
"""

from __future__ import annotations

from typing import Final

from cablestore.index.reader import Reader
from cablestore.moderation import Decisions, StoredActs
from cablestore.moderation.applied import seed_of
from cablestore.protocol.body import TEXT
from cablestore.protocol.post import Post

_NOBODY: Final = b""
"""A key that no user has. No actions exist by this author, so no local-only posts are decrypted."""


class HiddenMessages:
    """The messages of one state of a store that are publicly hidden or dropped. Other posts are never hidden."""

    def __init__(self, reader: Reader, own_key: bytes | None) -> None:
        """`own_key` is the public key of the store's user. If it is None, only the seed gives authority."""
        self._decisions = Decisions.read(StoredActs(reader, _NOBODY), own_key or _NOBODY, seed_of(reader))

    def has(self, post: Post) -> bool:
        """Return True if a post is a message that is publicly hidden or dropped."""
        if post.type != TEXT:
            return False
        return self._decisions.text_hidden_by(post.hash, post.author, post.channel or "", post.timestamp_ms) is not None
