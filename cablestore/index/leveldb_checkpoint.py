"""Copies of a LevelDB by links, while it is closed or open in this process."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from cablestore.errors import StorageError
from cablestore.files import is_foreign, make_folder, make_part, storage_errors
from cablestore.index.leveldb_files import TABLE_SUFFIXES, link_table
from cablestore.index.leveldb_manifest import is_log_missing, listed_tables, read_readable

_ATTEMPTS: Final = 100


def link_database(path: Path, copy: Path) -> None:
    """Copy the closed LevelDB at `path` to `copy`. The listed tables never change, so they are linked."""
    try:
        make_folder(copy)
        for table in listed_tables(path):
            link_table(table, copy / table.name)
        for file in path.iterdir():
            if file.suffix not in TABLE_SUFFIXES and file.name != "LOCK" and not is_foreign(file.name):
                shutil.copyfile(file, copy / file.name)
    except OSError as error:
        raise StorageError(f"cannot link {path} to {copy}: {error.strerror}") from None


def link_open_database(path: Path, copy: Path, writing: AbstractContextManager[object]) -> None:
    """Copy the LevelDB at `path`, open in this process, to `copy`. Tables are linked, other files are copied.

    Most tables are linked first. The other files are copied within `writing`, which locks out writers for some
    milliseconds. LevelDB's thread may meanwhile write a log to a table, merge tables and remove the old files. The list
    of tables is copied before the other files, so the copy is complete if it contains all files in this list. Otherwise
    the copy is repeated.
    """
    current = path / "CURRENT"
    with storage_errors(copy):
        for _ in range(_ATTEMPTS):
            make_part(copy)
            with suppress(FileNotFoundError):  # the list of tables was replaced
                name = current.read_text(encoding="utf-8").strip()
                _link_tables(path, copy)
                with writing:
                    shutil.copyfile(path / name, copy / name)
                    _link_tables(path, copy)
                    for log in path.glob("*.log"):
                        with suppress(FileNotFoundError):
                            shutil.copyfile(log, copy / log.name)
                    shutil.copyfile(current, copy / current.name)
                if _is_complete(copy, name):
                    _unlink_unlisted(copy)
                    return
            shutil.rmtree(copy)
    raise StorageError(f"cannot copy {path}: its files keep changing. Run the command again")


def _link_tables(path: Path, copy: Path) -> None:
    for table in path.glob("*.ldb"):
        link = copy / table.name
        with suppress(FileNotFoundError):  # the table is not needed any more, or the copy is repeated
            if link.exists() and link.stat().st_size != table.stat().st_size:
                link.unlink()  # a copy, not a hard link, of a table that LevelDB was still writing
            if not link.exists():
                link_table(table, link)


def _unlink_unlisted(copy: Path) -> None:
    """Remove the links to tables that the copied list lacks, such as a table that LevelDB was just writing."""
    for table in set(copy.glob("*.ldb")).difference(listed_tables(copy)):
        table.unlink()


def _is_complete(copy: Path, name: str) -> bool:
    """Return True if the copy has all listed tables and the log, and `name` is still the name of its manifest.

    The name changes when the database is opened again, which reuses numbers of tables.
    """
    listed = read_readable(copy)
    tables = (copy / f"{number:06d}.ldb" for number in listed.tables)
    is_same = (copy / "CURRENT").read_text(encoding="utf-8").strip() == name
    return is_same and not is_log_missing(copy, listed) and all(table.exists() for table in tables)
