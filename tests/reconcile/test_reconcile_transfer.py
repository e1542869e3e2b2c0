"""Posts in transfer: the bytes of both wire forms, frames in a divided stream, and only requested posts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from people import ANN, BOB
from reconciling import ALL, VECTORS, converse, session
from steps import steps_of

from cablestore import CableStore, limits
from cablestore.protocol.fields import sized
from cablestore.protocol.protobuf import fields
from cablestore.protocol.varint import encode_varint
from cablestore.protocol.waku import PUBSUB_TOPIC, ReceivedWakuMessage, message_of
from cablestore.reconcile.dialects import NWAKU_036, NWAKU_037, SPEC, SyncDialect
from cablestore.reconcile.errors import ReconcileError
from cablestore.reconcile.ids import SyncID
from cablestore.reconcile.messages import ReconcileFrameReader
from cablestore.reconcile.transfer import (
    FORMS,
    Transferred,
    decode_message,
    encode_message,
    post_id,
    wrap,
)

FRAME_COLUMNS = {
    "spec": "spec_transfer_frame",
    "nwaku-0.36": "nwaku_transfer_frame",
    "nwaku-0.37": "nwaku_transfer_frame",
}
in_each = pytest.mark.parametrize("dialect", ALL, ids=lambda dialect: dialect.name)


@in_each
@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda vector: str(vector["deterministic_hash"][:8]))
def test_frames_of_deployed_nodes_are_encoded_and_decoded_byte_for_byte(
    vector: dict[str, Any], dialect: SyncDialect
) -> None:
    """Frames are encoded and decoded byte for byte, with the deterministic hash of the message."""
    known, said = bytes.fromhex(vector[FRAME_COLUMNS[dialect.name]]), vector["input"]
    assert wrap(bytes.fromhex(vector["waku_message_protobuf"]), said["pubsub"], dialect) == known
    found = decode_message(known, dialect)
    message = ReceivedWakuMessage(
        payload=bytes.fromhex(said["payload"]),
        content_topic=said["content"],
        timestamp_ns=said["ts"],
        meta=bytes.fromhex(said.get("meta", "")),
        is_ephemeral=said.get("ephemeral", False),
    )
    assert found == Transferred(message, said["pubsub"])
    assert found.waku_id == SyncID(said["ts"], bytes.fromhex(vector["deterministic_hash"]))


def test_frames_of_the_other_form_are_rejected() -> None:
    """The same field numbers are the topic in one form and the message in the other."""
    for vector in VECTORS["messages"]:
        for column, dialect in (("nwaku_transfer_frame", SPEC), ("spec_transfer_frame", NWAKU_037)):
            with pytest.raises(ReconcileError):
                decode_message(bytes.fromhex(vector[column]), dialect)


@in_each
def test_a_post_is_decoded_with_both_of_its_ids(dialect: SyncDialect) -> None:
    post = ANN.text("tea", "is ready")
    message = message_of(post)
    found = decode_message(encode_message(message, dialect), dialect)
    assert (found.message.payload, found.pubsub_topic) == (post.raw, PUBSUB_TOPIC)
    assert found.message.content_topic == message.content_topic
    assert found.post_id == post_id(post.hash, post.timestamp_ms)
    assert found.waku_id == SyncID(message.timestamp_ns, message.hash)
    assert found.post_id != found.waku_id


@in_each
def test_a_message_is_not_larger_than_the_dialect_allows(dialect: SyncDialect) -> None:
    """MAX_TRANSFER_FRAME_SIZE_BYTES, or MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES for deployed nodes."""
    most = FORMS[dialect.name].max_size_bytes
    assert most == (
        limits.MAX_TRANSFER_FRAME_SIZE_BYTES if dialect is SPEC else limits.MAX_WAKU_TRANSFER_FRAME_SIZE_BYTES
    )
    message = message_of(ANN.text("c" * 64, "x"))._replace(payload=bytes(limits.MAX_POST_SIZE_BYTES))
    longest = "/cable/1/channel-" + "%F0%9F%98%80" * 64 + "/cable"
    if dialect is SPEC:
        found = decode_message(encode_message(message._replace(content_topic=longest), SPEC), SPEC)
        assert found.message.content_topic == longest
    for make in (lambda: wrap(bytes(most), "t", dialect), lambda: decode_message(bytes(most + 1), dialect)):
        with pytest.raises(ReconcileError, match=f"the maximum in {dialect.name} is {most}"):
            make()


@in_each
@given(data=st.data())
def test_any_bytes_result_in_a_message_or_an_error(dialect: SyncDialect, data: st.DataObject) -> None:
    good = bytes.fromhex(VECTORS["messages"][0][FRAME_COLUMNS[dialect.name]])
    raw = bytearray(data.draw(st.one_of(st.binary(max_size=99), st.just(good))))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        raw[at : at + 1] = bytes((byte,))
    try:
        found = decode_message(bytes(raw), dialect)
    except ReconcileError:
        return
    assert len(found.post_id.hash) == 32
    assert len(found.waku_id.hash) == 32


# --- frames ------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=20), st.randoms(use_true_random=False))
def test_frames_are_read_from_a_stream_in_pieces_of_any_size(contents: list[bytes], rng: random.Random) -> None:
    """The test includes empty frames."""
    stream = b"".join(map(sized, contents))
    reader, found, at = ReconcileFrameReader(300), [], 0
    while at < len(stream):
        step = rng.choice([1, 2, 100, 700])
        found += reader.feed(stream[at : at + step])
        at += step
    assert found == contents
    assert not reader.held_size_bytes


def test_frames_above_the_limit_are_rejected() -> None:
    assert ReconcileFrameReader(5).feed(b"\x05hello") == [b"hello"]
    with pytest.raises(ReconcileError, match="a message of 6 bytes is announced, the maximum is 5"):
        ReconcileFrameReader(5).feed(b"\x06")
    unfinished = ReconcileFrameReader(5)
    assert unfinished.feed(b"\x05hell") == []
    assert unfinished.held_size_bytes == 5


@pytest.mark.parametrize("size", [b"\x80\x00", b"\xff" * 10, b"\xff" * 9 + b"\x02", b"\x85\x80\x00"])
def test_malformed_sizes_are_rejected(size: bytes) -> None:
    for pieces in ([size + b"x"], [size[at : at + 1] for at in range(len(size))]):
        reader = ReconcileFrameReader(2**63)
        for piece in pieces[:-1]:
            assert reader.feed(piece) == []
        with pytest.raises(ReconcileError, match=r"malformed frame in the stream: .*\(at byte 0\)"):
            reader.feed(pieces[-1])


def test_reading_a_stream_takes_linear_time() -> None:
    """The test has one large frame in small pieces, and many small ones at once."""

    def steps(stream: bytes, step: int) -> int:
        reader = ReconcileFrameReader(10_000_000)

        def read() -> None:
            for at in range(0, len(stream), step):
                reader.feed(stream[at : at + step])

        return steps_of(read)

    assert steps(sized(bytes(400_000)), 100) < 5 * steps(sized(bytes(100_000)), 100)
    assert steps(sized(b"x") * 40_000, 10**9) < 5 * steps(sized(b"x") * 10_000, 10**9)


# --- accepted posts ----------------------------------------------------------------------------------


@settings(max_examples=10)
@given(dialect=st.sampled_from(ALL), rng=st.randoms(use_true_random=False))
def test_two_stores_become_equal_over_waku_frames(
    tmp_path_factory: pytest.TempPathFactory, dialect: SyncDialect, rng: random.Random
) -> None:
    """The test goes from ids to posts in both stores, through randomly divided streams, with normal ingest."""
    posts = [who.text("tea", f"number {n}") for n in range(10) for who in (ANN, BOB)]
    held = [[post for post in posts if rng.random() < 0.6] for _ in range(2)]
    folder = tmp_path_factory.mktemp("stores")
    of = {post_id(post.hash, post.timestamp_ms): post for post in posts}
    ours, theirs = (session([i for i, post in of.items() if post in ids], dialect) for ids in held)
    outcome = converse(ours, theirs, ours.initiate(at_s=0.0))
    with CableStore.open(folder / "ours") as here, CableStore.open(folder / "theirs") as there:
        for store, ids, need, sent in (
            (here, held[0], outcome.need, outcome.peer_have),
            (there, held[1], outcome.peer_need, outcome.have),
        ):
            store.ingest([post.raw for post in ids])
            expected, reader = set(need), ReconcileFrameReader(FORMS[dialect.name].max_size_bytes)
            stream = b"".join(sized(encode_message(message_of(of[i]), dialect)) for i in sent)
            for at in range(0, len(stream), 700):
                for content in reader.feed(stream[at : at + 700]):
                    found = decode_message(content, dialect)
                    expected.remove(found.post_id)
                    store.ingest([found.message.payload])
            assert not expected
        assert here.dump_digest() == there.dump_digest()


def test_only_the_specification_accepts_a_frame_without_a_topic() -> None:
    """Both fields are optional in WAKU-SYNC: only the post is needed.

    Deployed nodes require both. Without a message the frame is empty.
    """
    post = ANN.text("default", "x")
    message = message_of(post)
    for dialect in (SPEC, NWAKU_036, NWAKU_037):
        whole = encode_message(message, dialect)
        form = FORMS[dialect.name]
        parts = dict(fields(whole, "transferred message"))
        alone = {
            number: encode_varint(number << 3 | 2) + encode_varint(len(part)) + part
            for number, part in parts.items()
            if isinstance(part, bytes)
        }
        with pytest.raises(ReconcileError, match="does not contain a message"):
            decode_message(alone[form.topic_field], dialect)
        if dialect is SPEC:
            found = decode_message(alone[form.message_field], dialect)
            assert (found.message.payload, found.pubsub_topic) == (post.raw, "")
            assert found.post_id == decode_message(whole, dialect).post_id
        else:
            with pytest.raises(ReconcileError, match="does not contain a topic"):
                decode_message(alone[form.message_field], dialect)


@in_each
def test_messages_up_to_the_limit_are_encoded_and_decoded(dialect: SyncDialect) -> None:
    most = FORMS[dialect.name].max_size_bytes
    topic = PUBSUB_TOPIC if FORMS[dialect.name].has_topic else ""
    fits = most - (len(wrap(bytes(most - 200), topic, dialect)) - (most - 200))
    assert len(wrap(bytes(fits), topic, dialect)) == most
    with pytest.raises(ReconcileError, match=f"the maximum in {dialect.name} is {most}"):
        wrap(bytes(fits + 1), topic, dialect)
