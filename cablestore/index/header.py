"""Header of a store: the STORE file, which names the live database. Also the errors if either is missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cablestore.errors import CorruptStoreError, OpenError
from cablestore.files import storage_errors, write_atomically
from cablestore.index.generations import DRAFT, FINISHED, UNFINISHED, databases_of, is_generation, mark_of
from cablestore.index.leveldb_files import holds_database
from cablestore.protocol.dialect import Dialect, dialect_named

FORMAT: Final = 1
"""Version of the format of the folder and its content: docs/reference/FORMAT.md."""

HEADER_FILE: Final = "STORE"
RESTORING: Final = "RESTORING"
"""Folder in which a restore creates a store. It then moves the files to the parent folder, STORE last."""


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a store: the content of the STORE file."""

    dialect: Dialect
    generation: str
    store_id: str
    """Random id of this store. Exports contain it, so that a reindexing recognizes the exports of its own store."""
    kept: tuple[str, ...] = ()
    """Other generations that are kept until they are removed by name, oldest first."""


def peek(path: Path) -> Header | None:
    """Return the header of the store in a folder without opening it, None if the folder does not contain a store.

    Raises CorruptStoreError if the header or its database is missing, and otherwise like `Folder.open`.
    """
    with storage_errors(f"the store at {path} cannot be read"):
        if not path.is_dir():
            return None
        if not (path / HEADER_FILE).exists():
            reject_half_restored(path)
            reject_lost_header(path)
            return None
        return complete_header(path)


def put_header(path: Path, header: Header) -> None:
    """Replace the header of the store in a folder."""
    fields = {
        "format": FORMAT,
        "dialect": header.dialect.name,
        "generation": header.generation,
        "store": header.store_id,
        "kept": header.kept,
    }
    write_atomically(path / HEADER_FILE, f"{json.dumps(fields)}\n".encode(), DRAFT)


def complete_header(path: Path) -> Header:
    """Return the header of a store. Raises CorruptStoreError if its database is missing."""
    header = _read(path)
    while problem := _problem_of(path / header.generation):
        before, header = header, _read(path)
        if header == before:  # otherwise another process has just replaced the database
            raise CorruptStoreError(
                f"{path / HEADER_FILE} names {header.generation}, which {problem}. {what_is_there(path)}"
            )
    return header


def _problem_of(database: Path) -> str:
    if not database.exists():
        return "is missing"
    if not holds_database(database):
        return "does not contain a database"
    return "is unfinished" if mark_of(database) == UNFINISHED else ""


def reject_half_restored(path: Path) -> None:
    """Raise OpenError if a restore into a folder is unfinished."""
    if (path / RESTORING).exists():
        raise OpenError(
            f"{path} is not a store yet: a restore into it is running or was interrupted. Run `cablestore restore` "
            "again"
        )


def reject_lost_header(path: Path) -> None:
    """Raise CorruptStoreError if a folder without a header contains databases of a store."""
    if any(mark_of(path / name) not in {UNFINISHED, FINISHED} for name in databases_of(path)):
        raise CorruptStoreError(f"{path / HEADER_FILE} is missing. {what_is_there(path)}")


def what_is_there(path: Path) -> str:
    """Return a sentence with the generations in a folder and the possible actions."""
    found = [name for name in databases_of(path) if mark_of(path / name) != UNFINISHED]
    if not found:
        return (
            f"No other generation found. Restore the store from a backup, or remove {HEADER_FILE} to start with an "
            "empty store"
        )
    sizes = (f"{name} ({sum(f.stat().st_size for f in (path / name).iterdir()):,} bytes)" for name in found)
    return (
        f"Found {', '.join(sizes)}. Restore the missing files, or run `cablestore generations --recover {found[-1]}` "
        "to continue with that generation"
    )


def _read(path: Path) -> Header:
    try:
        fields = json.loads((path / HEADER_FILE).read_text(encoding="utf-8"))
        version, name, generation = int(fields["format"]), str(fields["dialect"]), str(fields["generation"])
        store_id, kept = str(fields.get("store", "")), tuple(map(str, fields.get("kept", ())))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise OpenError(
            f"{path / HEADER_FILE} is not the header of a store: expected JSON with format, dialect and generation. "
            f"{what_is_there(path)}"
        ) from None
    if version != FORMAT:
        raise OpenError(
            f"the store at {path} has format {version}, but this version of cablestore reads {FORMAT}. "
            + ("Install a newer version" if version > FORMAT else "Export it with the version that wrote it")
        )
    for found in (generation, *kept):
        if not is_generation(found):
            raise OpenError(
                f"{path / HEADER_FILE} names {found[:80]!r}, which is not a generation of a store. "
                f"{what_is_there(path)}"
            )
    return Header(dialect_named(name), generation, store_id, kept)
