"""Codec of causal-log messages in two dialects: known bytes, round trips, protobuf's library, arbitrary bytes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message as Document
from hypothesis import example, given
from hypothesis import strategies as st
from sds_filters import BloomFilter
from sds_messages import FEWER, NOW_MS, U64, VECTORS, field, in_each, message_of, messages
from steps import steps_of

from cablestore import limits
from cablestore.errors import SdsError
from cablestore.sds.bloom import FilterParameters, to_wire
from cablestore.sds.codec import decode, encode
from cablestore.sds.dialects import NIM, SPEC, FieldNumbers, SdsDialect
from cablestore.sds.message import HistoryEntry, MessageKind, SdsMessage, message_id_of

FORMATS = {"about", "wire", "hashn_test_vectors", "hashn_note", "hashes", "bloom", "bloom_parameters"}
FORMATS |= {"js_bloom_false_positive_rate_measured", "repair", "repair_note", "defaults", "nim_test_properties"}
BEHAVIOUR = {"defaults", "lamport_tests", "ordering_tests", "repair_buffer_tests", "measured_behaviour"}
BEHAVIOUR |= {"nim_test_properties"}

KINDS = {
    "ContentMessage": MessageKind.CONTENT,
    "SyncMessage": MessageKind.SYNC,
    "EphemeralMessage": MessageKind.EPHEMERAL,
}
HELLO = SdsMessage("m1", "room", "alice", NOW_MS, content=b"hello")


def test_every_known_answer_is_about_formats_or_behaviour() -> None:
    assert set(VECTORS) == FORMATS | BEHAVIOUR


# --- known bytes --------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["wire"]["vectors"], ids=lambda vector: str(vector["name"]))
def test_messages_have_the_bytes_of_the_npm_package(vector: dict[str, Any]) -> None:
    """Encoded and decoded, byte for byte. As in the source, the other dialect cannot decode them."""
    message = message_of(vector["message"])
    data = bytes.fromhex(vector["spec_field_numbers_hex"])
    assert encode(message, SPEC) == data
    assert decode(data, SPEC) == message
    assert message.kind is KINDS[vector["js_decodes_as"]]
    assert vector["nim_decode"] == VECTORS["measured_behaviour"]["cross"]["js_to_nim"] == "reDeserializationError"
    with pytest.raises(SdsError, match="nim"):
        decode(data, NIM)


def test_fields_have_the_numbers_of_both_dialects() -> None:
    for table, dialect in (("spec_fields", SPEC), ("nim_fields", NIM)):
        known = dict(VECTORS["wire"][table])
        assert known.pop("HistoryEntry") == {"message_id": 1, "retrieval_hint": 2, "sender_id": 3}
        known["lamport_ms"] = known.pop("lamport_timestamp")
        assert dialect.fields == FieldNumbers(**{name: int(str(value).split()[0]) for name, value in known.items()})
    entry = HistoryEntry("a", b"h", "s")
    written = encode(replace(HELLO, causal_history=(entry,)), SPEC)
    assert field(11, field(1, b"a") + field(2, b"h") + field(3, b"s")) in written


def test_messages_have_the_bytes_of_nim_sds() -> None:
    """Message with an empty filter, up to the filter's words."""
    parameters = FilterParameters()
    filter_ = to_wire(BloomFilter(parameters).bits, parameters, NIM)
    message = SdsMessage("m-nim", "room", "", 1_795_243_978, bloom_filter=filter_, content=b"hi")
    written = encode(message, NIM)
    assert written.hex().startswith(VECTORS["wire"]["nim_sample_prefix_hex"])
    assert decode(written, NIM) == message
    with pytest.raises(SdsError, match="spec"):
        decode(written, SPEC)


def test_the_content_is_always_written_because_nim_sds_requires_it() -> None:
    sync = replace(HELLO, content=None)
    assert encode(sync, NIM).endswith(field(5, b"") + field(7, b"alice"))
    assert decode(encode(sync, NIM), NIM) == sync
    assert "required" in VECTORS["wire"]["nim_fields"]["content"]
    with pytest.raises(SdsError, match="the content is missing"):
        decode(field(1, b"m1") + field(2, 5) + field(4, b"room"), NIM)
    assert field(20, b"") not in encode(sync, SPEC)


def test_ephemeral_messages_cannot_be_encoded_for_nim() -> None:
    with pytest.raises(SdsError, match="no Lamport time, which nim requires"):
        encode(replace(HELLO, lamport_ms=None), NIM)
    with pytest.raises(SdsError, match="no Lamport time, which nim requires"):
        decode(field(1, b"m1") + field(4, b"room") + field(5, b"hello"), NIM)


def test_the_overhead_of_a_message_is_little_more_than_the_filter() -> None:
    """18.8 kB in the interoperable size with two entries of history, 3.5 kB at most in the small one."""
    known = {key: size for key, size, _ in VECTORS["measured_behaviour"]["js"]["size_growth"]}
    history = tuple(HistoryEntry(number * 64, None, "alice") for number in "ab")
    for capacity, most in ((10_000, known[0] + 2 * (known[1] - known[0]) + 200), (1_000, 3_500)):
        parameters = FilterParameters(capacity)
        filter_ = to_wire(bytes(parameters.size_bytes), parameters, SPEC)
        message = SdsMessage("c" * 64, "room", "alice", NOW_MS, history, filter_, content=b"five!")
        assert parameters.size_bytes < len(encode(message, SPEC)) - 5 <= most
        without = replace(message, causal_history=history[:1])
        assert len(encode(message, SPEC)) - len(encode(without, SPEC)) == known[1] - known[0]


# --- round trips --------------------------------------------------------------------------------


@in_each
@FEWER
@given(data=st.data())
def test_messages_survive_a_round_trip(dialect: SdsDialect, data: st.DataObject) -> None:
    message = data.draw(messages(dialect))
    assert decode(encode(message, dialect), dialect) == message


@in_each
@FEWER
@given(data=st.data())
def test_messages_are_compatible_with_the_protobuf_library(dialect: SdsDialect, data: st.DataObject) -> None:
    message = data.draw(messages(dialect))
    written = encode(message, dialect)
    document = document_of(dialect)()
    document.ParseFromString(written)
    known: Any = document
    assert (known.message_id, known.channel_id, known.sender_id) == (
        message.message_id,
        message.channel_id,
        message.sender_id,
    )
    assert (known.lamport_ms if known.HasField("lamport_ms") else None) == message.lamport_ms
    for read, entries in (
        (known.causal_history, message.causal_history),
        (known.repair_request, message.repair_request),
    ):
        assert tuple(entry_of(entry) for entry in read) == entries
    assert (known.bloom_filter if known.HasField("bloom_filter") else None) == message.bloom_filter
    assert (known.content or None) == (message.content or None)
    assert document.SerializeToString(deterministic=True) == written
    assert decode(document.SerializeToString(), dialect) == message


@cache
def document_of(dialect: SdsDialect) -> type[Document]:
    """Return the seed's message with the dialect's numbers, built with protobuf's library."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{dialect.name}.proto", package=dialect.name, syntax="proto2")
    entry = file.message_type.add(name="HistoryEntry")
    for number, (name, kind) in enumerate(
        [("message_id", kinds.TYPE_STRING), ("retrieval_hint", kinds.TYPE_BYTES), ("sender_id", kinds.TYPE_STRING)], 1
    ):
        entry.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    message = file.message_type.add(name="Message")
    for name, number in dialect.fields._asdict().items():
        added = message.field.add(name=name, number=number, type=kinds.TYPE_BYTES, label=kinds.LABEL_OPTIONAL)
        if name.endswith("_id"):
            added.type = kinds.TYPE_STRING
        elif name == "lamport_ms":
            added.type = kinds.TYPE_UINT64
        elif name in {"causal_history", "repair_request"}:
            added.type, added.label = kinds.TYPE_MESSAGE, kinds.LABEL_REPEATED
            added.type_name = f".{dialect.name}.HistoryEntry"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{dialect.name}.Message"))


def entry_of(entry: Any) -> HistoryEntry:
    return HistoryEntry(
        entry.message_id,
        entry.retrieval_hint if entry.HasField("retrieval_hint") else None,
        entry.sender_id if entry.HasField("sender_id") else None,
    )


# --- arbitrary bytes ----------------------------------------------------------------------------


@in_each
@given(data=st.binary(max_size=200))
@example(b"")
@example(b"\x00")
@example(b"\xff" * 11)
@example(b"\x0b")
def test_random_bytes_decode_to_a_message_or_an_error(dialect: SdsDialect, data: bytes) -> None:
    is_total(data, dialect)


@in_each
@FEWER
@given(data=st.data())
def test_a_changed_message_decodes_to_a_message_or_an_error(dialect: SdsDialect, data: st.DataObject) -> None:
    written = encode(data.draw(messages(dialect)), dialect)
    at = data.draw(st.integers(0, len(written)))
    behind = data.draw(st.integers(at, len(written)))
    is_total(written[:at] + data.draw(st.binary(max_size=12)) + written[behind:], dialect)


def is_total(data: bytes, dialect: SdsDialect) -> None:
    try:
        message = decode(data, dialect)
    except SdsError:
        return
    assert decode(encode(message, dialect), dialect) == message


@in_each
@FEWER
@given(data=st.data())
def test_a_truncated_message_is_rejected_or_lacks_fields(dialect: SdsDialect, data: st.DataObject) -> None:
    message = data.draw(messages(dialect))
    written = encode(message, dialect)
    end = data.draw(st.integers(0, len(written) - 1))
    with contextlib.suppress(SdsError):
        assert decode(written[:end], dialect) != message


@in_each
@FEWER
@given(data=st.data(), filter_=st.none() | st.binary(max_size=2_000))
def test_a_message_with_any_filter_is_decoded(dialect: SdsDialect, data: st.DataObject, filter_: bytes | None) -> None:
    """Any bytes in its place, none, and a number."""
    message = data.draw(messages(dialect))
    sent = replace(message, bloom_filter=filter_)
    kept = filter_ or (None if dialect.empty_is_unset else filter_)
    assert decode(encode(sent, dialect), dialect) == replace(message, bloom_filter=kept)
    odd = encode(replace(message, bloom_filter=None), dialect) + field(dialect.fields.bloom_filter, 7)
    assert decode(odd, dialect) == replace(message, bloom_filter=None)


@in_each
@FEWER
@given(data=st.data())
def test_unknown_fields_are_skipped_and_the_last_of_two_is_used(dialect: SdsDialect, data: st.DataObject) -> None:
    message = data.draw(messages(dialect))
    unknown = field(99, b"later") + field(15, 1) + b"\x81\x01" + bytes(8) + b"\x85\x01" + bytes(4)
    written = unknown + encode(message, dialect) + unknown
    assert decode(written, dialect) == message
    numbers = dialect.fields
    twice = written + field(numbers.message_id, b"last") + field(numbers.lamport_ms, 5)
    assert decode(twice, dialect) == replace(message, message_id="last", lamport_ms=5)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "an id and a channel"),
        (field(2, b"m") + field(3, b"c") + field(20, b"x"), "has no sender"),
        (field(1, b"s") + field(3, b"c") + field(20, b"x"), "an id and a channel"),
        (field(1, b"s") + field(2, b"m") + field(20, b"x"), "an id and a channel"),
        (field(1, b"s") + field(2, b"m") + field(3, b"c"), "One of them is required"),
        (field(1, b"s") + field(2, b"m") + field(3, b"c") + field(20, b""), "One of them is required"),
        (field(1, 5), "sender's id is the number 5"),
        (field(10, b"5"), "invalid Lamport time: expected a number"),
        (field(11, 5), "entry of a history is the number 5"),
        (field(20, 5), "the content is the number 5"),
        (field(1, b"\xff"), "not UTF-8"),
        (field(10, 5)[:-1] + b"\xff" * 9 + b"\x7f", "64 bits"),
        (field(10, 5)[:-1] + b"\xff" * 10 + b"\x7f", "longer than 10 bytes"),
        (field(10, 5)[:-1] + b"\x80", "the varint is truncated"),
        (b"\x00\x00", "at byte 0"),
        (b"\x0b\x0c", "at byte 0"),
        (b"\x0f", "at byte 0"),
        (b"\x0a\x05abc", "its length is 5 bytes, but only 3 remain"),
        (b"\x09" + bytes(7), "at byte 0"),
        (field(11, b"") + encode(HELLO, SPEC), "an entry without an id"),
        (encode(HELLO, SPEC) + field(13, field(3, b"s")), "an entry without an id"),
    ],
)
def test_invalid_messages_are_not_decoded(data: bytes, reason: str) -> None:
    with pytest.raises(SdsError, match=reason):
        decode(data, SPEC)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (replace(HELLO, message_id=""), "an id and a channel"),
        (replace(HELLO, sender_id=""), "has no sender"),
        (replace(HELLO, sender_id="\ud800"), "UTF-8"),
        (replace(HELLO, lamport_ms=-1), "expected 0 to"),
        (replace(HELLO, lamport_ms=U64 + 1), "expected 0 to"),
        (replace(HELLO, lamport_ms=None, content=b""), "One of them is required"),
        (replace(HELLO, causal_history=(HistoryEntry(""),)), "an entry without an id"),
        (replace(HELLO, causal_history=(HistoryEntry("\udfff"),)), "UTF-8"),
    ],
)
def test_invalid_messages_are_not_encoded(message: SdsMessage, reason: str) -> None:
    with pytest.raises(SdsError, match=reason):
        encode(message, SPEC)


# --- limits -------------------------------------------------------------------------------------


def require_rejected(message: SdsMessage, dialect: SdsDialect, reason: str) -> None:
    """Check that it is not encoded, and is rejected when another implementation has encoded it."""
    with pytest.raises(SdsError, match=reason):
        encode(message, dialect)
    document: Any = document_of(dialect)()
    for name in dialect.fields._fields:
        value = getattr(message, name)
        if name in {"causal_history", "repair_request"}:
            for each in value:
                entry = getattr(document, name).add(message_id=each.message_id)
                if each.retrieval_hint is not None:
                    entry.retrieval_hint = each.retrieval_hint
                if each.sender_id is not None:
                    entry.sender_id = each.sender_id
        elif value is not None:
            setattr(document, name, value)
    with pytest.raises(SdsError, match=reason):
        decode(document.SerializeToString(), dialect)


@in_each
def test_the_size_of_a_message_is_limited(dialect: SdsDialect) -> None:
    """MAX_SDS_MESSAGE_SIZE_BYTES: the maximum of deployed nodes fits, with the filter and the history of others."""
    assert VECTORS["defaults"]["nim"]["max_message_bytes"] == 1_048_576
    history = tuple(HistoryEntry(f"{number:064}", bytes(32), "a" * 64) for number in range(200))
    large = replace(HELLO, content=bytes(1_048_576), causal_history=history, bloom_filter=bytes(18_768))
    assert decode(encode(large, dialect), dialect) == large
    room = limits.MAX_SDS_MESSAGE_SIZE_BYTES - len(encode(large, dialect))
    longest = replace(large, content=bytes(1_048_576 + room))
    assert len(encode(longest, dialect)) == limits.MAX_SDS_MESSAGE_SIZE_BYTES
    require_rejected(replace(large, content=bytes(1_048_576 + room + 1)), dialect, "bytes, the maximum is 1310720")


@in_each
def test_the_length_of_ids_is_limited(dialect: SdsDialect) -> None:
    """MAX_SDS_ID_SIZE_BYTES, in bytes, for each field with an id."""
    longest = "é" * (limits.MAX_SDS_ID_SIZE_BYTES // 2)
    whole = SdsMessage(longest, longest, longest, 1, (HistoryEntry(longest, None, longest),), content=b"x")
    assert decode(encode(whole, dialect), dialect) == whole
    for changes in (
        {"message_id": longest + "x"},
        {"channel_id": longest + "x"},
        {"sender_id": longest + "x"},
        {"causal_history": (HistoryEntry(longest + "x"),)},
        {"repair_request": (HistoryEntry("m", None, longest + "x"),)},
    ):
        require_rejected(replace(whole, **changes), dialect, "id has 513 bytes, the maximum is 512")


@in_each
def test_the_length_of_a_hint_is_limited(dialect: SdsDialect) -> None:
    """MAX_SDS_HINT_SIZE_BYTES."""
    longest = bytes(limits.MAX_SDS_HINT_SIZE_BYTES)
    whole = replace(HELLO, causal_history=(HistoryEntry("m0", longest),))
    assert decode(encode(whole, dialect), dialect) == whole
    require_rejected(
        replace(HELLO, causal_history=(HistoryEntry("m0", longest + b"x"),)), dialect, "hint has 1025 bytes"
    )


@in_each
def test_the_numbers_of_history_entries_and_repair_requests_are_limited(dialect: SdsDialect) -> None:
    """MAX_SDS_HISTORY, which is more than deployed nodes write, and MAX_SDS_REPAIR_REQUESTS."""
    assert VECTORS["defaults"]["js"]["causal_history"] == 200 < limits.MAX_SDS_HISTORY
    assert VECTORS["defaults"]["spec"]["max_repair_requests"] == 3 < limits.MAX_SDS_REPAIR_REQUESTS
    some = tuple(HistoryEntry(str(number), b"h", "s") for number in range(limits.MAX_SDS_HISTORY + 1))
    fullest = replace(
        HELLO, causal_history=some[:-1], repair_request=some[: limits.MAX_SDS_REPAIR_REQUESTS], bloom_filter=b"f"
    )
    assert decode(encode(fullest, dialect), dialect) == fullest
    require_rejected(replace(HELLO, causal_history=some), dialect, "history has 1025 entries")
    too_many = some[: limits.MAX_SDS_REPAIR_REQUESTS + 1]
    require_rejected(replace(HELLO, repair_request=too_many), dialect, "repair request has 65 entries")


@in_each
def test_the_number_of_fields_is_limited(dialect: SdsDialect) -> None:
    """MAX_SDS_FIELDS, of a message and its entries together; decoding ends at the limit."""
    written = encode(HELLO, dialect)
    count = 5
    left = limits.MAX_SDS_FIELDS - count
    assert decode(written + field(99, 1) * left, dialect) == HELLO
    with pytest.raises(SdsError, match="too many fields: the maximum is 8192"):
        decode(written + field(99, 1) * (left + 1), dialect)
    entry = field(dialect.fields.causal_history, field(1, b"m0") + field(99, 1) * (left - 2))
    assert decode(written + entry, dialect).causal_history == (HistoryEntry("m0"),)
    with pytest.raises(SdsError, match="too many fields: the maximum is 8192"):
        decode(written + entry + field(99, 1), dialect)
    flood = field(dialect.fields.causal_history, field(15, 1) * 300) * (limits.MAX_SDS_MESSAGE_SIZE_BYTES // 604)

    def read() -> None:
        with pytest.raises(SdsError, match="too many fields: the maximum is 8192"):
            decode(flood, dialect)

    assert steps_of(read) < 50 * limits.MAX_SDS_FIELDS


# --- ids, kinds, names --------------------------------------------------------------------------


def test_equal_texts_of_two_senders_have_different_ids() -> None:
    """@waku/sds assigns one id to both, and loses one of them."""
    assert VECTORS["measured_behaviour"]["js"]["same_text"]["ids_equal"]
    parts: list[tuple[str, str, int | None, bytes]] = [
        ("alice", "room", 1, b"hi"),
        ("bob", "room", 1, b"hi"),
        ("alice", "hall", 1, b"hi"),
        ("alice", "room", 2, b"hi"),
        ("alice", "room", None, b"hi"),
        ("alice", "room", 1, b"ho"),
        ("alicer", "oom", 1, b"hi"),
        ("alic", "eroom", 1, b"hi"),
    ]
    found = [message_id_of(*each) for each in parts]
    assert len(set(found)) == len(parts)
    assert all(len(each) == 32 and int(each, 32) and each == each.lower() for each in found)
    assert found == [message_id_of(*each) for each in parts]
    for wrong in (("\ud800", "room", 1, b""), ("alice", "room", -1, b""), ("alice", "room", U64 + 1, b"")):
        with pytest.raises(SdsError, match=r"UTF-8|64-bit"):
            message_id_of(*wrong)


def test_the_kind_of_a_message_depends_on_content_and_time() -> None:
    assert HELLO.kind is MessageKind.CONTENT
    assert replace(HELLO, content=b"").kind is replace(HELLO, content=None).kind is MessageKind.SYNC
    assert replace(HELLO, lamport_ms=0).kind is MessageKind.CONTENT
    assert replace(HELLO, lamport_ms=None).kind is MessageKind.EPHEMERAL


def test_dialects_have_the_documented_names() -> None:
    assert (SPEC.name, NIM.name) == ("spec", "nim")
