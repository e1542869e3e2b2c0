"""Torrents over loopback: fetch all, fetch one of 52 archives, resume, and hash. `torrent.py [MB]`, 52 by default."""

from __future__ import annotations

import io
import random
import tempfile
from pathlib import Path

from common import median, print_result, seconds, size_given

from cablestore.archive.remote import Span
from cablestore.archive.torrent.engine import TorrentConfig, TorrentEngine, TorrentRemote
from cablestore.archive.torrent.metainfo import make_metainfo
from cablestore.limits import PIECE_SIZE_BYTES

COMMUNITY = "c0ffee" * 10
ARCHIVES = 52
INDEX_SIZE_BYTES = 20_000
"""Size of an index of a year's archives, 200 bytes each, with a margin."""


def build(folder: Path, pieces_each: int) -> list[Span]:
    """Create a community's folder of 52 incompressible archives. Return their positions."""
    rng = random.Random(1)
    (folder / COMMUNITY).mkdir(parents=True)
    size_bytes = pieces_each * PIECE_SIZE_BYTES
    with (folder / COMMUNITY / "data").open("wb") as data:
        for _ in range(ARCHIVES):
            data.write(rng.randbytes(size_bytes))
    (folder / COMMUNITY / "index").write_bytes(rng.randbytes(INDEX_SIZE_BYTES))
    return [Span(number * size_bytes, size_bytes) for number in range(ARCHIVES)]


def engine(folder: Path) -> TorrentEngine:
    """Create an engine on a free port."""
    torrents = folder.with_name(f"{folder.name} torrents")
    return TorrentEngine(TorrentConfig(enabled=True, port=0, data_folder=folder, torrent_folder=torrents))


def opened(member: TorrentEngine, giver: TorrentEngine) -> TorrentRemote:
    """Open a torrent by its magnet link."""
    return member.open(giver.seed(COMMUNITY), community=COMMUNITY, peers=(("127.0.0.1", giver.port),))


def downloaded_bytes(member: TorrentEngine) -> int:
    """Return the payload received since the torrent was opened."""
    status = member.status(COMMUNITY)
    assert status
    return status.downloaded_bytes


def fetch_all(scratch: Path, spans: list[Span]) -> None:
    """Measure three members in turn, including metadata, from opening to the last byte. Print the median."""
    total_mb = sum(span.size_bytes for span in spans) / 1e6
    runs = []
    with engine(scratch / "giver") as giver:
        giver.seed(COMMUNITY)
        for number in range(3):
            with engine(scratch / f"member {number}") as member:
                opening_s = seconds(lambda: opened(member, giver).index())
                fetching_s = seconds(lambda: list(map(len, opened(member, giver).fetch(spans[::-1]))))
                runs.append((fetching_s, opening_s))
    fetching_s, opening_s = sorted(runs)[1]
    rate = total_mb / fetching_s
    print_result("  magnet link to index", f"{opening_s:.2f} s", "")
    print_result(
        f"fetch of {total_mb:.0f} MB in {ARCHIVES} archives, newest first",
        f"{rate:.0f} MB/s",
        "at least 30",
        rate >= 30,
    )


def fetch_one(scratch: Path, spans: list[Span]) -> None:
    """Measure the fetch of the index and the newest archive."""
    total_bytes = sum(span.size_bytes for span in spans) + INDEX_SIZE_BYTES
    with engine(scratch / "giver") as giver, engine(scratch / "chooser") as member:
        remote = opened(member, giver)
        remote.index()
        elapsed = seconds(lambda: list(remote.fetch(spans[-1:])))
        share = downloaded_bytes(member) / total_bytes
        print_result(
            f"fetch of index and 1 of {ARCHIVES} archives: bytes moved", f"{share:.2%}", "under 3%", share < 0.03
        )
        print_result("  the archive, after the index", f"{elapsed:.2f} s", "")


def take_up(scratch: Path, spans: list[Span]) -> None:
    """Measure a resume: existing data is read and verified, and not fetched."""
    total_mb = sum(span.size_bytes for span in spans) / 1e6
    with engine(scratch / "giver") as giver, engine(scratch / "member 0") as member:
        elapsed = seconds(lambda: opened(member, giver))
        print_result(f"opening with {total_mb:.0f} MB here already", f"{total_mb / elapsed:,.0f} MB/s", "")
        list(opened(member, giver).fetch(spans))
        assert downloaded_bytes(member) == 0


def hashing(folder: Path) -> None:
    """Measure hashing a folder from scratch, and after one archive was added."""
    raw = (folder / COMMUNITY / "data").read_bytes()
    data, index = io.BytesIO(raw), io.BytesIO(bytes(INDEX_SIZE_BYTES))
    elapsed = median(lambda: make_metainfo(COMMUNITY, data, index), 5)
    print_result("hashing a folder", f"{len(raw) / 1e6 / elapsed:,.0f} MB/s", "")
    before = io.BytesIO(raw[: len(raw) // ARCHIVES * (ARCHIVES - 1)])
    earlier = make_metainfo(COMMUNITY, before, index)
    elapsed = median(lambda: make_metainfo(COMMUNITY, data, index, earlier=earlier), 5)
    print_result("  after one archive was appended", f"{elapsed * 1000:.1f} ms", "")


def main() -> None:
    """Build a year and measure."""
    megabytes = size_given(52, tiny=5)
    pieces_each = -(-megabytes * 1_000_000 // ARCHIVES // PIECE_SIZE_BYTES)
    print(
        f"# torrents over 127.0.0.1: {ARCHIVES} archives of {pieces_each} pieces of 100 KiB, index {INDEX_SIZE_BYTES:,} bytes"
    )
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        spans = build(scratch / "giver", pieces_each)
        hashing(scratch / "giver")
        fetch_all(scratch, spans)
        fetch_one(scratch, spans)
        take_up(scratch, spans)


if __name__ == "__main__":
    main()
