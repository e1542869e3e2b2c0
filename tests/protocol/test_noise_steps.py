"""The steps of a Noise handshake: public vectors, another implementation, and invalid inputs of libsodium."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from folders import KNOWN_ANSWERS
from handshakes import ANN, BOB, CABAL_KEY, LIMIT_BYTES, VECTORS, channel, library_peer
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_scalarmult_base
from nacl.exceptions import CryptoError

from cablestore import Identity
from cablestore.protocol.crypto import exchange_public_key
from cablestore.protocol.noise_handshake import MAX_NONCE, TAG_SIZE_BYTES, XX_PSK0, CipherState, NoiseHandshake
from cablestore.protocol.secure_channel import ENCRYPTED_LENGTH_SIZE_BYTES, PROTOCOL_NAME, SecureChannel

PUBLIC: list[dict[str, Any]] = json.loads((KNOWN_ANSWERS / "noise.json").read_text())["vectors"]
XX_PSK3 = (("e",), ("e", "ee", "s", "es"), ("s", "se", "psk"))


@pytest.mark.parametrize("vector", PUBLIC, ids=lambda vector: str(vector["protocol_name"]))
def test_public_vectors_are_reproduced(vector: dict[str, Any]) -> None:
    assert vector["protocol_name"] == "Noise_XXpsk3_25519_ChaChaPoly_BLAKE2b"
    sides = [
        NoiseHandshake(
            vector["protocol_name"].encode(),
            XX_PSK3,
            is_initiator=role == "init",
            prologue=bytes.fromhex(vector[f"{role}_prologue"]),
            pre_shared_key=bytes.fromhex(vector[f"{role}_psks"][0]),
            static_secret=bytes.fromhex(vector[f"{role}_static"]),
            ephemeral_secret=bytes.fromhex(vector[f"{role}_ephemeral"]),
        )
        for role in ("init", "resp")
    ]
    messages = [(bytes.fromhex(message["payload"]), message["ciphertext"]) for message in vector["messages"]]
    for number, (payload, ciphertext) in enumerate(messages[:3]):
        sent = sides[number % 2].write(payload)
        assert sent.hex() == ciphertext
        assert sides[1 - number % 2].read(sent) == payload
    assert sides[0].is_done
    assert sides[0].hash == sides[1].hash
    keys = [side.split() for side in sides]
    for number, (payload, ciphertext) in enumerate(messages[3:], 3):
        sent = keys[number % 2][0].encrypt(payload)
        assert sent.hex() == ciphertext
        assert keys[1 - number % 2][1].decrypt(sent) == payload


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["prologue"]))
def test_the_published_hash_of_the_handshake_is_reproduced(vector: dict[str, Any]) -> None:
    initiator, responder = (
        NoiseHandshake(
            PROTOCOL_NAME,
            XX_PSK0,
            is_initiator=role == "initiator",
            prologue=vector["prologue"].encode(),
            pre_shared_key=bytes.fromhex(vector["psk"]),
            static_secret=bytes.fromhex(vector["keys"][f"{role}_static"]["secret"]),
            ephemeral_secret=bytes.fromhex(vector["keys"][f"{role}_ephemeral"]["secret"]),
        )
        for role in ("initiator", "responder")
    )
    responder.read(initiator.write())
    initiator.read(responder.write())
    responder.read(initiator.write())
    assert initiator.hash.hex() == responder.hash.hex() == vector["handshake_hash"]


SECRETS = st.binary(min_size=32, max_size=32)


@given(SECRETS, SECRETS, SECRETS, st.booleans(), st.lists(st.binary(min_size=1, max_size=300), max_size=5))
def test_another_implementation_decrypts_every_byte(
    cabal_key: bytes, own: bytes, other: bytes, is_initiator: bool, messages: list[bytes]
) -> None:
    end = SecureChannel(
        cabal_key=cabal_key, static_secret=own, is_initiator=is_initiator, max_message_size_bytes=LIMIT_BYTES
    )
    peer = library_peer(is_initiator=not is_initiator, static_secret=other, cabal_key=cabal_key)
    if is_initiator:
        peer.read_message(end.start())
        peer.read_message(end.receive(bytes(peer.write_message()))[1])
    else:
        peer.read_message(end.receive(bytes(peer.write_message()))[1])
        assert end.receive(bytes(peer.write_message())) == ([], b"")
    assert end.is_established
    assert end.remote_static == crypto_scalarmult_base(other)
    for message in messages:
        sent = end.send(message)
        length = int.from_bytes(peer.decrypt(sent[:ENCRYPTED_LENGTH_SIZE_BYTES]), "little")
        assert length == len(sent) - ENCRYPTED_LENGTH_SIZE_BYTES
        assert peer.decrypt(sent[ENCRYPTED_LENGTH_SIZE_BYTES:]) == message
        answer = peer.encrypt((len(message) + 16).to_bytes(4, "little")) + peer.encrypt(message)
        assert end.receive(answer) == ([message], b"")


@pytest.mark.parametrize("wrong", ["pre_shared_key", "static_secret", "ephemeral_secret"])
@pytest.mark.parametrize("size_bytes", [1, 31, 33])
def test_a_key_of_another_size_is_rejected(wrong: str, size_bytes: int) -> None:
    keys = {name: bytes(32) for name in ("pre_shared_key", "static_secret", "ephemeral_secret")} | {
        wrong: bytes(size_bytes)
    }
    with pytest.raises(ValueError, match=f"a key has 32 bytes, got {size_bytes}"):
        NoiseHandshake(PROTOCOL_NAME, XX_PSK0, is_initiator=True, prologue=b"", **keys)


def side(identity: Identity, *, is_initiator: bool, name: bytes = PROTOCOL_NAME) -> NoiseHandshake:
    return NoiseHandshake(
        name,
        XX_PSK0,
        is_initiator=is_initiator,
        prologue=b"",
        pre_shared_key=CABAL_KEY,
        static_secret=identity.exchange_secret,
    )


def test_a_name_longer_than_a_hash_is_hashed() -> None:
    """Noise 5.2: a name of up to 64 bytes, the size of a hash, begins the chain itself."""
    longest = b"N" * 65
    names = [longest, hashlib.blake2b(longest).digest()]
    writer, reader = (side(ANN, is_initiator=name is longest, name=name) for name in names)
    assert reader.read(writer.write(b"hello")) == b"hello"
    assert reader.hash == writer.hash


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_truncated_message_is_rejected(number: int) -> None:
    def sides() -> tuple[NoiseHandshake, NoiseHandshake]:
        initiator, responder = (side(identity, is_initiator=identity is ANN) for identity in (ANN, BOB))
        return initiator, responder

    def begin() -> tuple[bytes, NoiseHandshake]:
        """Return the message with this number, and its reader."""
        writer, reader = sides()
        for _ in range(number - 1):
            reader.read(writer.write())
            writer, reader = reader, writer
        return writer.write(), reader

    message, reader = begin()
    keys_size_bytes = len(message) - TAG_SIZE_BYTES
    assert reader.read(message) == b""
    if number > 1:
        assert reader.remote_static == exchange_public_key((BOB if number == 2 else ANN).public_key)
    for size_bytes in range(len(message)):
        message, reader = begin()
        why = "truncated" if size_bytes < keys_size_bytes else None  # libsodium would read bytes after a shorter key
        with pytest.raises(CryptoError, match=why):
            reader.read(message[:size_bytes])


def test_an_exhausted_key_raises_an_error() -> None:
    cipher = CipherState(bytes(32))
    cipher.nonce = MAX_NONCE - 1
    assert cipher.encrypt(b"the last one")
    for call in (cipher.encrypt, cipher.decrypt):
        with pytest.raises(OverflowError, match="Reconnect"):
            call(bytes(16))


def test_a_failed_decryption_does_not_change_the_nonce() -> None:
    sender, receiver = CipherState(bytes(32)), CipherState(bytes(32))
    sent = sender.encrypt(b"hello")
    for wrong in (b"", sent[:15], sent[:-1], sent + b"x", bytes(len(sent))):
        with pytest.raises(CryptoError):
            receiver.decrypt(wrong)
    assert receiver.decrypt(sent) == b"hello"
    with pytest.raises(CryptoError):
        receiver.decrypt(sent)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_bytearrays_and_memoryviews_are_accepted(kind: type) -> None:
    ann, bob = channel(ANN), channel(BOB)
    _, second = bob.receive(kind(ann.start()))
    _, third = ann.receive(kind(second))
    assert bob.receive(kind(third + ann.send(kind(b"hello")))) == ([b"hello"], b"")
