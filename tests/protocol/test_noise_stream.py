"""The encrypted stream after the handshake: sizes at the limits, and every fault of a peer."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from handshakes import ANN, BOB, LIMIT_BYTES, announce, channel, pair, refused, shake
from hypothesis import given
from hypothesis import strategies as st

from cablestore.protocol.noise_handshake import TAG_SIZE_BYTES
from cablestore.protocol.secure_channel import (
    CIPHERTEXT_SIZE_BYTES,
    MAX_ENCODABLE_SIZE_BYTES,
    SEGMENT_SIZE_BYTES,
)

EDGES = [1, SEGMENT_SIZE_BYTES - 1, SEGMENT_SIZE_BYTES, SEGMENT_SIZE_BYTES + 1, 2 * SEGMENT_SIZE_BYTES, 200_000]

# --- messages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", EDGES)
def test_messages_around_the_size_of_segments_are_received(size: int) -> None:
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
        (SEGMENT_SIZE_BYTES, 65535),  # cable-handshake.ts announces 65551 here, and its reader waits forever
        (SEGMENT_SIZE_BYTES + 1, 65535 + 17),
        (2 * SEGMENT_SIZE_BYTES, 2 * 65535),
        (155_719, 2 * 65535 + 24_681 + 16),  # handshake.md 4.2.1
    ],
)
def test_the_announced_length_includes_the_tags(size: int, total: int) -> None:
    ann, bob = pair()
    sent = ann.send(bytes(size))
    assert bob._decrypt(sent[:20], "length") == total.to_bytes(4, "little")
    assert len(sent) == 20 + total


def test_the_greatest_length_fits_its_field() -> None:
    segments = -(-MAX_ENCODABLE_SIZE_BYTES // SEGMENT_SIZE_BYTES)
    assert MAX_ENCODABLE_SIZE_BYTES + segments * TAG_SIZE_BYTES < 2**32


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8))
def test_messages_are_received_unchanged_in_order(messages: list[bytes]) -> None:
    ann, bob = pair()
    for sender, receiver in ((ann, bob), (bob, ann)):
        stream = b"".join(map(sender.send, messages)) + sender.finish()
        assert receiver.receive(stream) == (messages, b"")
        assert receiver.has_ended


@pytest.mark.thorough
def test_a_handshake_and_a_message_are_received_byte_by_byte() -> None:
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


def test_a_handshake_and_messages_are_received_in_one_piece() -> None:
    ann, bob = channel(ANN), channel(BOB)
    _, second = bob.receive(ann.start())
    _, third = ann.receive(second)
    assert bob.receive(third + ann.send(b"hello") + ann.finish()) == ([b"hello"], b"")
    assert bob.has_ended
    assert ann.receive(bob.send(b"still here") + bob.finish()) == ([b"still here"], b"")


# --- mistakes of the caller ------------------------------------------------------------------------


def test_empty_and_too_large_messages_are_not_sent() -> None:
    ann, bob = pair()
    for message in (b"", bytes(LIMIT_BYTES + 1)):
        with pytest.raises(ValueError, match="expected 1 to"):
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


# --- streams that fail -----------------------------------------------------------------------------


def test_swapped_and_repeated_messages_are_rejected() -> None:
    ann, bob = pair()
    first, second = ann.send(b"first"), ann.send(b"second")
    refused(bob, second + first, "message length")

    ann, bob = pair()
    first = ann.send(b"first")
    assert bob.receive(first) == ([b"first"], b"")
    refused(bob, first, "message length")


def test_swapped_segments_are_rejected() -> None:
    ann, bob = pair()
    sent = ann.send(bytes(SEGMENT_SIZE_BYTES) * 2)
    length, one, two = sent[:20], sent[20 : 20 + CIPHERTEXT_SIZE_BYTES], sent[20 + CIPHERTEXT_SIZE_BYTES :]
    refused(bob, length + two + one, "message")


def test_reflected_messages_are_rejected() -> None:
    ann, _ = pair()
    refused(ann, ann.send(b"hello"), "message length")


def test_a_truncated_message_waits_and_a_wrong_end_is_rejected() -> None:
    ann, bob = pair()
    sent = ann.send(bytes(100))
    assert bob.receive(sent[:-1]) == ([], b"")
    refused(bob, bytes((sent[-1] ^ 1,)) + ann.send(bytes(100)), "message")  # the next bytes are not the truncated ones


@given(st.integers(0, 20 + 60 + 16 - 1), st.integers(0, 7))
def test_a_change_of_any_bit_of_a_message_is_rejected(at: int, bit: int) -> None:
    ann, bob = pair()
    sent = bytearray(ann.send(bytes(60)))
    sent[at] ^= 1 << bit
    refused(bob, bytes(sent), "message length" if at < 20 else "message")


@pytest.mark.parametrize("total", [1, 15, 65536, 65535 + 15, 65535 + 16, 2 * 65535 + 16])
def test_invalid_lengths_are_rejected(total: int) -> None:
    ann, bob = pair()
    refused(bob, announce(ann, total), "message length", f"{total} bytes is not a valid size")


@pytest.mark.parametrize("total", [LIMIT_BYTES + 16 * 16 + 1, 2**31, 2**32 - 1])
def test_lengths_beyond_the_limit_are_rejected(total: int) -> None:
    ann, bob = pair()
    refused(bob, announce(ann, total), "message length", f"the peer announces .*, the maximum is {LIMIT_BYTES}$")


def test_the_limit_on_messages_has_a_limit() -> None:
    for size in (1, MAX_ENCODABLE_SIZE_BYTES):
        assert channel(max_message_size_bytes=size).max_message_size_bytes == size
    for size in (0, MAX_ENCODABLE_SIZE_BYTES + 1):
        with pytest.raises(ValueError, match=f"expected 1 to {MAX_ENCODABLE_SIZE_BYTES}, got {size}"):
            channel(max_message_size_bytes=size)


@pytest.mark.parametrize("limit", EDGES)
def test_the_limit_on_messages_is_exact(limit: int) -> None:
    ann, bob = channel(ANN), channel(BOB, max_message_size_bytes=limit)
    shake(ann, bob)
    assert bob.receive(ann.send(bytes(limit))) == ([bytes(limit)], b"")
    refused(bob, ann.send(bytes(limit + 1))[:20], "message length")


def test_nothing_is_received_after_the_end() -> None:
    ann, bob = pair()
    assert bob.receive(ann.finish()) == ([], b"")
    assert bob.receive(b"") == ([], b"")
    refused(bob, b"\x00", "message")

    ann, bob = pair()
    refused(bob, ann.finish() + ann._encrypt(bytes(4)), "message")


def test_an_empty_message_also_ends_the_stream() -> None:
    ann, bob = pair()
    assert bob.receive(announce(ann, TAG_SIZE_BYTES) + ann._encrypt(b"")) == ([], b"")
    assert bob.has_ended


def test_the_memory_of_a_stream_is_that_of_one_message() -> None:
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
