"""The index: both forms in both profiles, damage, forged entries and limits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from archive_documents import commitment, rfc61, status_go
from archiving import (
    CIDS,
    CONTROL,
    DELETION,
    FORMS,
    WEEK,
    archive_of,
    both,
    community,
    content_of,
    decoded,
    every_form,
    posts_in,
    sealed_or_not,
    signed,
    verified,
)
from hypothesis import given
from hypothesis import strategies as st
from people import ANN, BOB

from cablestore import LEGACY, CableStore, limits
from cablestore.archive.format import index as index_format
from cablestore.archive.format.commitment import SignedStatement
from cablestore.archive.format.index import Index, decode_index, encode_index, make_index, signed_index
from cablestore.archive.format.merkle import MerkleTree
from cablestore.archive.format.period import WEEK_MS, Period
from cablestore.archive.format.profile import RFC61, STATUS_GO, Entry, Profile, archive_id, with_id
from cablestore.archive.format.seal import is_sealed
from cablestore.cli import main
from cablestore.errors import ArchiveError
from cablestore.limits import PIECE_SIZE_BYTES
from cablestore.protocol.crypto import post_hash

CLASSES: dict[tuple[str, bool], Any] = {
    ("rfc61", False): rfc61.WakuMessageArchiveIndex,
    ("rfc61", True): rfc61.CodexWakuMessageArchiveIndex,
    ("status-go", False): status_go.WakuMessageArchiveIndex,
    ("status-go", True): status_go.CodexWakuMessageArchiveIndex,
}


# --- encoding ----------------------------------------------------------------------------------------


@every_form
@sealed_or_not
def test_an_index_decodes_to_its_archives(profile: Profile, cids: tuple[str, ...], key: bytes | None) -> None:
    made = community(profile, key=key, cids=cids)
    data = encode_index(signed(made, sealed=key is not None, deletions=[DELETION.raw]), key)
    assert is_sealed(data) == (key is not None)
    found = verified(data, made, key=key)
    assert found.index.entries == made.entries
    assert found.commitments == {each.archive_id: each for each in made.commitments}
    assert found.deletions == (DELETION.raw,)
    for archive, entry in zip(made.archives, found.index.entries, strict=True):
        stored = archive.stored
        if not cids:
            stored = made.data[entry.offset_bytes : entry.offset_bytes + entry.size_bytes]
        found.commitments[entry.archive_id].check_stored(stored)
        posts = posts_in(profile, content_of(archive) if cids else stored, entry, key)
        found.commitments[entry.archive_id].check_posts(MerkleTree(post.hash for post in posts))


@every_form
def test_a_protobuf_library_reads_an_index(profile: Profile, cids: tuple[str, ...]) -> None:
    """The plain protobuf class reads the archives and ignores the commitment."""
    made = community(profile, cids=cids)
    document = CLASSES[profile.name, bool(cids)]
    plain = encode_index(made.index)
    seen = document.FromString(plain)
    assert seen.SerializeToString(deterministic=True) == plain
    assert set(seen.archives) == {entry.archive_id for entry in made.entries}
    committed = document.FromString(encode_index(signed(made, deletions=[DELETION.raw])))
    assert {name: each.SerializeToString() for name, each in committed.archives.items()} == {
        name: each.SerializeToString() for name, each in seen.archives.items()
    }
    first = committed.archives[made.entries[1].archive_id]
    if cids:
        assert first.cid == CIDS[1]
    elif profile is RFC61:
        assert (first.offset, first.num_pieces) == (PIECE_SIZE_BYTES, 1)
    else:
        padding_bytes = made.archives[1].padding_bytes
        assert (first.offset, first.size, first.padding) == (PIECE_SIZE_BYTES, PIECE_SIZE_BYTES, padding_bytes)


@both
def test_a_plain_index_in_any_order_is_read(profile: Profile) -> None:
    """Go encodes maps in random order. Such an index can be read, but control nodes do not sign one."""
    made = community(profile)
    index = signed(made)
    assert index.signed is not None
    raw = commitment.RawIndex.FromString(encode_index(index))
    entries = list(raw.archives)[::-1]
    data = commitment.RawIndex(archives=entries, commitment=raw.commitment).SerializeToString()
    assert decoded(data, made).entries == made.entries
    with pytest.raises(ArchiveError, match="encoding of the index differs"):
        verified(data, made)


@given(st.sampled_from(FORMS), st.randoms())
def test_the_same_archives_result_in_the_same_index(
    form: tuple[Profile, tuple[str, ...]], shuffled: random.Random
) -> None:
    profile, cids = form
    made = community(profile, cids=cids)
    deletions = [DELETION.raw, BOB.delete(DELETION, at=1).raw, DELETION.raw]
    data = encode_index(signed(made, deletions=deletions))
    for items in (entries := list(made.entries), commitments := list(made.commitments), deletions):
        shuffled.shuffle(items)
    index = signed_index(make_index(profile, entries), commitments, CONTROL, LEGACY, sealed=False, deletions=deletions)
    assert encode_index(index) == data
    assert verified(data, made).deletions == tuple(sorted(set(deletions), key=post_hash))


def test_equal_archives_at_different_offsets_have_different_ids() -> None:
    archive = archive_of(RFC61, [ANN.text("default", "", at=WEEK.from_ms)])
    first, second = archive.entry(RFC61, 0), archive.entry(RFC61, len(archive.stored))
    assert first.archive_id != second.archive_id
    data = encode_index(make_index(RFC61, [second, first]))
    assert decode_index(data, RFC61, data_size_bytes=2 * len(archive.stored)).entries == (first, second)


@both
def test_an_empty_index_is_valid(profile: Profile) -> None:
    assert encode_index(make_index(profile, [])) == b""
    assert decode_index(b"", profile, data_size_bytes=0).entries == ()


# --- damage ------------------------------------------------------------------------------------------


@every_form
@sealed_or_not
def test_a_signed_index_with_any_changed_or_missing_byte_is_rejected(
    profile: Profile, cids: tuple[str, ...], key: bytes | None
) -> None:
    made = community(profile, weeks=2, key=key, cids=cids)
    data = encode_index(signed(made, sealed=key is not None, deletions=[DELETION.raw]), key)
    verified(data, made, key=key)
    wrongs = [data[:at] + bytes([data[at] ^ change]) + data[at + 1 :] for at in range(len(data)) for change in (1, 255)]
    for wrong in (*wrongs, *(data[:end] for end in range(len(data))), data + b"\0", data + data):
        with pytest.raises(ArchiveError):
            verified(wrong, made, key=key)


@given(st.sampled_from(FORMS), st.binary(max_size=200))
def test_random_bytes_decode_to_an_index_or_raise_an_archive_error(
    form: tuple[Profile, tuple[str, ...]], data: bytes
) -> None:
    profile, cids = form
    made = community(profile, weeks=1, cids=cids)
    for wrong in (data, encode_index(made.index) + data):
        try:
            decoded(wrong, made)
        except ArchiveError:
            continue


# --- forged entries ----------------------------------------------------------------------------------


def raw_index(*pairs: tuple[str, bytes]) -> bytes:
    index = commitment.RawIndex(archives=[commitment.RawEntry(key=name, value=value) for name, value in pairs])
    return bytes(index.SerializeToString())


@every_form
def test_swapped_or_renamed_entries_are_rejected(profile: Profile, cids: tuple[str, ...]) -> None:
    made = community(profile, cids=cids)
    ids = [entry.archive_id for entry in made.entries]
    metadata = [profile.write_index_metadata(entry) for entry in made.entries]
    assert decoded(raw_index(*zip(ids, metadata, strict=True)), made).entries == made.entries
    for name, value in ((ids[0], metadata[1]), (ids[0].upper(), metadata[0]), ("", metadata[0]), ("x" * 9, b"")):
        with pytest.raises(ArchiveError, match="has the metadata of"):
            decoded(raw_index((name, value)), made)
    with pytest.raises(ArchiveError, match="twice"):
        decoded(raw_index((ids[0], metadata[0]), (ids[0], metadata[0])), made)


@both
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ({"offset_bytes": 1}, "expected whole pieces"),
        ({"offset_bytes": 3 * PIECE_SIZE_BYTES}, "has only"),
        ({"offset_bytes": 2**63}, "expected whole pieces"),
        ({"offset_bytes": 2**53 * PIECE_SIZE_BYTES // 16384}, "has only"),
        ({"size_bytes": 0}, "expected 1 to"),
        ({"size_bytes": 4 * PIECE_SIZE_BYTES}, "has only"),
        (
            {"size_bytes": (limits.MAX_STORED_ARCHIVE_SIZE_BYTES // PIECE_SIZE_BYTES + 1) * PIECE_SIZE_BYTES},
            "expected 1 to",
        ),
    ],
    ids=str,
)
def test_an_entry_outside_the_data_is_rejected(profile: Profile, place: dict[str, Any], reason: str) -> None:
    """MAX_STORED_ARCHIVE_SIZE_BYTES also limits the bytes that an index can make a member fetch."""
    made = community(profile)
    entry = with_id(profile, made.entries[0]._replace(**place))
    with pytest.raises(ArchiveError, match=reason):
        decoded(encode_index(make_index(profile, [entry])), made)


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ({"size_bytes": PIECE_SIZE_BYTES + 1}, "expected whole pieces"),
        ({"padding_bytes": PIECE_SIZE_BYTES}, "exceeds a piece, or is the whole archive"),
        (
            {"size_bytes": 2 * PIECE_SIZE_BYTES, "padding_bytes": PIECE_SIZE_BYTES + 1},
            "exceeds a piece, or is the whole archive",
        ),
        ({"size_bytes": 2**64 - 1}, "expected whole pieces"),
    ],
    ids=str,
)
def test_a_false_size_is_rejected(place: dict[str, Any], reason: str) -> None:
    made = community(STATUS_GO)
    entry = with_id(STATUS_GO, made.entries[0]._replace(**place))
    with pytest.raises(ArchiveError, match=reason):
        decoded(encode_index(make_index(STATUS_GO, [entry])), made)


@both
def test_overlapping_archives_are_rejected(profile: Profile) -> None:
    made = community(profile)
    longer = with_id(profile, made.entries[0]._replace(size_bytes=2 * PIECE_SIZE_BYTES))
    with pytest.raises(ArchiveError, match="overlaps"):
        decoded(encode_index(make_index(profile, [longer, *made.entries[1:]])), made)
    other = with_id(profile, made.entries[0]._replace(period=Period(0, WEEK_MS)))
    with pytest.raises(ArchiveError, match="overlaps"):
        decoded(encode_index(make_index(profile, [made.entries[0], other])), made)


@every_form
def test_contradictory_metadata_are_rejected(profile: Profile, cids: tuple[str, ...]) -> None:
    made = community(profile, cids=cids)
    entry = made.entries[0]
    last_ms = (limits.MAX_ARCHIVED_TIMESTAMP_MS + WEEK_MS) // 1_000 * 1_000
    for wrong, reason in (
        (entry._replace(period=Period(WEEK.to_ms, WEEK.from_ms)), "before its start"),
        (entry._replace(period=Period(WEEK.to_ms, WEEK.to_ms)), "before its start"),
        (entry._replace(topics=entry.topics * 2), "a topic twice"),
        (entry._replace(period=Period(WEEK.from_ms, last_ms + 1_000)), "archives store posts up to"),
        (entry._replace(period=Period(last_ms, last_ms + WEEK_MS)), "archives store posts up to"),
    ):
        with pytest.raises(ArchiveError, match=reason):
            decoded(encode_index(make_index(profile, [with_id(profile, wrong)])), made)
    last = with_id(profile, entry._replace(period=Period(last_ms - WEEK_MS, last_ms)))
    assert decoded(encode_index(make_index(profile, [last])), made).entries == (last,)


@pytest.mark.parametrize("command", ["list", "import"])
def test_a_week_beyond_the_year_9999_is_rejected_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """status-go counts seconds in 64 bits. Years of more than four digits cannot be converted to a date."""
    made = community(STATUS_GO, weeks=1)
    entry = with_id(STATUS_GO, made.entries[0]._replace(period=Period(2**50 * 1_000, 2**50 * 1_000 + WEEK_MS)))
    commitment = replace(made.commitments[0], archive_id=entry.archive_id)
    index = signed_index(make_index(STATUS_GO, [entry]), [commitment], CONTROL, LEGACY, sealed=False)
    folder = tmp_path / CONTROL.public_key.hex()
    folder.mkdir()
    (folder / "data").write_bytes(made.data)
    (folder / "index").write_bytes(encode_index(index))
    CableStore.open(tmp_path / "store").close()
    store = ["-s", str(tmp_path / "store")] if command == "import" else []
    with pytest.raises(SystemExit) as exit_:
        main(["archive", command, str(tmp_path), "--control", folder.name, *store])
    assert exit_.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("cablestore: ")
    assert said.count("\n") == 1


def test_invalid_units_are_rejected() -> None:
    bounds: dict[str, Any] = {"from": 1, "to": 10**6}
    metadata = rfc61.WakuMessageArchiveMetadata(**bounds)
    with pytest.raises(ArchiveError, match="whole milliseconds"):
        RFC61.read_index_metadata(
            "", rfc61.WakuMessageArchiveIndexMetadata(metadata=metadata).SerializeToString(), by_cid=False
        )
    topics = status_go.WakuMessageArchiveMetadata(contentTopic=[b"12345"])
    with pytest.raises(ArchiveError, match="4 bytes"):
        STATUS_GO.read_index_metadata(
            "", status_go.WakuMessageArchiveIndexMetadata(metadata=topics).SerializeToString(), by_cid=False
        )


@every_form
def test_an_index_of_another_profile_or_form_is_rejected(profile: Profile, cids: tuple[str, ...]) -> None:
    """status-go's size and RFC 61's number of pieces have the same tag. Reading one as the other must fail."""
    made = community(profile, cids=cids)
    data = encode_index(made.index)
    other = STATUS_GO if profile is RFC61 else RFC61
    for wrong, size in ((other, len(made.data)), (other, None), (profile, len(made.data) if cids else None)):
        with pytest.raises(ArchiveError):
            decode_index(data, wrong, data_size_bytes=size)


@every_form
def test_unknown_fields_are_rejected(profile: Profile, cids: tuple[str, ...]) -> None:
    made = community(profile, cids=cids)
    data = encode_index(made.index)
    for tail in (b"\x12\x00", b"\x08\x01", b"\xc0\x3e\x01"):
        with pytest.raises(ArchiveError, match="unknown field"):
            decoded(data + tail, made)
    newer = with_id(profile, made.entries[0])
    value = b"\x08\x01" + profile.write_index_metadata(newer)
    with pytest.raises(ArchiveError, match="invalid metadata of archive"):
        decoded(raw_index((archive_id(value), value)), made)


def test_an_invalid_content_id_is_rejected() -> None:
    for cid in ("", "zNoCid", CIDS[0].upper()):
        entry = with_id(RFC61, Entry("", WEEK, (), cid=cid))
        with pytest.raises(ArchiveError, match="content id"):
            decode_index(raw_index((entry.archive_id, RFC61.write_index_metadata(entry))), RFC61)


# --- limits ------------------------------------------------------------------------------------------


def test_the_number_of_archives_in_an_index_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAX_INDEX_ARCHIVES limits the number of archives."""
    made = community(RFC61)
    most = limits.MAX_INDEX_ARCHIVES
    with pytest.raises(ArchiveError, match=f"{most + 1} archives"):
        encode_index(Index(RFC61, made.entries[:1] * (most + 1)))
    data = encode_index(made.index)
    monkeypatch.setattr(index_format, "MAX_INDEX_ARCHIVES", 2)
    with pytest.raises(ArchiveError, match="more than 2 archives"):
        decoded(data, made)


def test_the_size_of_an_index_is_limited() -> None:
    """MAX_INDEX_SIZE_BYTES applies to reading and writing."""
    most = limits.MAX_INDEX_SIZE_BYTES
    with pytest.raises(ArchiveError, match="Do not fetch it again"):
        decode_index(bytes(most + 1), RFC61, data_size_bytes=0)
    index = replace(community(RFC61).index, signed=SignedStatement(bytes(most), b""))
    with pytest.raises(ArchiveError, match=f"the maximum is {most}"):
        encode_index(index)


def test_decoding_a_bomb_of_empty_entries_stops_at_the_first() -> None:
    with pytest.raises(ArchiveError, match="has the metadata of"):
        decode_index(b"\x0a\x00" * 10_000_000, RFC61, data_size_bytes=0)
