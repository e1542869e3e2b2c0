"""The seed: default roles of some users, set when a store joins a cabal (moderation.md 4.7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from cablestore import limits
from cablestore.errors import ArgumentError
from cablestore.protocol.acts import UserRole
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.reprs import hex_repr


@dataclass(frozen=True)
class Seed:
    """Seed: the default roles of some users, set when a store joins a cabal (4.7). At most 16 users.

    `given_at_ms` is the time when it was set. `revoked_at_ms` is the time when the local user revoked it, None if it is
    in force. `kept` are the hashes of later actions that applied at the revocation: they stay applied.
    """

    roles: tuple[tuple[bytes, UserRole], ...]
    given_at_ms: int
    revoked_at_ms: int | None = None
    kept: frozenset[bytes] = frozenset()

    __repr__ = hex_repr

    @classmethod
    def read(cls, data: bytes, given_at_ms: int) -> Self:
        """Decode a seed (4.7.2): for each user, a byte for the role (2 is admin, 1 is mod) and the public key.

        Raises ArgumentError if the seed is invalid.
        """
        size = 1 + KEY_SIZE_BYTES
        count, rest = divmod(len(data), size)
        if rest or not 1 <= count <= limits.MAX_SEED_USERS:
            raise ArgumentError(
                f"invalid moderation seed: expected {size} bytes for each of 1 to {limits.MAX_SEED_USERS} users (the "
                f"role and the public key), got {len(data)} bytes"
            )
        roles: dict[bytes, UserRole] = {}
        for at in range(0, len(data), size):
            number, key = data[at], data[at + 1 : at + size]
            if number > UserRole.ADMIN:
                raise ArgumentError(
                    f"invalid role {number} for {key.hex()} in the moderation seed. Use 2 for admin or 1 for mod"
                )
            if key in roles:
                raise ArgumentError(f"duplicate user {key.hex()} in the moderation seed. List each user once")
            roles[key] = UserRole(number)
        return cls(tuple(roles.items()), given_at_ms)

    @classmethod
    def read_hex(cls, text: str, given_at_ms: int) -> Self:
        """Decode hex digits: 66 for each user, or 65 as the specification prints them (4.7.3).

        Whitespace is ignored. Raises ArgumentError if the seed is invalid.
        """
        digits = "".join(text.split())
        printed = 1 + 2 * KEY_SIZE_BYTES
        if digits and len(digits) % printed == 0 and len(digits) <= printed * limits.MAX_SEED_USERS:
            digits = "".join("0" + digits[at : at + printed] for at in range(0, len(digits), printed))
        try:
            data = bytes.fromhex(digits)
        except ValueError:
            raise ArgumentError(
                "the moderation seed is not hex, or a digit is missing. Write 66 hex digits for each user"
            ) from None
        return cls.read(data, given_at_ms)

    def write(self) -> bytes:
        """Encode the seed for `read` (4.7.2)."""
        return b"".join(bytes((role,)) + key for key, role in self.roles)

    def revoked(self, at_ms: int, kept: Iterable[bytes] = ()) -> Self:
        """Return the seed, revoked by the local user at this time. Roles applied until then stay applied (4.7.2)."""
        return type(self)(self.roles, self.given_at_ms, at_ms, frozenset(kept))
