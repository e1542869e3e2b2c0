"""The folder of a store: which database is the live one, who has it open, and how it is swapped.

    STORE               JSON: {"format": 1, "dialect": "legacy", "generation": "generation-000002", "store": 32 hex
                        digits that no other store has, "kept": ["generation-000001"]}
    lock                held with flock while the store is open; has the owner's process id
    control.sock        while the owner runs commands for others: `cablestore.cli.control_socket`
    peers.json          what a node remembers of its peers: `cablestore.peers.sync_state`
    identity            the key file of the store's own user, made when it is first needed
    generation-000002/  a LevelDB with everything else
    generation-000001/  an earlier one that was kept, to go back to; or one that STORE does not name, which nobody touches
                        unless a file in it, UNNAMED, says that a rebuild or a reindexing left it over
    sds/                causal logs, and the lock of who has them open: `cablestore.sds.log`
    scratch-*/          what a rebuild or a check sorts on the disk, while it runs
    damaged-000001/     one that could not be read whole, kept when it was rebuilt

STORE is replaced by rename, so at any instant the store has one whole database, the old or the new. Where STORE is
there, so is the database that it names: a new store gets its database first. Without one of the two it is not opened.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from cablestore import files
from cablestore.errors import FormatError, MissingDatabaseError, NotAStoreError, StorageError, StoreLockedError
from cablestore.files import sync_folder, whole_file
from cablestore.index.leveldb import holds_database
from cablestore.protocol.dialect import LEGACY, Dialect, dialect_named

FORMAT: Final = 1
"""Version of the folder and of every byte in it: docs/FORMAT.md."""

_STORE: Final = "STORE"
_BEFORE_RENAME: Final = ".new"
_LOCK: Final = "lock"
IDENTITY_FILE: Final = "identity"
_GENERATION: Final = "generation-"
_DAMAGED: Final = "damaged-"
_SCRATCH: Final = "scratch-"
CAUSAL_LOGS: Final = "sds"
"""Causal logs may be there before the store is, and are there after a rebuild: nothing here touches them."""
_OWN_NAMES: Final = frozenset(
    {_STORE, f"{_STORE}{_BEFORE_RENAME}", _LOCK, IDENTITY_FILE, CAUSAL_LOGS, "control.sock", "peers.json"}
)
_NUMBERED: Final = re.compile(f"({_GENERATION}|{_DAMAGED})([0-9]{{6,18}})")

_MARK: Final = "UNNAMED"
"""File in a generation that STORE does not name, or not yet; its one line is one of these."""
_UNFINISHED: Final = "unfinished"
_FINISHED: Final = "finished"
_REPLACED_BY: Final = "replaced by "


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

    def __init__(self, path: Path, lock: int, header: Header, *, is_new: bool) -> None:
        self.path: Final = path
        self._lock: int | None = lock
        self.header = header
        self.is_new = is_new
        """Whether the store is still to be made: its header is written by the first `activate`."""

    @classmethod
    def open(cls, path: Path, *, create: bool, dialect: Dialect | None) -> Self:
        """Lock the folder and read its header, or begin a new store where there is none and `create` allows it.

        Raises NotAStoreError, StoreLockedError, FormatError, MissingDatabaseError where the header or what it names is
        lost, or StorageError where the disk fails. Where it raises, it wrote nothing.
        """
        path = path.absolute()
        with _disk(f"the store at {path} cannot be opened"):
            if not (path / _LOCK).exists():
                _find(path, dialect, create=create)  # so that no lock is made where this raises
                path.mkdir(parents=True, exist_ok=True)
            lock = _acquire(path)
            try:
                found = _find(path, dialect, create=create)
                header = found or Header(dialect or LEGACY, _next_name(path, ()), secrets.token_hex(16))
                folder = cls(path, lock, header, is_new=found is None)
                folder._settle()
            except BaseException:
                os.close(lock)
                raise
        return folder

    @classmethod
    def open_without_header(cls, path: Path, generation: str) -> Self:
        """Lock the folder to make `generation` the live one by `restore`, whatever its header says or if it has none.

        Raises NotAStoreError where that generation is not there, holds no database or is unfinished.
        """
        path = path.absolute()
        database = path / generation
        with _disk(f"the store at {path} cannot be opened"):
            if not path.is_dir():
                raise NotAStoreError(f"there is no store at {path}")
            if not _is_generation(generation) or not holds_database(database):
                raise NotAStoreError(f"{generation!r} is not there to be recovered. {_what_is_there(path)}")
            if _mark_of(database) == _UNFINISHED:
                raise NotAStoreError(
                    f"{database} is unfinished: work that was interrupted left it. {_what_is_there(path)}"
                )
            lock = _acquire(path)
        return cls(path, lock, Header(LEGACY, generation, secrets.token_hex(16)), is_new=False)

    def restore(self, dialect: Dialect) -> None:
        """Write a new header, which names the generation that the folder was opened for.

        The store has another id from now on, for its arrival log need not be that of the database before. What stands
        beside the generation stays, unnamed.
        """
        with _disk(f"the header of {self.path} cannot be written"):
            for name in _names(self.path):
                if _mark_of(self.path / name) != _UNFINISHED:
                    _unmark(self.path / name)
            self._put_header(replace(self.header, dialect=dialect))

    def _settle(self) -> None:
        """Sign the lock, and remove what interrupted work left and marked as its own."""
        assert self._lock is not None  # noqa: S101 - it is open
        files.sign_lock(self._lock)
        for scratch in self.path.glob(f"{_SCRATCH}*"):
            shutil.rmtree(scratch, ignore_errors=True)
        named = {self.header.generation, *self.header.kept}
        for name in _names(self.path):
            mark = _mark_of(self.path / name)
            if name in named and mark != _UNFINISHED:
                _unmark(self.path / name)
            elif name not in named and mark in {_UNFINISHED, _FINISHED, _REPLACED_BY + self.header.generation}:
                self._discard(name)
        if not self.is_new and not self.header.store_id:  # written before stores had one
            self._put_header(replace(self.header, store_id=secrets.token_hex(16)))

    @property
    def database_path(self) -> Path:
        """Where the live database is, or where that of a new store will be."""
        return self.path / self.header.generation

    @property
    def generations(self) -> list[str]:
        """The names of all generations that are in the folder or in the header, oldest first."""
        named = set() if self.is_new else {self.header.generation, *self.header.kept}
        return list(_in_order({*_names(self.path), *named}))

    def begin(self) -> str:
        """Make an empty folder for a new generation, marked as unfinished, and return the name.

        Until `activate` it is removed when the store is next opened.
        """
        name = _next_name(self.path, self.generations)
        draft = self.path / f"{_SCRATCH}{name}"
        with _disk(f"{self.path / name} cannot be made"):
            draft.mkdir()
            _put_mark(draft, _UNFINISHED)
            draft.replace(self.path / name)
        return name

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield an empty folder for what does not fit in memory; it is removed afterwards, at the latest when opened."""
        with _disk(f"nothing can be written into {self.path}"):
            path = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=self.path))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def activate(self, generation: str, *, keep: bool = False) -> None:
        """Make another generation, whole and closed, the live one: after this returns, also when power is lost.

        With `keep` the one before stays among those that are kept; without, it is to be removed.
        """
        known = self.header
        kept = {*known.kept, known.generation} if keep and not self.is_new else {*known.kept}
        with _disk(f"{generation} of {self.path} cannot be made the live one"):
            _put_mark(self.path / generation, _FINISHED)
            if not keep and not self.is_new:
                _put_mark(self.database_path, _REPLACED_BY + generation)
            self._put_header(replace(known, generation=generation, kept=_in_order(kept - {generation})))
            self.is_new = False
            _unmark(self.path / generation)

    def adopt(self, database: Path) -> str:
        """Move a whole and closed database from elsewhere on this disk in as a new generation, and return its name.

        It is neither live nor kept yet: `activate` makes it so.
        """
        name = _next_name(self.path, self.generations)
        with _disk(f"{database} cannot be moved to {self.path / name}"):
            _put_mark(database, _FINISHED)
            database.replace(self.path / name)
            sync_folder(self.path)
        return name

    def remove(self, generation: str) -> None:
        """Remove a generation that is not the live one. The header forgets it first."""
        if generation == self.header.generation:
            raise ValueError(f"{generation} is the live generation")
        with _disk(f"{generation} of {self.path} cannot be removed"):
            self._forget(generation)
            self._discard(generation)

    def _discard(self, generation: str) -> None:
        """Remove a generation under another name: killed halfway, what is left of it is known to be nothing."""
        scrap = self.path / f"{_SCRATCH}{generation}"
        shutil.rmtree(scrap, ignore_errors=True)
        with suppress(FileNotFoundError):
            (self.path / generation).replace(scrap)
        shutil.rmtree(scrap, ignore_errors=True)

    def _forget(self, generation: str) -> None:
        if generation in self.header.kept:
            self._put_header(replace(self.header, kept=_in_order({*self.header.kept} - {generation})))

    def _put_header(self, header: Header) -> None:
        _write_header(self.path, header)
        self.header = header

    def set_aside(self, generation: str) -> Path:
        """Keep a damaged generation that is no longer the live one, under a name that nothing removes."""
        aside = self.path / generation.replace(_GENERATION, _DAMAGED)
        with _disk(f"{generation} of {self.path} cannot be renamed"):
            self._forget(generation)
            (self.path / generation).replace(aside)
        return aside

    def close(self) -> None:
        """Let others open the store."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def peek(path: Path) -> Header | None:
    """Return the header of the store in a folder that is not opened, None where there is no store.

    Raises as `Folder.open` does where the header or the database that it names is lost.
    """
    with _disk(f"the store at {path} cannot be read"):
        if not path.is_dir():
            return None
        if not (path / _STORE).exists():
            _refuse_lost_header(path)
            return None
        return _whole_header(path)


def _find(path: Path, dialect: Dialect | None, *, create: bool) -> Header | None:
    """Return the header of the store in a folder, None where a new store can be made, or raise what is wrong."""
    if not path.exists():
        if not create:
            raise NotAStoreError(f"there is no store at {path}; `cablestore init` makes one")
        return None
    if not path.is_dir():
        raise NotAStoreError(f"{path} is a file, a store is a folder")
    if (path / _STORE).exists():
        header = _whole_header(path)
        if dialect is not None and dialect != header.dialect:
            raise FormatError(
                f"the store at {path} is for the dialect {header.dialect.name}, not {dialect.name}. A store keeps the dialect it "
                "was made for"
            )
        return header
    _refuse_lost_header(path)
    # Without its header a folder may be a store whose making was interrupted. Anything else in it is somebody's.
    foreign = sorted(entry.name for entry in path.iterdir() if not _is_own(entry.name))
    if foreign:
        raise NotAStoreError(f"{path} is not a store: it holds {', '.join(foreign[:3])}. Choose a new or empty folder")
    if not create:
        raise NotAStoreError(f"there is no store in {path}; `cablestore init` makes one")
    return None


def _is_own(name: str) -> bool:
    return name in _OWN_NAMES or name.startswith(_SCRATCH) or _NUMBERED.fullmatch(name) is not None


def _whole_header(path: Path) -> Header:
    """Return the header of a store. Raises MissingDatabaseError where there is not what it names."""
    header = _read_header(path)
    while problem := _problem_of(path / header.generation):
        before, header = header, _read_header(path)
        if header == before:  # or another process has just swapped databases
            raise MissingDatabaseError(
                f"{path / _STORE} names {header.generation}, which {problem}. {_what_is_there(path)}"
            )
    return header


def _problem_of(database: Path) -> str:
    if not database.exists():
        return "is not there"
    if not holds_database(database):
        return "holds no database"
    return "is unfinished" if _mark_of(database) == _UNFINISHED else ""


def _refuse_lost_header(path: Path) -> None:
    """Raise MissingDatabaseError where a folder without a header holds databases that a store had."""
    if any(_mark_of(path / name) not in {_UNFINISHED, _FINISHED} for name in _databases(path)):
        raise MissingDatabaseError(f"{path / _STORE} is missing. {_what_is_there(path)}")


def _what_is_there(path: Path) -> str:
    """Say which generations a folder holds, and what to do."""
    found = [name for name in _databases(path) if _mark_of(path / name) != _UNFINISHED]
    if not found:
        return (
            f"There is no other generation: put it back from a backup. Or remove {_STORE}, to begin with an empty store"
        )
    sizes = (f"{name} ({sum(f.stat().st_size for f in (path / name).iterdir()):,} bytes)" for name in found)
    return (
        f"There is {', '.join(sizes)}. Put back what is missing, or run `cablestore generations --recover {found[-1]}` to go on "
        "with what that one holds"
    )


def _names(path: Path) -> tuple[str, ...]:
    """Return the names of all that is called like a generation, oldest first."""
    return _in_order({entry.name for entry in path.iterdir() if _is_generation(entry.name)})


def _databases(path: Path) -> list[str]:
    return [name for name in _names(path) if holds_database(path / name)]


def _is_generation(name: str) -> bool:
    match = _NUMBERED.fullmatch(name)
    return match is not None and match[1] == _GENERATION


def _next_name(path: Path, named: Iterable[str]) -> str:
    """Return the name of a new generation: no number that any had, whatever became of it."""
    taken = [_NUMBERED.fullmatch(name) for name in (*named, *(entry.name for entry in _entries(path)))]
    return f"{_GENERATION}{max((int(match[2]) for match in taken if match), default=0) + 1:06d}"


def _entries(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.is_dir() else []


def _in_order(generations: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(generations, key=lambda name: int(name.removeprefix(_GENERATION))))


def _mark_of(database: Path) -> str:
    """Return what the mark in a generation says, nothing where it has none."""
    try:
        return (database / _MARK).read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _put_mark(database: Path, text: str) -> None:
    _write_line(database / _MARK, text)


def _unmark(database: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        (database / _MARK).unlink()
        sync_folder(database)


@contextmanager
def _disk(what: str) -> Iterator[None]:
    """Raise StorageError where what is done in a `with` fails on the disk."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{what}: {error.strerror}. Check free space and permissions: a store needs to write"
        ) from None


def _acquire(path: Path) -> int:
    """Take the lock, before LevelDB is asked: its own refusal of a second open drops the first one's lock."""

    def refused(owner: str) -> StoreLockedError:
        where = "this process" if owner == str(os.getpid()) else f"process {owner}"
        return StoreLockedError(
            f"the store at {path} is open in {where}. One process at a time can have a store open: close it there first"
        )

    return files.lock(path / _LOCK, refused)


def _read_header(path: Path) -> Header:
    try:
        fields = json.loads((path / _STORE).read_text(encoding="utf-8"))
        version, name, generation = int(fields["format"]), str(fields["dialect"]), str(fields["generation"])
        store_id, kept = str(fields.get("store", "")), tuple(map(str, fields.get("kept", ())))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise NotAStoreError(
            f"{path / _STORE} is not the header of a store: JSON with format, dialect, generation. {_what_is_there(path)}"
        ) from None
    if version != FORMAT:
        raise FormatError(
            f"the store at {path} has format {version}, this version of cablestore reads {FORMAT}: "
            + ("install a newer one" if version > FORMAT else "export it with the version that wrote it")
        )
    for found in (generation, *kept):
        if not _is_generation(found):
            raise NotAStoreError(
                f"{path / _STORE} names {found[:80]!r}, which is not a generation of a store. {_what_is_there(path)}"
            )
    return Header(dialect_named(name), generation, store_id, kept)


def _write_header(path: Path, header: Header) -> None:
    fields = {
        "format": FORMAT,
        "dialect": header.dialect.name,
        "generation": header.generation,
        "store": header.store_id,
        "kept": header.kept,
    }
    _write_line(path / _STORE, json.dumps(fields))


def _write_line(path: Path, line: str) -> None:
    with whole_file(path, _BEFORE_RENAME) as file:
        file.write(f"{line}\n".encode())
    sync_folder(path.parent)
