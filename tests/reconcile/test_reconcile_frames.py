"""Frames of a conversation: written frames can be read, and any other bytes raise an error of this package."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from talking import hello

from cablestore import limits
from cablestore.reconcile import messages
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.messages import (
    END_MS,
    MAX_NUMBER,
    Accepted,
    ConversationMessage,
    Done,
    Ended,
    EndReason,
    Hello,
    PayloadFrame,
    PostsFrame,
    PostsSent,
    Purpose,
    Stored,
    SumsRequest,
    SumsResponse,
    Terms,
    decode_frame,
    encode_frame,
)

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=limits.MAX_CHANNEL_CODEPOINTS)
TERMS = st.builds(
    Terms,
    st.booleans(),
    st.integers(0, END_MS),
    st.none() | st.integers(1, END_MS),
    st.none() | st.frozensets(NAMES, max_size=5),
)
COUNTS = st.integers(0, 2**64 - 1)
MESSAGES: st.SearchStrategy[ConversationMessage] = st.one_of(
    st.builds(Hello, COUNTS, st.sampled_from(Purpose), st.sampled_from(["legacy", "draft8"]), TERMS),
    st.builds(Accepted, TERMS),
    st.builds(Ended, st.sampled_from(EndReason), st.text(st.characters(exclude_categories=["Cs"]), max_size=100)),
    st.builds(PayloadFrame, st.binary(max_size=50)),
    st.builds(PostsFrame, COUNTS, st.lists(st.binary(max_size=50), max_size=5).map(tuple)),
    st.builds(Stored, COUNTS),
    st.just(PostsSent()),
    st.builds(Done, COUNTS),
    st.builds(SumsRequest, st.binary(max_size=50)),
    st.builds(SumsResponse, st.binary(max_size=50)),
)


@given(st.integers(0, MAX_NUMBER), MESSAGES)
def test_encoded_frames_are_decoded_unchanged(number: int, message: ConversationMessage) -> None:
    assert decode_frame(encode_frame(number, message)) == (number, message)


@given(st.data())
def test_any_bytes_result_in_a_frame_or_an_error(data: st.DataObject) -> None:
    good = encode_frame(data.draw(st.integers(0, MAX_NUMBER)), data.draw(MESSAGES))
    raw = bytearray(data.draw(st.one_of(st.binary(max_size=99), st.just(good))))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        raw[at : at + data.draw(st.integers(0, 2))] = bytes((byte,))
    try:
        number, message = decode_frame(bytes(raw))
    except ReconcileError as error:
        assert str(error)  # noqa: PT017 - an error is not required
    else:
        assert decode_frame(encode_frame(number, message)) == (number, message)


def test_notices_have_the_bytes_that_other_versions_expect() -> None:
    names = "NEW_CHANNEL EQUAL CHANGED SNAPSHOT LIFE_REQUEST LIFE_SIGN NODE UNLISTED"
    notices = [getattr(messages, name) for name in names.split()]
    kind = messages.NEW_CHANNEL[:1]
    assert notices == [kind + b"\x00", *(kind + bytes((0, number)) for number in range(1, 8))]
    assert (messages.HELLO, kind) == (b"\x01", b"\x04")


def test_frames_have_a_limit() -> None:
    """MAX_TALK_FRAME_SIZE_BYTES for writing and reading, MAX_TALK_REASON_CODEPOINTS, MAX_RECONCILE_TOPICS."""
    largest = PayloadFrame(bytes(limits.MAX_TALK_FRAME_SIZE_BYTES - 2))
    assert decode_frame(encode_frame(1, largest)) == (1, largest)
    with pytest.raises(ReconcileError, match="the maximum is 1048576"):
        encode_frame(1, PayloadFrame(largest.data + b"x"))
    with pytest.raises(ReconcileError, match="the maximum is 1048576"):
        decode_frame(encode_frame(1, largest) + b"x")
    _, ended = decode_frame(encode_frame(1, Ended(EndReason.OTHER, "ü" * 1000)))
    assert ended == Ended(EndReason.OTHER, "ü" * limits.MAX_TALK_REASON_CODEPOINTS)
    with pytest.raises(ReconcileError, match="501 code points, expected 0 to 500"):
        decode_frame(b"\x03\x01\x00\xf5\x03" + b"x" * 501)
    most = Terms(channels=frozenset(map(str, range(limits.MAX_RECONCILE_TOPICS))))
    assert decode_frame(encode_frame(1, Accepted(most))) == (1, Accepted(most))
    with pytest.raises(ReconcileError, match=r"4097 channels .* the maximum is 4096"):
        encode_frame(1, Accepted(most._replace(channels=frozenset(map(str, range(4097))))))
    with pytest.raises(ReconcileError, match="number of channels is 4098"):
        decode_frame(b"\x02\x01\x01\x00\x00\x82\x20")


def test_unknown_reasons_are_decoded_as_other() -> None:
    assert decode_frame(b"\x03\x01\x63\x00") == (1, Ended(EndReason.OTHER, ""))
    with pytest.raises(ReconcileError, match="unknown type 11"):
        decode_frame(b"\x0b\x01")
    with pytest.raises(ReconcileError, match="extra bytes after the end of"):
        decode_frame(hello() + b"x")


@given(TERMS, TERMS)
def test_common_terms_are_within_those_of_each_side(one: Terms, other: Terms) -> None:
    both = one.narrowed(other)
    assert both.is_within(one)
    assert both.is_within(other)
    assert both[1:] == other.narrowed(one)[1:]
    assert both.accepts_posts is one.accepts_posts
