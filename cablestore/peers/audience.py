"""Audiences: what a peer must not get because users block each other (moderation.md 4.6). Pure.

A peer is known by the static key of its handshake, which is that of a user's identity. On other connections nobody is
known, so everybody gets everything. These rules hold for what the store gives and for what is passed on for others:

* A post/block does not reach the users that it blocks, unless it tells to notify them (5.1.4).
* A peer that is blocked by others does not get their posts, and a peer that blocks others does not get theirs
  (4.6.1.1).
* A peer that the local user blocks gets what tells it so, and nothing else.
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
    """Return the static key of a user's handshakes, None if these bytes are no public key.

    Two users may have the same one: the keys A and -A belong to one person.
    """
    try:
        return exchange_public_key(user)
    except DecodeError:
        return None


@dataclass(frozen=True, slots=True)
class Audience:
    """Rights of one peer to posts. `static` is its static key, None if nobody knows who it is."""

    static: bytes | None = None
    withheld: frozenset[bytes] = frozenset()
    """Authors whose posts it does not get."""
    is_blocked: bool = False
    """Whether the local user blocks it, in public."""
    is_notified: bool = False
    """Whether it is told so."""

    @property
    def is_everyone(self) -> bool:
        """Whether nothing is kept from it."""
        return self.static is None

    def may_hear_of(self, post: Post) -> bool:
        """Tell whether the peer may get the hash of a post."""
        if self.static is None:
            return True
        match post.body:
            case Block(recipients=recipients, notify=notify) if self._is_among(recipients):
                return bool(notify)
            case Unblock(recipients=recipients) if self._is_among(recipients):
                return True
        return not self.is_blocked

    def may_hear(self, reader: Reader, digest: bytes) -> bool:
        """Tell whether the peer may get a hash. Of a post that is not stored nothing is known, and its hash passes."""
        if self.static is None:
            return True
        raw = reader.get(data_key(digest.hex().encode()))
        if raw is None or peek_type(raw) not in (BLOCK, UNBLOCK):
            return not self.is_blocked
        return self.may_hear_of(decode_post(raw, reader.dialect, digest))

    def may_get(self, raw: bytes, dialect: Dialect) -> bool:
        """Tell whether the peer may get a post, whose bytes are well-formed. What it is told of it may always get."""
        if self.static is None:
            return True
        if peek_type(raw) in (BLOCK, UNBLOCK):
            post = decode_post(raw, dialect)
            if isinstance(post.body, Block | Unblock) and self._is_among(post.body.recipients):
                return self.may_hear_of(post)
        return not self.is_blocked and raw[:KEY_SIZE_BYTES] not in self.withheld

    def _is_among(self, users: Iterable[bytes]) -> bool:
        return any(static_key_of(user) == self.static for user in users)


EVERYONE: Final = Audience()


class BlockBook:
    """Public blocks: users by the static keys of those that they block, and of those that block them."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]] = (), own: Mapping[bytes, bool] | None = None) -> None:
        """`pairs` are blocker and blocked.

        `own` tells of those that the local user blocks, also through authorities, whether they are notified.
        """
        self._withheld: defaultdict[bytes | None, set[bytes]] = defaultdict(set)
        for blocker, blocked in pairs:
            if blocker != blocked:
                self._withheld[static_key_of(blocked)].add(blocker)
                self._withheld[static_key_of(blocker)].add(blocked)
        self._own: Final = {static_key_of(user): is_notified for user, is_notified in (own or {}).items()}

    def block(self, user: bytes, *, is_notified: bool) -> None:
        """Note that the local user blocks a user."""
        self._own[static_key_of(user)] = is_notified

    def audience(self, static: bytes) -> Audience:
        """Return what the peer with this static key may get."""
        withheld = frozenset(self._withheld.get(static, ()))
        return Audience(static, withheld, static in self._own, self._own.get(static, False))
