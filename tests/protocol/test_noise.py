"""Complete encrypted connections: the published transcripts, and recorded streams in pieces, damaged and generated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from handshakes import ANN, BOB, LIMIT_BYTES, VECTORS, announce, channel, pair, published, shake
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cablestore.protocol.secure_channel import PROLOGUE, HandshakeError, SecureChannel

# --- known answers ---------------------------------------------------------------------------------


def plaintext_of(step: dict[str, Any]) -> bytes:
    text: str = step["plaintext"]
    return b"a" * 70_000 if text == "70000 bytes of 0x61" else bytes.fromhex(text)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: str(v["prologue"]))
def test_a_published_transcript_is_reproduced(vector: dict[str, Any]) -> None:
    ends = dict(zip(("initiator", "responder"), published(vector), strict=True))
    messages = [bytes.fromhex(data) for _, data in vector["handshake_messages"]]
    assert shake(ends["initiator"], ends["responder"]) == messages
    for role, other in (("initiator", "responder"), ("responder", "initiator")):
        assert ends[role].remote_static.hex() == vector["keys"][f"{other}_static"]["public"]
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
    """Return the initiator's second message again, because only the beginning is published."""
    initiator, responder = published(vector)
    shake(initiator, responder)
    first, second = (
        plaintext_of(step) for step in vector["transport"] if step["from"] == "initiator" and "plaintext" in step
    )
    initiator.send(first)
    return initiator.send(second)


def test_the_prologue_is_that_of_the_specification() -> None:
    assert PROLOGUE.hex(" ") == "43 41 42 4c 45 2f 31 2e 30"


# --- fuzz ------------------------------------------------------------------------------------------

SENT = [b"hello cable", bytes(300), b"x", bytes(range(256)) * 3]


def recorded() -> tuple[bytes, bytes, list[int]]:
    """Return all that an initiator sends in a published handshake, the answers to it, and the boundaries of the pieces."""
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
    """Return the results of a stream: messages, the answer, and the error."""
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
def test_a_stream_in_any_pieces_has_the_same_messages(cuts: list[int]) -> None:
    bob = published(VECTORS[1])[1]
    assert listen(STREAM, cuts, bob) == (SENT, ANSWER, None)
    assert bob.has_ended


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Return the recorded stream with one to three changes of bytes, pieces or lengths."""
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


@pytest.mark.thorough
@settings(max_examples=settings().max_examples * 3)
@given(mutated(), st.lists(st.integers(0, len(STREAM)), max_size=5))
def test_damage_to_a_stream_is_detected(data: bytes, cuts: list[int]) -> None:
    bob = published(VECTORS[1])[1]
    messages, answers, error = listen(data, [min(cut, len(data)) for cut in cuts], bob)
    assert messages == SENT[: len(messages)]
    assert answers in {b"", ANSWER}
    if not STREAM.startswith(data):
        # Any difference is detected, at the latest when its piece is complete.
        same = next((i for i, (a, b) in enumerate(zip(data, STREAM, strict=False)) if a != b), len(STREAM))
        if any(same < end <= len(data) for end in ENDS) or same == len(STREAM):
            assert error is not None
    else:
        assert error is None
    assert bob.has_ended == (error is None and data == STREAM) or error is not None
    all_at_once = published(VECTORS[1])[1]
    assert listen(data, [], all_at_once)[2] == error


@given(st.binary(max_size=600), st.sampled_from(["initiator", "responder", "established"]))
def test_random_bytes_are_rejected(data: bytes, state: str) -> None:
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
def test_any_announced_length_of_a_member_is_handled(total: int, rest: bytes) -> None:
    ann, bob = pair()
    messages, answers, error = listen(announce(ann, total) + rest, [], bob)
    assert (messages, answers) == ([], b"")
    if total > LIMIT_BYTES * 2:
        assert error is not None
