"""The generations of a store: listing them, going back to an earlier one, removing those that are kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from cablestore.errors import CorruptStoreError, FormatError, NotAStoreError
from cablestore.index import arrival_log, meta
from cablestore.index.folder import FORMAT, IDENTITY_FILE, Folder
from cablestore.index.leveldb import LevelDB
from cablestore.index.reader import Reader
from cablestore.index.takeover import TakeoverReport, take_over
from cablestore.index.view import Catalog
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.keys import after_prefix
from cablestore.store.key_file import load_identity
from cablestore.views import CATALOG
from cablestore.views.data import VIEW as DATA


@dataclass(frozen=True, slots=True)
class Generation:
    """One database of a store: its name, its size, when it was made (ISO 8601).

    `state` is "live"; "kept", to go back to; "missing" where the header keeps one that is not there; or "unnamed": the
    header does not know it, so nothing is done with it.
    """

    name: str
    state: str
    size_bytes: int
    made: str

    @property
    def is_live(self) -> bool:
        """Whether the store goes on in it."""
        return self.state == "live"


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
    database = LevelDB(folder.path / generation)
    try:
        with database.snapshot() as state:
            yield database, Reader(state, folder.header.dialect, partial(unseal_with, folder.path / IDENTITY_FILE))
    finally:
        database.close()


def list_generations(path: Path) -> list[Generation]:
    """Return the generations of a store that is not open, oldest first."""
    with open_folder(path) as folder:
        return [_describe(folder, name) for name in folder.generations]


def _describe(folder: Folder, name: str) -> Generation:
    path = folder.path / name
    state = "kept" if name in folder.header.kept else "unnamed"
    state = "live" if name == folder.header.generation else state if path.exists() else "missing"
    files = [file.stat() for file in path.iterdir()] if path.is_dir() else []
    made = min((file.st_mtime for file in files), default=0)
    when = datetime.fromtimestamp(made, UTC).isoformat(timespec="seconds")
    return Generation(name, state, sum(file.st_size for file in files), when)


def roll_back(path: Path, generation: str, catalog: Catalog = CATALOG) -> TakeoverReport:
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
            value = before.get(meta.META_KEY)
            if value is not None:
                meta.check_meta(value, catalog, dialect, str(folder.path / generation))
            succession = take_over(live, old, dialect, catalog, arrival_log.next_sequence(before) - 1)
        folder.activate(generation, keep=True)
    return succession


def remove_generation(path: Path, generation: str) -> None:
    """Remove a generation of a store that is not open and that is not the live one, or with "kept" all that are kept."""
    with open_folder(path) as folder:
        for name in folder.header.kept if generation == "kept" else (generation,):
            if name not in folder.generations or name == folder.header.generation:
                _require_kept(folder, name)
            folder.remove(name)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What came back: `posts`, local-only ones included, None where the database cannot be read whole."""

    posts: int | None


def recover(path: Path, generation: str, dialect: Dialect | None = None) -> Recovered:
    """Make a generation the live one of a store whose header is lost, overwritten, or names what is not there.

    The dialect comes from the database itself. Where that part of it is damaged, `dialect` must say it; `rebuild_closed`
    then brings back what can be read. Other generations stay as they are. Raises NotAStoreError for a generation that is
    not there or is unfinished, or where the dialect is needed, FormatError for another one than the database's.
    """
    folder = Folder.open_without_header(path, generation)
    try:
        said, posts = _read_whole(folder.database_path)
        known = said or dialect
        if known is None:
            raise NotAStoreError(
                f"the database in {folder.database_path} is damaged and does not say its dialect: say it with --dialect"
            )
        if dialect not in {None, known}:
            raise FormatError(f"the database in {folder.database_path} is for the dialect {known.name}")
        folder.restore(known)
    finally:
        folder.close()
    return Recovered(posts)


def _read_whole(path: Path) -> tuple[Dialect | None, int | None]:
    """Return the dialect and the number of posts of a database, None for what cannot be read."""
    dialect = None
    try:
        database = LevelDB(path)
        try:
            with database.snapshot() as state:
                dialect = meta.dialect_of(state.get(meta.META_KEY), FORMAT, str(path))
                posts = sum(1 for prefix in DATA.prefixes for _ in state.scan(prefix, after_prefix(prefix)))
        finally:
            database.close()
    except CorruptStoreError:
        return dialect, None
    return dialect, None if dialect is None else posts


def _require_kept(folder: Folder, generation: str) -> None:
    if generation not in folder.header.kept:
        kept = ", ".join(folder.header.kept) or "none"
        raise NotAStoreError(f"{generation!r} is no generation that the store at {folder.path} keeps: it keeps {kept}")


def unseal_with(key_file: Path, sealed: bytes) -> bytes:
    """Decrypt a local-only post with the identity in a key file."""
    return load_identity(key_file).unseal(sealed)
