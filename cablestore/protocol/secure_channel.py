"""The Cable handshake and the encryption after it (handshake.md, draft 8), without I/O.

A connection is Noise_XXpsk0_25519_ChaChaPoly_BLAKE2b with the cabal key as the pre-shared key: three handshake messages
of 48, 96 and 64 bytes, then messages in both directions, each after its encrypted length, and an end-of-stream marker.
`noise_handshake` implements the steps of the handshake. This module implements the segments, the end of the stream and
the checks.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from nacl.exceptions import CryptoError

from cablestore.errors import NodeError
from cablestore.protocol.crypto import KEY_SIZE_BYTES
from cablestore.protocol.noise_handshake import TAG_SIZE_BYTES, XX_PSK0, CipherState, NoiseHandshake

PROTOCOL_NAME: Final = b"Noise_XXpsk0_25519_ChaChaPoly_BLAKE2b"
PROLOGUE: Final = b"CABLE/1.0"
"""Prologue of handshake.md 3.2. cable-handshake.ts uses CABLE1.0. If the sides differ, message 1 fails."""

HANDSHAKE_SIZES_BYTES: Final = (48, 96, 64)
"""Sizes of the handshake messages, which only contain keys and tags. The initiator sends the first and the third."""

LENGTH_SIZE_BYTES: Final = 4
ENCRYPTED_LENGTH_SIZE_BYTES: Final = LENGTH_SIZE_BYTES + TAG_SIZE_BYTES
CIPHERTEXT_SIZE_BYTES: Final = 65535
"""Maximum size of a Noise ciphertext, including the tag."""

SEGMENT_SIZE_BYTES: Final = CIPHERTEXT_SIZE_BYTES - TAG_SIZE_BYTES
"""Size of the segments of longer messages (handshake.md 4.2.1)."""

MAX_ENCODABLE_SIZE_BYTES: Final = 4_000_000_000
"""Maximum size of a message that, with its tags, has a length of four bytes. It is rounded down."""

END_OF_STREAM: Final = bytes(LENGTH_SIZE_BYTES)
"""The length zero, encrypted like any other length, as the last part of the stream (handshake.md 4.4)."""


class HandshakeError(NodeError):
    """The peer has another cabal key, or its bytes were changed, repeated, cut or not a handshake."""


class SecureChannel:
    """An encrypted connection, from the first byte of the handshake to the end of the stream.

    It accepts bytes from the network and returns bytes to send, without socket and clock. The caller sends the result
    of `start`, passes all received bytes to `receive`, waits for `is_established` with a timeout, and then sends the
    results of `send`. The bytes from `receive`, `send` and `finish` must be sent in the order of the calls. After a
    HandshakeError the caller must close the connection; every further call raises the error again.

    The handshake proves that both sides have the cabal key, and that the peer owns its static public key
    (`remote_static`). The caller decides to which user that key belongs.
    """

    def __init__(
        self,
        *,
        cabal_key: bytes,
        static_secret: bytes,
        is_initiator: bool,
        max_message_size_bytes: int,
        prologue: bytes = PROLOGUE,
        _ephemeral_secret: bytes | None = None,
    ) -> None:
        """Prepare a connection. Nothing is sent yet.

        Args:
            cabal_key: The 32 secret bytes that all members of the cabal know.
            static_secret: The local 32-byte X25519 secret: `Identity.exchange_secret` or `separate_exchange_secret`.
            is_initiator: True if this side opened the connection. The peer must have the opposite value.
            max_message_size_bytes: The longest message in either direction. A connection keeps one message in memory.
            prologue: Bytes that must be the same on both sides.
            _ephemeral_secret: Only for tests that reproduce published transcripts. Using it twice reveals messages.
        """
        for name, key in (("cabal key", cabal_key), ("static secret", static_secret)):
            if len(key) != KEY_SIZE_BYTES:
                raise ValueError(f"a {name} has {KEY_SIZE_BYTES} bytes, got {len(key)}")
        if not 1 <= max_message_size_bytes <= MAX_ENCODABLE_SIZE_BYTES:
            raise ValueError(
                f"invalid argument max_message_size_bytes: expected 1 to {MAX_ENCODABLE_SIZE_BYTES}, got "
                f"{max_message_size_bytes}"
            )
        self.is_initiator: Final = is_initiator
        self.max_message_size_bytes: Final = max_message_size_bytes
        self.is_established = False
        """True if the handshake is done and messages can be sent. The initiator's handshake is done before its last
        message arrives at the peer.
        """
        self.has_ended = False
        """True if the peer sent its end-of-stream marker. This side may still send, and should answer with `finish`."""
        self.has_finished = False
        """True if this side sent its end-of-stream marker. The peer may still send."""
        self._failure: str | None = None
        self._remote_static = b""
        self._handshake = NoiseHandshake(
            PROTOCOL_NAME,
            XX_PSK0,
            is_initiator=is_initiator,
            prologue=prologue,
            pre_shared_key=cabal_key,
            static_secret=static_secret,
            ephemeral_secret=_ephemeral_secret,
        )
        self._encryption: CipherState  # set when the handshake is done
        self._decryption: CipherState
        self._first = self._handshake.write() if is_initiator else b""
        self._messages: list[bytes] = []
        self._outgoing = b""
        self._held = bytearray()
        self._parser = self._parse()
        self._wanted_size_bytes = next(self._parser)

    @property
    def remote_static(self) -> bytes:
        """The peer's 32-byte X25519 public key. Raises ValueError before the handshake is done."""
        if not self.is_established:
            raise ValueError("the peer's key is not known before the handshake is done")
        return self._remote_static

    def start(self) -> bytes:
        """Return the first bytes to send: the first message of the initiator, or b"" for the responder."""
        self._require_alive()
        return self._first

    def receive(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Accept bytes from the network, in pieces of any size.

        Return the complete messages, and the bytes to send back immediately. Raises only HandshakeError, for bytes that
        an honest peer with this cabal key never sends. Complete messages before them in the same `data` are lost.
        """
        self._require_alive()
        try:
            self._feed(bytes(data))
        except HandshakeError as error:
            self._failure = str(error)
            self._held, self._messages, self._outgoing = bytearray(), [], b""
            raise
        messages, self._messages = self._messages, []
        outgoing, self._outgoing = self._outgoing, b""
        return messages, outgoing

    def send(self, message: bytes) -> bytes:
        """Encrypt a message: its length, then its segments (handshake.md 4.2).

        Raises ValueError before the handshake is done, after `finish`, for an empty message (it would end the stream)
        and for a message above `max_message_size_bytes`.
        """
        self._require_open()
        if not 1 <= len(message) <= self.max_message_size_bytes:
            raise ValueError(f"the message has {len(message)} bytes, expected 1 to {self.max_message_size_bytes}")
        starts = range(0, len(message), SEGMENT_SIZE_BYTES)
        total_size_bytes = len(message) + TAG_SIZE_BYTES * len(starts)
        # The order matters: every call uses the next nonce.
        parts = [self._encrypt(total_size_bytes.to_bytes(LENGTH_SIZE_BYTES, "little"))]
        parts += [self._encrypt(message[start : start + SEGMENT_SIZE_BYTES]) for start in starts]
        return b"".join(parts)

    def finish(self) -> bytes:
        """Return the end-of-stream marker. Nothing can be sent after it."""
        self._require_open()
        self.has_finished = True
        return self._encrypt(END_OF_STREAM)

    def _require_alive(self) -> None:
        if self._failure is not None:
            raise HandshakeError(f"this connection failed earlier: {self._failure}")

    def _require_open(self) -> None:
        self._require_alive()
        if not self.is_established:
            raise ValueError("cannot send before the handshake is done. Wait for `is_established`")
        if self.has_finished:
            raise ValueError("cannot send after the end-of-stream marker. Open another connection")

    def _feed(self, data: bytes) -> None:
        """Pass pieces of the requested sizes to the parser. Keep the rest of `data`."""
        at = 0
        while at < len(data):
            end = at + self._wanted_size_bytes - len(self._held)
            if self._held or end > len(data):
                self._held += data[at:end]
                if end > len(data):
                    return
                piece = bytes(self._held)
                self._held.clear()
            else:
                piece = data[at:end]
            at = end
            self._wanted_size_bytes = self._parser.send(piece)

    def _parse(self) -> Generator[int, bytes, None]:
        """Parse the stream to its end: yield the number of bytes needed next, and receive these bytes."""
        for number in (2,) if self.is_initiator else (1, 3):
            self._shake(number, (yield HANDSHAKE_SIZES_BYTES[number - 1]))
        while True:
            encrypted = yield ENCRYPTED_LENGTH_SIZE_BYTES
            total_size_bytes = int.from_bytes(self._decrypt(encrypted, "message length"), "little")
            if total_size_bytes == 0:
                break
            if not (yield from self._parse_message(total_size_bytes)):
                # "A message of length zero" could also mean an encrypted empty message. Both end the stream.
                break
        self.has_ended = True
        yield 1
        raise HandshakeError("message: the peer sent data after its end-of-stream marker")

    def _parse_message(self, total_size_bytes: int) -> Generator[int, bytes, bool]:
        """Parse a message whose ciphertext has `total_size_bytes`. Return True if it is not empty.

        This is separate from `_parse`, which would keep the message in memory.
        """
        self._check_length(total_size_bytes)
        segments = []
        while total_size_bytes > 0:
            encrypted = yield min(total_size_bytes, CIPHERTEXT_SIZE_BYTES)
            segments.append(self._decrypt(encrypted, "message"))
            total_size_bytes -= len(encrypted)
        message = segments[0] if len(segments) == 1 else b"".join(segments)
        if message:
            self._messages.append(message)
        return bool(message)

    def _shake(self, number: int, data: bytes) -> None:
        """Read handshake message `number`, and write the next one. After the last one, the channel is established."""
        try:
            self._handshake.read(data)
            if number < len(HANDSHAKE_SIZES_BYTES):
                self._outgoing += self._handshake.write()
        except CryptoError:
            raise HandshakeError(
                f"handshake message {number}: the peer has another cabal key or protocol version, or its message was "
                "changed or repeated"
            ) from None
        except ValueError:
            # Raised by a key exchange, in this message or in the answer: a key of low order has a result known to all.
            raise HandshakeError(f"handshake message {number}: the peer's public key is invalid") from None
        if self._handshake.is_done:
            self._encryption, self._decryption = self._handshake.split()
            self._remote_static = self._handshake.remote_static
            # Without the ephemeral keys, a stolen static key cannot decrypt this connection.
            del self._handshake
            self.is_established = True

    def _check_length(self, total_size_bytes: int) -> None:
        """Check the length of a message before allocating memory. All of its segments, even the last, contain data."""
        segments = -(-total_size_bytes // CIPHERTEXT_SIZE_BYTES)
        size_bytes = total_size_bytes - TAG_SIZE_BYTES * segments
        least_bytes = (segments - 1) * SEGMENT_SIZE_BYTES + (segments > 1)
        if size_bytes < least_bytes:
            raise HandshakeError(
                f"message length: {total_size_bytes} bytes is not a valid size of an encrypted message"
            )
        if size_bytes > self.max_message_size_bytes:
            raise HandshakeError(
                f"message length: the peer announces {size_bytes} bytes, the maximum is {self.max_message_size_bytes}"
            )

    def _encrypt(self, plaintext: bytes) -> bytes:
        return self._encryption.encrypt(plaintext)

    def _decrypt(self, ciphertext: bytes, what: str) -> bytes:
        try:
            return self._decryption.decrypt(ciphertext)
        except CryptoError:
            raise HandshakeError(
                f"{what}: decryption failed, so the peer's bytes were changed, repeated or cut"
            ) from None
