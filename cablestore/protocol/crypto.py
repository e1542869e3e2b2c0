"""Hashes, signatures and sealing of posts, and the key pair behind them. Pure: no files, no clock.

The hash is plain BLAKE2b-256. wire.md 4.1 prints a salt and a personalization, but no published hash was made with
them (19 of 19 match without). Signatures are Ed25519 over all that follows the signature (wire.md 4.2).
"""

from __future__ import annotations

import hashlib
import importlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, Self

import nacl.bindings as sodium
import nacl.exceptions

from cablestore.errors import CorruptStoreError, DecodeError, IdentityError

HASH_SIZE_BYTES: Final = 32
KEY_SIZE_BYTES: Final = 32
SIGNATURE_SIZE_BYTES: Final = 64
SEED_SIZE_BYTES: Final = 32
NONCE_SIZE_BYTES: Final = sodium.crypto_box_NONCEBYTES


def post_hash(raw: bytes) -> bytes:
    """Return the 32-byte hash of a whole post, signature included (wire.md 5.1.2)."""
    return hashlib.blake2b(raw, digest_size=HASH_SIZE_BYTES).digest()


def is_signed(raw: bytes) -> bool:
    """Tell whether the signature of a post (key, signature, content) is right. Never raises."""
    try:
        sodium.crypto_sign_open(raw[KEY_SIZE_BYTES:], raw[:KEY_SIZE_BYTES])
    except (nacl.exceptions.CryptoError, ValueError):
        return False
    return True


def are_signed(raws: Sequence[bytes]) -> Sequence[bool]:
    """Tell the same of many posts. Other threads run meanwhile, where the extension was built."""
    return [is_signed(raw) for raw in raws] if _ARE_SIGNED is None else list(map(bool, _ARE_SIGNED(tuple(raws))))


def _native() -> Callable[[tuple[bytes, ...]], bytes] | None:
    """Return the loop of `_signatures.c` over the libsodium that PyNaCl brings, None where one of them is not there."""
    try:
        loop = importlib.import_module("cablestore._signatures").are_signed
        pynacl = importlib.import_module("nacl._sodium")
        address = int(pynacl.ffi.cast("uintptr_t", pynacl.ffi.addressof(pynacl.lib, "crypto_sign_open")))
    except (ImportError, AttributeError):
        return None
    return partial(loop, address)


_ARE_SIGNED: Final = _native()
VERIFIES_WITHOUT_LOCK: Final = _ARE_SIGNED is not None
"""Whether the extension was built: threads then verify whole shares of a batch without Python's lock."""


def exchange_public_key(public_key: bytes) -> bytes:
    """Convert an author's Ed25519 public key to the X25519 key that `Identity.exchange_secret` goes with.

    Raises DecodeError for bytes that are no public key.
    """
    try:
        return sodium.crypto_sign_ed25519_pk_to_curve25519(public_key)
    except (nacl.exceptions.CryptoError, ValueError):
        raise DecodeError(0, "these bytes are no Ed25519 public key") from None


@dataclass(frozen=True)
class Identity:
    """An Ed25519 key pair: who writes a post.

    `seed` is the 32-byte secret, `public_key` the 32 bytes that others know.
    """

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a seed of the wrong size."""
        if len(self.seed) != SEED_SIZE_BYTES:
            raise IdentityError(f"an identity's seed has {SEED_SIZE_BYTES} bytes, not {len(self.seed)}")

    @classmethod
    def generate(cls) -> Self:
        """Make a new random identity."""
        return cls(secrets.token_bytes(SEED_SIZE_BYTES))

    @classmethod
    def derive(cls, phrase: str, label: str) -> Self:
        """Derive the identity that `phrase` gives to `label`: the same every time, unrelated for other labels."""
        key = hashlib.blake2b(phrase.encode(), digest_size=64, person=b"cablestore:seed").digest()
        return cls(hashlib.blake2b(label.encode(), key=key, digest_size=SEED_SIZE_BYTES).digest())

    @cached_property
    def public_key(self) -> bytes:
        """The 32-byte public key."""
        return sodium.crypto_sign_seed_keypair(self.seed)[0]

    @cached_property
    def exchange_secret(self) -> bytes:
        """The identity's key for key exchange, an X25519 secret: peers see who we are (handshake.md 3.1)."""
        return sodium.crypto_sign_ed25519_sk_to_curve25519(self._secret_key)

    @cached_property
    def separate_exchange_secret(self) -> bytes:
        """An X25519 secret that nobody without the seed can connect with the identity; the same every time."""
        return hashlib.blake2b(key=self.seed, digest_size=KEY_SIZE_BYTES, person=b"cablestore:noise").digest()

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of `message`."""
        return sodium.crypto_sign(message, self._secret_key)[:SIGNATURE_SIZE_BYTES]

    def seal(self, raw: bytes) -> bytes:
        """Encrypt a local-only post for the disk: nonce, then XSalsa20-Poly1305 (moderation.md 4.5.2).

        The nonce comes from a keyed hash of the post instead of a random source: the same post gives the same bytes,
        and two posts never share a nonce.
        """
        nonce = hashlib.blake2b(raw, key=self.seed, digest_size=NONCE_SIZE_BYTES, person=b"cablestore:nonce").digest()
        return nonce + sodium.crypto_box_afternm(raw, nonce, self._sealing_key)

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt what `seal` made, or raise CorruptStoreError."""
        nonce, ciphertext = sealed[:NONCE_SIZE_BYTES], sealed[NONCE_SIZE_BYTES:]
        try:
            return sodium.crypto_box_open_afternm(ciphertext, nonce, self._sealing_key)
        except (nacl.exceptions.CryptoError, ValueError):
            raise CorruptStoreError(
                "a local-only post cannot be decrypted: it is damaged, or the store's identity is not the one that wrote it"
            ) from None

    @cached_property
    def _secret_key(self) -> bytes:
        return sodium.crypto_sign_seed_keypair(self.seed)[1]

    @cached_property
    def _sealing_key(self) -> bytes:
        return sodium.crypto_box_beforenm(exchange_public_key(self.public_key), self.exchange_secret)
