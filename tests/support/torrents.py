"""Parts of tests of torrents: folders of archives, engines on loopback, foreign torrents and a tracker."""

from __future__ import annotations

import hashlib
import random
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import libtorrent as lt
from waiting import LIMIT_S

from cablestore import limits
from cablestore.archive.remote import Span
from cablestore.archive.torrent.engine import TorrentConfig, TorrentEngine, TorrentRemote, TorrentStatus
from cablestore.archive.torrent.metainfo import Metainfo, make_metainfo
from cablestore.limits import PIECE_SIZE_BYTES

COMMUNITY = "c0ffee" * 10
HERE = "127.0.0.1"


def fill(folder: Path, pieces: list[int], *, index_size_bytes: int = 3_000, seed: int = 1) -> list[Span]:
    """Append archives of N pieces each to a community's `data`, write another index, and return their positions."""
    rng = random.Random(seed)
    community = folder / COMMUNITY
    community.mkdir(parents=True, exist_ok=True)
    spans = []
    with (community / "data").open("ab") as data:
        for number in pieces:
            spans.append(Span(data.tell(), number * PIECE_SIZE_BYTES))
            data.write(rng.randbytes(number * PIECE_SIZE_BYTES))
    # Like stores write it: a process with the earlier file open keeps it.
    new = community / "index.new"
    new.write_bytes(rng.randbytes(index_size_bytes))
    new.replace(community / "index")
    return spans


def content(folder: Path, span: Span) -> bytes:
    with (folder / COMMUNITY / "data").open("rb") as data:
        data.seek(span.offset_bytes)
        return data.read(span.size_bytes)


def session_of(engine: TorrentEngine) -> lt.session:
    """Return the session of libtorrent that an engine has begun."""
    assert engine._session is not None
    session: lt.session = engine._session._session
    return session


def index_of(folder: Path) -> bytes:
    return (folder / COMMUNITY / "index").read_bytes()


def config(folder: Path, **more: Any) -> TorrentConfig:
    """Return a configuration with any port and separate folders.

    Timeouts are short only if the test sets them.
    """
    settings = {"port": 0, "metadata_timeout_s": LIMIT_S, "stall_timeout_s": LIMIT_S, **more}
    return TorrentConfig(
        enabled=True, data_folder=folder, torrent_folder=folder.with_name(f"{folder.name} t"), **settings
    )


def engine(folder: Path, **more: Any) -> TorrentEngine:
    return TorrentEngine(config(folder, **more))


def opened(member: TorrentEngine, magnet: str | Path, giver: TorrentEngine | int) -> TorrentRemote:
    port = giver if isinstance(giver, int) else giver.port
    return member.open(magnet, community=COMMUNITY, peers=((HERE, port),))


def now(of: TorrentEngine) -> TorrentStatus:
    status = of.status(COMMUNITY)
    assert status
    return status


def metainfo_of(folder: Path) -> Metainfo:
    with (folder / COMMUNITY / "data").open("rb") as data, (folder / COMMUNITY / "index").open("rb") as index:
        return make_metainfo(COMMUNITY, data, index)


def info(**changes: Any) -> dict[bytes, Any]:
    """Return the info dictionary of a torrent of two pieces and an index, as another program created it."""
    files = [{b"length": 2 * PIECE_SIZE_BYTES, b"path": [b"data"]}, {b"length": 7, b"path": [b"index"]}]
    found = {b"files": files, b"name": COMMUNITY.encode(), b"piece length": PIECE_SIZE_BYTES, b"pieces": bytes(60)}
    found |= {key.replace("_", " ").encode(): value for key, value in changes.items()}
    return {key: value for key, value in found.items() if value is not None}


@contextmanager
def serving(torrent: bytes, folder: Path) -> Iterator[int]:
    """Run a foreign session that serves this torrent without checking the data. Yields its port."""
    inward: Any = dict.fromkeys(("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp"), False)
    inward |= {"listen_interfaces": f"{HERE}:0", "disable_hash_checks": True}
    inward["alert_mask"] = lt.alert.category_t.status_notification
    session = lt.session(inward)
    params = lt.load_torrent_buffer(torrent)
    params.save_path = str(folder)
    params.flags &= ~(lt.torrent_flags.auto_managed | lt.torrent_flags.paused)
    params.flags |= lt.torrent_flags.seed_mode | lt.torrent_flags.upload_mode
    session.add_torrent(params)
    while not any(isinstance(alert, lt.torrent_checked_alert) for alert in session.pop_alerts()):
        assert session.wait_for_alert(1_000 * LIMIT_S), "it does not take up its torrent"
    yield session.listen_port()


def bencoded(value: Any) -> bytes:
    return bytes(lt.bencode(value))


def magnet_of(info_: dict[bytes, Any]) -> str:
    info_hash = hashlib.sha1(bencoded(info_)).hexdigest()
    return f"magnet:?xt=urn:btih:{info_hash}&dn={COMMUNITY}"


@contextmanager
def tracker() -> Iterator[str]:
    """Run an HTTP tracker (BEP 3, BEP 23) on loopback. Yields its URL."""
    ports: dict[bytes, set[int]] = {}

    class Announce(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query, encoding="latin-1")
            swarm = ports.setdefault(query["info_hash"][0].encode("latin-1"), set())
            own = int(query["port"][0])
            peers = b"".join(b"\x7f\x00\x00\x01" + port.to_bytes(2, "big") for port in swarm - {own})
            (swarm.discard if query.get("event") == ["stopped"] else swarm.add)(own)
            body = bencoded({b"interval": 1, b"min interval": 1, b"peers": peers})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):  # the requesting peer may be gone
                self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    socketserver.TCPServer.allow_reuse_address = True
    with ThreadingHTTPServer((HERE, 0), Announce) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://{HERE}:{server.server_port}/announce"
        server.shutdown()
        thread.join()


PIECE = limits.PIECE_SIZE_BYTES


def files(*found: tuple[int, list[bytes]], **more: Any) -> list[dict[bytes, Any]]:
    return [
        {b"length": size, b"path": path, **{key.encode(): value for key, value in more.items()}} for size, path in found
    ]


SYMLINK = {b"attr": b"l", b"length": 0, b"path": [b"link"], b"symlink path": [b"..", b"etc"]}
FOREIGN = {
    "climbs out": info(files=files((2 * PIECE, [b"..", b"data"]), (7, [b"index"]))),
    "absolute": info(files=files((2 * PIECE, [b"/etc/data"]), (7, [b"index"]))),
    "nested": info(files=files((2 * PIECE, [b"data", b"data"]), (7, [b"index"]))),
    "no path": info(files=files((2 * PIECE, []), (7, [b"index"]))),
    "other names": info(files=files((2 * PIECE, [b"data"]), (7, [b"Index"]))),
    "other order": info(files=files((7, [b"index"]), (2 * PIECE, [b"data"]))),
    "twice the same": info(files=files((2 * PIECE, [b"data"]), (7, [b"data"]))),
    "one file more": info(files=files((2 * PIECE, [b"data"]), (7, [b"index"]), (0, [b"run.sh"]))),
    "one file less": info(files=files((2 * PIECE + 7, [b"data"]))),
    "a symlink": info(files=[*files((2 * PIECE, [b"data"]), (7, [b"index"])), SYMLINK]),
    "symlinks": info(files=files((2 * PIECE, [b"data"]), (7, [b"index"]), attr=b"l")),
    "a symlink's target": info(files=files((2 * PIECE, [b"data"]), (7, [b"index"]), **{"symlink path": [b"x"]})),
    "executable": info(files=files((2 * PIECE, [b"data"]), (7, [b"index"]), attr=b"x")),
    "a list as length": info(files=files(([1], [b"data"]), (7, [b"index"]))),  # type: ignore[arg-type] # on purpose
    "negative": info(files=files((-PIECE, [b"data"]), (7, [b"index"]))),
    "no whole piece": info(files=files((2 * PIECE - 1, [b"data"]), (7, [b"index"]))),
    "no data": info(files=files((0, [b"data"]), (7, [b"index"])), pieces=bytes(20)),
    "no index": info(files=files((2 * PIECE, [b"data"]), (0, [b"index"])), pieces=bytes(40)),
    "files as text": info(files=b"data"),
    "a single file": info(files=None, length=2 * PIECE),
    "another community": info(name=b"beef"),
    "a name that climbs": info(name=b".."),
    "a name as number": info(name=7),
    "other pieces": info(piece_length=131_072),
    "too few hashes": info(pieces=bytes(40)),
    "too many hashes": info(pieces=bytes(80)),
    "half a hash": info(pieces=bytes(59)),
    "hashes as number": info(pieces=1),
    "private": info(private=1),
    "version 2 beside it": info(meta_version=2, file_tree={}),
    "huge": info(files=files((2**40 // PIECE * PIECE, [b"data"]), (7, [b"index"]))),
    "as large as numbers are": info(files=files((2**62 // PIECE * PIECE, [b"data"]), (2**62, [b"index"]))),
}
