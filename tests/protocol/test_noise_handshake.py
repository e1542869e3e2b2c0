"""The handshake: the keys of both ends after it, and every fault of a peer during it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from handshakes import ANN, BOB, VECTORS, channel, library_peer, pair, published, refused, shake
from hypothesis import given
from hypothesis import strategies as st
from noise.backends.default.keypairs import KeyPair25519

from cablestore import Identity
from cablestore.errors import DecodeError
from cablestore.protocol.crypto import exchange_public_key
from cablestore.protocol.secure_channel import MAX_ENCODABLE_SIZE_BYTES

# --- keys ------------------------------------------------------------------------------------------


def test_keys_differ_in_every_connection() -> None:
    first, second = pair()[0], pair()[0]
    assert first.send(b"x") != second.send(b"x")
    assert channel().start() != channel().start()


def test_the_remote_static_key_is_that_of_the_author() -> None:
    ann, bob = pair()
    assert ann.remote_static == exchange_public_key(BOB.public_key)
    assert bob.remote_static == exchange_public_key(ANN.public_key)


def test_a_separate_key_does_not_reveal_the_author() -> None:
    assert ANN.separate_exchange_secret == Identity(ANN.seed).separate_exchange_secret
    assert len({ANN.separate_exchange_secret, ANN.exchange_secret, ANN.seed, BOB.separate_exchange_secret}) == 4
    ann, bob = channel(ANN, static_secret=ANN.separate_exchange_secret), channel(BOB)
    shake(ann, bob)
    assert bob.remote_static == KeyPair25519.from_private_bytes(ANN.separate_exchange_secret).public_bytes
    assert bob.remote_static != exchange_public_key(ANN.public_key)


@pytest.mark.parametrize(
    "key", [b"", bytes(31), bytes(32), bytes(33), b"\x01" + bytes(31), b"\x02" + bytes(31), b"\xff" * 32], ids=len
)
def test_invalid_public_keys_are_rejected(key: bytes) -> None:
    with pytest.raises(DecodeError):
        exchange_public_key(key)


# --- mistakes of the caller ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"cabal_key": b""},
        {"cabal_key": bytes(31)},
        {"static_secret": bytes(33)},
        {"max_message_size_bytes": 0},
        {"max_message_size_bytes": MAX_ENCODABLE_SIZE_BYTES + 1},
    ],
    ids=str,
)
def test_keys_and_limits_of_the_wrong_size_are_rejected(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"expected 1 to|bytes, got"):
        channel(**changes)


def test_nothing_is_sent_before_the_handshake_is_done() -> None:
    ann = channel()
    calls: list[Callable[[], object]] = [lambda: ann.send(b"x"), ann.finish, lambda: ann.remote_static]
    for call in calls:
        with pytest.raises(ValueError, match="handshake is done"):
            call()
    assert not ann.is_established
    assert ann.start() == ann.start()


# --- handshakes that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"cabal_key": bytes(32)}, {"prologue": b"CABLE1.0"}, {"prologue": b""}], ids=str)
def test_another_cabal_key_or_version_is_rejected(changes: dict[str, Any]) -> None:
    refused(channel(BOB), channel(**changes).start(), "handshake message 1")


def test_a_replayed_handshake_is_rejected() -> None:
    ann, bob = channel(ANN), channel(BOB)
    first, second, third = shake(ann, bob)
    recorded = third + ann.send(b"delete everything")
    fresh = channel(BOB)
    messages, answer = fresh.receive(first)
    assert messages == []
    assert answer != second
    refused(fresh, recorded, "handshake message 3")
    refused(channel(ANN), second, "handshake message 2")


def test_a_reflected_handshake_is_rejected() -> None:
    ann = channel(ANN)
    refused(ann, ann.start() * 2, "handshake message 2")


@given(st.integers(0, 48 + 96 + 64 - 1), st.integers(0, 7))
def test_a_change_of_any_bit_of_a_handshake_is_rejected(at: int, bit: int) -> None:
    vector = VECTORS[1]
    messages = [bytearray.fromhex(data) for _, data in vector["handshake_messages"]]
    number = 1 if at < 48 else 2 if at < 48 + 96 else 3
    within = at - (0, 48, 48 + 96)[number - 1]
    ann, bob = published(vector)
    if number == 3:
        bob.receive(bytes(messages[0]))
    messages[number - 1][within] ^= 1 << bit
    data = bytes(messages[number - 1])
    refused(ann if number == 2 else bob, data, f"handshake message {number}")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_truncated_handshake_message_waits_and_a_wrong_end_is_rejected(number: int) -> None:
    ann, bob = channel(ANN), channel(BOB)
    first = ann.start()
    _, second = bob.receive(first) if number > 1 else ([], b"")
    _, third = ann.receive(second) if number > 2 else ([], b"")
    receiver, data = {1: (bob, first), 2: (ann, second), 3: (bob, third)}[number]
    assert receiver.receive(data[:-1]) == ([], b"")
    assert not receiver.is_established
    something_else = bytes((data[-1] ^ 1,))
    refused(receiver, something_else + bytes(200), f"handshake message {number}")


LOW_ORDER = [
    bytes(32),
    b"\x01" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]


def forger(key: str, public_key: bytes, *, is_initiator: bool) -> Any:
    """Return a peer with the cabal key that sends `public_key` as its ephemeral or static key."""
    connection = library_peer(is_initiator=is_initiator)
    own = KeyPair25519.from_private_bytes(BOB.exchange_secret)
    own.public_bytes = public_key
    setattr(connection.noise_protocol.handshake_state, key, own)
    return connection


@pytest.mark.parametrize("public_key", LOW_ORDER, ids=lambda key: key.hex()[:8])
def test_public_keys_of_low_order_are_rejected(public_key: bytes) -> None:
    why = "the peer's public key is invalid"
    first = bytes(forger("e", public_key, is_initiator=True).write_message())
    refused(channel(BOB), first, "handshake message 1", why)

    for key in ("e", "s"):
        ann = channel(ANN)
        peer = forger(key, public_key, is_initiator=False)
        peer.read_message(ann.start())
        refused(ann, bytes(peer.write_message()), "handshake message 2", why)

    bob = channel(BOB)
    peer = forger("s", public_key, is_initiator=True)
    _, second = bob.receive(bytes(peer.write_message()))
    peer.read_message(second)
    refused(bob, bytes(peer.write_message()), "handshake message 3", why)
