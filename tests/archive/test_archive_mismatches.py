"""Archives that differ from their index or messages, and limits."""

from __future__ import annotations

import hashlib
import tracemalloc

import pytest
from archiving import (
    WEEK,
    archive_of,
    archive_with_document_of,
    both,
    by_cid,
    posts_in,
    sealed_or_not,
    three_posts,
)
from people import ANN, BOB

from cablestore import DRAFT8, LEGACY, Block, limits
from cablestore.archive.format import archive as archive_format
from cablestore.archive.format.archive import Archive, decode_archive, encode_archive, verified_post
from cablestore.archive.format.period import WEEK_MS, Period
from cablestore.archive.format.profile import (
    PROFILES,
    RFC61,
    STATUS_GO,
    Entry,
    Profile,
    Record,
    topics_of,
    with_id,
)
from cablestore.errors import ArchiveError
from cablestore.limits import PIECE_SIZE_BYTES
from cablestore.protocol.varint import encode_varint
from cablestore.protocol.waku import EVERYONE_TOPIC, content_topic, message_of

# --- inconsistent archives ---------------------------------------------------------------------------


def document_of(profile: Profile, tail: bytes, archive: Archive) -> bytes:
    """Return the archive's metadata followed by `tail`."""
    return profile.document(WEEK, archive.topics, []) + tail


def field(number: int, value: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (field(4, bytes(5)) + field(4, bytes(5)), "after the padding"),
        (field(4, b"\0\0\1"), "unknown field 4 in the archive"),
        (field(5, b""), "field 5"),
        (b"\x08\x01", "field 1"),
        (b"\x18\x01", "field 3"),
        (field(2, b""), "field 2"),
        (field(3, b"\xff"), "invalid WakuMessage"),
        (field(3, b"\x12\x01\xff"), "invalid WakuMessage"),
        (field(3, b""), "contradicts its metadata"),
        (b"\x1a\x05", "its length is 5 bytes"),
        (b"\x1a", "is malformed"),
        (b"\x1d\x00\x00\x00\x00", "fixed size"),
        (b"\x00", "invalid field"),
        (b"\x9a\x80\x00\x00", "not minimal"),
    ],
)
def test_an_invalid_document_is_rejected(tail: bytes, reason: str) -> None:
    archive = archive_of(RFC61, three_posts())
    with pytest.raises(ArchiveError, match=reason):
        posts_in(RFC61, document_of(RFC61, tail, archive), by_cid(RFC61, archive))


def test_padding_within_a_status_go_archive_is_rejected() -> None:
    archive = archive_of(STATUS_GO, three_posts())
    with pytest.raises(ArchiveError, match="field 4"):
        posts_in(STATUS_GO, document_of(STATUS_GO, field(4, bytes(5)), archive), by_cid(STATUS_GO, archive))


@both
def test_an_archive_that_differs_from_its_index_is_rejected(profile: Profile) -> None:
    archive = archive_of(profile, three_posts())
    entry = archive.entry(profile, 0)
    with pytest.raises(ArchiveError, match="by its index"):
        decode_archive(profile, archive.stored + bytes(PIECE_SIZE_BYTES), entry)
    others = [
        entry._replace(period=Period(WEEK.from_ms, WEEK.to_ms + WEEK_MS)),
        entry._replace(topics=entry.topics[:-1]),
        entry._replace(topics=entry.topics[::-1]),
    ]
    for other in others:
        with pytest.raises(ArchiveError, match="metadata at the start of the archive"):
            list(decode_archive(profile, archive.stored, other))


@both
def test_a_message_outside_the_period_or_topics_is_rejected(profile: Profile) -> None:
    topics = topics_of(profile, [content_topic("default")])
    entry = with_id(profile, Entry("", WEEK, topics, cid="z"))
    for post in (
        ANN.text("default", "", at=WEEK.from_ms - 1),
        ANN.text("default", "", at=WEEK.to_ms),
        ANN.text("dev", "", at=WEEK.from_ms),
    ):
        with pytest.raises(ArchiveError, match="Put it into"):
            encode_archive(profile, WEEK, topics, [message_of(post)])
        with pytest.raises(ArchiveError, match="contradicts its metadata"):
            posts_in(profile, profile.document(WEEK, topics, [message_of(post)]), entry)


@both
def test_padding_that_is_not_zero_is_rejected(profile: Profile) -> None:
    archive = archive_of(profile, three_posts())
    wrong = archive.stored[:-1] + b"\1"
    with pytest.raises(ArchiveError, match="not all zero" if profile is STATUS_GO else "unknown field"):
        posts_in(profile, wrong, archive.entry(profile, 0))


@both
@sealed_or_not
def test_a_false_padding_size_is_rejected(profile: Profile, key: bytes | None) -> None:
    archive = archive_of(profile, three_posts(), key)
    entry = archive.entry(profile, 0)
    for lie in (-1, 1, 400):
        wrong = entry._replace(padding_bytes=max(entry.padding_bytes + lie, 0))
        if wrong != entry:
            with pytest.raises(ArchiveError):
                posts_in(profile, archive.stored, wrong, key)


@both
def test_a_message_that_differs_from_its_post_is_rejected(profile: Profile) -> None:
    post = ANN.text("default", "hello", at=WEEK.from_ms)
    right = profile.record(message_of(post))
    assert verified_post(profile, right, LEGACY) == post
    wrong: dict[str, Record] = {
        "topic": right._replace(topic=profile.topic(EVERYONE_TOPIC)),
        "timestamp": right._replace(timestamp=right.timestamp + 1),
        "sig": right._replace(sig=BOB.key),
        "hash": right._replace(hash=hashlib.sha256().digest()),
    }
    for name, record in wrong.items():
        with pytest.raises(ArchiveError, match=f"invalid {name} of the message"):
            verified_post(profile, record, LEGACY)
    with pytest.raises(ArchiveError, match="does not contain a legacy post"):
        verified_post(profile, right._replace(payload=b"no post"), LEGACY)


def test_a_local_only_post_in_an_archive_is_rejected() -> None:
    post = ANN.post(Block("", 1, (BOB.key,), 0, 0), at=WEEK.from_ms)
    with pytest.raises(ArchiveError, match="local-only"):
        verified_post(RFC61, Record(post.raw, EVERYONE_TOPIC, WEEK.from_ms * 10**6), LEGACY)


def test_an_archive_of_another_dialect_is_rejected() -> None:
    record = RFC61.record(message_of(ANN.text("Dev", "", at=WEEK.from_ms)))
    with pytest.raises(ArchiveError, match="invalid topic of the message"):
        verified_post(RFC61, record, DRAFT8)


@both
def test_an_empty_archive_cannot_be_created(profile: Profile) -> None:
    with pytest.raises(ArchiveError, match="needs at least one message"):
        encode_archive(profile, WEEK, topics_of(profile, []), [])


def test_status_go_rejects_periods_of_fractional_seconds() -> None:
    with pytest.raises(ArchiveError, match="whole seconds"):
        STATUS_GO.document(Period(1, 604_800_001), (), [])


def test_profiles_are_found_by_their_names() -> None:
    assert {name: profile.name for name, profile in PROFILES.items()} == {"rfc61": "rfc61", "status-go": "status-go"}


# --- limits ------------------------------------------------------------------------------------------


def test_the_largest_archive_is_within_the_limit_of_readers() -> None:
    """MAX_STORED_ARCHIVE_SIZE_BYTES: messages with the greatest overhead for their counted bytes."""
    name = "\U0001f600" * limits.MAX_CHANNEL_CODEPOINTS
    worst = [ANN.join(name, at=WEEK.from_ms), ANN.join("\U0001f600", at=WEEK.from_ms), ANN.join("a", at=WEEK.from_ms)]
    for profile in PROFILES.values():
        for post in worst:
            message = message_of(post)
            empty = len(profile.document(WEEK, (), []))
            size_bytes = len(profile.document(WEEK, (), [message] * 100)) - empty
            counted = 100 * (len(message.payload) + 32)
            topics_size_bytes = limits.MAX_ARCHIVE_TOPICS * (len(content_topic(name)) + 3)
            whole = limits.MAX_ARCHIVE_SIZE_BYTES * size_bytes / counted + topics_size_bytes + 2 * PIECE_SIZE_BYTES
            assert whole <= limits.MAX_STORED_ARCHIVE_SIZE_BYTES


def test_a_larger_archive_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_STORED_ARCHIVE_SIZE_BYTES applies to reading and writing."""
    huge = bytes(limits.MAX_STORED_ARCHIVE_SIZE_BYTES + 1)
    with pytest.raises(ArchiveError, match="the maximum is 134217728"):
        decode_archive(RFC61, huge, Entry("", WEEK, (), 0, len(huge)))
    monkeypatch.setattr(archive_format, "MAX_STORED_ARCHIVE_SIZE_BYTES", PIECE_SIZE_BYTES)
    assert archive_with_document_of(RFC61, 50_000).num_posts == 1
    with pytest.raises(ArchiveError, match="Split its messages"):
        archive_with_document_of(RFC61, 150_000)


@both
def test_the_number_of_topics_of_an_archive_is_limited(profile: Profile) -> None:
    """MAX_ARCHIVE_TOPICS limits the number of topics."""
    names = [content_topic(str(number)) for number in range(limits.MAX_ARCHIVE_TOPICS + 1)]
    topics = topics_of(profile, names[:-1])
    entry = with_id(profile, Entry("", WEEK, topics, 0, PIECE_SIZE_BYTES))
    metadata = profile.write_index_metadata(entry)
    assert profile.read_index_metadata(entry.archive_id, metadata, by_cid=False) == entry
    with pytest.raises(ArchiveError, match=r"at most 16384\. Drop channels, or the users who created them"):
        topics_of(profile, names)
    wrong = profile.write_index_metadata(entry._replace(topics=(*topics, profile.topic(names[-1]))))
    with pytest.raises(ArchiveError, match="the maximum is 16384"):
        profile.read_index_metadata("", wrong, by_cid=False)


def test_an_archive_is_decoded_one_message_at_a_time() -> None:
    posts = [ANN.text("default", str(number), at=WEEK.from_ms + number) for number in range(3000)]
    archive = archive_of(RFC61, posts)
    entry = archive.entry(RFC61, 0)
    tracemalloc.start()
    try:
        assert sum(1 for _ in decode_archive(RFC61, archive.stored, entry)) == 3000
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 400_000
    assert len(archive.stored) > peak_bytes


def test_a_bomb_of_empty_messages_uses_no_memory() -> None:
    """An empty message has two bytes; decoded by protobuf, it needs a hundred."""
    archive = archive_of(RFC61, three_posts())
    bomb = document_of(RFC61, b"\x1a\x00" * 1_000_000, archive)
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError, match="contradicts its metadata"):
            list(decode_archive(RFC61, bomb, by_cid(RFC61, archive)))
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()
