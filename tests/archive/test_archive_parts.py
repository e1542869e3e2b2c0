"""Parts of archives: messages, ids, weeks, Merkle trees, chunks, and the generated documents."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any
from urllib.parse import unquote

import pytest
from archive_documents import status_go, waku
from archiving import CHANNELS, WEEK, ordered
from folders import KNOWN_ANSWERS
from google.protobuf.message import DecodeError as ProtobufDecodeError
from hypothesis import given
from hypothesis import strategies as st
from people import ANN

from cablestore import LEGACY, Block, Moderation, Text, decode_post, limits
from cablestore.archive.format.chunks import OversizeMessage, chunks
from cablestore.archive.format.fitting import smallest_within
from cablestore.archive.format.merkle import EMPTY_ROOT, MerkleTree
from cablestore.archive.format.period import WEEK_MS, Period, week_of, weeks
from cablestore.archive.format.profile import archive_id, keccak256
from cablestore.errors import ArchiveError
from cablestore.protocol.dialect import DRAFT8
from cablestore.protocol.post import encode_post
from cablestore.protocol.protobuf import number_field, sized_field
from cablestore.protocol.waku import (
    EVERYONE_TOPIC,
    WakuMessage,
    content_topic,
    decode_waku,
    encode_waku,
    message_hash,
    message_of,
)

WAKU: dict[str, Any] = json.loads((KNOWN_ANSWERS / "waku_hash.json").read_text())
HASHES = st.lists(st.binary(min_size=32, max_size=32), max_size=40)


# --- messages ----------------------------------------------------------------------------------------


def hashed(fields: dict[str, Any]) -> str:
    meta = fields["meta_hex"]
    return message_hash(
        fields["pubsub_topic"],
        bytes.fromhex(fields["payload_hex"]),
        fields["content_topic"],
        None if meta is None else bytes.fromhex(meta),
        fields["timestamp_ns"],
    ).hex()


@pytest.mark.parametrize("vector", WAKU["vectors"], ids=lambda vector: str(vector["source"]))
def test_message_hashes_equal_those_of_other_implementations(vector: dict[str, Any]) -> None:
    """Only js-waku omits the eight bytes of an absent timestamp. This code hashes them, as nwaku does."""
    if vector["absent_timestamp_rule"] == "skip":
        (divergence,) = WAKU["divergences"]
        assert vector["message_hash_hex"] == divergence["js_waku"]
        assert hashed(vector) == hashed(vector | {"timestamp_ns": 0}) == divergence["nwaku_and_go_waku"]
    else:
        assert hashed(vector) == vector["message_hash_hex"]


def test_a_message_hash_does_not_depend_on_field_boundaries() -> None:
    for known in WAKU["known_ambiguity"]:
        assert hashed(known["a"]) == hashed(known["b"]) == known["hash_a"] == known["hash_b"]


@given(st.binary(max_size=300), st.text(max_size=30), st.integers(-(2**63), 2**63 - 1))
def test_messages_are_encoded_like_the_protobuf_library(payload: bytes, topic: str, timestamp_ns: int) -> None:
    ours = encode_waku(WakuMessage(payload, topic, timestamp_ns, bytes(32)))
    theirs = waku.WakuMessage(payload=payload, content_topic=topic, timestamp=timestamp_ns)
    assert ours == theirs.SerializeToString(deterministic=True)


@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, 10, 11, 21, 31, 99]), st.integers(0, 2**64 - 1) | st.binary(max_size=20))
        | st.sampled_from([b"\x65abcd", b"\x0dabcd", b"\x61abcdefgh", b"\x0a\x05abc"])
    )
)
def test_foreign_messages_are_decoded_like_the_protobuf_library(
    parts: list[tuple[int, int | bytes] | bytes],
) -> None:
    data = b"".join(
        part
        if isinstance(part, bytes)
        else (number_field(part[0], part[1]) if isinstance(part[1], int) else sized_field(part[0], part[1]))
        for part in parts
    )
    try:
        found = waku.WakuMessage.FromString(data)
    except ProtobufDecodeError:
        with pytest.raises(ArchiveError):
            decode_waku(data)
        return
    meta = found.meta if found.HasField("meta") else None
    assert decode_waku(data) == (found.payload, found.content_topic, found.timestamp, meta, found.ephemeral)


def test_a_time_beyond_64_bits_has_no_message_hash() -> None:
    with pytest.raises(ArchiveError, match="64 bits"):
        message_hash("", b"", "", None, 2**63)


@given(CHANNELS)
def test_a_content_topic_decodes_to_its_channel(channel: str) -> None:
    topic = content_topic(channel)
    assert unquote(topic.removeprefix("/cable/1/channel-").removesuffix("/cable"), errors="strict") == channel
    assert topic.isascii()
    assert topic.count("/") == 4


def test_content_topics_have_the_documented_form() -> None:
    assert content_topic("default") == "/cable/1/channel-default/cable"
    assert content_topic("a/b %ü") == "/cable/1/channel-a%2Fb%20%25%C3%BC/cable"
    assert content_topic(None) == EVERYONE_TOPIC == "/cable/1/everyone/cable"
    assert content_topic("everyone") != EVERYONE_TOPIC


@pytest.mark.parametrize("channel", ["", "a" * 65, "\ud800"])
def test_a_topic_of_an_invalid_channel_is_rejected(channel: str) -> None:
    with pytest.raises(ArchiveError, match="channel name"):
        content_topic(channel)


def test_a_message_contains_its_post() -> None:
    post = ANN.text("dev", "hello", at=80)
    message = message_of(post)
    assert message == (post.raw, "/cable/1/channel-dev/cable", 80_000_000, post.hash)
    assert message.author == ANN.key
    assert message.timestamp_ms == 80
    expected = b"/cable/1/archive" + post.raw + b"/cable/1/channel-dev/cable" + (80_000_000).to_bytes(8, "big")
    assert message.hash == hashlib.sha256(expected).digest()


def test_all_spellings_of_a_channel_have_the_same_topic() -> None:
    posts = [
        encode_post(Text(name, ""), links=(), timestamp_ms=1, identity=ANN.identity, dialect=DRAFT8)
        for name in ("Dev", "dEV")
    ]
    assert {message_of(post).content_topic for post in posts} == {"/cable/1/channel-dev/cable"}
    assert message_of(decode_post(posts[0].raw, LEGACY)).content_topic == "/cable/1/channel-Dev/cable"


def test_a_local_only_post_is_not_archived() -> None:
    for body in (Block("", 1, (ANN.key,), 0, 0), Moderation("", 1, "dev", (ANN.key,), 0)):
        with pytest.raises(ArchiveError, match="local-only"):
            message_of(ANN.post(body))


def test_a_time_that_14_waku2_cannot_represent_is_not_archived() -> None:
    """MAX_ARCHIVED_TIMESTAMP_MS: nanoseconds of 64 bits end in 2262."""
    most = limits.MAX_ARCHIVED_TIMESTAMP_MS
    assert len(message_of(ANN.text("dev", "", at=most)).hash) == 32
    assert (most + 1) * 10**6 > 2**63 - 1
    with pytest.raises(ArchiveError, match="Exclude the post"):
        message_of(ANN.text("dev", "", at=most + 1))
    with pytest.raises(ArchiveError, match="Leave the post out"):
        week_of(most + 1)


# --- ids ---------------------------------------------------------------------------------------------


def test_archive_ids_equal_known_answers() -> None:
    assert keccak256(b"").hex() == "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"
    metadata = status_go.WakuMessageArchiveMetadata(
        **{"from": 1_577_836_800, "to": 1_578_441_600}, contentTopic=[b"\1\2\3\4"]
    )
    document = status_go.WakuMessageArchiveIndexMetadata(metadata=metadata, size=102_400, padding=102_000)
    data = document.SerializeToString()
    assert data.hex() == "12121080c2aff0051880b7d4f0052204010203042080a00628f09c06"
    assert archive_id(data) == "0xa0eb799e578a651c4ee89d7b1daf820d54b20374a68a3c535c222d7bca9d3c70"


# --- weeks -------------------------------------------------------------------------------------------


@given(st.integers(0, limits.MAX_ARCHIVED_TIMESTAMP_MS))
def test_a_week_contains_its_time_and_begins_on_a_monday(timestamp_ms: int) -> None:
    week = week_of(timestamp_ms)
    assert week.holds(timestamp_ms)
    if timestamp_ms >= 345_600_000:
        assert week.to_ms - week.from_ms == WEEK_MS
        if timestamp_ms < 253_000_000_000_000:  # datetime ends with the year 9999
            start = datetime.fromtimestamp(week.from_ms / 1000, UTC)
            assert (start.weekday(), start.hour, start.minute, start.second) == (0, 0, 0, 0)
    else:
        assert week == (0, 345_600_000)
    assert week_of(week.from_ms) == week
    assert not week.holds(week.to_ms)


@given(st.integers(0, 40 * WEEK_MS), st.integers(0, 60 * WEEK_MS))
def test_weeks_are_complete_and_without_gaps(first_ms: int, end_ms: int) -> None:
    found = list(weeks(first_ms, end_ms))
    assert all(week.to_ms <= end_ms for week in found)
    assert all(before.to_ms == after.from_ms for before, after in pairwise(found))
    following = found[-1].to_ms if found else week_of(first_ms).from_ms
    assert week_of(following).to_ms > end_ms
    assert not found or found[0] == week_of(first_ms)


def test_a_time_before_1970_has_no_week() -> None:
    with pytest.raises(ArchiveError, match="-1 ms"):
        week_of(-1)


# --- Merkle trees ------------------------------------------------------------------------------------


def recursive_root(hashes: list[bytes]) -> bytes:
    """Return the root as RFC 6962, section 2.1, defines it."""
    if not hashes:
        return hashlib.sha256().digest()
    if len(hashes) == 1:
        return hashlib.sha256(b"\0" + hashes[0]).digest()
    k = 2 ** math.ceil(math.log2(len(hashes)) - 1)
    return hashlib.sha256(b"\1" + recursive_root(hashes[:k]) + recursive_root(hashes[k:])).digest()


@given(HASHES)
def test_the_root_equals_that_of_rfc_6962(hashes: list[bytes]) -> None:
    tree = MerkleTree(hashes)
    assert tree.root() == recursive_root(hashes)
    assert tree.size == len(hashes)


def test_roots_equal_those_of_certificate_transparency() -> None:
    """Compare with the published answers of the reference implementation for 0 to 8 of these leaves."""
    leaves = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    roots = {
        1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    }
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    for size, root in roots.items():
        assert MerkleTree(map(bytes.fromhex, leaves[:size])).root().hex() == root


@given(HASHES)
def test_the_root_of_any_number_of_hashes_equals_its_definition(hashes: list[bytes]) -> None:
    def root(part: list[bytes]) -> bytes:
        if len(part) == 1:
            return hashlib.sha256(b"\0" + part[0]).digest()
        left = 1 << (len(part) - 1).bit_length() - 1
        return hashlib.sha256(b"\1" + root(part[:left]) + root(part[left:])).digest()

    assert MerkleTree(hashes).root() == (root(hashes) if hashes else EMPTY_ROOT)


def test_a_tree_stores_one_node_for_each_bit_of_its_size() -> None:
    tree = MerkleTree(number.to_bytes(32, "big") for number in range(1000))
    assert len(tree._peaks) == (1000).bit_count()


# --- chunks ------------------------------------------------------------------------------------------


def sized(sizes: list[int]) -> list[WakuMessage]:
    """Create messages with these total sizes of payload and author, in order."""
    return [WakuMessage(bytes(size - 32), EVERYONE_TOPIC, at, at.to_bytes(32, "big")) for at, size in enumerate(sizes)]


@given(st.lists(st.integers(32, 140)), st.integers(32, 120))
def test_chunks_contain_all_messages_in_the_fewest_ordered_chunks(sizes: list[int], max_size_bytes: int) -> None:
    messages = sized(sizes)
    found = list(chunks(messages, max_size_bytes))
    too_large = [chunk for chunk in found if isinstance(chunk, OversizeMessage)]
    cut = [chunk for chunk in found if not isinstance(chunk, OversizeMessage)]
    size_of = [sum(len(message.payload) + 32 for message in chunk) for chunk in cut]
    assert all(cut)
    assert all(size <= max_size_bytes for size in size_of)
    assert [(o.message, o.size_bytes) for o in too_large] == [
        (message, size) for message, size in zip(messages, sizes, strict=True) if size > max_size_bytes
    ]
    kept = [message for chunk in cut for message in chunk]
    assert kept == [message for message, size in zip(messages, sizes, strict=True) if size <= max_size_bytes]
    for size, following in zip(size_of, cut[1:], strict=False):
        assert size + len(following[0].payload) + 32 > max_size_bytes


def test_a_chunk_is_limited_to_30_megabytes() -> None:
    """MAX_ARCHIVE_SIZE_BYTES: payloads and author keys of 30 MB."""
    most = limits.MAX_ARCHIVE_SIZE_BYTES
    assert most == 30_000_000
    assert [len(chunk) for chunk in chunks(sized([most // 3] * 3))] == [3]
    assert [len(chunk) for chunk in chunks(sized([most // 3] * 2 + [most // 3 + 1]))] == [2, 1]
    (only,) = chunks(sized([most + 1]))
    assert isinstance(only, OversizeMessage)
    assert only.size_bytes == most + 1


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(-5, 100), st.randoms(use_true_random=False))
def test_the_smallest_items_that_fit_are_kept_in_any_order(sizes: list[int], room_bytes: int, random: Random) -> None:
    items = [(size, bytes([number])) for number, size in enumerate(sizes)]
    shuffled = random.sample(items, len(items))
    kept, left_out = smallest_within(shuffled, room_bytes, lambda item: item)
    assert kept + left_out == sorted(items)
    assert not kept or sum(size for size, _ in kept) <= room_bytes
    assert not left_out or sum(size for size, _ in [*kept, left_out[0]]) > room_bytes


def test_chunks_reject_unordered_messages() -> None:
    messages = ordered([ANN.text("default", str(i), at=WEEK.from_ms + i // 2) for i in range(4)])
    assert len(list(chunks(messages))) == 1
    for wrong in (messages[::-1], [*messages, messages[-1]], [messages[1], messages[0]]):
        with pytest.raises(ArchiveError, match="Sort the posts"):
            list(chunks(wrong))


def test_there_are_no_chunks_without_messages() -> None:
    assert list(chunks([])) == []
    assert Period(0, 1).holds(0)
