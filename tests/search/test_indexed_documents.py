"""Documents of the full-text index: exact limits of times and ids, and sums of a file that changed."""

from __future__ import annotations

import os
from pathlib import Path
from zlib import crc32

import pytest
from people import ANN, START_MS

from cablestore import DRAFT8, LEGACY, CableStore, limits
from cablestore.index.folder import SEARCH_INDEX, SEARCH_SUMS
from cablestore.protocol.body import TEXT, TOPIC
from cablestore.protocol.post import SIGNED_FROM
from cablestore.protocol.varint import encode_varint
from cablestore.search.documents import (
    MAX_ID,
    TIE_BITS,
    document_of,
    hash_at,
    id_at,
    id_floor,
    id_of,
    place_of,
    with_id,
)
from cablestore.search.page_sums import PageSums, WrongSumsError

HASH_HEX = b"f" * 64


def raw(timestamp_ms: int, kind: int = TEXT, links: int = 0) -> bytes:
    parts = [bytes(SIGNED_FROM), encode_varint(links), bytes(32 * links), encode_varint(kind)]
    return b"".join([*parts, encode_varint(timestamp_ms), b"\x01c", b"\x05hello"])


def test_a_text_has_an_id_by_time_and_hash() -> None:
    for timestamp_ms in (0, START_MS, limits.MAX_TIMESTAMP_MS):
        document = document_of(HASH_HEX, raw(timestamp_ms, links=2), LEGACY)
        assert document is not None
        assert id_of(document) == (timestamp_ms << TIE_BITS) + 15 <= MAX_ID
        assert document.endswith(b"hello")
        assert id_of(with_id(document, 7)) == 7
        place = place_of(id_of(document), bytes.fromhex("ff" * 8))
        assert (id_at(place), hash_at(place)) == (id_of(document), b"\xff" * 8)
    assert document_of(HASH_HEX, raw(limits.MAX_TIMESTAMP_MS + 1), LEGACY) is None
    assert document_of(HASH_HEX, raw(1, TOPIC), LEGACY) is None
    for length in range(len(raw(1))):
        assert document_of(HASH_HEX, raw(1)[:length], LEGACY) is None
    assert document_of(b"zz" * 32, raw(1), LEGACY) is None
    upper, lower = (ANN.text(name, "hello").raw for name in ("C", "c"))
    places = [document_of(HASH_HEX, post, dialect) for dialect in (DRAFT8, LEGACY) for post in (upper, lower)]
    words = [place[27:64] for place in places if place is not None]
    assert words[0] == words[1] == words[3] != words[2]


def test_ids_of_a_time_range_are_limited() -> None:
    times = (-1, 0, 1, limits.MAX_TIMESTAMP_MS, limits.MAX_TIMESTAMP_MS + 1, 2**70)
    assert [id_floor(time_ms) for time_ms in times] == [
        0, 0, 1 << TIE_BITS, limits.MAX_TIMESTAMP_MS << TIE_BITS, MAX_ID + 1, MAX_ID + 1
    ]  # fmt: skip


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    """Return the folder of a closed store with an index."""
    with CableStore.open(tmp_path / "store") as store:
        store.ingest([ANN.text("default", "needle").raw])
        assert len(store.search("needle").hits) == 1
    return tmp_path / "store"


def with_sum(data: bytes) -> bytes:
    return data + crc32(data).to_bytes(4)


def test_damaged_sums_are_detected(indexed: Path) -> None:
    path = indexed / SEARCH_SUMS
    whole, pages = path.read_bytes(), (indexed / SEARCH_INDEX).stat().st_size // 4096
    PageSums(indexed).verify()
    changes = {
        "is damaged": [b"", whole[:7], whole[:-1], whole[:-1] + bytes((whole[-1] ^ 1,)), b"?" + whole[1:]],
        "another version": [with_sum(b"?" + whole[1:-4]), with_sum(whole[:-4] + b"?")],
        "pages, expected": [with_sum(whole[:-8]), with_sum(whole[:-4] + bytes(4))],
        "page 1 of": [with_sum(whole[: -4 - 4 * pages] + bytes(4 * pages))],
    }
    for message, contents in changes.items():
        for content in contents:
            path.write_bytes(content)
            with pytest.raises(WrongSumsError, match=message):
                PageSums(indexed).verify()
    path.unlink()
    with pytest.raises(WrongSumsError, match="is missing"):
        PageSums(indexed).verify()


def test_a_file_that_another_program_changed_is_detected(indexed: Path) -> None:
    sums = PageSums(indexed)
    sums.verify()
    sums.require_unchanged()
    file = indexed / SEARCH_INDEX
    content, status = file.read_bytes(), file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    with pytest.raises(WrongSumsError, match="was changed by another program"):
        sums.require_unchanged()
    file.unlink()
    with pytest.raises(WrongSumsError, match="was changed by another program"):
        sums.require_unchanged()
    file.write_bytes(content[:-1] + bytes((content[-1] ^ 1,)))
    with pytest.raises(WrongSumsError, match="is damaged"):
        PageSums(indexed).verify()
