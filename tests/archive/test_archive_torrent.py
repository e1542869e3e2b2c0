"""Torrents over loopback with real sessions and processes: only requested data is transferred, once, and is valid."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import libtorrent as lt
import pytest
from folders import SUPPORT
from torrents import (
    COMMUNITY,
    HERE,
    config,
    content,
    engine,
    fill,
    index_of,
    metainfo_of,
    now,
    opened,
    session_of,
    tracker,
)
from waiting import LIMIT_S, wait_until

from cablestore import limits
from cablestore.archive.remote import Remote, Span
from cablestore.archive.torrent.engine import TorrentConfig, TorrentEngine
from cablestore.errors import ArchiveError

PIECE = limits.PIECE_SIZE_BYTES
ARCHIVES = [4, 1, 9, 2, 13, 3, 1, 8, 5, 4]
"""Number of pieces of each archive: 5 MB in total."""


@pytest.fixture
def child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Yield a function that starts `torrent_child.py`. The test ends the remaining processes."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(SUPPORT / "torrent_child.py"), *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, **pipes))  # type: ignore[call-overload] # the same for each
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


# --- transfers ---------------------------------------------------------------------------------


def test_only_requested_data_are_transferred(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", ARCHIVES)
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        magnet = giver.seed(COMMUNITY)
        remote: Remote[Span] = opened(member, magnet, giver)
        assert not (tmp_path / "b" / COMMUNITY).exists()

        assert remote.index() == index_of(tmp_path / "a")
        assert now(member).downloaded_bytes == 3_000

        progress: list[tuple[int, int]] = []
        assert list(remote.fetch([spans[4]], lambda *here: progress.append(here))) == [
            (spans[4], content(tmp_path / "a", spans[4]))
        ]
        assert now(member).downloaded_bytes == 3_000 + 13 * PIECE
        assert progress[-1] == (13 * PIECE, 13 * PIECE)
        assert progress == sorted(progress)

        newest_first = spans[::-1]
        found = list(remote.fetch(newest_first, lambda *here: progress.append(here)))
        assert found == [(span, content(tmp_path / "a", span)) for span in newest_first]
        assert now(member).downloaded_bytes == now(giver).uploaded_bytes == 3_000 + 50 * PIECE
        assert progress[-1] == (50 * PIECE, 50 * PIECE)
    for name in ("data", "index"):
        assert (tmp_path / "a" / COMMUNITY / name).read_bytes() == (tmp_path / "b" / COMMUNITY / name).read_bytes()


@pytest.mark.thorough
def test_only_appended_data_are_transferred(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", ARCHIVES)
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        before = remote.index()
        list(remote.fetch(spans))

        # The new index is shorter than the existing one.
        new = fill(tmp_path / "a", [3], index_size_bytes=2_000, seed=2)
        remote = opened(member, giver.seed(COMMUNITY), giver)
        assert now(member).pieces_here == 50
        index = remote.index()
        assert index == index_of(tmp_path / "a") != before
        assert now(member).downloaded_bytes == 2_000
        found = dict(remote.fetch([*new, *spans]))
        assert found == {span: content(tmp_path / "a", span) for span in new + spans}
        assert now(member).downloaded_bytes == now(giver).uploaded_bytes == 2_000 + 3 * PIECE
    assert metainfo_of(tmp_path / "b") == metainfo_of(tmp_path / "a")


def test_spans_do_not_have_to_be_whole_pieces(tmp_path: Path) -> None:
    fill(tmp_path / "a", ARCHIVES)
    size = 50 * PIECE
    spans = [Span(0, 1), Span(PIECE - 1, 2), Span(7 * PIECE + 5, 3 * PIECE), Span(size - 1, 1), Span(7 * PIECE + 5, 9)]
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        assert list(remote.fetch(spans)) == [(span, content(tmp_path / "a", span)) for span in spans]
        assert now(member).downloaded_bytes == (2 + 4 + 1) * PIECE
        for bad in (Span(-1, 1), Span(0, 0), Span(0, -1), Span(size, 1), Span(0, size + 1), Span(2**62, 2**62)):
            with pytest.raises(ArchiveError):
                remote.fetch([spans[0], bad])
        assert list(remote.fetch([])) == []


def test_peers_find_each_other_by_trackers_alone(tmp_path: Path) -> None:
    """The peers do not know each other; both query the configured tracker."""
    spans = fill(tmp_path / "a", [2, 1])
    with (
        tracker() as url,
        engine(tmp_path / "a", trackers=(url,)) as giver,
        engine(tmp_path / "b", trackers=(url,)) as member,
    ):
        magnet = giver.seed(COMMUNITY)
        assert "tr=http%3A%2F%2F127.0.0.1" in magnet
        remote = member.open(magnet, community=COMMUNITY)
        assert remote.index() == index_of(tmp_path / "a")
        assert dict(remote.fetch(spans)) == {span: content(tmp_path / "a", span) for span in spans}


@pytest.mark.thorough
def test_a_member_seeds_its_archives(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", [2, 3, 4])
    with engine(tmp_path / "b") as member, engine(tmp_path / "c") as other:
        with engine(tmp_path / "a") as giver:
            magnet = giver.seed(COMMUNITY)
            remote = opened(member, magnet, giver)
            remote.index()
            list(remote.fetch(spans[1:]))
        later = opened(other, magnet, member)
        assert later.index() == index_of(tmp_path / "a")
        assert dict(later.fetch(spans[1:])) == {span: content(tmp_path / "a", span) for span in spans[1:]}


def test_only_the_newest_torrent_is_seeded(tmp_path: Path) -> None:
    """METADATA_TIMEOUT_S, the default of the configuration, limits the attempts for a link without a seed."""
    assert TorrentConfig().metadata_timeout_s == limits.METADATA_TIMEOUT_S == 20
    fill(tmp_path / "a", [1])
    with (
        engine(tmp_path / "a") as giver,
        engine(tmp_path / "b") as member,
        engine(tmp_path / "c", metadata_timeout_s=2.0) as impatient,
    ):
        old = giver.seed(COMMUNITY)
        assert giver.seed(COMMUNITY) == old
        fill(tmp_path / "a", [1], seed=2)
        new = giver.seed(COMMUNITY)
        assert new != old
        with pytest.raises(ArchiveError, match="no peer sent the metadata"):
            opened(impatient, old, giver)
        opened(member, new, giver).index()
        giver.unseed(COMMUNITY)
        assert giver.status(COMMUNITY) is None
    assert [path.name for path in (tmp_path / "b t").iterdir()] == [f"{COMMUNITY}.torrent"]


def test_a_torrent_file_is_accepted_instead_of_a_link(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", [2, 1])
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        giver.seed(COMMUNITY)
        remote = opened(member, tmp_path / "a t" / f"{COMMUNITY}.torrent", giver)
        assert remote.index() == index_of(tmp_path / "a")
        assert dict(remote.fetch(spans[:1])) == {spans[0]: content(tmp_path / "a", spans[0])}
        with pytest.raises(ArchiveError, match="expected the community"):
            member.open(giver.seed(COMMUNITY), community="beef")


# --- interruptions -----------------------------------------------------------------------------


def whole_pieces(made: Path, folder: Path) -> int:
    """Return the number of pieces of `data` in a folder that equal the original."""
    path = folder / COMMUNITY / "data"
    here, whole = path.read_bytes() if path.exists() else b"", (made / COMMUNITY / "data").read_bytes()
    return sum(here[at : at + PIECE] == whole[at : at + PIECE] for at in range(0, len(whole), PIECE))


@pytest.mark.thorough
def test_a_repeatedly_killed_fetch_completes(tmp_path: Path, child: Callable[..., subprocess.Popen[str]]) -> None:
    """The fetching process is killed at random. All data is fetched, and written data is not fetched again."""
    spans = fill(tmp_path / "a", ARCHIVES)
    giver = child("seed", tmp_path / "a")
    assert giver.stdout
    magnet, port = giver.stdout.readline().split()
    rng = random.Random(7)
    killed_at: list[int] = []
    written = 0
    for _ in range(4):
        fetching = child("fetch", tmp_path / "b", magnet, port, 1_000_000, json.dumps(spans[::-1]))
        assert fetching.stdout
        until_bytes = (killed_at or [0])[-1] + rng.randrange(3, 8) * PIECE
        for line in fetching.stdout:
            if line.startswith("here") and int(line.split()[1]) >= until_bytes:
                killed_at.append(int(line.split()[1]))
                break
        fetching.kill()
        fetching.wait()
        before, written = written, whole_pieces(tmp_path / "a", tmp_path / "b")
        assert written >= before
    assert killed_at == sorted(set(killed_at))
    assert killed_at[-1] < 50 * PIECE

    last = child("fetch", tmp_path / "b", magnet, port, 0, json.dumps(spans[::-1]))
    said = [line.split() for line in last.communicate()[0].splitlines()]
    archives = [(int(words[1]), words[2]) for words in said if words[0] == "archive"]
    assert archives == [
        (span.offset_bytes, hashlib.sha256(content(tmp_path / "a", span)).hexdigest()) for span in spans[::-1]
    ]
    assert int(said[-1][1]) < 50 * PIECE - killed_at[-1] // 2
    assert int(said[-1][1]) <= (50 - written + 1) * PIECE
    assert metainfo_of(tmp_path / "b") == metainfo_of(tmp_path / "a")


@pytest.mark.thorough
def test_a_fetch_is_cancelled_immediately_and_resumed(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", ARCHIVES)
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b", download_rate_bytes_per_s=1_000_000) as member:
        magnet = giver.seed(COMMUNITY)
        remote = opened(member, magnet, giver)

        def cancel() -> None:
            wait_until(lambda: now(member).pieces_here)
            remote.cancel()

        cancelling = threading.Thread(target=cancel)
        cancelling.start()
        with pytest.raises(ArchiveError, match="cancelled"):
            list(remote.fetch(spans))
        with pytest.raises(ArchiveError, match="cancelled"):
            remote.index()
        cancelling.join()
        kept = now(member).pieces_here
        assert 0 < kept < 50
        remote.close()
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        giver.seed(COMMUNITY)
        remote = opened(member, magnet, giver)
        assert dict(remote.fetch(spans)) == {span: content(tmp_path / "a", span) for span in spans}
        assert now(member).downloaded_bytes <= (50 - kept) * PIECE


def requests_a_block(member: TorrentEngine) -> bool:
    """Return True if a block is requested from a peer."""
    [torrent] = session_of(member).get_torrents()
    return any(block["state"] == 1 for piece in torrent.get_download_queue() for block in piece["blocks"])


@pytest.mark.thorough
def test_closing_the_iterator_stops_the_fetch(tmp_path: Path) -> None:
    spans = fill(tmp_path / "a", ARCHIVES)
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b", download_rate_bytes_per_s=500_000) as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        fetching = remote.fetch(spans)
        assert next(fetching)[0] == spans[0]
        assert now(member).pieces_here < 50  # the others arrive later
        fetching.close()  # type: ignore[attr-defined] # it is a generator
        wait_until(lambda: not requests_a_block(member))  # blocks that are requested still arrive
        assert now(member).downloaded_bytes < 50 * PIECE
        assert dict(remote.fetch(spans)) == {span: content(tmp_path / "a", span) for span in spans}


def test_existing_data_are_not_fetched_without_a_resume_file(tmp_path: Path) -> None:
    """Holes, truncated ends and changed bits of an interrupted fetch are found; all other data is kept."""
    spans = fill(tmp_path / "a", ARCHIVES)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with (tmp_path / "b" / COMMUNITY / "data").open("r+b") as data:
        data.seek(20 * PIECE + 77)
        data.write(b"other")
        data.truncate(47 * PIECE + 1)
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        assert now(member).pieces_here == 50 - 3 + 1 - 1
        assert remote.index() == index_of(tmp_path / "a")
        assert dict(remote.fetch(spans)) == {span: content(tmp_path / "a", span) for span in spans}
        assert now(member).downloaded_bytes == 4 * PIECE


# --- sockets ------------------------------------------------------------------------------------


def sockets() -> set[tuple[str, str]]:
    """Return the TCP and UDP sockets of this process: inodes, and local addresses in hex as in /proc."""
    own, found = set(), set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # other threads close files at the same time
            link = str(path.readlink())
            own |= {link[8:-1]} if link.startswith("socket:[") else set()
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in own:
                found.add((fields[9], fields[1].split(":")[0]))
    return found


def new_addresses(before: set[tuple[str, str]]) -> set[str]:
    """Return the local addresses of sockets that were opened since. Earlier tests may have left some open."""
    return {address for _, address in sockets() - before}


def test_sockets_listen_only_on_loopback_by_default(tmp_path: Path) -> None:
    here = socket.inet_aton(HERE)[::-1].hex().upper()
    before = sockets()
    spans = fill(tmp_path / "a", [2, 1])
    with engine(tmp_path / "a") as giver, engine(tmp_path / "b") as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        list(remote.fetch(spans))
        assert new_addresses(before) == {here}
    assert new_addresses(before) == set()
    with engine(tmp_path / "a", listen_address="127.0.0.2"):  # a socket at another address is detected
        assert new_addresses(before) == {here.replace("1", "2", 1)}


def test_torrents_and_discovery_are_disabled_by_default(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="torrents are disabled"), TorrentEngine(TorrentConfig()):
        pass
    assert TorrentConfig().port == 9025
    assert TorrentConfig().listen_address == HERE
    fill(tmp_path / "a", [1])
    with engine(tmp_path / "a") as giver:
        giver.seed(COMMUNITY)
        session = session_of(giver)
        assert not session.is_dht_running()
        settings = session.get_settings()
        for name in ("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp"):
            assert settings[name] is False
        assert session.get_torrents()[0].trackers() == []


THREADS = """
import json, os, sys
from pathlib import Path
from torrents import COMMUNITY, engine, fill
folder = Path(sys.argv[1])
def threads():
    return [int(each) for each in os.listdir("/proc/self/task")]
fill(folder, [1])
before = threads()
with engine(folder) as giver:
    giver.seed(COMMUNITY)
    during = threads()
print(json.dumps([before, during]), flush=True)
sys.stdin.read()
"""


def test_threads_end_when_the_engine_is_closed(tmp_path: Path) -> None:
    """A separate process is used, as it has no other threads.

    The system needs a moment to remove a thread that has ended.
    """
    command = [sys.executable, "-c", THREADS, str(tmp_path / "a")]
    path = os.pathsep.join((str(SUPPORT), os.environ.get("PYTHONPATH", "")))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, **pipes) as child:  # type: ignore[call-overload] # mypy does not look into `pipes`
        before, during = json.loads(child.stdout.readline())
        assert len(during) > len(before)
        tasks = Path(f"/proc/{child.pid}/task")
        wait_until(lambda: {int(each.name) for each in tasks.iterdir()} == {*before}, "a thread outlives the engine")
        child.communicate()


def test_a_closed_engine_rejects_calls(tmp_path: Path) -> None:
    fill(tmp_path / "a", [1])
    with engine(tmp_path / "a") as giver:
        giver.seed(COMMUNITY)
    with pytest.raises(ArchiveError, match="closed"):
        giver.seed(COMMUNITY)


def test_a_port_in_use_is_rejected(tmp_path: Path) -> None:
    with engine(tmp_path / "a") as first, pytest.raises(ArchiveError, match=f"port {first.port}"):
        engine(tmp_path / "b", port=first.port).__enter__()


def waits_for_its_rate(limited: TorrentEngine, side: str) -> bool:
    """Return True if the data of a peer waits because of a rate limit."""
    peers = [peer for torrent in session_of(limited).get_torrents() for peer in torrent.get_peer_info()]
    states = [peer.write_state if side == "giver" else peer.read_state for peer in peers]
    return any(int(state) & int(lt.peer_info.bw_limit) for state in states)


@pytest.mark.thorough("member")
@pytest.mark.parametrize("side", ["giver", "member"])
def test_rate_limits_apply_to_local_peers(tmp_path: Path, side: str) -> None:
    up = {"upload_rate_bytes_per_s": 100_000 if side == "giver" else 0}
    down = {"download_rate_bytes_per_s": 100_000 if side == "member" else 0}
    spans = fill(tmp_path / "a", [60])

    def fetch() -> None:
        with suppress(ArchiveError):  # it is cancelled
            list(remote.fetch(spans))

    with engine(tmp_path / "a", **up) as giver, engine(tmp_path / "b", **down) as member:
        remote = opened(member, giver.seed(COMMUNITY), giver)
        fetching = threading.Thread(target=fetch)
        fetching.start()
        limited, free = (giver, member) if side == "giver" else (member, giver)
        wait_until(lambda: waits_for_its_rate(limited, side))
        assert not waits_for_its_rate(free, "member" if side == "giver" else "giver")
        remote.cancel()
        fetching.join()


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 65_536},
        {"port": -1},
        {"listen_address": "localhost"},
        {"peers": (("localhost", 1),)},
        {"peers": ((HERE, 0),)},
        {"trackers": ("127.0.0.1",)},
        {"upload_rate_bytes_per_s": -1},
    ],
)
def test_an_invalid_configuration_is_rejected(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ArchiveError):
        config(tmp_path / "a", **wrong)


# --- other clients -----------------------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("aria2c"), reason="aria2c is not installed")
def test_aria2_downloads_archives_intact(tmp_path: Path) -> None:
    fill(tmp_path / "a", ARCHIVES)
    with tracker() as url, engine(tmp_path / "a", trackers=(url,)) as giver:
        giver.seed(COMMUNITY)
        switches = ["enable-dht=false", "enable-dht6=false", "bt-enable-lpd=false", "enable-peer-exchange=false"]
        switches += [
            "seed-time=0",
            f"bt-stop-timeout={LIMIT_S}",
            f"interface={HERE}",
            f"dir={tmp_path / 'aria'}",
            "no-conf=true",
        ]
        torrent = tmp_path / "a t" / f"{COMMUNITY}.torrent"
        command = ["aria2c", *(f"--{switch}" for switch in switches), str(torrent)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stdout
        assert now(giver).uploaded_bytes >= 50 * PIECE
    assert metainfo_of(tmp_path / "aria") == metainfo_of(tmp_path / "a")
