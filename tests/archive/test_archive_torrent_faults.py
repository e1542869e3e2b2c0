"""Malformed torrents, malicious peers, and disks that are full or change: errors without data loss."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import libtorrent as lt
import pytest
from archive_network import Wire
from ctrl_c import interrupt_often
from torrents import (
    COMMUNITY,
    FOREIGN,
    HERE,
    bencoded,
    content,
    engine,
    fill,
    index_of,
    info,
    magnet_of,
    metainfo_of,
    now,
    opened,
    serving,
)
from waiting import LIMIT_S, wait_until

from cablestore import limits
from cablestore.archive.errors import NoRoomError
from cablestore.archive.remote import Span
from cablestore.archive.torrent.config import Peer
from cablestore.archive.torrent.engine import TorrentConfig
from cablestore.archive.torrent.remote import TorrentRemote
from cablestore.archive.torrent.session import Swarm, TorrentSession
from cablestore.errors import ArchiveError
from cablestore.interruptible import in_thread

PIECE = limits.PIECE_SIZE_BYTES


def is_loaded(info_: dict[bytes, Any]) -> bool:
    """Return True if libtorrent accepts the torrent for seeding."""
    try:
        lt.load_torrent_buffer(bencoded({b"info": info_}))
    except RuntimeError:
        return False
    return True


SERVED = [name for name in FOREIGN if is_loaded(FOREIGN[name]) and name != "private"]
"""Foreign torrents that libtorrent can seed. It does not send the metadata of private torrents."""


def test_the_important_foreign_torrents_can_be_served() -> None:
    assert {"climbs out", "absolute", "nested", "one file more", "another community", "a symlink"} <= {*SERVED}


@pytest.mark.parametrize("name", SERVED)
def test_foreign_metadata_are_rejected_before_any_file_is_created(tmp_path: Path, name: str) -> None:
    torrent = bencoded({b"info": FOREIGN[name]})
    with serving(torrent, tmp_path / "theirs") as port, engine(tmp_path / "b") as member:
        with pytest.raises(ArchiveError) as error:
            opened(member, magnet_of(FOREIGN[name]), port)
        assert "no peer sent" not in str(error.value)
        assert member.status(COMMUNITY) is None
        (tmp_path / "x.torrent").write_bytes(torrent)
        with pytest.raises(ArchiveError):
            opened(member, tmp_path / "x.torrent", port)
    assert [*(tmp_path / "b").iterdir(), *(tmp_path / "b t").iterdir()] == []


def test_valid_metadata_are_accepted_from_the_same_session(tmp_path: Path) -> None:
    """Torrents that differ from the rejected ones only in the tested property are accepted."""
    with serving(bencoded({b"info": info()}), tmp_path / "theirs") as port, engine(tmp_path / "b") as member:
        assert opened(member, magnet_of(info()), port).metainfo.info == bencoded(info())


def test_a_missing_or_invalid_torrent_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "no").write_bytes(b"no torrent")
    with engine(tmp_path / "b") as member:
        for path in (tmp_path / "no", tmp_path / "nothing", tmp_path):
            with pytest.raises(ArchiveError):
                member.open(path, community=COMMUNITY)


# --- peers -------------------------------------------------------------------------------------


def flipped(tmp_path: Path, *, keep: int) -> None:
    """Create folder `x` from `a`, with bits changed in data and index after the first pieces."""
    shutil.copytree(tmp_path / "a", tmp_path / "x")
    for name, at in (("data", keep * PIECE + 5), ("index", 5)):
        with (tmp_path / "x" / COMMUNITY / name).open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))


@pytest.mark.thorough
def test_pieces_with_flipped_bits_are_rejected(tmp_path: Path) -> None:
    """STALL_TIMEOUT_S, the default, limits the wait for a piece whose peer is banned."""
    assert TorrentConfig().stall_timeout_s == limits.STALL_TIMEOUT_S
    spans = fill(tmp_path / "a", [2, 3])
    flipped(tmp_path, keep=2)
    metainfo = metainfo_of(tmp_path / "a")
    with serving(metainfo.torrent(), tmp_path / "x") as port:
        with engine(tmp_path / "b", stall_timeout_s=3.0) as member:
            found: list[tuple[Span, bytes]] = []

            def is_banned() -> bool:
                """Fetch until the transfer stalls. On a busy machine, that may be before the changed piece arrives."""
                with pytest.raises(ArchiveError) as stalled:
                    found.extend(opened(member, str(metainfo.magnet()), port).fetch(spans))
                return re.search(r"banned.*Try again later", str(stalled.value)) is not None

            wait_until(is_banned)
            assert all(each == (spans[0], content(tmp_path / "a", spans[0])) for each in found)
            assert now(member).pieces_refused > 0
        with engine(tmp_path / "a") as giver:
            # Add an honest peer. libtorrent may ban both peers if each sent parts of the same piece.
            giver.seed(COMMUNITY)
            peers = ((HERE, port), (HERE, giver.port))
            got = wait_until(lambda: fetched(tmp_path / "b", str(metainfo.magnet()), peers, spans))
        assert got == {span: content(tmp_path / "a", span) for span in spans}
    assert metainfo_of(tmp_path / "b") == metainfo


def fetched(folder: Path, magnet: str, peers: tuple[Peer, ...], spans: list[Span]) -> dict[Span, bytes] | None:
    """Fetch the index and spans. Returns None if the transfer stalls. A later attempt starts without banned peers."""
    with engine(folder, stall_timeout_s=3.0) as member:
        remote = member.open(magnet, community=COMMUNITY, peers=peers)
        try:
            remote.index()
            return dict(remote.fetch(spans))
        except ArchiveError:
            return None


def test_a_seed_that_disconnects_idle_peers_is_contacted_again(tmp_path: Path) -> None:
    """Seeds of other clients disconnect peers without requests. libtorrent then regards such seeds as useless."""
    spans = fill(tmp_path / "a", [2, 3])
    metainfo = metainfo_of(tmp_path / "a")
    with serving(metainfo.torrent(), tmp_path / "a") as port, engine(tmp_path / "b") as member:
        remote = opened(member, str(metainfo.magnet()), port)

        def is_left() -> bool:
            status = remote.swarm.handle.status(0)
            return bool(status.list_peers > status.num_peers == status.connect_candidates == 0)

        wait_until(is_left)
        assert remote.index() == index_of(tmp_path / "a")
        assert dict(remote.fetch(spans)) == {span: content(tmp_path / "a", span) for span in spans}


def impatient(remote: TorrentRemote) -> TorrentRemote:
    """Shorten the stall time-out, after all expected data has arrived."""
    remote._config = replace(remote._config, stall_timeout_s=2.0)
    return remote


def test_a_sequence_of_malicious_peers_does_not_delay_a_fetch_forever(tmp_path: Path) -> None:
    """Each peer has a separate address, so none is banned before it sends a wrong piece.

    The number of peers exceeds the number that a fetch waits for.
    """
    fill(tmp_path / "a", [2, 3])
    flipped(tmp_path, keep=0)
    metainfo = metainfo_of(tmp_path / "a")
    with serving(metainfo.torrent(), tmp_path / "x") as port, engine(tmp_path / "b", stall_timeout_s=3.0) as member:
        remote = opened(member, str(metainfo.magnet()), port)

        def fetch_until_banned() -> None:
            """Fetch until the transfer stalls. On a busy machine, that may be before the first wrong piece arrives."""
            while True:
                with pytest.raises(ArchiveError) as stalled:
                    remote.index()
                if re.search(r"banned.*Try again later", str(stalled.value)):
                    return

        with ThreadPoolExecutor(1) as thread, ExitStack() as malicious_peers:
            fetch = thread.submit(fetch_until_banned)
            for _ in range(200):
                if fetch.done():
                    break
                remote.swarm.handle.connect_peer(malicious_peers.enter_context(Wire(port)).endpoint)
                time.sleep(0.5)
            assert fetch.done(), "the fetch continues as long as malicious peers connect"
            fetch.result()


@pytest.mark.thorough
def test_a_fetch_resumes_after_its_peer_was_offline(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", [2, 3])
    with engine(tmp_path / "b") as member:
        with engine(tmp_path / "a") as giver:
            port = giver.port
            remote = opened(member, giver.seed(COMMUNITY), giver)
            remote.index()
        with pytest.raises(ArchiveError, match="no piece of"):
            list(impatient(remote).fetch(spans))
        with engine(tmp_path / "a", port=port) as giver:
            magnet = giver.seed(COMMUNITY)
            remote = opened(member, magnet, giver)
            assert dict(remote.fetch(spans)) == {span: content(tmp_path / "a", span) for span in spans}


@pytest.mark.thorough
def test_a_peer_that_disconnects_is_contacted_again_before_a_fetch_fails(tmp_path: Path) -> None:
    """Many clients reject a connection while one with the same address exists, as a torrent leaves it here."""
    fill(tmp_path / "a", [2, 3])
    metainfo = metainfo_of(tmp_path / "a")
    with (
        serving(metainfo.torrent(), tmp_path / "a") as port,
        engine(tmp_path / "b", stall_timeout_s=limits.STALL_TIMEOUT_S) as member,
        Wire(port) as wire,
    ):
        opened(member, str(metainfo.magnet()), wire.endpoint[1]).close()
        wire.hang_ups = 5
        remote = opened(member, tmp_path / "b t" / f"{COMMUNITY}.torrent", wire.endpoint[1])
        assert remote.index() == index_of(tmp_path / "a")
        assert wire.hang_ups == 0


@pytest.mark.thorough
def test_a_seed_whose_files_changed_sends_no_wrong_data(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", [1, 1])
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        with (tmp_path / "a" / COMMUNITY / "data").open("r+b") as data:
            data.seek(PIECE + 9)
            data.write(b"changed")
        assert [span for span, _ in remote.fetch(spans[:1])] == spans[:1]
        with pytest.raises(ArchiveError, match="no piece of"):
            list(impatient(remote).fetch(spans[1:]))
        assert now(member).pieces_refused == 0
        before = (tmp_path / "a" / COMMUNITY / "data").read_bytes()
    assert (tmp_path / "a" / COMMUNITY / "data").read_bytes() == before


class _LastMoment(list[int]):
    """List of arrived pieces, where further pieces arrive directly after each read."""

    def __init__(self) -> None:
        super().__init__()
        self._coming: list[int] = []

    def append(self, piece: int) -> None:
        self._coming.append(piece)

    def __getitem__(self, key: Any) -> Any:
        here = super().__getitem__(key)
        self.extend(self._coming)
        self._coming = []
        return here


def test_a_piece_that_arrives_while_pieces_are_counted_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A separate thread handles alerts."""
    spans = fill(tmp_path / "a", [1, 3])
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b", stall_timeout_s=10.0) as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        monkeypatch.setattr(remote.swarm, "arrivals", _LastMoment())
        assert dict(remote.fetch(spans)) == {span: content(tmp_path / "a", span) for span in spans}


def test_ctrl_c_at_any_time_releases_the_locks_of_a_session(tmp_path: Path) -> None:
    """Otherwise the end of the session would wait forever for the thread that reads alerts."""
    config = TorrentConfig(enabled=True, port=0, listen_address=HERE, data_folder=tmp_path, torrent_folder=tmp_path)
    session, swarm = TorrentSession(config), Swarm(None, "", set())
    interrupt_often(lambda: session.end(swarm, "interrupted"), 300)
    in_thread(session.close).result(LIMIT_S)


# --- disks -------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_data_changed_on_disk_are_fetched_again(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", [4, 3])
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        remote.index()
        list(remote.fetch(spans))
        with (tmp_path / "b" / COMMUNITY / "data").open("r+b") as data:
            data.seek(5 * PIECE)
            data.write(b"changed")
        assert dict(remote.fetch(spans[::-1])) == {span: content(tmp_path / "a", span) for span in spans}
        assert now(member).downloaded_bytes == PIECE

        (tmp_path / "b" / COMMUNITY / "index").unlink()
        with suppress(ArchiveError):  # unless libtorrent still has the file open
            assert remote.index() == index_of(tmp_path / "a")
        remote = opened(member, giver.seed(COMMUNITY), giver)
        assert remote.index() == index_of(tmp_path / "a")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system of 4 MB if this process is permitted to mount one."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no right to mount a file system here")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_nothing_is_fetched_without_enough_disk_space(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MIN_FREE_DISK_SIZE_BYTES", 1_000_000)
    spans = fill(tmp_path / "a", [10, 60])
    with engine(tmp_path / "a") as giver, engine(small_disk / "b") as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        with pytest.raises(NoRoomError, match=r"6,144,000 bytes and a reserve of 1,000,000 needed, [\d,]+ available"):
            remote.fetch(spans[1:])
        assert now(member).downloaded_bytes == 0
        assert dict(remote.fetch(spans[:1])) == {spans[0]: content(tmp_path / "a", spans[0])}


def test_a_fetch_reserves_disk_space_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MIN_FREE_DISK_SIZE_BYTES. Data that is already stored is returned also on a fuller disk."""
    spans = fill(tmp_path / "a", [1, 2])
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        assert [span for span, _ in remote.fetch(spans[:1])] == spans[:1]
        monkeypatch.setattr(limits, "MIN_FREE_DISK_SIZE_BYTES", 2**62)
        assert [span for span, _ in remote.fetch(spans[:1])] == spans[:1]
        with pytest.raises(NoRoomError, match=r"204,800 bytes and a reserve of 4,611,686,018,427,387,904 needed"):
            remote.fetch(spans)


@pytest.mark.thorough
def test_a_disk_that_fills_up_during_a_fetch_causes_an_error_without_loss(
    tmp_path: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MIN_FREE_DISK_SIZE_BYTES", 0)
    spans = fill(tmp_path / "a", [5, 25])
    with engine(tmp_path / "a") as giver:
        magnet = giver.seed(COMMUNITY)
        with engine(small_disk / "b", download_rate_bytes_per_s=1_000_000) as member:
            remote = opened(member, magnet, giver)
            fetching = remote.fetch(spans)
            next(fetching)
            impatient(remote)
            (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free - 500_000))
            with pytest.raises(ArchiveError, match=r"space|stopped|no piece"):
                list(fetching)
        (small_disk / "ballast").unlink()
        with engine(small_disk / "b") as member:
            remote = opened(member, magnet, giver)
            assert now(member).pieces_here >= 5
            assert dict(remote.fetch(spans)) == {span: content(tmp_path / "a", span) for span in spans}


def test_the_size_of_a_requested_archive_is_limited(tmp_path: Path) -> None:
    """MAX_STORED_ARCHIVE_SIZE_BYTES: an archive of that size may be requested; a larger one is never read."""
    pieces = 2 * limits.MAX_STORED_ARCHIVE_SIZE_BYTES // PIECE
    files = [{b"length": pieces * PIECE, b"path": [b"data"]}, {b"length": 7, b"path": [b"index"]}]
    (tmp_path / "large.torrent").write_bytes(bencoded({b"info": info(files=files, pieces=bytes(20 * (pieces + 1)))}))
    with engine(tmp_path / "b") as member:
        remote = member.open(tmp_path / "large.torrent", community=COMMUNITY)
        remote.fetch([Span(5, limits.MAX_STORED_ARCHIVE_SIZE_BYTES)])
        with pytest.raises(ArchiveError, match="MAX_STORED_ARCHIVE_SIZE_BYTES"):
            remote.fetch([Span(5, limits.MAX_STORED_ARCHIVE_SIZE_BYTES + 1)])
