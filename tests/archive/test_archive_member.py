"""State of a member: announcements, the waiting time, and the imported archives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from archives import CONTROL, FIRST_MS, KEY, LATE_MS, archived, plan_of, some_weeks, store_of
from hypothesis import given
from hypothesis import strategies as st
from people import ANN
from stores import channels_of

from cablestore import DRAFT8, LEGACY, CableStore, Dialect, Identity, StoreOptions
from cablestore.archive.format.announcement import Announcement, Link, link_text, parse_link
from cablestore.archive.format.commitment import Commitment
from cablestore.archive.format.magnet import Magnet
from cablestore.archive.member import (
    ANNOUNCEMENT_WAIT_MS,
    ImportLog,
    announce,
    newest_announcement,
    settled_announcement,
    wanted,
)
from cablestore.errors import ArchiveError
from cablestore.peers import Address, Node, NodeSettings
from cablestore.protocol.body import Text
from cablestore.protocol.dialect import ARCHIVES_CHANNEL
from cablestore.protocol.post import encode_post
from cablestore.store import answers

COMMUNITY = CONTROL.public_key.hex()
LINKS = tuple(Magnet(f"{number:040x}", COMMUNITY) for number in range(9))
START_MS = 1_700_000_000_000


def announcement_post(clock: int, link: Link, at_ms: int, author: Identity = CONTROL) -> bytes:
    """Return the raw post of an announcement, as received from a peer."""
    body = Text(ARCHIVES_CHANNEL, Announcement(clock, link).text())
    return encode_post(body, links=(), timestamp_ms=at_ms, identity=author, dialect=LEGACY).raw


class Clock:
    """Clock that advances only by sleeping, and adds posts to a store at given times."""

    def __init__(self, store: CableStore, coming: dict[int, bytes]) -> None:
        self.now_ms = START_MS
        self.slept_s: list[float] = []
        self._store = store
        self._coming = coming

    def __call__(self) -> int:
        return self.now_ms

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        until_ms = self.now_ms + round(seconds * 1000)
        for at_ms in sorted(at for at in self._coming if at <= until_ms):
            self._store.ingest([self._coming.pop(at_ms)])
        self.now_ms = until_ms


def waited(store: CableStore, coming: dict[int, bytes]) -> tuple[Link | None, int]:
    """Return the link that a member uses, and the milliseconds that it waited."""
    clock = Clock(store, {START_MS + after_ms: raw for after_ms, raw in coming.items()})
    found = settled_announcement(store, CONTROL.public_key, clock=clock, sleep=clock.sleep)
    return found.link if found else None, clock.now_ms - START_MS


def store_with(*raws: bytes) -> CableStore:
    store = CableStore.in_memory(identity=ANN.identity, options=StoreOptions(clock=lambda: LATE_MS))
    assert all(outcome.verdict.name == "ACCEPTED" for outcome in store.ingest(raws))
    return store


# --- waiting ---------------------------------------------------------------------------------------


def test_a_member_waits_until_an_announcement_is_20_seconds_old() -> None:
    assert ANNOUNCEMENT_WAIT_MS == 20_000
    assert waited(store_with(), {}) == (None, 0)
    assert waited(store_with(announcement_post(1, LINKS[1], START_MS)), {}) == (LINKS[1], 20_000)
    assert waited(store_with(announcement_post(1, LINKS[1], START_MS - 5_000)), {}) == (LINKS[1], 15_000)
    assert waited(store_with(announcement_post(1, LINKS[1], START_MS - 10**9)), {}) == (LINKS[1], 0)


def test_a_member_waits_no_longer_if_the_clock_of_the_control_node_is_ahead() -> None:
    assert waited(store_with(announcement_post(1, LINKS[1], START_MS + 3_600_000)), {}) == (LINKS[1], 20_000)


def test_a_newer_announcement_restarts_the_wait() -> None:
    store = store_with(announcement_post(1, LINKS[1], START_MS))
    assert waited(
        store,
        {19_000: announcement_post(2, LINKS[2], START_MS + 18_000), 30_000: announcement_post(3, LINKS[3], START_MS)},
    ) == (
        LINKS[3],
        50_000,
    )


def test_only_newer_announcements_of_the_control_node_restart_the_wait() -> None:
    stranger = Identity.derive("archives", "stranger")
    chat = encode_post(
        Text(ARCHIVES_CHANNEL, "hello"), links=(), timestamp_ms=START_MS, identity=CONTROL, dialect=LEGACY
    )
    elsewhere = encode_post(
        Text("default", Announcement(99, LINKS[9 - 1]).text()),
        links=(),
        timestamp_ms=START_MS,
        identity=CONTROL,
        dialect=LEGACY,
    )
    coming = {
        5_000: announcement_post(9, LINKS[5], START_MS, stranger),
        6_000: announcement_post(4, LINKS[4], START_MS + 6_000),
        7_000: chat.raw,
        8_000: elsewhere.raw,
        10_000: announcement_post(5, LINKS[3], START_MS + 10_000),
    }
    assert waited(store_with(announcement_post(5, LINKS[1], START_MS)), coming) == (LINKS[1], 20_000)


@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(1, 60_000)), max_size=6, unique_by=(lambda x: x[0], lambda x: x[1])
    )
)
def test_a_member_uses_the_last_valid_announcement_20_seconds_after_it(coming: list[tuple[int, int]]) -> None:
    """Compare with a simple model: each announcement in time with a greater clock moves the end of the wait."""
    store = store_with(announcement_post(0, LINKS[0], START_MS))
    link, end_ms, clock = LINKS[0], 20_000, 0
    for number, at_ms in sorted(coming, key=lambda each: each[1]):
        # Members check once a second, so an announcement in the last second of the wait also counts.
        if at_ms <= end_ms and number > clock:
            link, clock = LINKS[number], number
            end_ms = -(-at_ms // 1000) * 1000 + 20_000
    assert waited(store, {at: announcement_post(number, LINKS[number], START_MS + at) for number, at in coming}) == (
        link,
        end_ms,
    )


def test_a_waiting_member_reports_the_link_that_it_waits_for() -> None:
    store = store_with(announcement_post(1, LINKS[1], START_MS))
    clock = Clock(store, {START_MS + 10_500: announcement_post(2, LINKS[2], START_MS)})
    reported: list[str] = []
    settled_announcement(store, CONTROL.public_key, clock=clock, sleep=clock.sleep, on_wait=reported.append)
    assert reported == [link_text(LINKS[1]), link_text(LINKS[2])]


# --- announcing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [LEGACY, DRAFT8], ids=lambda dialect: dialect.name)
def test_a_later_announcement_is_newer_even_if_the_clock_was_set_back(dialect: Dialect) -> None:
    with store_of((), dialect) as store:
        announce(store, LINKS[1], clock=lambda: START_MS)
        announce(store, LINKS[2], clock=lambda: START_MS - 10**9)
        found = newest_announcement(store, CONTROL.public_key)
    assert found is not None
    assert found[1] == Announcement(START_MS + 1, LINKS[2])


def test_a_link_to_the_archives_of_another_community_is_not_announced() -> None:
    with store_of(()) as store:
        with pytest.raises(ArchiveError, match="Announce a link to your own"):
            announce(store, Magnet("ab" * 20, "c0ffee"))
        assert newest_announcement(store, CONTROL.public_key) is None


@pytest.mark.parametrize("text", ["", "http://127.0.0.1/", "magnet:?dn=12", "codex:", "codex:z", "codex:magnet:?"])
def test_invalid_links_are_rejected(text: str) -> None:
    with pytest.raises(ArchiveError):
        parse_link(text)


def test_announcements_do_not_import_a_torrent_library() -> None:
    code = "import sys, cablestore.archive.member; print(*(name for name in ('libtorrent', 'aiohttp') if name in sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


# --- the channel of announcements --------------------------------------------------------------------


def test_only_peers_see_the_channel_of_announcements() -> None:
    with store_of([ANN.text("default", "hello", at=START_MS)]) as store:
        announce(store, LINKS[1])
        assert [channel.name for channel in store.channels()] == ["default"]
        assert [channel.name for channel in store.channels(with_reserved=True)] == [ARCHIVES_CHANNEL, "default"]
        assert store.stats().channels == 1
        assert channels_of(store, CONTROL.public_key) == []
        with store.snapshot() as snapshot:
            assert list(answers.channel_list(snapshot.reader)) == [ARCHIVES_CHANNEL, "default"]


def test_a_sync_fetches_announcements_even_if_the_channel_was_unknown(tmp_path: Path) -> None:
    """A member that follows all channels, as by default, fetches announcements from any peer.

    Members do not join the channel.
    """
    settings = NodeSettings(cabal_key=KEY)

    async def work(control: CableStore, relay: CableStore, member: CableStore) -> None:
        for giver, taker in ((control, relay), (relay, member)):
            async with Node(giver, settings) as here, Node(taker, settings) as there:
                await there.sync_once(await here.listen(Address("127.0.0.1", 0)))

    with (
        CableStore.open(tmp_path / "control") as control,
        CableStore.open(tmp_path / "relay") as relay,
        CableStore.open(tmp_path / "member") as member,
    ):
        community = control.identity.public_key
        link = Magnet("ab" * 20, community.hex())
        announce(control, link)
        asyncio.run(work(control, relay, member))
        found = newest_announcement(member, community)
        assert found is not None
        assert found[1].link == link
        assert list(member.channels()) == []


# --- imported archives -------------------------------------------------------------------------------


def test_imported_archives_are_recorded_for_each_store(tmp_path: Path) -> None:
    verified = plan_of().verified(archived(store_of(some_weeks()), tmp_path / "made", plan_of()))
    assert verified is not None
    mine = ImportLog(tmp_path, b"a" * 32)
    assert len(wanted(verified, mine)) == len(verified.index.entries)
    for entry in verified.index.entries[:2]:
        mine.add(verified.commitments[entry.archive_id])
    again = ImportLog(tmp_path, b"a" * 32)
    assert len(again) == 2
    assert wanted(verified, again) == [*reversed(verified.index.entries[2:])]
    assert len(ImportLog(tmp_path)) == 2
    assert wanted(verified, ImportLog(tmp_path, b"b" * 32)) == [*reversed(verified.index.entries)]


def test_archives_to_import_are_limited_to_the_last_week_or_to_a_time_range(tmp_path: Path) -> None:
    verified = plan_of().verified(archived(store_of(some_weeks()), tmp_path / "made", plan_of()))
    assert verified is not None
    log = ImportLog(tmp_path)
    for entry in verified.index.entries:
        period = entry.period
        assert wanted(verified, log, after_ms=period.to_ms - 1, before_ms=period.from_ms + 1) == [entry]
        assert entry not in wanted(verified, log, after_ms=period.to_ms)
        assert entry not in wanted(verified, log, before_ms=period.from_ms)
    newest = verified.index.entries[-1]
    assert wanted(verified, log, latest=True) == [newest]
    log.add(verified.commitments[newest.archive_id])
    assert wanted(verified, log, latest=True) == []


def test_all_archives_of_a_week_are_imported_if_one_is_missing(tmp_path: Path) -> None:
    store = store_of(some_weeks(weeks=2))
    archived(store, tmp_path / "made", plan_of())
    store.ingest([ANN.text("default", "late", at=FIRST_MS + 1).raw])
    verified = plan_of().verified(archived(store, tmp_path / "made", plan_of()))
    assert verified is not None
    early, late, second = verified.index.entries
    assert early.period == late.period < second.period
    log = ImportLog(tmp_path)
    assert wanted(verified, log) == [second, early, late]
    for entry in (second, late):
        log.add(verified.commitments[entry.archive_id])
        assert wanted(verified, log)[-2:] == [early, late]
    log.add(verified.commitments[early.archive_id])
    assert wanted(verified, log) == []


def test_a_log_that_cannot_be_written_reports_the_problem(tmp_path: Path) -> None:
    """The archive is imported all the same."""
    first, second = (Commitment("0xaa", bytes(32), 1, bytes([number]) * 32) for number in range(2))
    imported = ImportLog(tmp_path)
    (tmp_path / "imported.json").mkdir()
    imported.add(first)
    assert "imported.json" in imported.problem
    assert imported.has(first)
    (tmp_path / "imported.json").rmdir()
    imported.add(second)
    assert imported.problem == ""
    assert len(ImportLog(tmp_path)) == 2


def test_archives_are_imported_again_after_the_store_lost_posts(tmp_path: Path) -> None:
    verified = plan_of().verified(archived(store_of(some_weeks()), tmp_path / "made", plan_of()))
    assert verified is not None
    commitment = verified.commitments[verified.index.entries[0].archive_id]
    with CableStore.open(tmp_path / "store") as store:
        store.post("default", "hello")
        ImportLog.of(store, tmp_path).add(commitment)
        store.post("default", "hello again")
        assert ImportLog.of(store, tmp_path).has(commitment)
        before = ImportLog.of(store, tmp_path)
        store.rebuild()
        assert not ImportLog.of(store, tmp_path).has(commitment)
        before.add(verified.commitments[verified.index.entries[1].archive_id])
        assert len(ImportLog.of(store, tmp_path)) == 1


def test_a_recreated_archive_at_the_same_offset_is_imported(tmp_path: Path) -> None:
    """The id depends only on position, week and topics."""
    imported = ImportLog(tmp_path)
    imported.add(Commitment("0xaa", bytes(32), 1, bytes([1]) * 32))
    assert imported.has(Commitment("0xbb", bytes(32), 1, bytes([1]) * 32))
    assert not imported.has(Commitment("0xaa", bytes(32), 1, bytes([2]) * 32))


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "store": null, "roots": 7}', b"\xff"]
)
def test_an_unreadable_import_log_is_treated_as_empty(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "imported.json").write_bytes(damage)
    assert len(ImportLog(tmp_path, b"a" * 32)) == 0
