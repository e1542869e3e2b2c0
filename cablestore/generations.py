"""The generations of a store: listing them, going back to an earlier one, removing those that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cablestore import arrival, meta
from cablestore.dialect import Dialect
from cablestore.errors import NotAStoreError
from cablestore.folder import Folder
from cablestore.identity import load_identity
from cablestore.kv import LevelDB
from cablestore.reader import Reader
from cablestore.succession import Succession, succeed
from cablestore.view import Catalog
from cablestore.views import CATALOG


@dataclass(frozen=True, slots=True)
class Generation:
    """One database of a store: its name, whether it is the live one, its size, when it was made (ISO 8601)."""

    name: str
    is_live: bool
    size_bytes: int
    made: str


@contextmanager
def open_folder(path: Path, *, create: bool = False, dialect: Dialect | None = None) -> Iterator[Folder]:
    """Lock the folder of a store that is not open, making it where `create` allows it."""
    folder = Folder.open(path, create=create, dialect=dialect)
    try:
        yield folder
    finally:
        folder.close()


@contextmanager
def open_reader(folder: Folder, generation: str) -> Iterator[tuple[LevelDB, Reader]]:
    """Open one generation of a locked store."""
    database = LevelDB(folder.path / generation, create=False)
    try:
        with database.snapshot() as state:
            yield database, Reader(state, folder.header.dialect, partial(unseal_with, folder.identity_path))
    finally:
        database.close()


def list_generations(path: Path) -> list[Generation]:
    """Return the generations of a store that is not open, oldest first."""
    with open_folder(path) as folder:
        names = sorted({*folder.header.kept, folder.header.generation})
        return [_describe(folder.path / name, is_live=name == folder.header.generation) for name in names]


def _describe(path: Path, *, is_live: bool) -> Generation:
    files = [file.stat() for file in path.iterdir()] if path.is_dir() else []
    made = min((file.st_mtime for file in files), default=0)
    when = datetime.fromtimestamp(made, UTC).isoformat(timespec="seconds")
    return Generation(path.name, is_live, sum(file.st_size for file in files), when)


def roll_back(path: Path, generation: str, catalog: Catalog = CATALOG) -> Succession:
    """Make an earlier generation of a store that is not open the live one, with all that arrived since.

    The live one is kept in its turn. Raises NotAStoreError for a generation that is not kept, OutdatedViewError where its
    views were built by another version.
    """
    with open_folder(path) as folder:
        _require_kept(folder, generation)
        dialect = folder.header.dialect
        with (
            open_reader(folder, folder.header.generation) as (_, live),
            open_reader(folder, generation) as (old, before),
        ):
            value = before.get(meta.KEY)
            if value is not None:
                meta.check_meta(value, catalog, dialect, str(folder.path / generation))
            succession = succeed(live, old, dialect, catalog, arrival.next_sequence(before) - 1)
        folder.activate(generation, keep=True)
    return succession


def remove_generation(path: Path, generation: str) -> None:
    """Remove a kept generation of a store that is not open, or all of them with "kept"."""
    with open_folder(path) as folder:
        for name in folder.header.kept if generation == "kept" else (generation,):
            _require_kept(folder, name)
            folder.remove(name)


def _require_kept(folder: Folder, generation: str) -> None:
    if generation not in folder.header.kept:
        kept = ", ".join(folder.header.kept) or "none"
        raise NotAStoreError(f"{generation!r} is no generation that the store at {folder.path} keeps: it keeps {kept}")


def unseal_with(key_file: Path, sealed: bytes) -> bytes:
    """Decrypt a local-only post with the identity in a key file."""
    return load_identity(key_file).unseal(sealed)
