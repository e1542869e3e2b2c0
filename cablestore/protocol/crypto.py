"""Hashes, signatures and encryption of posts, and the key pair of a user.

The hash is plain BLAKE2b-256. wire.md 4.1 specifies a salt and a personalization, but all 19 published hashes were
computed without them. A signature is Ed25519 over all bytes that follow it (wire.md 4.2).
"""

from __future__ import annotations

import hashlib
import importlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, NamedTuple, Self

import nacl.bindings as sodium
import nacl.exceptions

from cablestore.arguments import check_bytes
from cablestore.errors import CorruptStoreError, DecodeError, IdentityError

HASH_SIZE_BYTES: Final = 32
KEY_SIZE_BYTES: Final = 32
SIGNATURE_SIZE_BYTES: Final = 64
SEED_SIZE_BYTES: Final = 32
NONCE_SIZE_BYTES: Final = sodium.crypto_box_NONCEBYTES


def post_hash(raw: bytes) -> bytes:
    """Return the 32-byte hash of a whole post, including its signature (wire.md 5.1.2)."""
    return hashlib.blake2b(raw, digest_size=HASH_SIZE_BYTES).digest()


def is_signed(raw: bytes) -> bool:
    """Return True if the signature of a post (key, signature, content) is valid. Never raises."""
    try:
        sodium.crypto_sign_open(raw[KEY_SIZE_BYTES:], raw[:KEY_SIZE_BYTES])
    except (nacl.exceptions.CryptoError, ValueError):
        return False
    return True


def are_signed(raws: Sequence[bytes]) -> list[bool]:
    """Return for each post whether its signature is valid.

    With the extension, other threads can run at the same time.
    """
    if EXTENSION is None:
        return [is_signed(raw) for raw in raws]
    return EXTENSION.results(EXTENSION.begin(tuple(raws), 1))


class Extension(NamedTuple):
    """Functions of `_signatures.c`, bound to the libsodium of PyNaCl."""

    begin: Callable[[tuple[bytes, ...], int], object]
    """Start to verify posts on a number of threads, including the thread that calls `results`."""
    results: Callable[[object], list[bool]]
    """Wait for the posts of `begin`. Return for each post whether its signature is valid."""


def _extension() -> Extension | None:
    """Return the extension, or None if the extension or the function of libsodium is missing."""
    try:
        found = importlib.import_module("cablestore._signatures")
        pynacl = importlib.import_module("nacl._sodium")
        address = int(pynacl.ffi.cast("uintptr_t", pynacl.ffi.addressof(pynacl.lib, "crypto_sign_open")))
        return Extension(partial(found.begin, address), found.results)
    except (ImportError, AttributeError):
        return None


EXTENSION: Final = _extension()
"""The extension, or None if it was not built. Its threads verify without Python's lock."""


def exchange_public_key(public_key: bytes) -> bytes:
    """Convert an author's Ed25519 public key to the X25519 public key for `Identity.exchange_secret`.

    Raises DecodeError if the bytes are not a public key.
    """
    try:
        return sodium.crypto_sign_ed25519_pk_to_curve25519(public_key)
    except (nacl.exceptions.CryptoError, ValueError):
        raise DecodeError(0, "not an Ed25519 public key") from None


@dataclass(frozen=True)
class Identity:
    """An Ed25519 key pair, the author of posts.

    `seed` is the 32-byte secret, `public_key` the 32 public bytes.
    """

    seed: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Raise IdentityError for a seed of the wrong size."""
        check_bytes("seed", self.seed)
        if len(self.seed) != SEED_SIZE_BYTES:
            raise IdentityError(f"the seed of an identity has {len(self.seed)} bytes, expected {SEED_SIZE_BYTES}")

    def __repr__(self) -> str:
        return f"Identity(public_key={self.public_key.hex()})"

    @classmethod
    def generate(cls) -> Self:
        """Create a random identity."""
        return cls(secrets.token_bytes(SEED_SIZE_BYTES))

    @classmethod
    def derive(cls, phrase: str, label: str) -> Self:
        """Derive an identity from a phrase and a label. Equal arguments give the same identity.

        Identities with different labels are independent.
        """
        key = hashlib.blake2b(phrase.encode(), digest_size=64, person=b"cablestore:seed").digest()
        return cls(hashlib.blake2b(label.encode(), key=key, digest_size=SEED_SIZE_BYTES).digest())

    @cached_property
    def public_key(self) -> bytes:
        """The 32-byte public key."""
        return sodium.crypto_sign_seed_keypair(self.seed)[0]

    @cached_property
    def exchange_secret(self) -> bytes:
        """The X25519 secret of this identity, by which peers recognize it (handshake.md 3.1)."""
        return sodium.crypto_sign_ed25519_sk_to_curve25519(self._secret_key)

    @cached_property
    def separate_exchange_secret(self) -> bytes:
        """A second X25519 secret, derived from the seed. It cannot be linked to this identity without the seed."""
        return hashlib.blake2b(key=self.seed, digest_size=KEY_SIZE_BYTES, person=b"cablestore:noise").digest()

    def sign(self, message: bytes) -> bytes:
        """Return the 64-byte signature of `message`."""
        return sodium.crypto_sign(message, self._secret_key)[:SIGNATURE_SIZE_BYTES]

    def seal(self, raw: bytes) -> bytes:
        """Encrypt a local-only post for the disk: a nonce, then XSalsa20-Poly1305 (moderation.md 4.5.2).

        The nonce is a keyed hash of the post, not random: the same post has the same bytes, and two posts never share a
        nonce.
        """
        nonce = hashlib.blake2b(raw, key=self.seed, digest_size=NONCE_SIZE_BYTES, person=b"cablestore:nonce").digest()
        return nonce + sodium.crypto_box_afternm(raw, nonce, self._sealing_key)

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt the result of `seal`. Raises CorruptStoreError if that fails."""
        nonce, ciphertext = sealed[:NONCE_SIZE_BYTES], sealed[NONCE_SIZE_BYTES:]
        try:
            return sodium.crypto_box_open_afternm(ciphertext, nonce, self._sealing_key)
        except (nacl.exceptions.CryptoError, ValueError):
            raise CorruptStoreError(
                "cannot decrypt a local-only post: it is damaged, or another identity wrote it. Restore the store's "
                "identity file"
            ) from None

    @cached_property
    def _secret_key(self) -> bytes:
        return sodium.crypto_sign_seed_keypair(self.seed)[1]

    @cached_property
    def _sealing_key(self) -> bytes:
        return sodium.crypto_box_beforenm(exchange_public_key(self.public_key), self.exchange_secret)
