"""The handshake and the encrypted stream: known answers, sizes at the edges, and every way a peer can be wrong."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from noise.backends.default.keypairs import KeyPair25519

from cablestore import DecodeError, Identity
from cablestore.crypto import exchange_public_key
from cablestore.errors import HandshakeError
from cablestore.noise import (
    CIPHERTEXT_SIZE_BYTES,
    MAX_ENCODABLE_SIZE_BYTES,
    PROLOGUE,
    SEGMENT_SIZE_BYTES,
    TAG_SIZE_BYTES,
    SecureChannel,
    _connection,
)

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "cable.json").read_text())["handshake"]
CABAL_KEY = bytes(range(32))
ANN = Identity.derive("noise", "ann")
BOB = Identity.derive("noise", "bob")
LIMIT_BYTES = 1_000_000
EDGES = [1, SEGMENT_SIZE_BYTES - 1, SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES + 1, 2 * SEGMENT_SIZE_BYTES, 200_000]


def channel(identity: Identity = ANN, **changes: Any) -> SecureChannel:
    """Ann's end of a connection that she opened, unless told otherwise."""
    settings_: dict[str, Any] = {
        "cabal_key": CABAL_KEY,
        "static_secret": identity.exchange_secret,
        "is_initiator": identity is ANN,
        "max_message_size_bytes": LIMIT_BYTES,
    }
    return SecureChannel(**(settings_ | changes))


def shake(ann: SecureChannel, bob: SecureChannel) -> list[bytes]:
    """Bring a handshake about; return its messages."""
    first = ann.start()
    assert bob.start() == b""
    nothing, second = bob.receive(first)
    none, third = ann.receive(second)
    assert (nothing, none, bob.receive(third)) == ([], [], ([], b""))
    return [first, second, third]


def pair(**changes: Any) -> tuple[SecureChannel, SecureChannel]:
    """Both ends after the handshake."""
    ann, bob = channel(ANN, **changes), channel(BOB, **changes)
    shake(ann, bob)
    return ann, bob


def refused(end: SecureChannel, data: bytes, what: str) -> None:
    """The bytes are refused, by a text that names the step, and the channel is dead from then on."""
    with pytest.raises(HandshakeError, match=f"^{what}: "):
        end.receive(data)
    calls: list[Callable[[], object]] = [
        lambda: end.receive(b""),
        lambda: end.receive(data),
        lambda: end.send(b"x"),
        end.finish,
        end.start,
    ]
    for call in calls:
        with pytest.raises(HandshakeError, match=f"failed before: {what}: "):
            call()


def announce(end: SecureChannel, size_bytes: int) -> bytes:
    """An encrypted length of a peer's own choice."""
    return end._encrypt(size_bytes.to_bytes(4, "little"))


# --- known answers ---------------------------------------------------------------------------------


def published(vector: dict[str, Any]) -> tuple[SecureChannel, SecureChannel]:
    """Both ends of a published transcript, with its keys."""
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


def plaintext_of(step: dict[str, Any]) -> bytes:
    text: str = step["plaintext"]
    return b"a" * 70_000 if text == "70000 bytes of 0x61" else bytes.fromhex(text)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: str(v["prologue"]))
def test_published_transcript(vector: dict[str, Any]) -> None:
    ends = dict(zip(("initiator", "responder"), published(vector), strict=True))
    messages = [bytes.fromhex(data) for _, data in vector["handshake_messages"]]
    assert shake(ends["initiator"], ends["responder"]) == messages
    for role, other in (("initiator", "responder"), ("responder", "initiator")):
        assert ends[role].remote_static.hex() == vector["keys"][f"{other}_static"]["public"]
        assert ends[role]._encryption.k.hex() == vector[f"{role}_to_{other}_key"]
        assert ends[role]._decryption.k.hex() == vector[f"{other}_to_{role}_key"]
    for step in vector["transport"]:
        sender, receiver = ends[step["from"]], ends["responder" if step["from"] == "initiator" else "initiator"]
        if "eos_marker" in step:
            sent = sender.finish()
            assert sent.hex() == "".join(step["eos_marker"])
            assert receiver.receive(sent) == ([], b"")
            assert receiver.has_ended
            continue
        sent = sender.send(plaintext_of(step))
        if "writes" in step:
            assert sent.hex() == "".join(step["writes"])
        else:
            starts = step["write_lengths_and_first_32_bytes"]
            assert len(sent) == sum(size for size, _ in starts)
            for size, head in starts:
                assert sent.hex().startswith(head)
                sent = sent[size:]
            sent = _again(vector)
        assert receiver.receive(sent) == ([plaintext_of(step)], b"")


def _again(vector: dict[str, Any]) -> bytes:
    """The initiator's second message once more: only its beginnings are published."""
    initiator, responder = published(vector)
    shake(initiator, responder)
    first, second = (
        plaintext_of(step) for step in vector["transport"] if step["from"] == "initiator" and "plaintext" in step
    )
    initiator.send(first)
    return initiator.send(second)


def test_prologue_of_the_specification() -> None:
    assert PROLOGUE.hex(" ") == "43 41 42 4c 45 2f 31 2e 30"


# --- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", EDGES)
def test_sizes_at_the_edges(size: int) -> None:
    ann, bob = pair()
    message = bytes(i % 251 for i in range(size))
    for sender, receiver in ((ann, bob), (bob, ann)):
        sent = sender.send(message)
        segments = -(-size // SEGMENT_SIZE_BYTES)
        assert len(sent) == 20 + size + 16 * segments
        assert receiver.receive(sent + sender.send(b"next")) == ([message, b"next"], b"")


@pytest.mark.parametrize(
    ("size", "total"),
    [
        (SEGMENT_SIZE_BYTES, 65535),  # cable-handshake.ts announces 65551 here, and its reader waits for ever
        (SEGMENT_SIZE_BYTES + 1, 65535 + 17),
        (2 * SEGMENT_SIZE_BYTES, 2 * 65535),
        (155_719, 2 * 65535 + 24_681 + 16),  # handshake.md 4.2.1
    ],
)
def test_length_that_is_announced(size: int, total: int) -> None:
    ann, bob = pair()
    sent = ann.send(bytes(size))
    assert bob._decrypt(sent[:20], "length") == total.to_bytes(4, "little")
    assert len(sent) == 20 + total


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8))
def test_messages_come_out_as_they_went_in(messages: list[bytes]) -> None:
    ann, bob = pair()
    for sender, receiver in ((ann, bob), (bob, ann)):
        stream = b"".join(map(sender.send, messages)) + sender.finish()
        assert receiver.receive(stream) == (messages, b"")
        assert receiver.has_ended


def test_byte_by_byte() -> None:
    ann, bob = channel(ANN), channel(BOB)
    data = ann.start()
    for receiver in (bob, ann, bob):
        answers = [receiver.receive(data[at : at + 1]) for at in range(len(data))]
        assert all(answer == ([], b"") for answer in answers[:-1])
        data = answers[-1][1]
    assert (ann.is_established, bob.is_established) == (True, True)
    message = bytes(i % 253 for i in range(300_000))
    sent = ann.send(message) + ann.finish()
    received = [bob.receive(sent[at : at + 1])[0] for at in range(len(sent))]
    assert [m for messages in received for m in messages] == [message]
    assert bob.has_ended


def test_handshake_and_messages_in_one_piece() -> None:
    ann, bob = channel(ANN), channel(BOB)
    _, second = bob.receive(ann.start())
    _, third = ann.receive(second)
    assert bob.receive(third + ann.send(b"hello") + ann.finish()) == ([b"hello"], b"")
    assert bob.has_ended
    assert ann.receive(bob.send(b"still here") + bob.finish()) == ([b"still here"], b"")


def test_keys_differ_in_every_connection() -> None:
    first, second = pair()[0], pair()[0]
    assert first.send(b"x") != second.send(b"x")
    assert channel().start() != channel().start()


# --- who is there ----------------------------------------------------------------------------------


def test_remote_static_is_the_author() -> None:
    ann, bob = pair()
    assert ann.remote_static == exchange_public_key(BOB.public_key)
    assert bob.remote_static == exchange_public_key(ANN.public_key)


def test_separate_key_is_not_the_author() -> None:
    assert ANN.separate_exchange_secret == Identity(ANN.seed).separate_exchange_secret
    assert len({ANN.separate_exchange_secret, ANN.exchange_secret, ANN.seed, BOB.separate_exchange_secret}) == 4
    ann, bob = channel(ANN, static_secret=ANN.separate_exchange_secret), channel(BOB)
    shake(ann, bob)
    assert bob.remote_static == KeyPair25519.from_private_bytes(ANN.separate_exchange_secret).public_bytes
    assert bob.remote_static != exchange_public_key(ANN.public_key)


@pytest.mark.parametrize(
    "key", [b"", bytes(31), bytes(32), bytes(33), b"\x01" + bytes(31), b"\x02" + bytes(31), b"\xff" * 32], ids=len
)
def test_what_is_no_public_key(key: bytes) -> None:
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
def test_keys_and_limits_of_the_wrong_size(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bytes, not"):
        channel(**changes)


def test_the_longest_length_fits_its_bytes() -> None:
    segments = -(-MAX_ENCODABLE_SIZE_BYTES // SEGMENT_SIZE_BYTES)
    assert MAX_ENCODABLE_SIZE_BYTES + segments * TAG_SIZE_BYTES < 2**32


def test_nothing_is_sent_too_early() -> None:
    ann = channel()
    calls: list[Callable[[], object]] = [lambda: ann.send(b"x"), ann.finish, lambda: ann.remote_static]
    for call in calls:
        with pytest.raises(ValueError, match="handshake is done"):
            call()
    assert not ann.is_established
    assert ann.start() == ann.start()


def test_what_cannot_be_sent() -> None:
    ann, bob = pair()
    for message in (b"", bytes(LIMIT_BYTES + 1)):
        with pytest.raises(ValueError, match="a message has 1 to"):
            ann.send(message)
    assert bob.receive(ann.send(bytes(LIMIT_BYTES))) == ([bytes(LIMIT_BYTES)], b"")


def test_nothing_is_sent_after_the_end() -> None:
    ann, bob = pair()
    bob.receive(ann.finish())
    assert ann.has_finished
    calls: list[Callable[[], object]] = [lambda: ann.send(b"x"), ann.finish]
    for call in calls:
        with pytest.raises(ValueError, match="after the end-of-stream marker"):
            call()
    assert ann.receive(bob.send(b"x")) == ([b"x"], b"")


# --- handshakes that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"cabal_key": bytes(32)}, {"prologue": b"CABLE1.0"}, {"prologue": b""}], ids=str)
def test_another_cabal_or_version(changes: dict[str, Any]) -> None:
    refused(channel(BOB), channel(**changes).start(), "handshake message 1")


def test_recorded_handshake_is_sent_again() -> None:
    ann, bob = channel(ANN), channel(BOB)
    first, second, third = shake(ann, bob)
    recorded = third + ann.send(b"delete everything")
    fresh = channel(BOB)
    messages, answer = fresh.receive(first)
    assert messages == []
    assert answer != second
    refused(fresh, recorded, "handshake message 3")
    refused(channel(ANN), second, "handshake message 2")


def test_recorded_handshake_is_sent_to_its_sender() -> None:
    ann = channel(ANN)
    refused(ann, ann.start() * 2, "handshake message 2")


@given(st.integers(0, 48 + 96 + 64 - 1), st.integers(0, 7))
def test_every_bit_of_a_handshake_counts(at: int, bit: int) -> None:
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
def test_handshake_message_is_cut(number: int) -> None:
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
    """A peer that holds the cabal key, says that its ephemeral or static key is `public_key`, and knows the library."""
    connection = _connection(CABAL_KEY, ANN.exchange_secret, PROLOGUE, is_initiator=is_initiator)
    own = KeyPair25519.from_private_bytes(BOB.exchange_secret)
    own.public_bytes = public_key
    setattr(connection.noise_protocol.handshake_state, key, own)
    return connection


@pytest.mark.parametrize("public_key", LOW_ORDER, ids=lambda key: key.hex()[:8])
def test_public_keys_of_low_order(public_key: bytes) -> None:
    refused(channel(BOB), bytes(forger("e", public_key, is_initiator=True).write_message()), "handshake message 1")

    for key in ("e", "s"):
        ann = channel(ANN)
        peer = forger(key, public_key, is_initiator=False)
        peer.read_message(ann.start())
        refused(ann, bytes(peer.write_message()), "handshake message 2")

    bob = channel(BOB)
    peer = forger("s", public_key, is_initiator=True)
    _, second = bob.receive(bytes(peer.write_message()))
    peer.read_message(second)
    refused(bob, bytes(peer.write_message()), "handshake message 3")


# --- streams that fail -----------------------------------------------------------------------------


def test_messages_swapped_or_repeated() -> None:
    ann, bob = pair()
    first, second = ann.send(b"first"), ann.send(b"second")
    refused(bob, second + first, "message length")

    ann, bob = pair()
    first = ann.send(b"first")
    assert bob.receive(first) == ([b"first"], b"")
    refused(bob, first, "message length")


def test_segments_swapped() -> None:
    ann, bob = pair()
    sent = ann.send(bytes(SEGMENT_SIZE_BYTES) * 2)
    length, one, two = sent[:20], sent[20 : 20 + CIPHERTEXT_SIZE_BYTES], sent[20 + CIPHERTEXT_SIZE_BYTES :]
    refused(bob, length + two + one, "message")


def test_own_messages_sent_back() -> None:
    ann, _ = pair()
    refused(ann, ann.send(b"hello"), "message length")


def test_message_is_cut() -> None:
    ann, bob = pair()
    cut = ann.send(bytes(100))[:-1]
    assert bob.receive(cut) == ([], b"")
    refused(bob, ann.send(bytes(100)), "message")


@given(st.integers(0, 20 + 60 + 16 - 1), st.integers(0, 7))
def test_every_bit_of_a_message_counts(at: int, bit: int) -> None:
    ann, bob = pair()
    sent = bytearray(ann.send(bytes(60)))
    sent[at] ^= 1 << bit
    refused(bob, bytes(sent), "message length" if at < 20 else "message")


@pytest.mark.parametrize("total", [1, 15, 65536, 65535 + 15, 65535 + 16, 2 * 65535 + 16])
def test_lengths_that_no_message_has(total: int) -> None:
    ann, bob = pair()
    refused(bob, announce(ann, total), "message length")


@pytest.mark.parametrize("total", [LIMIT_BYTES + 16 * 16 + 1, 2**31, 2**32 - 1])
def test_lengths_beyond_the_limit(total: int) -> None:
    ann, bob = pair()
    refused(bob, announce(ann, total), "message length")


@pytest.mark.parametrize("limit", EDGES)
def test_limit_is_exact(limit: int) -> None:
    ann, bob = channel(ANN), channel(BOB, max_message_size_bytes=limit)
    shake(ann, bob)
    assert bob.receive(ann.send(bytes(limit))) == ([bytes(limit)], b"")
    refused(bob, ann.send(bytes(limit + 1))[:20], "message length")


def test_nothing_comes_after_the_end() -> None:
    ann, bob = pair()
    assert bob.receive(ann.finish()) == ([], b"")
    assert bob.receive(b"") == ([], b"")
    refused(bob, b"\x00", "message")

    ann, bob = pair()
    refused(bob, ann.finish() + ann._encrypt(bytes(4)), "message")


def test_an_empty_message_is_the_end_too() -> None:
    ann, bob = pair()
    assert bob.receive(announce(ann, TAG_SIZE_BYTES) + ann._encrypt(b"")) == ([], b"")
    assert bob.has_ended


def test_memory_is_one_message() -> None:
    ann, bob = pair(max_message_size_bytes=8_000_000)
    pieces = [ann.send(bytes(8_000_000)) for _ in range(3)]
    tracemalloc.start()
    try:
        for piece in pieces:
            for at in range(0, len(piece) - 1, 4096):
                assert bob.receive(piece[at : min(at + 4096, len(piece) - 1)]) == ([], b"")
            held_bytes, peak_bytes = tracemalloc.get_traced_memory()
            assert held_bytes < 8_300_000
            assert peak_bytes < 8_300_000
            assert len(bob.receive(piece[-1:])[0][0]) == 8_000_000
            tracemalloc.reset_peak()
    finally:
        tracemalloc.stop()


# --- fuzz ------------------------------------------------------------------------------------------

SENT = [b"hello cable", bytes(300), b"x", bytes(range(256)) * 3]


def recorded() -> tuple[bytes, bytes, list[int]]:
    """All that an initiator sends in a published handshake, what it is answered, and where the pieces end."""
    ann, bob = published(VECTORS[1])
    first, second, third = shake(ann, bob)
    pieces = [first, third]
    for message in SENT:
        sent = ann.send(message)
        pieces += [sent[:20], sent[20:]]
    pieces.append(ann.finish())
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    return b"".join(pieces), second, ends


STREAM, ANSWER, ENDS = recorded()


def cut_at(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    for start, end in pairwise([0, *sorted(cuts), len(data)]):
        yield data[start:end]


def listen(data: bytes, cuts: Sequence[int], end: SecureChannel) -> tuple[list[bytes], bytes, str | None]:
    """All that comes of a stream: messages, the answer, and what was wrong."""
    messages: list[bytes] = []
    answers = b""
    for piece in cut_at(data, cuts):
        try:
            new, answer = end.receive(piece)
        except HandshakeError as error:
            return messages, answers, str(error)
        messages += new
        answers += answer
    return messages, answers, None


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
@example(list(range(1, len(STREAM))))
@example(ENDS)
def test_pieces_do_not_matter(cuts: list[int]) -> None:
    bob = published(VECTORS[1])[1]
    assert listen(STREAM, cuts, bob) == (SENT, ANSWER, None)
    assert bob.has_ended


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """The recorded stream with one to three things done to it: bytes, pieces, lengths."""
    data = bytearray(STREAM)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        start, end = sorted((draw(st.sampled_from(ENDS)), draw(st.sampled_from(ENDS))))
        match draw(st.sampled_from(["bit", "cut", "insert", "remove", "repeat", "move"])):
            case "bit" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(min_size=1, max_size=40))
            case "remove":
                del data[start:end]
            case "repeat":
                data[end:end] = data[start:end]
            case _:
                piece = data[start:end]
                del data[start:end]
                data[at:at] = piece
    return bytes(data)


@settings(max_examples=settings().max_examples * 3)
@given(mutated(), st.lists(st.integers(0, len(STREAM)), max_size=5))
def test_damaged_streams(data: bytes, cuts: list[int]) -> None:
    bob = published(VECTORS[1])[1]
    messages, answers, error = listen(data, [min(cut, len(data)) for cut in cuts], bob)
    assert messages == SENT[: len(messages)]
    assert answers in {b"", ANSWER}
    if not STREAM.startswith(data):
        # Whatever differs is noticed, at the latest when the piece with the difference is complete.
        same = next((i for i, (a, b) in enumerate(zip(data, STREAM, strict=False)) if a != b), len(STREAM))
        if any(same < end <= len(data) for end in ENDS) or same == len(STREAM):
            assert error is not None
    else:
        assert error is None
    assert bob.has_ended == (error is None and data == STREAM) or error is not None
    all_at_once = published(VECTORS[1])[1]
    assert listen(data, [], all_at_once)[2] == error


@given(st.binary(max_size=600), st.sampled_from(["initiator", "responder", "established"]))
def test_noise_of_another_kind(data: bytes, state: str) -> None:
    end = {"initiator": lambda: channel(ANN), "responder": lambda: channel(BOB), "established": lambda: pair()[1]}[
        state
    ]()
    needed = {"initiator": 96, "responder": 48, "established": 20}[state]
    messages, answers, error = listen(data, [], end)
    assert (messages, answers) == ([], b"")
    assert (error is not None) == (len(data) >= needed)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=100))
@example(0, b"")
@example(16, bytes(16))
def test_announcements_of_a_member(total: int, rest: bytes) -> None:
    ann, bob = pair()
    messages, answers, error = listen(announce(ann, total) + rest, [], bob)
    assert (messages, answers) == ([], b"")
    if total > LIMIT_BYTES * 2:
        assert error is not None
