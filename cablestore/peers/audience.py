"""Audiences: which posts are withheld from a peer because users block each other (moderation.md 4.6).

The static key of the handshake identifies the user of a peer. Peers of unencrypted connections are unknown and receive
all posts. These rules apply to posts of the store and to forwarded posts:

* A post/block does not reach the users that it blocks, unless it notifies them (5.1.4).
* If one user blocks another, neither of them receives posts of the other (4.6.1.1).
* A peer that the local user blocks receives only the posts that notify it of the block.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from cablestore.errors import DecodeError
from cablestore.index.reader import Reader, data_key
from cablestore.protocol.body import BLOCK, UNBLOCK, Block, Unblock
from cablestore.protocol.crypto import KEY_SIZE_BYTES, exchange_public_key
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.post import Post, decode_post, peek_type

_KEYS_REMEMBERED: Final = 65_536


@lru_cache(_KEYS_REMEMBERED)
def static_key_of(user: bytes) -> bytes | None:
    """Return the static key of a user's handshakes, None if these bytes are not a public key.

    Two users may have the same static key: the public keys A and -A belong to one person.
    """
    try:
        return exchange_public_key(user)
    except DecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Audience:
    """Rights of one peer to posts. `static` is its static key, None for an unknown peer."""

    static: bytes | None = None
    withheld: frozenset[bytes] = frozenset()
    """Authors whose posts the peer does not receive."""
    is_blocked: bool = False
    """True if the local user blocks the peer in public."""
    is_notified: bool = False
    """True if the peer is notified of the block."""

    @property
    def is_everyone(self) -> bool:
        """True if the peer is unknown, so that nothing is withheld from it."""
        return self.static is None

    def may_get_hash_of(self, post: Post) -> bool:
        """Return True if the peer may get the hash of a post."""
        if self.static is None:
            return True
        match post.body:
            case Block(recipients=recipients, notify=notify) if self._is_among(recipients):
                return bool(notify)
            case Unblock(recipients=recipients) if self._is_among(recipients):
                return True
        return not self.is_blocked

    def may_get_hash(self, reader: Reader, digest: bytes) -> bool:
        """Return True if the peer may get a hash. If its post is not stored, only a block by the local user counts."""
        if self.static is None:
            return True
        raw = reader.get(data_key(digest.hex().encode()))
        if raw is None or peek_type(raw) not in (BLOCK, UNBLOCK):
            return not self.is_blocked
        return self.may_get_hash_of(decode_post(raw, reader.dialect, digest))

    def may_get(self, raw: bytes, dialect: Dialect) -> bool:
        """Return True if the peer may get a well-formed post. It always gets posts that notify it."""
        if self.static is None:
            return True
        if peek_type(raw) in (BLOCK, UNBLOCK):
            post = decode_post(raw, dialect)
            if isinstance(post.body, Block | Unblock) and self._is_among(post.body.recipients):
                return self.may_get_hash_of(post)
        return not self.is_blocked and raw[:KEY_SIZE_BYTES] not in self.withheld

    def _is_among(self, users: Iterable[bytes]) -> bool:
        return any(static_key_of(user) == self.static for user in users)


EVERYONE: Final = Audience()


class BlockBook:
    """Public blocks: for the user of each static key, the users who block that user or whom that user blocks."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = (), own: Mapping[bytes, bool] | None = None) -> None:
        """`pairs` contains (blocker, blocked) pairs.

        `own` contains the users that the local user blocks, directly or through an authority. The value is True if the
        block notifies the user.
        """
        self._withheld: defaultdict[bytes | None, set[bytes]] = defaultdict(set)
        for blocker, blocked in pairs:
            if blocker != blocked:
                self._withheld[static_key_of(blocked)].add(blocker)
                self._withheld[static_key_of(blocker)].add(blocked)
        self._own: Final = {static_key_of(user): is_notified for user, is_notified in (own or {}).items()}

    def block(self, user: bytes, *, is_notified: bool) -> None:
        """Record that the local user blocks a user."""
        self._own[static_key_of(user)] = is_notified

    def audience(self, static: bytes) -> Audience:
        """Return the rights of the peer with this static key."""
        withheld = frozenset(self._withheld.get(static, ()))
        return Audience(static, withheld, static in self._own, self._own.get(static, False))
