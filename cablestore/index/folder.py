"""The folder of a store: its header, its lock, its databases, and their replacement.

    STORE               JSON: {"format": 1, "dialect": "legacy", "generation": "generation-000002", "store": 32 hex
                        digits that no other store has, "kept": ["generation-000001"]}
    lock                locked with flock while the store is open; contains the owner's process id
    control.sock        exists while the owner serves other processes: `cablestore.remote.unix_socket`
    peers.json          up to when a node knows its peers' histories: `cablestore.peers.sync_state`
    bans.json           banned peers: `cablestore.peers.bans`
    policy.toml         the rules for the posts that a node accepts: `cablestore.peers.policy`
    last-backup.json    time and folder of the last backup: `cablestore.index.last_backup`
    last-check.json     time and result of the last check: `cablestore.index.last_check`
    counts              second copy of the live database's counts: `cablestore.index.evidence`
    identity            the key file of the store's own user, created on first use
    generation-000002/  a LevelDB with all other data
    generation-000001/  an earlier LevelDB that STORE lists as kept, or a LevelDB that STORE does not list. The latter
                        is removed if its file UNNAMED shows that a rebuild or a reindexing left it
    sds/                causal logs and their lock: `cablestore.sds.log`
    search.sqlite       full-text index, search.sqlite-sums with checksums of its pages, and search.sqlite-wal while it
                        is open; all of them can be removed: `cablestore.search`
    scratch-*/          temporary files of a rebuild or a check
    RESTORING/          a store that is restored from a backup; without STORE beside it, nothing here is opened
    damaged-000001/     a LevelDB that could not be read completely, kept when it was rebuilt

STORE is replaced by rename, so the store always has one complete database, the old or the new one. A new store gets its
database before its STORE, so the database that STORE names must exist. If either is missing, the store cannot be
opened.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Self

from cablestore import files, forks
from cablestore.errors import ArgumentError, OpenError
from cablestore.files import storage_errors, sync_folder
from cablestore.forks import ProcessBound, bind
from cablestore.index.evidence import COUNTS_DRAFT, COUNTS_FILE
from cablestore.index.generations import (
    DRAFT,
    FINISHED,
    NUMBERED,
    REPLACED_BY,
    UNFINISHED,
    damaged_name,
    in_order,
    is_generation,
    mark_of,
    names_of,
    next_name,
    put_mark,
    unmark,
)
from cablestore.index.header import (
    HEADER_FILE,
    RESTORING,
    Header,
    complete_header,
    put_header,
    reject_half_restored,
    reject_lost_header,
    what_is_there,
)
from cablestore.index.leveldb_files import holds_database
from cablestore.index.opening import locked_by, opening, reject_write
from cablestore.protocol.dialect import LEGACY, Dialect

LOCK_FILE: Final = "lock"
IDENTITY_FILE: Final = "identity"
_SCRATCH: Final = "scratch-"
CHECKPOINT: Final = "checkpoint-"
"""Prefix of the folders of checkpoints (`cablestore.index.checkpoint`), which are locked while they are used."""
CAUSAL_LOGS: Final = "sds"
"""Folder of causal logs. It may exist before the store. A rebuild does not change it."""
SEARCH_INDEX: Final = "search.sqlite"
SEARCH_SUMS: Final = f"{SEARCH_INDEX}-sums"
SEARCH_FILES: Final = (SEARCH_INDEX, SEARCH_SUMS, *(f"{SEARCH_INDEX}-{kind}" for kind in ("wal", "shm", "journal")))
"""Files of the full-text index: SQLite's files, and the checksums of the database file."""
_OWN_NAMES: Final = frozenset(
    {
        HEADER_FILE,
        f"{HEADER_FILE}{DRAFT}",
        LOCK_FILE,
        IDENTITY_FILE,
        CAUSAL_LOGS,
        "control.sock",
        "peers.json",
        "bans.json",
        "policy.toml",
        "last-backup.json",
        "last-check.json",
        COUNTS_FILE,
        f"{COUNTS_FILE}{COUNTS_DRAFT}",
        *SEARCH_FILES,
    }
)


class Folder(ProcessBound):
    """Folder of a store, locked by this object until `close`."""

    def __init__(
        self, path: Path, lock: int | None, header: Header, *, is_new: bool, is_read_only: bool = False
    ) -> None:
        self.path: Final = path
        self.is_read_only: Final = is_read_only
        """True if the folder must not be written to."""
        self._lock: int | None = lock
        self.header = header
        self.is_new = is_new
        """True if the store has no header yet. The first `activate` writes it."""
        bind(self)

    @classmethod
    def open(cls, path: Path, *, create: bool, dialect: Dialect | None) -> Self:
        """Lock the folder and read its header. With `create`, create a store if none exists.

        Raises OpenError and its subclass StoreLockedError. Raises CorruptStoreError if the header or its database is
        missing, and StorageError for I/O errors. After an error, nothing was written.
        """
        path = store_path(path).absolute()
        with opening(path, path / HEADER_FILE):
            if not (path / LOCK_FILE).exists():
                _find(path, dialect, create=create)  # so that a lock file is not created if this raises
                files.make_folder(path)
            lock = _acquire(path)
            try:
                found = _find(path, dialect, create=create)
                header = found or Header(dialect or LEGACY, next_name(path, ()), secrets.token_hex(16))
                files.restrict(path, is_own, notify=found is not None)
                folder = cls(path, lock, header, is_new=found is None)
                folder._settle()
            except BaseException:
                files.unlock(lock)
                raise
        return folder

    @classmethod
    def open_to_read(cls, path: Path, *, dialect: Dialect | None) -> Self:
        """Read the header, and share the lock of the folder with other readers. Write nothing.

        Raises the same errors as `open`. StoreLockedError means that a process may write to the store.
        """
        path = path.absolute()
        with storage_errors(f"the store at {path} cannot be read"):
            _find(path, dialect, create=False)
            lock = files.share_lock(path / LOCK_FILE, partial(locked_by, path))
            try:
                header = complete_header(path)
            except BaseException:
                if lock is not None:
                    os.close(lock)
                raise
        return cls(path, lock, header, is_new=False, is_read_only=True)

    @classmethod
    def open_without_header(cls, path: Path, generation: str) -> Self:
        """Lock the folder without reading its header, to activate `generation` with `restore`.

        Raises OpenError if that generation is missing, does not contain a database or is unfinished.
        """
        path = store_path(path).absolute()
        database = path / generation
        with storage_errors(f"the store at {path} cannot be opened"):
            if not path.is_dir():
                raise OpenError(f"no store found at {path}. Pass the path of a store's folder")
            if not is_generation(generation) or not holds_database(database):
                raise OpenError(f"generation {generation!r} not found. {what_is_there(path)}")
            if mark_of(database) == UNFINISHED:
                raise OpenError(
                    f"{database} is unfinished: an interrupted rebuild or reindexing left it. {what_is_there(path)}"
                )
            lock = _acquire(path)
        return cls(path, lock, Header(LEGACY, generation, secrets.token_hex(16)), is_new=False)

    def restore(self, dialect: Dialect) -> None:
        """Write a new header that names the generation for which the folder was opened.

        The store gets a new id, because its arrival log may differ from the log of the lost database. Other generations
        in the folder are kept, but are not in the header.
        """
        with storage_errors(f"cannot write the header of {self.path}"):
            for name in names_of(self.path):
                if mark_of(self.path / name) != UNFINISHED:
                    unmark(self.path / name)
            self._put_header(replace(self.header, dialect=dialect))

    def _settle(self) -> None:
        """Write the process id into the lock file, and remove the remains of interrupted work."""
        assert self._lock is not None  # noqa: S101 - it is open
        files.sign_lock(self._lock)
        for scratch in (*self.path.glob(f"{_SCRATCH}*"), self.path / RESTORING):
            shutil.rmtree(scratch, ignore_errors=True)
        files.remove_unused(self.path, CHECKPOINT)
        named = {self.header.generation, *self.header.kept}
        for name in names_of(self.path):
            mark = mark_of(self.path / name)
            if name in named and mark != UNFINISHED:
                unmark(self.path / name)
            elif name not in named and mark in {UNFINISHED, FINISHED, REPLACED_BY + self.header.generation}:
                self._discard(name)
        if not self.is_new and not self.header.store_id:  # written by a version without store ids
            self._put_header(replace(self.header, store_id=secrets.token_hex(16)))

    @property
    def database_path(self) -> Path:
        """Path of the live database, or of the future database of a new store."""
        return self.path / self.header.generation

    @property
    def generations(self) -> list[str]:
        """Names of all generations in the folder or in the header, oldest first."""
        named = set() if self.is_new else {self.header.generation, *self.header.kept}
        return list(in_order({*names_of(self.path), *named}))

    def begin(self, name: str | None = None) -> str:
        """Create an empty folder for a new generation, marked as unfinished, and return its name.

        The name is by default the next number. Opening the store removes the folder, unless `activate` was called
        before.
        """
        self._require_writable()
        name = name or next_name(self.path, self.generations)
        draft = self.path / f"{_SCRATCH}{name}"
        with storage_errors(f"cannot create {self.path / name}"):
            files.make_part(draft)
            put_mark(draft, UNFINISHED)
            draft.replace(self.path / name)
        return name

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty folder for temporary files.

        If the store is read-only, the folder is outside the store's folder. The folder is removed afterwards, at the
        latest when the store is next opened.
        """
        if self.is_read_only:
            temporary = files.make_temporary(0, outside=self.path)
            try:
                yield temporary.path
            finally:
                temporary.remove()
            return
        with storage_errors(f"cannot write to {self.path}"):
            path, made_at = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self.path)), forks.ancestors
        try:
            yield path
        finally:
            if forks.ancestors == made_at:  # a forked child leaves it to its parent
                shutil.rmtree(path, ignore_errors=True)

    def activate(self, generation: str, *, keep: bool = False) -> None:
        """Make another generation live.

        The generation must be complete and closed. After the return, a power failure does not undo this. After an
        error, the header may name either generation. With `keep` the previous generation is kept. Otherwise the caller
        removes it.
        """
        self._require_writable()
        known = self.header
        kept = {*known.kept, known.generation} if keep and not self.is_new else {*known.kept}
        with storage_errors(f"cannot activate {generation} of {self.path}"):
            put_mark(self.path / generation, FINISHED)
            if not keep and not self.is_new:
                put_mark(self.database_path, REPLACED_BY + generation)
            self._put_header(replace(known, generation=generation, kept=in_order(kept - {generation})))
            self.is_new = False
            unmark(self.path / generation)

    def adopt(self, database: Path) -> str:
        """Move a complete, closed database on the same disk into the folder as a new generation.

        Return the generation's name. The generation is neither live nor kept before `activate`.
        """
        self._require_writable()
        name = next_name(self.path, self.generations)
        with storage_errors(f"cannot move {database} to {self.path / name}"):
            put_mark(database, FINISHED)
            database.replace(self.path / name)
            sync_folder(self.path)
        return name

    def remove(self, generation: str) -> None:
        """Remove a generation from the header, and then its files. The live generation cannot be removed."""
        self._require_writable()
        if generation == self.header.generation:
            raise ValueError(f"{generation} is the live generation")
        with storage_errors(f"cannot remove {generation} of {self.path}"):
            self._forget(generation)
            self._discard(generation)

    def _discard(self, generation: str) -> None:
        """Rename a generation, then remove it.

        If the process is killed in between, the new name shows that the remains are not a database.
        """
        scrap = self.path / f"{_SCRATCH}{generation}"
        shutil.rmtree(scrap, ignore_errors=True)
        with suppress(FileNotFoundError):
            (self.path / generation).replace(scrap)
        shutil.rmtree(scrap, ignore_errors=True)

    def _forget(self, generation: str) -> None:
        if generation in self.header.kept:
            self._put_header(replace(self.header, kept=in_order({*self.header.kept} - {generation})))

    def _put_header(self, header: Header) -> None:
        put_header(self.path, header)
        self.header = header

    def set_aside(self, generation: str) -> Path:
        """Rename a damaged generation after its replacement, so that it is never removed. Return its new path."""
        aside = self.path / damaged_name(generation)
        with storage_errors(f"cannot rename {generation} of {self.path}"):
            self._forget(generation)
            (self.path / generation).replace(aside)
        return aside

    def _require_writable(self) -> None:
        if self.is_read_only:
            reject_write()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            files.unlock(self._lock)
            self._lock = None


def store_path(location: str | os.PathLike[str]) -> Path:
    """Return the path of the folder of a store, which may not exist yet. Raises ArgumentError.

    The absolute path must be UTF-8, because LevelDB rejects other paths.
    """
    path = files.usable_path(location)
    absolute = path.absolute()
    try:
        str(absolute).encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"the path of a store must be UTF-8, got {str(absolute)!a}") from None
    if not absolute.name:
        raise ArgumentError(f"{path} is the root of the file system. Pass the path of a folder for the store")
    return path


def _find(path: Path, dialect: Dialect | None, *, create: bool) -> Header | None:
    """Return the header of the store in a folder, None if a store can be created. Raises like `Folder.open`."""
    if path.exists():
        if not path.is_dir():
            raise OpenError(f"{path} is a file, but a store is a folder. Pass the path of a folder")
        if (path / HEADER_FILE).exists():
            header = complete_header(path)
            if dialect is not None and dialect != header.dialect:
                raise OpenError(
                    f"the store at {path} has the dialect {header.dialect.name}, not {dialect.name}. The dialect of a "
                    "store cannot be changed"
                )
            return header
        reject_half_restored(path)
        reject_lost_header(path)
        # A folder without a header may be a store whose creation was interrupted. Other files do not belong to a store.
        foreign = sorted(
            entry.name for entry in path.iterdir() if not (is_own(entry.name) or files.is_foreign(entry.name))
        )
        if foreign:
            raise OpenError(
                f"{path} is not a store: it contains {', '.join(foreign[:3])}. Choose a new or empty folder"
            )
    if not create:
        raise OpenError(f"no store found at {path}. Run `cablestore init` to create one")
    return None


def is_own(name: str) -> bool:
    """Return True if this is the name of a store's file or folder."""
    return name in _OWN_NAMES or name.startswith((_SCRATCH, CHECKPOINT)) or NUMBERED.fullmatch(name) is not None


def _acquire(path: Path) -> int:
    """Lock the folder before LevelDB locks the database, because LevelDB drops its lock when a second open fails."""
    return files.lock(path / LOCK_FILE, partial(locked_by, path))
