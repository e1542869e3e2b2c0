"""Encryption of archives and indexes under the key of a cabal: deterministic and authenticated. Pure.

    magic u8[8] | nonce u8[24] | XChaCha20-Poly1305 of the plain bytes

The nonce is a keyed hash of the plain bytes. So control nodes with equal stores make equal archives, and two different
archives never share a nonce. A stranger learns only whether two archives are equal. status-go tries decryption to find
out whether bytes are encrypted, and takes some encrypted archives for empty ones. Here the magic says it: no protobuf
document begins with its bytes (wire type 7).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import nacl.bindings as sodium
import nacl.exceptions

from cablestore.errors import ArchiveError

MAGIC: Final = b"\xffCBLARC1"
SEALING_KEY_SIZE_BYTES: Final = 32
_NONCE_SIZE_BYTES: Final = sodium.crypto_aead_xchacha20poly1305_ietf_NPUBBYTES
_HEAD_SIZE_BYTES: Final = len(MAGIC) + _NONCE_SIZE_BYTES
SEAL_OVERHEAD_BYTES: Final = _HEAD_SIZE_BYTES + sodium.crypto_aead_xchacha20poly1305_ietf_ABYTES
"""How many bytes sealing adds: 48."""


def seal(plain: bytes, key: bytes, *, purpose: bytes) -> bytes:
    """Return `plain` encrypted under a 32-byte cabal key. Bytes sealed for one `purpose` do not unseal for another.

    Equal arguments give equal bytes. Raises ArchiveError for a key of another size.
    """
    nonce = _nonce(plain, key, purpose)
    ciphertext = sodium.crypto_aead_xchacha20poly1305_ietf_encrypt(plain, MAGIC, nonce, _encryption_key(key, purpose))
    return b"".join((MAGIC, nonce, ciphertext))


def unseal(sealed: bytes, key: bytes, *, purpose: bytes) -> bytes:
    """Return the plain bytes that `seal` was given.

    Raises ArchiveError if the bytes are not sealed, were changed or cut, or were sealed under another key or for
    another purpose.
    """
    if not is_sealed(sealed):
        raise ArchiveError(
            "these bytes are not encrypted, expected are encrypted ones. Ask the control node whether its archives are "
            "public"
        )
    nonce = sealed[len(MAGIC) : _HEAD_SIZE_BYTES]
    try:
        plain = sodium.crypto_aead_xchacha20poly1305_ietf_decrypt(
            sealed[_HEAD_SIZE_BYTES:], MAGIC, nonce, _encryption_key(key, purpose)
        )
    except (nacl.exceptions.CryptoError, ValueError):
        plain = None
    if plain is None or not hmac.compare_digest(nonce, _nonce(plain, key, purpose)):
        raise ArchiveError(
            f"{len(sealed)} bytes cannot be decrypted: they are damaged, or encrypted under another cabal key. "
            "Check the key, then fetch them again"
        )
    return plain


def is_sealed(data: bytes) -> bool:
    """Tell whether bytes begin with the magic of encrypted ones."""
    return data.startswith(MAGIC)


def _encryption_key(key: bytes, purpose: bytes) -> bytes:
    return _derived(purpose, key, b"cablestore:arcky")


def _nonce(plain: bytes, key: bytes, purpose: bytes) -> bytes:
    nonce_key = _derived(purpose, key, b"cablestore:arcnk")
    return hashlib.blake2b(plain, key=nonce_key, digest_size=_NONCE_SIZE_BYTES, person=b"cablestore:arcnc").digest()


def _derived(data: bytes, key: bytes, person: bytes) -> bytes:
    if len(key) != SEALING_KEY_SIZE_BYTES:
        raise ArchiveError(
            f"the cabal key has {len(key)} bytes, {SEALING_KEY_SIZE_BYTES} are needed. Give the whole key"
        )
    return hashlib.blake2b(data, key=key, digest_size=SEALING_KEY_SIZE_BYTES, person=person).digest()
