"""Frames of messages with any division of the stream: the same frames, in linear time, within the limits."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from cable_rs import varint_size, written_by_cable_rs
from hypothesis import example, given
from hypothesis import strategies as st

from cablestore import LEGACY, limits
from cablestore.errors import DecodeError
from cablestore.protocol.fields import sized
from cablestore.protocol.message import FrameReader, ListResponse, Message, PostResponse, decode_message, encode_message
from cablestore.protocol.varint import MAX_VARINT, encode_varint, read_varint


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


FRAMES = st.lists(st.one_of(st.binary(max_size=5), st.integers(0, 20_000).map(lambda size: b"\x80" * size)), max_size=6)


@given(FRAMES, st.lists(st.integers(0, 40_000), max_size=12))
@example([b"", b"", b"a"], [1])
@example([b"x" * 128], [1])  # within the length
def test_a_stream_in_pieces_of_any_size_has_the_same_frames(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(sized, frames))
    reader = FrameReader()
    assert [frame for piece in split(data, cuts) for frame in reader.feed(piece)] == [*filter(None, frames)]


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_every_frame_is_returned_with_its_last_byte(frames: list[bytes]) -> None:
    reader = FrameReader()
    for frame in frames:
        message = sized(frame)
        for at in range(len(message) - 1):
            assert reader.feed(message[at : at + 1]) == []
        assert reader.feed(message[-1:]) == [frame] * bool(frame)


@given(st.lists(st.integers(0, 6), max_size=6), st.lists(st.integers(0, 60), max_size=12))
def test_messages_of_length_0_are_skipped_up_to_a_limit(stray: list[int], cuts: list[int]) -> None:
    """For any division: the frames before the one that is too long, then the error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MAX_EMPTY_MESSAGES", 4)
        reader = FrameReader()
        found: list[bytes] = []
        pieces = split(b"".join(b"\x02hi" + bytes(count) for count in stray), cuts)

        def read() -> None:
            for piece in pieces:
                found.extend(reader.feed(piece))

        if max(stray, default=0) <= 4:
            read()
            assert found == [b"hi"] * len(stray)
        else:
            with pytest.raises(DecodeError, match="too many empty messages in a row"):
                read()
            too_many = next(at for at, count in enumerate(stray) if count > 4)
            assert found == [b"hi"] * len(found)
            assert len(found) <= too_many + 1


SHORT_BY_ONE = (127, 16_382, 16_383)
"""Sizes of messages whose length cable.rs writes one too small."""


@pytest.mark.parametrize("size_bytes", [126, *SHORT_BY_ONE, 128, 16_381, 16_384])
def test_messages_of_cable_rs_are_read(size_bytes: int) -> None:
    """Such a message's length does not count its last byte, the 0 that ends its list."""
    size = size_bytes - 9 - 1
    most = size - varint_size(size)
    messages: list[Message] = [PostResponse(b"abcd", (b"p" * (most - (varint_size(most) + most > size)),))]
    if size_bytes < 200:
        messages.append(ListResponse(b"abcd", ("é" * 30, "c" * (size - 62))))
    for message in messages:
        announced, at = read_varint(encode_message(message, LEGACY), 0)
        assert announced == len(encode_message(message, LEGACY)) - at == size_bytes
        written = written_by_cable_rs(message)
        assert (written == encode_message(message, LEGACY)) == (size_bytes not in SHORT_BY_ONE)
        for step in (1, len(written)):
            reader = FrameReader()
            pieces = split(written * 2, [*range(step, 2 * len(written), step)])
            frames = [frame for piece in pieces for frame in reader.feed(piece)]
            assert [decode_message(frame, LEGACY) for frame in frames] == [message] * 2


class Counted(FrameReader):
    """Counts the checks of the remaining bytes."""

    looks = 0

    def _next(self, data: bytes, at: int) -> tuple[int, int] | None:
        self.looks += 1
        return super()._next(data, at)


@pytest.mark.parametrize("piece_size_bytes", [1, 7, 4096])
def test_large_frames_in_small_pieces_take_linear_time_and_limited_memory(piece_size_bytes: int) -> None:
    size_bytes = 300_000
    data = sized(bytes(size_bytes)) + sized(b"end")
    reader = Counted()
    pieces = split(data, list(range(piece_size_bytes, len(data), piece_size_bytes)))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        found = [len(frame) for piece in pieces for frame in reader.feed(piece)]
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert found == [size_bytes, 3]
    assert reader.looks <= 3 + 1 + 4 + 2  # the bytes of one length, its end, those of the other, the ends
    assert most < 3.5 * size_bytes


def test_each_of_many_frames_is_scanned_once() -> None:
    reader = Counted()
    assert len(reader.feed(sized(b"abc") * 10_000)) == 10_000
    assert reader.looks == 10_000


@given(st.integers(0, 10_000), st.integers(1, MAX_VARINT), st.booleans(), st.binary(max_size=5))
@example(limits.MAX_MESSAGE_SIZE_BYTES, 1, True, b"")
def test_a_size_above_the_limit_is_rejected_before_its_bytes_arrive(
    most: int, excess: int, is_cut: bool, before: bytes
) -> None:
    reader = FrameReader(most)
    if len(before) <= most:
        assert reader.feed(sized(before)) == [before] * bool(before)
    announced = encode_varint(min(most + excess, MAX_VARINT))
    if is_cut:
        for at in range(len(announced) - 1):
            assert reader.feed(announced[at : at + 1]) == []
        announced = announced[-1:]
    with pytest.raises(DecodeError, match="announced"):
        reader.feed(announced)


@given(st.integers(1, 5_000))
def test_a_size_at_the_limit_is_accepted(most: int) -> None:
    assert FrameReader(most).feed(sized(bytes(most))) == [bytes(most)]


@given(st.sampled_from([b"\x80\x00", b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\x81\x80\x00"]), st.booleans())
def test_lengths_that_are_not_numbers_are_rejected(length: bytes, is_cut: bool) -> None:
    reader = FrameReader()
    *pieces, last = split(length, list(range(1, len(length)) if is_cut else []))
    for piece in pieces:
        assert reader.feed(piece) == []
    with pytest.raises(DecodeError):
        reader.feed(last)
