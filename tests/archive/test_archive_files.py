"""Archives in both profiles: round trips, padding, encryption, and rejected input."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from archive_documents import rfc61, status_go
from archiving import (
    HISTORIES,
    KEY,
    KEYS,
    WEEK,
    archive_of,
    archive_with_document_of,
    both,
    by_cid,
    content_of,
    ordered,
    posts_in,
    sealed_or_not,
    three_posts,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cablestore import Post
from cablestore.archive.format.archive import decode_archive
from cablestore.archive.format.merkle import MerkleTree
from cablestore.archive.format.profile import PROFILES, RFC61, STATUS_GO, Profile, Record
from cablestore.archive.format.seal import SEAL_OVERHEAD_BYTES, is_sealed
from cablestore.errors import ArchiveError
from cablestore.limits import PIECE_SIZE_BYTES
from cablestore.protocol.crypto import is_signed

PROFILE = st.sampled_from(list(PROFILES.values()))


# --- round trips -------------------------------------------------------------------------------------


@given(PROFILE, HISTORIES, KEYS)
def test_an_archive_decodes_to_its_posts(profile: Profile, posts: list[Post], key: bytes | None) -> None:
    archive = archive_of(profile, posts, key)
    expected = [message.payload for message in ordered(posts)]
    assert len(archive.stored) % PIECE_SIZE_BYTES == 0
    assert is_sealed(archive.stored) == (key is not None)
    entry = archive.entry(profile, 0)
    assert [post.raw for post in posts_in(profile, archive.stored, entry, key)] == expected
    assert [
        post.raw for post in posts_in(profile, content_of(archive), entry._replace(cid="z", padding_bytes=0), key)
    ] == (expected)
    assert archive.num_posts == len(posts)
    assert archive.merkle_root == MerkleTree(post.hash for post in posts_in(profile, archive.stored, entry, key)).root()


@given(PROFILE, HISTORIES, KEYS, st.randoms())
def test_an_archive_does_not_depend_on_the_order_of_its_posts(
    profile: Profile, posts: list[Post], key: bytes | None, shuffled: random.Random
) -> None:
    archive = archive_of(profile, posts, key)
    shuffled.shuffle(posts)
    assert archive_of(profile, posts, key) == archive


@pytest.mark.parametrize(
    ("profile", "key", "sha256"),
    [
        (RFC61, None, "fc4fe8163d4a9406fafe4b5afa925c160559dba7f3ea20f40d7c2dffbe013b91"),
        (RFC61, KEY, "b208504480032ef70840e8420fed27ffc438fe78edf42958ae01ff76bca2598d"),
        (STATUS_GO, None, "55355643f8d54213d4a5478c2e13219a1986d4c42dbea82f5df990d9f928eb7c"),
        (STATUS_GO, KEY, "ab81fa3d3229041721d4a2cb1d7fe3bdabf0a01bcfadcb22d9dee1fcd8e1fd2f"),
    ],
    ids=["rfc61", "rfc61-sealed", "status-go", "status-go-sealed"],
)
def test_archives_have_the_same_bytes_as_in_earlier_versions(profile: Profile, key: bytes | None, sha256: str) -> None:
    """Known answers of this code. Other bytes are another torrent: all members would fetch the whole history again."""
    assert archive_of(profile, three_posts(), key).sha256.hex() == sha256


def test_a_protobuf_library_reads_rfc61_archives() -> None:
    archive = archive_of(RFC61, three_posts())
    found = rfc61.WakuMessageArchive.FromString(archive.stored)
    assert (getattr(found.metadata, "from"), found.metadata.to) == (WEEK.from_ms * 10**6, WEEK.to_ms * 10**6)
    assert list(found.metadata.contentTopic) == list(archive.topics) == sorted(archive.topics)
    assert [(m.payload, m.content_topic, m.timestamp) for m in found.messages] == [
        (m.payload, m.content_topic, m.timestamp_ns) for m in ordered(three_posts())
    ]
    assert set(found.padding) == {0}
    assert found.SerializeToString() == archive.stored


def test_a_protobuf_library_reads_status_go_archives() -> None:
    archive = archive_of(STATUS_GO, three_posts())
    found = status_go.WakuMessageArchive.FromString(content_of(archive))
    assert found.SerializeToString() == content_of(archive)
    assert (getattr(found.metadata, "from"), found.metadata.to) == (WEEK.from_ms // 1000, WEEK.to_ms // 1000)
    assert [len(topic) for topic in found.metadata.contentTopic] == [4, 4, 4]
    assert [(m.payload, m.sig, m.timestamp, m.hash) for m in found.messages] == [
        (m.payload, m.author, m.timestamp_ns // 10**9, m.hash) for m in ordered(three_posts())
    ]
    assert archive.stored[len(content_of(archive)) :] == bytes(archive.padding_bytes)


# --- padding -----------------------------------------------------------------------------------------


@sealed_or_not
def test_rfc61_padding_fills_a_gap_of_any_size(key: bytes | None) -> None:
    """PIECE_SIZE_BYTES. A field has 3 to 129 bytes, 131 to 16386, and so on.

    Gaps of 1, 2, 130 and 16387 bytes require another piece.
    """
    overhead = SEAL_OVERHEAD_BYTES if key else 0
    further = set()
    for gap in (*range(8), *range(120, 140), *range(16_375, 16_395), PIECE_SIZE_BYTES - 1):
        size_bytes = 2 * PIECE_SIZE_BYTES - gap - overhead
        archive = archive_with_document_of(RFC61, size_bytes, key)
        assert archive.padding_bytes == 0
        pieces, rest = divmod(len(archive.stored), PIECE_SIZE_BYTES)
        assert (pieces in (2, 3), rest) == (True, 0)
        if pieces == 3:
            further.add(gap)
        (record,) = decode_archive(RFC61, archive.stored, archive.entry(RFC61, 0), key)
        assert isinstance(record, Record)
        assert set(record.payload) == {0}
    assert further == {1, 2, 130, 16_387}


@given(st.integers(0, 5 * PIECE_SIZE_BYTES))
def test_rfc61_padding_always_results_in_whole_pieces(size_bytes: int) -> None:
    padding = RFC61.inner_padding(size_bytes)
    assert (size_bytes + len(padding)) % PIECE_SIZE_BYTES == 0
    assert len(padding) <= PIECE_SIZE_BYTES + 16_387
    assert set(rfc61.WakuMessageArchive.FromString(padding).padding) <= {0}


@sealed_or_not
@pytest.mark.parametrize(
    ("raw_size", "stored_size"),
    [
        (102_399, 102_400),
        (102_400, 102_400),
        (102_401, 204_800),
        (204_799, 204_800),
        (204_800, 307_200),
        (204_801, 307_200),
        (307_200, 409_600),
    ],
)
def test_status_go_appends_a_piece_to_two_or_more_whole_pieces(
    key: bytes | None, raw_size: int, stored_size: int
) -> None:
    """status-go does not pad one whole piece, but appends a piece of zeros to two or more."""
    archive = archive_with_document_of(STATUS_GO, raw_size - (SEAL_OVERHEAD_BYTES if key else 0), key)
    assert (len(content_of(archive)), len(archive.stored)) == (raw_size, stored_size)
    assert archive.padding_bytes == stored_size - raw_size
    assert len(list(decode_archive(STATUS_GO, archive.stored, archive.entry(STATUS_GO, 0), key))) == 1


# --- damage ------------------------------------------------------------------------------------------


def flips(data: bytes, step: int = 1) -> Iterator[bytes]:
    """Yield the bytes with one byte changed, in three ways for each position."""
    for at in range(0, len(data), step):
        for change in (0x01, 0x80, 0xFF):
            yield data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]


def test_an_encrypted_archive_with_any_changed_or_missing_byte_is_rejected() -> None:
    archive = archive_of(STATUS_GO, three_posts(), KEY)
    entry = by_cid(STATUS_GO, archive)
    assert len(posts_in(STATUS_GO, content_of(archive), entry, KEY)) == 3
    rejected = 0
    for wrong in (*flips(content_of(archive)), *(content_of(archive)[:end] for end in range(len(content_of(archive))))):
        with pytest.raises(ArchiveError):
            decode_archive(STATUS_GO, wrong, entry, KEY)
        rejected += 1
    assert rejected == 4 * len(content_of(archive))


@both
@sealed_or_not
def test_a_changed_or_truncated_archive_with_padding_is_rejected(profile: Profile, key: bytes | None) -> None:
    """The padding is included: every 1,009th byte of a piece."""
    archive = archive_of(profile, three_posts(), key)
    entry = archive.entry(profile, 0)
    for wrong in (*flips(archive.stored, 1009), *(archive.stored[:end] for end in range(0, len(archive.stored), 1009))):
        with pytest.raises(ArchiveError):
            posts_in(profile, wrong, entry, key)


@both
def test_a_changed_byte_of_a_public_archive_is_detected_without_its_commitment(profile: Profile) -> None:
    """The form is invalid, the message does not match its post, or the post's signature is invalid."""
    archive = archive_of(profile, three_posts())
    entry = by_cid(profile, archive)
    content = (
        content_of(archive) if profile is STATUS_GO else profile.document(WEEK, archive.topics, ordered(three_posts()))
    )
    assert len(posts_in(profile, content, entry)) == 3
    rejected = forged = 0
    for wrong in flips(content):
        try:
            posts = posts_in(profile, wrong, entry)
        except ArchiveError:
            rejected += 1
            continue
        forged += 1
        assert not all(is_signed(post.raw) for post in posts)
    assert rejected > 100
    assert rejected + forged == 3 * len(content)


@both
def test_a_truncated_public_archive_lacks_posts_or_is_rejected(profile: Profile) -> None:
    """A document that is cut between two messages is valid. Only the commitment shows that a message is missing."""
    archive = archive_of(profile, three_posts())
    content = profile.document(WEEK, archive.topics, ordered(three_posts()))
    entry = by_cid(profile, archive)
    kept = []
    for end in range(len(content)):
        try:
            kept.append(len(posts_in(profile, content[:end], entry)))
        except ArchiveError:
            continue
    assert kept == [0, 1, 2]


@settings(max_examples=500)
@given(PROFILE, st.binary(max_size=300))
def test_random_bytes_decode_to_messages_or_raise_an_archive_error(profile: Profile, data: bytes) -> None:
    archive = archive_of(profile, three_posts())
    entry = by_cid(profile, archive)
    for wrong in (data, profile.document(WEEK, archive.topics, []) + data):
        try:
            posts_in(profile, wrong, entry)
        except ArchiveError:
            continue
