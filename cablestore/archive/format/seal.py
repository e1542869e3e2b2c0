"""Encryption of archives and indexes with the key of a cabal: deterministic and authenticated. Pure.

    magic u8[8] | nonce u8[24] | XChaCha20-Poly1305 of the plain bytes

The nonce is a keyed hash of the plain bytes. Therefore control nodes with equal stores create equal archives, and two
different archives never share a nonce. Without the key, only sizes and the equality of two archives are visible.
status-go tries decryption to detect encrypted bytes, and mistakes some encrypted archives for empty archives. Here the
magic identifies encrypted bytes, because protobuf documents cannot begin with it (wire type 7).
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
"""Additional bytes of encryption: 48."""


def seal(plain: bytes, key: bytes, *, purpose: bytes) -> bytes:
    """Return `plain` encrypted with a 32-byte cabal key. Bytes encrypted for one `purpose` do not decrypt for another.

    Equal arguments produce equal bytes. Raises ArchiveError for a key of another size.
    """
    nonce = _nonce(plain, key, purpose)
    ciphertext = sodium.crypto_aead_xchacha20poly1305_ietf_encrypt(plain, MAGIC, nonce, _encryption_key(key, purpose))
    return b"".join((MAGIC, nonce, ciphertext))


def unseal(sealed: bytes, key: bytes, *, purpose: bytes) -> bytes:
    """Return the plain bytes that were passed to `seal`.

    Raises ArchiveError if the bytes are not encrypted, were changed or truncated, or were encrypted with another key or
    for another purpose.
    """
    if not is_sealed(sealed):
        raise ArchiveError(
            "the data is not encrypted, expected encrypted data. Ask the control node whether its archives are public"
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
            f"cannot decrypt {len(sealed)} bytes: they are damaged, or encrypted with another cabal key. "
            "Check the key, then fetch the data again"
        )
    return plain


def is_sealed(data: bytes) -> bool:
    """Return True if bytes begin with the magic of encrypted archives and indexes."""
    return data.startswith(MAGIC)


def _encryption_key(key: bytes, purpose: bytes) -> bytes:
    return _derived(purpose, key, b"cablestore:arcky")


def _nonce(plain: bytes, key: bytes, purpose: bytes) -> bytes:
    nonce_key = _derived(purpose, key, b"cablestore:arcnk")
    return hashlib.blake2b(plain, key=nonce_key, digest_size=_NONCE_SIZE_BYTES, person=b"cablestore:arcnc").digest()


def _derived(data: bytes, key: bytes, person: bytes) -> bytes:
    if len(key) != SEALING_KEY_SIZE_BYTES:
        raise ArchiveError(
            f"invalid cabal key: expected {SEALING_KEY_SIZE_BYTES} bytes, got {len(key)}. Use the whole key"
        )
    return hashlib.blake2b(data, key=key, digest_size=SEALING_KEY_SIZE_BYTES, person=person).digest()
