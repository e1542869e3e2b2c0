"""The folder of a store: which database is the live one, who has it open, and how it is swapped.

    STORE               JSON: {"format": 1, "dialect": "legacy", "generation": "generation-000002", "store": 32 hex
                        digits that no other store has, "kept": ["generation-000001"]}
    lock                held with flock while the store is open; has the owner's process id
    control.sock        while the owner runs commands for others: `cablestore.control`
    peers.json          what a node remembers of its peers: `cablestore.node.marks`
    identity            the key file of the store's own user, made when it is first needed
    generation-000002/  a LevelDB with everything else
    generation-000001/  an earlier one that was kept, to go back to
    sds/                causal logs, and the lock of who has them open: `cablestore.sds.log`
    scratch-*/          what a rebuild or a check sorts on the disk, while it runs
    damaged-000001/     one that could not be read whole, kept when it was rebuilt

STORE is replaced by rename, so at any instant the store has one whole database, the old or the new.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from cablestore.dialect import LEGACY, Dialect, dialect_named
from cablestore.errors import FormatError, NotAStoreError, StorageError, StoreLockedError

FORMAT: Final = 1
"""Version of the folder and of every byte in it: docs/FORMAT.md."""

_STORE: Final = "STORE"
_STORE_BEFORE_RENAME: Final = "STORE.new"
_LOCK: Final = "lock"
_IDENTITY: Final = "identity"
_GENERATION: Final = "generation-"
_DAMAGED: Final = "damaged-"
_SCRATCH: Final = "scratch-"
CAUSAL_LOGS: Final = "sds"
"""Causal logs may be there before the store is, and are there after a rebuild: nothing here touches them."""
_OWN_NAMES: Final = frozenset({_STORE, _STORE_BEFORE_RENAME, _LOCK, _IDENTITY, CAUSAL_LOGS})


@dataclass(frozen=True, slots=True)
class Header:
    """What the STORE file says."""

    dialect: Dialect
    generation: str
    store_id: str
    """What tells this store from all others: exports name it, so that a reindexing knows whose they are."""
    kept: tuple[str, ...] = ()
    """Generations that are not the live one and stay until told otherwise, oldest first."""


class Folder:
    """A store's folder, locked by this object until `close`."""

    def __init__(self, path: Path, lock: int, header: Header) -> None:
        self.path: Final = path
        self._lock: int | None = lock
        self.header = header

    @classmethod
    def open(cls, path: Path, *, create: bool, dialect: Dialect | None) -> Self:
        """Lock the folder and read its header, making both where `create` allows it.

        Raises NotAStoreError, StoreLockedError, FormatError, or StorageError where the disk refuses.
        """
        path = path.absolute()
        try:
            _inspect(path, create=create)
            lock = _acquire(path)
            try:
                header = _header(path, dialect)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise StorageError(
                f"the store at {path} cannot be opened: {error.strerror}. A store needs to write"
            ) from None
        for scratch in path.glob(f"{_SCRATCH}*"):
            shutil.rmtree(scratch, ignore_errors=True)
        return cls(path, lock, header)

    @property
    def identity_path(self) -> Path:
        """Where the identity's key file is."""
        return self.path / _IDENTITY

    @property
    def database_path(self) -> Path:
        """Where the live database is."""
        return self.path / self.header.generation

    def next_generation(self) -> str:
        """Return the name of the generation after the live one, empty on disk whatever stood there unfinished."""
        newest = max((self.header.generation, *self.header.kept), key=_number)
        name = f"{_GENERATION}{_number(newest) + 1:06d}"
        shutil.rmtree(self.path / name, ignore_errors=True)
        return name

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty folder for what does not fit in memory; it is removed afterwards, at the latest when opened."""
        path = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self.path))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def activate(self, generation: str, *, keep: bool = False) -> None:
        """Make another generation the live one: after this returns, also when power is lost.

        With `keep` the one before stays among those that are kept.
        """
        known = self.header
        kept = {*known.kept, known.generation} if keep else {*known.kept}
        self._put_header(replace(known, generation=generation, kept=_in_order(kept - {generation})))

    def adopt(self, database: Path) -> str:
        """Move a closed database from elsewhere on this disk in as the next generation, and return its name.

        It is neither live nor kept yet: `activate` makes it so.
        """
        name = self.next_generation()
        database.replace(self.path / name)
        _sync_folder(self.path / name)
        _sync_folder(self.path)
        return name

    def remove(self, generation: str) -> None:
        """Remove a generation that is not the live one, kept or unfinished. The header forgets it first."""
        if generation == self.header.generation:
            raise ValueError(f"{generation} is the live generation")
        if generation in self.header.kept:
            self._put_header(replace(self.header, kept=_in_order({*self.header.kept} - {generation})))
        shutil.rmtree(self.path / generation, ignore_errors=True)

    def remove_others(self) -> None:
        """Remove every generation that is neither live nor kept: the one before, and what interrupted work left."""
        for path in self.path.glob(f"{_GENERATION}*"):
            if path.name != self.header.generation and path.name not in self.header.kept:
                self.remove(path.name)

    def _put_header(self, header: Header) -> None:
        _write_header(self.path, header)
        self.header = header

    def set_aside(self, generation: str) -> Path:
        """Keep a damaged generation that is no longer the live one, under a name that no rebuild removes."""
        aside = self.path / generation.replace(_GENERATION, _DAMAGED)
        (self.path / generation).replace(aside)
        return aside

    def close(self) -> None:
        """Let others open the store."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def peek(path: Path) -> Header | None:
    """Return the header of the store in a folder that is not opened, None where there is no store."""
    return _read_header(path) if (path / _STORE).exists() else None


def _number(generation: str) -> int:
    return int(generation.removeprefix(_GENERATION))


def _in_order(generations: set[str]) -> tuple[str, ...]:
    return tuple(sorted(generations, key=_number))


def _inspect(path: Path, *, create: bool) -> None:
    """Raise NotAStoreError unless there is a store, or one can be made."""
    if not path.exists():
        if not create:
            raise NotAStoreError(f"there is no store at {path}; `cablestore init` makes one")
        path.mkdir(parents=True)
    if not path.is_dir():
        raise NotAStoreError(f"{path} is a file, a store is a folder")
    names = {entry.name for entry in path.iterdir()}
    if _STORE in names:
        return
    # Without its header a folder may be a store whose making was interrupted. Anything else in it is somebody's.
    foreign = sorted(name for name in names - _OWN_NAMES if name != f"{_GENERATION}{1:06d}")
    if foreign:
        raise NotAStoreError(f"{path} is not a store: it holds {', '.join(foreign[:3])}. Choose a new or empty folder")
    if not create:
        raise NotAStoreError(f"there is no store in {path}; `cablestore init` makes one")


def _acquire(path: Path) -> int:
    """Take the lock, before LevelDB is asked: its own refusal of a second open drops the first one's lock."""
    lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 20, 0).decode("ascii", errors="replace").strip() or "unknown"
        os.close(lock)
        where = "this process" if owner == str(os.getpid()) else f"process {owner}"
        raise StoreLockedError(
            f"the store at {path} is open in {where}. One process at a time can have a store open: close it there first"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def _header(path: Path, dialect: Dialect | None) -> Header:
    if not (path / _STORE).exists():
        header = Header(dialect or LEGACY, f"{_GENERATION}{1:06d}", secrets.token_hex(16))
        _write_header(path, header)
        return header
    header = _read_header(path)
    if not header.store_id:  # written before stores had one
        header = replace(header, store_id=secrets.token_hex(16))
        _write_header(path, header)
    if dialect is not None and dialect != header.dialect:
        raise FormatError(
            f"the store at {path} is for the dialect {header.dialect.name}, not {dialect.name}. A store keeps the dialect it "
            "was made for"
        )
    return header


def _read_header(path: Path) -> Header:
    try:
        fields = json.loads((path / _STORE).read_text(encoding="utf-8"))
        version, name, generation = int(fields["format"]), str(fields["dialect"]), str(fields["generation"])
        store_id, kept = str(fields.get("store", "")), tuple(map(str, fields.get("kept", ())))
    except (ValueError, KeyError, TypeError):
        raise NotAStoreError(
            f"{path / _STORE} is not the header of a store: JSON with format, dialect, generation"
        ) from None
    if version != FORMAT:
        raise FormatError(
            f"the store at {path} has format {version}, this version of cablestore reads {FORMAT}: "
            + ("install a newer one" if version > FORMAT else "export it with the version that wrote it")
        )
    for found in (generation, *kept):
        if not found.removeprefix(_GENERATION).isdigit():
            raise NotAStoreError(f"{path / _STORE} names {found!r}, which is not a generation of a store")
    return Header(dialect_named(name), generation, store_id, kept)


def _write_header(path: Path, header: Header) -> None:
    fields = {
        "format": FORMAT,
        "dialect": header.dialect.name,
        "generation": header.generation,
        "store": header.store_id,
        "kept": header.kept,
    }
    new = path / _STORE_BEFORE_RENAME
    with new.open("w", encoding="utf-8") as file:
        file.write(json.dumps(fields) + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path / _STORE)
    _sync_folder(path)


def _sync_folder(path: Path) -> None:
    """Bring names in a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
