"""A Noise handshake over X25519, ChaCha20-Poly1305 and BLAKE2b (noiseprotocol.org, revision 34).

libsodium (through PyNaCl) and hashlib provide the primitives. This module only implements the order of the steps. The
pattern is an argument, so that published test vectors of other patterns can be checked. It can be any pattern with a
pre-shared key in which each side sends its static key, such as XXpsk0 to XXpsk3.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final

import nacl.bindings as sodium
from nacl.exceptions import CryptoError

from cablestore.protocol.crypto import KEY_SIZE_BYTES

TAG_SIZE_BYTES: Final = sodium.crypto_aead_chacha20poly1305_ietf_ABYTES
MAX_NONCE: Final = 2**64 - 1
"""The reserved nonce (5.1), and the number of messages that a key can encrypt."""

XX_PSK0: Final = (("psk", "e"), ("e", "ee", "s", "es"), ("s", "se"))
"""The messages of XXpsk0, each with its tokens (7.5, 9.4). The initiator writes the first message."""


class CipherState:
    """The key of one direction, and the number of messages so far (5.1)."""

    def __init__(self, key: bytes) -> None:
        """Start with the first message for this 32-byte key."""
        self.key: Final = key
        self.nonce = 0

    def encrypt(self, plaintext: bytes, associated_data: bytes = b"") -> bytes:
        """Return the ciphertext and its tag. Raises OverflowError after MAX_NONCE messages with this key."""
        nonce = self._next_nonce()
        self.nonce += 1
        return sodium.crypto_aead_chacha20poly1305_ietf_encrypt(bytes(plaintext), associated_data, nonce, self.key)

    def decrypt(self, ciphertext: bytes, associated_data: bytes = b"") -> bytes:
        """Return the plaintext. Raises CryptoError if this is not the next result of `encrypt`."""
        if len(ciphertext) < TAG_SIZE_BYTES:
            raise CryptoError("the ciphertext is shorter than its tag")
        nonce = self._next_nonce()
        plaintext = sodium.crypto_aead_chacha20poly1305_ietf_decrypt(ciphertext, associated_data, nonce, self.key)
        self.nonce += 1
        return plaintext

    def _next_nonce(self) -> bytes:
        if self.nonce == MAX_NONCE:
            raise OverflowError("the message limit of this key is reached. Reconnect to get a new key")
        return bytes(4) + self.nonce.to_bytes(8, "little")


class NoiseHandshake:
    """One side of a handshake (5.2, 5.3).

    The sides call `write` and `read` in turn until `is_done`, then `split` once.
    """

    def __init__(
        self,
        name: bytes,
        messages: Sequence[Sequence[str]],
        *,
        is_initiator: bool,
        prologue: bytes,
        pre_shared_key: bytes,
        static_secret: bytes,
        ephemeral_secret: bytes | None = None,
    ) -> None:
        """Start a handshake.

        Args:
            name: The whole name, such as `Noise_XXpsk0_25519_ChaChaPoly_BLAKE2b`.
            messages: The tokens of each message of that pattern.
            is_initiator: True if this side writes the first message.
            prologue: Bytes that must be the same on both sides.
            pre_shared_key: The 32 bytes that `psk` mixes in.
            static_secret: The 32-byte X25519 secret of this side.
            ephemeral_secret: Only for tests that reproduce published messages. Otherwise it is random.
        """
        for key in (pre_shared_key, static_secret, ephemeral_secret or bytes(KEY_SIZE_BYTES)):
            if len(key) != KEY_SIZE_BYTES:  # libsodium always reads 32 bytes
                raise ValueError(f"a key has {KEY_SIZE_BYTES} bytes, got {len(key)}")
        self.remote_static = b""
        """The other side's 32-byte X25519 public key, or b"" before it is received."""
        self._is_initiator = is_initiator
        self._messages = list(messages)
        self._pre_shared_key = pre_shared_key
        self._static_secret = static_secret
        self._ephemeral_secret = ephemeral_secret or secrets.token_bytes(KEY_SIZE_BYTES)
        self._remote_ephemeral = b""
        self._cipher: CipherState | None = None
        self._chaining_key = name.ljust(64, b"\0") if len(name) <= 64 else hashlib.blake2b(name).digest()
        self.hash = self._chaining_key
        """BLAKE2b over all messages of both sides. At the end both have the same hash, or one of them has failed
        (11.2).
        """
        self._mix_hash(prologue)

    @property
    def is_done(self) -> bool:
        """True if all messages have been written and read."""
        return not self._messages

    def write(self, payload: bytes = b"") -> bytes:
        """Return the next message. Raises ValueError if a public key of the other side is not valid."""
        message = b""
        for token in self._messages.pop(0):
            match token:
                case "e":
                    public_key = sodium.crypto_scalarmult_base(self._ephemeral_secret)
                    message += public_key
                    self._mix_hash(public_key)
                    self._mix_key(public_key)  # so that two handshakes never encrypt with the same key (9.2)
                case "s":
                    message += self._encrypt_and_hash(sodium.crypto_scalarmult_base(self._static_secret))
                case "psk":
                    self._mix_pre_shared_key()
                case _:
                    self._mix_shared_secret(token)
        return message + self._encrypt_and_hash(payload)

    def read(self, message: bytes) -> bytes:
        """Read the next message of the other side and return its payload.

        Raises CryptoError if the other side has other keys or another prologue, or if the message was changed or cut.
        Raises ValueError if a public key in it is invalid. The handshake has then failed.
        """
        for token in self._messages.pop(0):
            match token:
                case "e":
                    self._remote_ephemeral, message = _split_at(message, KEY_SIZE_BYTES)
                    self._mix_hash(self._remote_ephemeral)
                    self._mix_key(self._remote_ephemeral)
                case "s":
                    encrypted, message = _split_at(message, KEY_SIZE_BYTES + TAG_SIZE_BYTES)
                    self.remote_static = self._decrypt_and_hash(encrypted)
                case "psk":
                    self._mix_pre_shared_key()
                case _:
                    self._mix_shared_secret(token)
        return self._decrypt_and_hash(message)

    def split(self) -> tuple[CipherState, CipherState]:
        """Return the ciphers for sending and for receiving."""
        of_initiator, of_responder = (CipherState(key[:KEY_SIZE_BYTES]) for key in self._derive(b"", 2))
        return (of_initiator, of_responder) if self._is_initiator else (of_responder, of_initiator)

    def _mix_pre_shared_key(self) -> None:
        self._chaining_key, mixed, key = self._derive(self._pre_shared_key, 3)
        self._mix_hash(mixed)
        self._cipher = CipherState(key[:KEY_SIZE_BYTES])

    def _mix_shared_secret(self, token: str) -> None:
        """Mix in the shared secret of the keys in `token`. `es`: the initiator's ephemeral, the responder's static."""
        own, other = (token[0], token[1]) if self._is_initiator else (token[1], token[0])
        secret = self._ephemeral_secret if own == "e" else self._static_secret
        public_key = self._remote_ephemeral if other == "e" else self.remote_static
        try:
            self._mix_key(sodium.crypto_scalarmult(secret, public_key))
        except CryptoError:
            # libsodium raises this for keys of low order, whose result is known to everybody.
            raise ValueError("the peer's public key is invalid") from None

    def _mix_key(self, material: bytes) -> None:
        self._chaining_key, key = self._derive(material, 2)
        self._cipher = CipherState(key[:KEY_SIZE_BYTES])

    def _mix_hash(self, data: bytes) -> None:
        self.hash = hashlib.blake2b(self.hash + data).digest()

    def _encrypt_and_hash(self, plaintext: bytes) -> bytes:
        """Encrypt `plaintext` if there is a key, authenticate the hash so far, and add the ciphertext to the hash."""
        ciphertext = plaintext if self._cipher is None else self._cipher.encrypt(plaintext, self.hash)
        self._mix_hash(ciphertext)
        return ciphertext

    def _decrypt_and_hash(self, ciphertext: bytes) -> bytes:
        plaintext = ciphertext if self._cipher is None else self._cipher.decrypt(ciphertext, self.hash)
        self._mix_hash(ciphertext)
        return plaintext

    def _derive(self, material: bytes, count: int) -> list[bytes]:
        """Derive `count` keys of 64 bytes from the chaining key and `material`: HKDF (4.3)."""
        secret = hmac.digest(self._chaining_key, material, hashlib.blake2b)
        keys = [b""]
        for number in range(1, count + 1):
            keys.append(hmac.digest(secret, keys[-1] + bytes((number,)), hashlib.blake2b))
        return keys[1:]


def _split_at(message: bytes, size_bytes: int) -> tuple[bytes, bytes]:
    if len(message) < size_bytes:
        raise CryptoError("the message is truncated")
    return message[:size_bytes], message[size_bytes:]
