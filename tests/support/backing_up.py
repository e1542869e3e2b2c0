"""Stores that are backed up and restored, and the common content of two equal ones."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from history import AUTHORS, NOW_MS

from cablestore import CableStore, Dialect, Identity, StoreOptions
from cablestore.backup import read_backup, restore, verify_backup
from cablestore.backup.manifest import read_posts
from cablestore.files import folder_of
from cablestore.index.arrival_log import NEXT_KEY
from cablestore.index.reader import DATA_PREFIX, Reader
from cablestore.protocol.crypto import post_hash
from cablestore.store.closed import locked_folder, open_reader

Rows = list[tuple[bytes, bytes]]


def opened(path: Path, dialect: Dialect | None = None, identity: Identity = AUTHORS[0]) -> CableStore:
    return CableStore.open(
        path, dialect=dialect, identity=identity, options=StoreOptions(clock=lambda: NOW_MS + 1, verify_threads=1)
    )


def rows_of(store: CableStore | Path) -> Rows:
    """Return all rows of a store, open or closed: views, local rows, arrival log, sizes."""
    if isinstance(store, CableStore):
        with store.snapshot() as snapshot:
            return _all_in(snapshot.reader)
    with locked_folder(store) as folder, open_reader(folder, folder.header.generation) as (_, reader):
        return _all_in(reader)


def _all_in(reader: Reader) -> Rows:
    """Return all rows, except the next number 1, which only the rebuild of an empty store writes."""
    return [row for row in reader.scan(b"", b"\xff") if row != (NEXT_KEY, b"1")]


def hashes_in(folder: Path) -> list[bytes]:
    """Return the hashes of the posts in the files of a backup, including files that are not in its manifest."""
    place = folder_of(folder)
    manifest = read_backup(place)
    assert {path.name for path in folder.glob("*.seg")} == {piece.file for piece in manifest.pieces}
    pieces = (read_posts(place, piece) for piece in manifest.of("posts"))
    return sorted(post_hash(raw) for raw in chain.from_iterable(chain.from_iterable(pieces)))


def hashes_of(store: CableStore) -> list[bytes]:
    with store.snapshot() as snapshot:
        return [bytes.fromhex(key[len(DATA_PREFIX) :].decode()) for key, _ in snapshot.reader.prefix(DATA_PREFIX)]


def require_equal(store: CableStore, folder: Path, target: Path) -> None:
    """Restore a backup and compare the restored store with the original."""
    assert verify_backup(folder)[1] == []
    assert hashes_in(folder) == hashes_of(store)
    restore(folder, target, identity=store.identity if store.public_key else None)
    assert rows_of(target) == rows_of(store)
    with opened(target, identity=store.identity) as restored:
        assert restored.dump_digest() == store.dump_digest()
        report = restored.check()
        assert report.is_clean, [str(problem) for problem in report.problems]
