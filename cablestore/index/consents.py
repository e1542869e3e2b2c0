"""Statements about roles that this store keeps without their post/infos (moderation.md 4.2.4).

Roles depend on the statements of their recipients, so a statement outlives a post/info that was rejected, dropped or
discarded. It is a local row:

    !local!consent!<pubkey>!<mono-ts> -> hash and u8: 1 if the user accepts roles, plus 2 for a claim of another store

A claim is unsigned and comes from an export. A row that this store derives from a post/info replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cablestore.errors import CorruptStoreError
from cablestore.index.database import Row
from cablestore.index.local import CONSENT, PREFIX, local_key
from cablestore.index.reader import Reader
from cablestore.protocol.acts import Consent
from cablestore.protocol.crypto import HASH_SIZE_BYTES
from cablestore.protocol.keys import sort_time, time_of, unhex

_ACCEPTS: Final = 1
_IS_CLAIM: Final = 2
_HEX_KEY_SIZE: Final = 64


def consent_key(consent: Consent) -> bytes:
    """Return the key of a statement's row, without the prefix of the name."""
    return consent.user.hex().encode() + b"!" + sort_time(consent.timestamp_ms, consent.hash.hex().encode())


def consent_value(consent: Consent) -> bytes:
    """Return the value of a statement's row."""
    return consent.hash + bytes((_ACCEPTS * consent.accepts | _IS_CLAIM * consent.is_claim,))


def remembered_consents(reader: Reader, user: bytes) -> Iterator[Consent]:
    """Yield the remembered statements of a user, oldest first."""
    return map(decode_consent, reader.prefix(local_key(CONSENT, user.hex().encode() + b"!")))


def all_remembered_consents(reader: Reader) -> Iterator[Consent]:
    """Yield the remembered statements of all users, in order of (user, timestamp, hash)."""
    return map(decode_consent, reader.prefix(local_key(CONSENT)))


def user_of_row(key: bytes) -> bytes | None:
    """Return the user of a statement in a local row, given the whole key. Return None for rows with other names."""
    prefix = local_key(CONSENT)
    return unhex(key[len(prefix) : len(prefix) + _HEX_KEY_SIZE]) if key.startswith(prefix) else None


def decode_consent(row: Row) -> Consent:
    """Return the statement in a local row, given the whole key. Raises CorruptStoreError."""
    key, value = row
    user, _, moment = key[len(local_key(CONSENT)) :].partition(b"!")
    if len(value) != HASH_SIZE_BYTES + 1:
        shown = key[len(PREFIX) :].decode(errors="backslashreplace")
        raise CorruptStoreError(f"the local row {shown} is damaged. Run `cablestore rebuild`")
    flags = value[HASH_SIZE_BYTES]
    is_accepted, is_claim = bool(flags & _ACCEPTS), bool(flags & _IS_CLAIM)
    return Consent(unhex(user), value[:HASH_SIZE_BYTES], time_of(moment), is_accepted, is_claim)
