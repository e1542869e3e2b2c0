"""Both ends of an encrypted connection, generated or published, for tests."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

import pytest
from folders import KNOWN_ANSWERS
from noise.backends.default.keypairs import KeyPair25519
from noise.connection import NoiseConnection

from cablestore import Identity
from cablestore.protocol.secure_channel import PROLOGUE, PROTOCOL_NAME, HandshakeError, SecureChannel

VECTORS: list[dict[str, Any]] = json.loads((KNOWN_ANSWERS / "cable.json").read_text())["handshake"]
CABAL_KEY = bytes(range(32))
ANN = Identity.derive("noise", "ann")
BOB = Identity.derive("noise", "bob")
LIMIT_BYTES = 1_000_000


def channel(identity: Identity = ANN, **changes: Any) -> SecureChannel:
    """Return Ann's end of a connection that she opened, unless the arguments differ."""
    settings_: dict[str, Any] = {
        "cabal_key": CABAL_KEY,
        "static_secret": identity.exchange_secret,
        "is_initiator": identity is ANN,
        "max_message_size_bytes": LIMIT_BYTES,
    }
    return SecureChannel(**(settings_ | changes))


def shake(ann: SecureChannel, bob: SecureChannel) -> list[bytes]:
    """Do a handshake. Return its messages."""
    first = ann.start()
    assert bob.start() == b""
    nothing, second = bob.receive(first)
    none, third = ann.receive(second)
    assert (nothing, none, bob.receive(third)) == ([], [], ([], b""))
    return [first, second, third]


def pair(**changes: Any) -> tuple[SecureChannel, SecureChannel]:
    """Return both ends after the handshake."""
    ann, bob = channel(ANN, **changes), channel(BOB, **changes)
    shake(ann, bob)
    return ann, bob


def refused(end: SecureChannel, data: bytes, what: str, why: str = "") -> None:
    """Check that bytes are rejected with an error that names the step, and that this closes the channel."""
    with pytest.raises(HandshakeError, match=f"^{what}: {why}"):
        end.receive(data)
    calls: list[Callable[[], object]] = [
        lambda: end.receive(b""),
        lambda: end.receive(data),
        lambda: end.send(b"x"),
        end.finish,
        end.start,
    ]
    for call in calls:
        with pytest.raises(HandshakeError, match=f"failed earlier: {what}: "):
            call()


def announce(end: SecureChannel, size_bytes: int) -> bytes:
    """Return an encrypted length with any value."""
    return end._encrypt(size_bytes.to_bytes(4, "little"))


def published(vector: dict[str, Any]) -> tuple[SecureChannel, SecureChannel]:
    """Return both ends of a published transcript, with its keys."""
    keys = {name: bytes.fromhex(key["secret"]) for name, key in vector["keys"].items()}
    initiator, responder = (
        SecureChannel(
            cabal_key=bytes.fromhex(vector["psk"]),
            static_secret=keys[f"{role}_static"],
            is_initiator=role == "initiator",
            max_message_size_bytes=LIMIT_BYTES,
            prologue=vector["prologue"].encode(),
            _ephemeral_secret=keys[f"{role}_ephemeral"],
        )
        for role in ("initiator", "responder")
    )
    return initiator, responder


def library_peer(
    *, is_initiator: bool, static_secret: bytes = ANN.exchange_secret, cabal_key: bytes = CABAL_KEY
) -> Any:
    """Return a peer that uses the noiseprotocol library, which shares no code with this package. Only tests need it."""
    connection = NoiseConnection.from_name(PROTOCOL_NAME)
    connection.set_psks(cabal_key)
    connection.set_prologue(PROLOGUE)
    connection.noise_protocol.keypairs["s"] = KeyPair25519.from_private_bytes(static_secret)
    (connection.set_as_initiator if is_initiator else connection.set_as_responder)()
    connection.start_handshake()
    # The library's own key would not use the test's seed.
    connection.noise_protocol.handshake_state.e = KeyPair25519.from_private_bytes(secrets.token_bytes(32))
    return connection
