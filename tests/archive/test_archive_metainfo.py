"""Metainfo and magnet links of torrents: equal content has the same hash; other torrents are rejected."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import libtorrent as lt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torrents import COMMUNITY, FOREIGN, PIECE, bencoded, files, info

from cablestore import limits
from cablestore.archive.format.magnet import Magnet
from cablestore.archive.torrent.metainfo import Metainfo, make_metainfo, read_info, read_torrent
from cablestore.errors import ArchiveError

TRACKERS = ("udp://127.0.0.1:1337/announce", "http://127.0.0.1/announce?a=1&b=2")

few_pieces = st.lists(st.binary(min_size=1, max_size=1), min_size=1, max_size=4)


def data_of(pieces: list[bytes]) -> bytes:
    return b"".join(piece * PIECE for piece in pieces)


def made(data: bytes, index: bytes, earlier: Metainfo | None = None) -> Metainfo:
    return make_metainfo(COMMUNITY, io.BytesIO(data), io.BytesIO(index), earlier=earlier)


class Counting(io.BytesIO):
    """File that counts the bytes read."""

    bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        self.bytes_read += len(found)
        return found


@given(few_pieces, st.binary(min_size=1, max_size=300))
@settings(max_examples=50)
def test_the_info_hash_equals_that_of_libtorrent(pieces: list[bytes], index: bytes) -> None:
    """PIECE_SIZE_BYTES is the size of deployed control nodes; libtorrent reads it but does not create it."""
    metainfo = made(data_of(pieces), index)
    assert made(data_of(pieces), index).torrent(TRACKERS) == metainfo.torrent(TRACKERS)
    theirs: Any = lt.load_torrent_buffer(metainfo.torrent(TRACKERS))
    assert str(theirs.info_hashes.v1) == metainfo.info_hash == metainfo.magnet().info_hash
    assert theirs.trackers == list(TRACKERS)
    assert theirs.ti.piece_length() == PIECE == 102_400
    assert [theirs.ti.layout().file_path(i) for i in range(2)] == [f"{COMMUNITY}/data", f"{COMMUNITY}/index"]
    assert made(data_of(pieces), index + b"x").info_hash != metainfo.info_hash


@given(few_pieces, few_pieces, st.binary(min_size=1, max_size=300))
@settings(max_examples=50)
def test_only_appended_data_are_hashed(before: list[bytes], after: list[bytes], index: bytes) -> None:
    earlier = made(data_of(before), b"earlier index")
    data = Counting(data_of(before + after))
    metainfo = make_metainfo(COMMUNITY, data, io.BytesIO(index), earlier=earlier)
    assert metainfo == made(data_of(before + after), index)
    assert data.bytes_read == (len(after) + 1) * PIECE


@given(few_pieces, few_pieces)
@settings(max_examples=50)
def test_an_earlier_metainfo_of_other_data_does_not_change_the_result(before: list[bytes], now: list[bytes]) -> None:
    before[-1] = b"\x00" if now[len(before) - 1 :][:1] != [b"\x00"] else b"\x01"
    assert made(data_of(now), b"index", made(data_of(before), b"index")) == made(data_of(now), b"index")


@given(few_pieces, st.binary(min_size=1, max_size=300))
@settings(max_examples=50)
def test_a_torrent_decodes_to_its_metainfo(pieces: list[bytes], index: bytes) -> None:
    metainfo = made(data_of(pieces), index)
    assert read_torrent(metainfo.torrent(), COMMUNITY) == metainfo
    assert read_torrent(metainfo.torrent(TRACKERS), COMMUNITY) == metainfo
    assert read_info(metainfo.info, COMMUNITY) == metainfo
    assert metainfo.pieces == len(pieces) + 1
    assert metainfo.data_pieces == len(pieces)
    assert sum(map(metainfo.piece_size_bytes, range(metainfo.pieces))) == metainfo.size_bytes


def test_other_keys_of_a_torrent_are_ignored() -> None:
    document = {b"info": info(), b"url-list": b"http://127.0.0.1/", b"nodes": [[b"127.0.0.1", 1]], b"creation date": 1}
    assert read_torrent(bencoded(document), COMMUNITY).info == bencoded(info())


@pytest.mark.parametrize("name", FOREIGN)
def test_a_torrent_with_another_name_layout_or_size_is_rejected(name: str) -> None:
    for read, raw in [(read_info, bencoded(FOREIGN[name])), (read_torrent, bencoded({b"info": FOREIGN[name]}))]:
        with pytest.raises(ArchiveError) as error:
            read(raw, COMMUNITY)
        assert 20 < len(str(error.value)) < 600


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"le",
        b"de",
        b"d4:infolee",
        bencoded({b"info": info()}) + b"\n",
        bencoded({b"info": info()})[:-1],
        bencoded({b"info": info()}).replace(b"i7e", b"i07e"),
        bencoded({b"info": info()}).replace(b"d4:info", b"d4:infoi1e4:info"),
        b"l" * 5_000 + b"e" * 5_000,
        b"d4:infod5:files9999999999999:",
        b"i999999999999999999999999999e",
    ],
)
def test_non_canonical_bencoding_is_rejected(raw: bytes) -> None:
    with pytest.raises(ArchiveError):
        read_torrent(raw, COMMUNITY)


@given(st.data())
def test_a_damaged_torrent_is_rejected_or_decoded_without_loss(data: st.DataObject) -> None:
    raw = bytearray(bencoded({b"info": info()}))
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=1, max_size=3)):
        raw[place] = data.draw(st.integers(0, 255))
    try:
        found = read_torrent(bytes(raw), COMMUNITY)
    except ArchiveError:
        return
    assert bencoded({b"info": lt.bdecode(found.info)}) == raw
    assert found.size_bytes <= limits.MAX_TORRENT_SIZE_BYTES


@given(st.binary(max_size=200))
def test_random_bytes_are_rejected(raw: bytes) -> None:
    for read in (read_torrent, read_info):
        with pytest.raises(ArchiveError):
            read(raw, COMMUNITY)


def test_the_size_of_a_torrent_is_limited(tmp_path: Path) -> None:
    """MAX_TORRENT_SIZE_BYTES: a torrent of that size is read; a larger one is not read, created or hashed."""
    index_size_bytes = PIECE
    pieces = limits.MAX_TORRENT_SIZE_BYTES // PIECE - 1
    for more in (0, 1):
        document = info(
            files=files(((pieces + more) * PIECE, [b"data"]), (index_size_bytes, [b"index"])),
            pieces=bytes(20 * (pieces + more + 1)),
        )
        if more:
            with pytest.raises(ArchiveError, match="MAX_TORRENT_SIZE_BYTES"):
                read_info(bencoded(document), COMMUNITY)
        else:
            assert read_info(bencoded(document), COMMUNITY).pieces == pieces + 1
    with (tmp_path / "data").open("w+b") as data:
        data.truncate((pieces + 2) * PIECE)
        with pytest.raises(ArchiveError, match="MAX_TORRENT_SIZE_BYTES"):
            make_metainfo(COMMUNITY, data, io.BytesIO(b"index"))


@pytest.mark.parametrize(("size", "shown"), [(197, "x" * 197 + "'"), (198, "x" * 198 + "...")])
def test_long_values_of_a_torrent_are_truncated_in_errors(size: int, shown: str) -> None:
    with pytest.raises(ArchiveError) as error:
        read_info(bencoded(info(name=b"x" * size)), COMMUNITY)
    assert str(error.value).endswith(f", got b'{shown}")


def test_the_size_of_metainfo_is_limited() -> None:
    """MAX_METAINFO_SIZE_BYTES: larger metainfo is not decoded. The largest torrent fits."""
    assert limits.MAX_TORRENT_SIZE_BYTES // PIECE * 20 + 100_000 < limits.MAX_METAINFO_SIZE_BYTES
    for size_bytes, reason in [
        (limits.MAX_METAINFO_SIZE_BYTES, "invalid torrent"),
        (limits.MAX_METAINFO_SIZE_BYTES + 1, "MAX_"),
    ]:
        text = size_bytes - len(b"16777216:")
        with pytest.raises(ArchiveError, match=reason):
            read_torrent(b"%d:" % text + bytes(text), COMMUNITY)


def test_the_size_of_an_index_in_a_torrent_is_limited(tmp_path: Path) -> None:
    """MAX_INDEX_SIZE_BYTES: an index of that size is hashed and read; a larger one is rejected."""
    with (tmp_path / "index").open("w+b") as index:
        index.truncate(limits.MAX_INDEX_SIZE_BYTES)
        metainfo = make_metainfo(COMMUNITY, io.BytesIO(bytes(PIECE)), index)
        assert read_torrent(metainfo.torrent(), COMMUNITY).index_size_bytes == limits.MAX_INDEX_SIZE_BYTES
        index.truncate(limits.MAX_INDEX_SIZE_BYTES + 1)
        with pytest.raises(ArchiveError, match="MAX_INDEX_SIZE_BYTES"):
            make_metainfo(COMMUNITY, io.BytesIO(bytes(PIECE)), index)


@pytest.mark.parametrize(("data", "index"), [(b"", b"x"), (bytes(PIECE - 1), b"x"), (bytes(PIECE), b"")])
def test_a_folder_without_whole_pieces_or_an_index_is_not_hashed(data: bytes, index: bytes) -> None:
    with pytest.raises(ArchiveError):
        made(data, index)


@pytest.mark.parametrize("name", ["", "..", "a/b", "A0", "0x", "x" * 64, "a" * 129, "ab\n", "caf\u00e9"])
def test_a_community_id_that_is_not_hex_is_rejected(name: str) -> None:
    with pytest.raises(ArchiveError):
        make_metainfo(name, io.BytesIO(bytes(PIECE)), io.BytesIO(b"x"))
    with pytest.raises(ArchiveError):
        read_info(bencoded(info(name=name.encode())), name)


# --- magnet links ------------------------------------------------------------------------------


@given(st.binary(min_size=20, max_size=20), st.integers(1, 64), st.lists(st.sampled_from(TRACKERS), max_size=3))
def test_a_magnet_link_decodes_to_its_values(digest: bytes, size: int, trackers: list[str]) -> None:
    link = Magnet(digest.hex(), "0x" + "a" * size, tuple(trackers))
    assert Magnet.parse(str(link)) == link
    theirs: Any = lt.parse_magnet_uri(str(link))
    assert str(theirs.info_hashes.v1) == link.info_hash
    assert theirs.name == link.community
    assert sorted(theirs.trackers) == sorted(trackers)


def test_a_link_of_status_go_is_accepted() -> None:
    """Links in the form of status-go are accepted; unknown parameters are ignored."""
    found = Magnet.parse(
        "magnet:?xt=urn:btih:2D9A4F0E5E8E2B9F7D3E1C3A6B5D4C3B2A190807&dn=0x02ab&tr=udp%3A%2F%2Ftracker.opentrackr.org%3A1337"
        "%2Fannounce&x.pe=127.0.0.1%3A1&ws=http%3A%2F%2F127.0.0.1%2F"
    )
    assert found == Magnet(
        "2d9a4f0e5e8e2b9f7d3e1c3a6b5d4c3b2a190807", "0x02ab", ("udp://tracker.opentrackr.org:1337/announce",)
    )


GOOD = f"magnet:?xt=urn:btih:{'ab' * 20}&dn=cd"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://127.0.0.1/",
        GOOD.replace("magnet:?", "magnet:"),
        GOOD.replace("btih", "btmh"),
        GOOD.replace("abab", "ab"),
        GOOD.replace("abab", "zzzz"),
        GOOD.replace("&dn=cd", ""),
        GOOD.replace("&dn=cd", "&dn=.."),
        GOOD.replace("&dn=cd", "&dn=%2Fetc"),
        GOOD + "&dn=cd",
        GOOD + f"&xt=urn:btih:{'ab' * 20}",
        GOOD + "&tr=file%3A%2F%2F%2Fetc%2Fpasswd",
        GOOD + "&tr=http%3A%2F%2F",
        GOOD + "&tr=http%3A%2F%2Fa%3A99999",
        GOOD + "&tr=http%3A%2F%2F%5B",
        GOOD + "&tr=http%3A%2F%2Fa%0Ab",
    ],
)
def test_an_invalid_link_is_rejected(text: str) -> None:
    assert Magnet.parse(GOOD).community == "cd"
    with pytest.raises(ArchiveError):
        Magnet.parse(text)


@given(st.text(max_size=100), st.sampled_from(["", "magnet:?", GOOD, GOOD + "&tr="]))
def test_a_random_string_is_a_link_or_rejected(text: str, begin: str) -> None:
    try:
        found = Magnet.parse(begin + text)
    except ArchiveError:
        return
    assert Magnet.parse(str(found)) == found


def test_the_length_of_a_magnet_link_is_limited() -> None:
    """MAX_MAGNET_SIZE_BYTES: a longer link is not parsed."""
    padded = (GOOD + "&x=").ljust(limits.MAX_MAGNET_SIZE_BYTES, "x")
    assert Magnet.parse(padded).community == "cd"
    with pytest.raises(ArchiveError, match="4,096"):
        Magnet.parse(padded + "x")


def test_the_number_of_trackers_is_limited() -> None:
    """MAX_TRACKERS: a link with one more tracker is rejected."""
    assert len(Magnet.parse(GOOD + "&tr=udp%3A%2F%2Fa" * limits.MAX_TRACKERS).trackers) == limits.MAX_TRACKERS
    with pytest.raises(ArchiveError, match="too many trackers in the magnet link: 65"):
        Magnet.parse(GOOD + "&tr=udp%3A%2F%2Fa" * (limits.MAX_TRACKERS + 1))
