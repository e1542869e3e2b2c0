"""Archive announcements: the post, and the messages of status-go."""

from __future__ import annotations

import pytest
from archiving import CIDS
from hypothesis import given
from hypothesis import strategies as st

from cablestore import DRAFT8, LEGACY
from cablestore.archive.format.announcement import Announcement, parse_announcement
from cablestore.archive.format.cid import CODEC_MANIFEST, Cid
from cablestore.archive.format.magnet import Magnet
from cablestore.errors import ArchiveError
from cablestore.protocol.dialect import ARCHIVES_CHANNEL

TRACKERS = st.lists(
    st.sampled_from(["udp://tracker.example:1337/announce", "https://t.example/a?b=c&d=%20"]), max_size=3
)
MAGNETS = st.builds(
    Magnet,
    st.binary(min_size=20, max_size=20).map(bytes.hex),
    st.binary(min_size=1, max_size=32).map(bytes.hex),
    TRACKERS.map(tuple),
)
CONTENT_IDS = st.builds(Cid, st.just(CODEC_MANIFEST), st.binary(min_size=32, max_size=32))


@given(st.integers(0, 2**64 - 1), MAGNETS | CONTENT_IDS)
def test_an_announcement_decodes_to_the_same_value(clock: int, link: Magnet | Cid) -> None:
    announcement = Announcement(clock, link)
    assert parse_announcement(announcement.text()) == announcement


def test_announcements_have_the_documented_text() -> None:
    magnet = Magnet("ab" * 20, "0x12", ("udp://t.example:1/announce",))
    link = f"magnet:?xt=urn:btih:{'ab' * 20}&dn=0x12&tr=udp%3A%2F%2Ft.example%3A1%2Fannounce"
    assert Announcement(7, magnet).text() == f"archives 7 {link}"
    assert Announcement(0, Cid.parse(CIDS[0])).text() == f"archives 0 codex:{CIDS[0]}"


MAGNET = f"magnet:?xt=urn:btih:{'ab' * 20}&dn=12"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        f"archives 1 {MAGNET} ",
        f"archives  1 {MAGNET}",
        f"archives 01 {MAGNET}",
        f"archives -1 {MAGNET}",
        f"archives {2**64} {MAGNET}",
        f"archives \u0661 {MAGNET}",
        f"archives 1 {MAGNET}\n",
        f"archives 1 {MAGNET}&x.pe=10.0.0.1:80",
        f"archives 1 {MAGNET}&dn=34",
        f"archives 1 {MAGNET}/../34",
        f"archives 1 {MAGNET}&tr=file%3A%2F%2F%2Fetc%2Fpasswd",
        f"archives 1 {MAGNET.upper()}",
        f"archives 1 {MAGNET.replace('ab', 'AB')}",
        f"archives 1 {MAGNET.replace('btih', 'btmh')}",
        "archives 1 magnet:?dn=12",
        "archives 1 codex:",
        f"archives 1 codex:{CIDS[0]}x",
        f"archives 1 {CIDS[0]}",
        f"Archives 1 {MAGNET}",
        f"archives 1 {MAGNET}{'&tr=udp%3A%2F%2Ft.example%3A1' * 200}",
    ],
)
def test_an_invalid_announcement_is_rejected(text: str) -> None:
    assert parse_announcement(f"archives 1 {MAGNET}").clock == 1
    with pytest.raises(ArchiveError):
        parse_announcement(text)


def test_an_announcement_fits_into_a_post() -> None:
    magnet = Magnet("ab" * 20, "12", tuple(f"udp://tracker{number}.{'x' * 60}.example:1" for number in range(64)))
    with pytest.raises(ArchiveError, match="Use fewer trackers"):
        Announcement(1, magnet).text()
    with pytest.raises(ArchiveError, match="clock"):
        Announcement(-1, magnet)


def test_the_reserved_channel_is_the_same_in_both_dialects() -> None:
    assert ARCHIVES_CHANNEL == "cablestore-archives"
    assert LEGACY.channel_id(ARCHIVES_CHANNEL) == DRAFT8.channel_id(ARCHIVES_CHANNEL) == ARCHIVES_CHANNEL
