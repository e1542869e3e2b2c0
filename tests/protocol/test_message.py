"""Messages: known answers, both dialects, and decoding of any bytes."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from folders import KNOWN_ANSWERS
from fuzzing import INTERESTING, VARINTS, run
from hypothesis import example, given
from hypothesis import strategies as st

from cablestore import DRAFT8, LEGACY, Dialect, limits
from cablestore.errors import DecodeError
from cablestore.protocol.fields import sized
from cablestore.protocol.message import (
    TYPE_IDS,
    CancelRequest,
    FrameReader,
    HashResponse,
    ListRequest,
    ListResponse,
    Message,
    ModerationRequest,
    PostRequest,
    PostResponse,
    StateRequest,
    TimeRangeRequest,
    decode_message,
    encode_message,
    read_head,
)
from cablestore.protocol.varint import MAX_VARINT, encode_varint, read_varint

DIALECTS = pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda d: d.name)
VECTORS: dict[str, Any] = json.loads((KNOWN_ANSWERS / "cable.json").read_text())
MESSAGES = [v for v in [*VECTORS["vectors"], *VECTORS["recorded_from_cable_js"]["vectors"]] if v["kind"] == "message"]
KNOWN = pytest.mark.parametrize("vector", MESSAGES, ids=lambda v: str(v.get("case") or v["name"]))
RESPONSES = (HashResponse, PostResponse, ListResponse)


def frame_of(message: bytes) -> bytes:
    """Return a message without its length."""
    size_bytes, at = read_varint(message, 0)
    assert size_bytes == len(message) - at
    return message[at:]


def as_vector(raw: bytes, message: Message) -> dict[str, Any]:
    """Return a legacy message as the fields of the vectors."""
    fields: dict[str, Any] = {
        "msg_len": len(frame_of(raw)),
        "msg_type": TYPE_IDS[type(message)],
        "circuit_id": "00000000",
        "req_id": message.request_id.hex(),
    }
    if not isinstance(message, RESPONSES):
        fields["ttl"] = message.ttl
    match message:
        case HashResponse(_, hashes) | PostRequest(_, hashes):
            return fields | {"hashes": [digest.hex() for digest in hashes]}
        case PostResponse(_, posts):
            return fields | {"posts": [post.hex() for post in posts]}
        case CancelRequest(_, cancel_id):
            return fields | {"cancel_id": cancel_id.hex()}
        case TimeRangeRequest(_, channel, start_ms, end_ms, limit):
            return fields | {"channel": channel, "time_start": start_ms, "time_end": end_ms, "limit": limit}
        case StateRequest(_, channel, future):
            return fields | {"channel": channel, "future": future}
        case ListRequest(_, offset, limit):
            return fields | {"offset": offset, "limit": limit}
        case ListResponse(_, channels):
            return fields | {"channels": list(channels)}
        case ModerationRequest(_, channels, future, oldest_ms):
            return fields | {"channels": list(channels), "future": future, "oldest": oldest_ms}


def messages(dialect: Dialect) -> st.SearchStrategy[Message]:
    ids = st.binary(min_size=dialect.request_id_size_bytes, max_size=dialect.request_id_size_bytes)
    hashes = st.lists(st.binary(min_size=32, max_size=32), max_size=5).map(tuple)
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64)
    numbers = st.one_of(st.integers(0, 300), st.integers(0, MAX_VARINT))
    bits = st.integers(0, 1)
    ttls = st.integers(0, limits.MAX_TTL if dialect.requests_have_ttl else 0)
    posts = st.lists(st.binary(min_size=1, max_size=200), max_size=4).map(tuple)
    return st.one_of(
        st.builds(HashResponse, ids, hashes),
        st.builds(PostResponse, ids, posts),
        st.builds(PostRequest, ids, hashes, ttls),
        st.builds(CancelRequest, ids, ids, ttls),
        st.builds(TimeRangeRequest, ids, names, numbers, numbers, numbers, ttls),
        st.builds(StateRequest, ids, names, bits, ttls),
        st.builds(ListRequest, ids, numbers, numbers, ttls),
        st.builds(ListResponse, ids, st.lists(names, max_size=4).map(tuple)),
        st.builds(ModerationRequest, ids, st.lists(names, max_size=4).map(tuple), bits, numbers, ttls),
    )


# --- known answers ---------------------------------------------------------------------------------


@KNOWN
def test_known_messages_are_decoded_and_encoded(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    message = decode_message(frame_of(raw), LEGACY)
    assert message is not None
    assert as_vector(raw, message) == vector["fields"]
    assert encode_message(message, LEGACY) == raw
    assert read_head(frame_of(raw)).dialect is LEGACY


def test_the_vectors_have_every_type() -> None:
    assert {vector["type_id"] for vector in MESSAGES} == set(TYPE_IDS.values())


@KNOWN
def test_draft8_differs_only_in_ids_and_ttl(vector: dict[str, Any]) -> None:
    """The bytes of draft 8 are assembled by hand from the known ones."""
    legacy = frame_of(bytes.fromhex(vector["hex"]))
    wide = b"\x01\x02\x03\x04"
    body = legacy[9:] if "ttl" not in vector["fields"] else legacy[10:]
    if "cancel_id" in vector["fields"]:
        body = wide + body
    frame = legacy[:1] + wide + legacy[5:9] + body
    message, known = decode_message(frame, DRAFT8), decode_message(legacy, LEGACY)
    assert message is not None
    assert known is not None
    changed: dict[str, Any] = {"request_id": wide + known.request_id}
    if not isinstance(known, RESPONSES):
        changed["ttl"] = 0
    if isinstance(known, CancelRequest):
        changed["cancel_id"] = wide + known.cancel_id
    assert message == known._replace(**changed)
    assert encode_message(message, DRAFT8) == sized(frame)
    assert read_head(frame).dialect is DRAFT8


# --- round trips -----------------------------------------------------------------------------------


@pytest.mark.thorough("draft8")
@DIALECTS
@given(st.data())
def test_encoded_messages_are_decoded_unchanged(dialect: Dialect, data: st.DataObject) -> None:
    message = data.draw(messages(dialect))
    raw = encode_message(message, dialect)
    assert decode_message(frame_of(raw), dialect) == message
    is_like_legacy = dialect is LEGACY or message.request_id.startswith(bytes(4))
    assert read_head(frame_of(raw)).dialect is (LEGACY if is_like_legacy else DRAFT8)


@pytest.mark.thorough
@DIALECTS
@given(st.data())
def test_ids_of_another_size_are_not_encoded(dialect: Dialect, data: st.DataObject) -> None:
    message = data.draw(messages(dialect))
    wrong = data.draw(st.binary(max_size=12).filter(lambda found: len(found) != dialect.request_id_size_bytes))
    with pytest.raises(ValueError, match="request id"):
        encode_message(message._replace(request_id=wrong), dialect)
    if isinstance(message, CancelRequest):
        with pytest.raises(ValueError, match="request id"):
            encode_message(message._replace(cancel_id=wrong), dialect)


@DIALECTS
def test_ids_one_byte_too_short_or_too_long_are_not_encoded(dialect: Dialect) -> None:
    size = dialect.request_id_size_bytes
    for request_size, cancel_size in ((size - 1, size), (size + 1, size), (size, size - 1), (size, size + 1)):
        message = CancelRequest(bytes(request_size), bytes(cancel_size))
        wrong = request_size if request_size != size else cancel_size
        with pytest.raises(ValueError, match=f"a request id of {dialect.name} has {size} bytes, got {wrong}"):
            encode_message(message, dialect)


@pytest.mark.parametrize(
    "message",
    [
        PostResponse(b"abcd", (b"post", b"", b"post")),
        ListResponse(b"abcd", ("a", "", "b")),
        ModerationRequest(b"abcd", ("",), 0, 0),
    ],
    ids=lambda m: type(m).__name__,
)
def test_empty_items_of_lists_are_not_encoded(message: Message) -> None:
    with pytest.raises(ValueError, match="empty"):
        encode_message(message, LEGACY)


# --- any input -------------------------------------------------------------------------------------


def is_within(error: DecodeError, frame: bytes) -> bool:
    assert 0 <= error.offset <= len(frame)
    assert error.reason
    return False


def check(frame: bytes, dialect: Dialect) -> bool:
    """Check that the result is a message, None for an unknown type, or a DecodeError with a valid position."""
    try:
        message = decode_message(frame, dialect)
    except DecodeError as error:
        return is_within(error, frame)
    type_id, at = read_varint(frame, 0)
    if message is None:
        assert type_id not in TYPE_IDS.values()
        return False
    assert TYPE_IDS[type(message)] == type_id
    circuit = dialect.circuit_id_size_bytes  # any value: it has no meaning
    whole = frame[:at] + bytes(circuit) + frame[at + circuit :]
    lists = isinstance(message, PostResponse | ListResponse)
    assert encode_message(message, dialect) in (sized(whole), *([sized(whole + b"\x00")] if lists else []))
    return True


@DIALECTS
@given(st.binary(max_size=300))
@example(b"")
@example(b"\x03")
@example(b"\x04" + bytes(8))
def test_any_bytes_are_decoded_or_rejected(dialect: Dialect, frame: bytes) -> None:
    check(frame, dialect)


SEEDS = {
    LEGACY: [frame_of(bytes.fromhex(vector["hex"])) for vector in MESSAGES],
    DRAFT8: [
        bytes((type_id,))
        + b"12345678"
        + frame_of(bytes.fromhex(vector["hex"]))[10 if "ttl" in vector["fields"] else 9 :]
        for vector in MESSAGES
        for type_id in [vector["type_id"]]
    ],
}


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    """Return a known message with one to three damages after its type."""
    raw = bytearray(rng.choice(seeds))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(raw)) if rng.random() < 0.1 else rng.randrange(min(9, len(raw)), len(raw) + 1)
        match rng.randrange(5):
            case 0:
                raw[at : at + 1] = bytes((rng.choice(INTERESTING),))
            case 1:
                raw[at : at + 1] = rng.choice(VARINTS)
            case 2:
                del raw[at : at + rng.randrange(1, 40)]
            case 3:
                raw[at:at] = rng.randbytes(rng.randrange(1, 40))
            case _:
                other = rng.choice(seeds)
                raw[at:] = other[min(at, len(other)) :]
        if not raw:
            return b""
    return bytes(raw)


@DIALECTS
def test_damaged_messages_are_decoded_or_rejected(dialect: Dialect) -> None:
    decoded = 0

    def work(rng: random.Random) -> None:
        nonlocal decoded
        decoded += check(mutated(rng, SEEDS[dialect]), dialect)

    run(work, 30_000)
    assert decoded > 1_000  # the damage passes the first check


@DIALECTS
@given(st.integers(9, MAX_VARINT), st.binary(min_size=8, max_size=40))
@example(9, bytes(8))
@example(255, bytes(8))
@example(256, bytes(8))
@example(MAX_VARINT, b"\xff" * 8)
def test_unknown_types_are_skipped(dialect: Dialect, type_id: int, rest: bytes) -> None:
    assert decode_message(encode_varint(type_id) + rest, dialect) is None


@pytest.mark.thorough
@DIALECTS
@given(st.data())
def test_extended_and_truncated_messages_are_rejected(dialect: Dialect, data: st.DataObject) -> None:
    """The exception is a list of posts or names, which the end of the message may also terminate."""
    frame = frame_of(encode_message(data.draw(messages(dialect)), dialect))
    with pytest.raises(DecodeError):
        decode_message(frame + data.draw(st.binary(min_size=1, max_size=3)), dialect)
    short = frame[: data.draw(st.integers(0, len(frame) - 1))]
    try:
        message = decode_message(short, dialect)
    except DecodeError:
        return
    assert isinstance(message, PostResponse | ListResponse)
    assert frame_of(encode_message(message, dialect)) == short + b"\x00"


@DIALECTS
@pytest.mark.parametrize(("kind", "item"), [(PostResponse, b"post"), (ListResponse, "name")])
def test_items_after_the_end_of_a_list_are_rejected(
    dialect: Dialect, kind: type[PostResponse | ListResponse], item: bytes | str
) -> None:
    message = kind(b"\x01" * dialect.request_id_size_bytes, (item,))  # type: ignore[arg-type] # of the same kind
    frame = frame_of(encode_message(message, dialect))
    assert decode_message(frame, dialect) == message
    for more in (b"\x00", b"\x04more", b"\x04more\x00"):
        with pytest.raises(DecodeError, match="extra bytes"):
            decode_message(frame + more, dialect)


@given(st.integers(0, MAX_VARINT), st.binary(max_size=7))
def test_messages_that_are_too_short_for_ids_are_rejected(type_id: int, ids: bytes) -> None:
    frame = encode_varint(type_id) + ids
    for decode in (read_head, lambda found: decode_message(found, LEGACY), lambda found: decode_message(found, DRAFT8)):
        with pytest.raises(DecodeError, match="8 bytes of ids"):
            decode(frame)


def request(type_id: int, body: bytes, ttl: bytes = b"\x00") -> bytes:
    return bytes((type_id,)) + bytes(4) + b"abcd" + ttl + body


def response(type_id: int, body: bytes) -> bytes:
    return bytes((type_id,)) + bytes(4) + b"abcd" + body


DAMAGED = {
    "type that is not minimal": (b"\x82\x00" + bytes(8) + b"\x00\x00", "not minimal"),
    "ttl that is not minimal": (request(2, b"\x00", b"\x81\x00"), "not minimal"),
    "count that is not minimal": (request(2, b"\x80\x00"), "not minimal"),
    "time that is not minimal": (request(4, b"\x01a\x80\x00\x00\x00"), "not minimal"),
    "number of more than 64 bits": (request(6, b"\xff" * 9 + b"\x02\x00"), "64 bits"),
    "number of more than 10 bytes": (request(6, b"\xff" * 10 + b"\x00\x00"), "10 bytes"),
    "ttl 17": (request(3, b"wxyz", b"\x11"), "ttl is 17"),
    "future 2": (request(5, b"\x01a\x02"), "future is 2"),
    "moderation, future 2": (request(8, b"\x00\x02\x00"), "future is 2"),
    "no channel": (request(5, b"\x00\x00"), "0 code points"),
    "channel of 65 code points": (request(4, b"\x41" + b"a" * 65 + bytes(3)), "65 code points"),
    "name of 65 code points": (response(7, b"\x41" + b"a" * 65 + b"\x00"), "65 code points"),
    "channel that is not text": (request(5, b"\x02\xc3\x28\x00"), "UTF-8"),
    "surrogate": (request(5, b"\x03\xed\xa0\x80\x00"), "UTF-8"),
    "hashes beyond the end": (response(0, b"\x02" + bytes(63)), "remain"),
    "2**64-1 hashes": (request(2, b"\xff" * 9 + b"\x01"), "remain"),
    "post beyond the end": (response(1, b"\x05abcd"), "remain"),
    "posts that end in a length": (response(1, b"\x01a\x80"), "varint is truncated"),
    "names that end in a length": (response(7, b"\x01a\x80"), "varint is truncated"),
    "names of a request without an end": (request(8, b"\x01a"), "varint is missing"),
    "short cancel id": (request(3, b"wxy"), "cancel id"),
    "cancel id of draft 8": (request(3, b"12345678"), "after the end"),
    "trailing bytes": (request(6, b"\x00\x00\x00"), "extra bytes after the end of"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_malformed_messages_are_rejected_with_a_reason(case: str) -> None:
    frame, reason = DAMAGED[case]
    with pytest.raises(DecodeError, match=reason):
        decode_message(frame, LEGACY)


@DIALECTS
def test_limits_are_counted_in_code_points(dialect: Dialect) -> None:
    request_id = bytes(range(1, 1 + dialect.request_id_size_bytes))
    longest = StateRequest(request_id, "\U0001f600" * 64, 1)
    assert decode_message(frame_of(encode_message(longest, dialect)), dialect) == longest
    with pytest.raises(DecodeError, match="65 code points"):
        decode_message(frame_of(encode_message(longest._replace(channel="ü" * 65), dialect)), dialect)


def test_the_largest_ttl_is_encoded_and_decoded() -> None:
    message = ListRequest(b"abcd", 0, 0, limits.MAX_TTL)
    assert decode_message(frame_of(encode_message(message, LEGACY)), LEGACY) == message


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
def test_the_number_of_names_in_one_message_is_limited(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NAMES_PER_MESSAGE", 3)
    request_id = b"r" * dialect.request_id_size_bytes
    for count in (3, 4):
        [frame] = FrameReader().feed(encode_message(ListResponse(request_id, ("a",) * count), dialect))
        if count == 3:
            assert decode_message(frame, dialect) == ListResponse(request_id, ("a",) * 3)
        else:
            with pytest.raises(DecodeError, match="too many channels in a message: the maximum is 3"):
                decode_message(frame, dialect)
