"""Archives of a community: a control node creates and seeds them, and a member fetches and imports missing archives."""

import secrets
import tempfile
import time
from pathlib import Path

from cablestore import CableStore
from cablestore.archive.create import create_archives
from cablestore.archive.fetch import ArchiveSources, fetching
from cablestore.archive.folder import ArchiveFolder
from cablestore.archive.format.announcement import Link, parse_link
from cablestore.archive.format.profile import RFC61
from cablestore.archive.member import ImportLog, import_noted, wanted
from cablestore.archive.torrent.engine import TorrentConfig, TorrentEngine
from cablestore.archive.writer import ArchivePlan

CABAL_KEY = secrets.token_bytes(32)
WEEK_MS = 604_800_000


def make(store: CableStore, folder: Path) -> None:
    """Create archives as if a week had passed: only past weeks have archives."""
    plan = ArchivePlan(RFC61, store.identity, store.dialect, CABAL_KEY)
    community = ArchiveFolder(folder / store.identity.public_key.hex())
    made = create_archives(store, community, plan, now_ms=int(time.time() * 1000) + WEEK_MS)
    print(f"created {made.archives} archive with {made.posts} posts")


def fetch(store: CableStore, folder: Path, link: Link, control: bytes, port: int) -> None:
    """Fetch and import missing archives. A community's folder is named after the key of its control node."""
    sources = ArchiveSources(peers=(("127.0.0.1", port),))
    imported = ImportLog.of(store, folder / control.hex())
    with fetching(link, folder, control, store.dialect, sources, CABAL_KEY) as community:
        entries = wanted(community.verified, imported)
        for _, found in import_noted(store, community.verified, community.fetch(entries), imported, key=CABAL_KEY):
            print(f"imported {found.posts} new posts, removed {len(found.removed)}")


def main(folder: Path) -> None:
    """Run the control node and the member on this machine."""
    with CableStore.open(folder / "control") as control, CableStore.open(folder / "member") as member:
        for text in ("the tomatoes are green", "the tomatoes are red"):
            control.post("gardening", text)
        make(control, folder / "given")
        config = TorrentConfig(enabled=True, port=0, data_folder=folder / "given", torrent_folder=folder / "given")
        with TorrentEngine(config) as engine:
            link = parse_link(engine.seed(control.identity.public_key.hex()))
            fetch(member, folder / "fetched", link, control.identity.public_key, engine.port)
        print([message.text for message in member.messages("gardening").messages])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
