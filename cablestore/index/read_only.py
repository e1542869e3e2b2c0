"""A LevelDB that is opened read-only: nothing is written into its folder.

LevelDB does not have a read-only mode. To open a database, it locks the folder, writes a new manifest, and moves the
rows of the log to a table. So it opens an overlay: a temporary folder with links to the tables, which are immutable,
and with copies of the manifest and the log. When LevelDB removes an obsolete table, it only removes the link.

LevelDB also merges tables during reads. In an overlay, that would write up to the size of the database. So folders with
the names of the next tables are created: the first merge fails, and LevelDB does not start another.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cablestore.advice import advice
from cablestore.errors import CorruptStoreError, StorageError
from cablestore.files import TemporaryFolder, make_temporary
from cablestore.index.leveldb import LevelDB, Tuning
from cablestore.index.leveldb_binding import plyvel
from cablestore.index.leveldb_errors import damaged_for
from cablestore.index.leveldb_files import TABLE_SUFFIXES, holds_database
from cablestore.index.leveldb_manifest import is_outdated, listed_tables, read_readable
from cablestore.index.opening import reject_write

_NAMES_TAKEN: Final = 64
"""Number of reserved names of tables, more than LevelDB uses."""


class ReadOnlyLevelDB(LevelDB):
    """An overlay of a LevelDB, open in this process. Thread-safe. `close` removes the overlay."""

    def __init__(self, overlay: TemporaryFolder, tuning: Tuning | None = None) -> None:
        """Open the database in the overlay. Callers use `open_read_only`."""
        super().__init__(overlay.path, tuning)
        self._overlay = overlay

    def write(self, rows: Mapping[bytes, bytes | None], *, sync: bool) -> None:  # noqa: ARG002 - interface of all databases
        """Raise StorageError."""
        reject_write()

    def compact(self) -> None:
        """Raise StorageError."""
        reject_write()

    def remove_unused_tables(self) -> None:
        """Raise StorageError."""
        reject_write()

    def _merge_versions(self, database: plyvel.DB, keys: list[bytes]) -> None:
        """Do nothing: without writes, older versions of rows cannot appear again."""

    def _flush(self) -> None:
        """Do nothing: the log in the overlay is empty."""

    def close(self) -> None:
        """Close the database and remove the overlay."""
        if self._is_open:
            super().close()
            self._overlay.remove()


def open_read_only(path: Path, tuning: Tuning | None = None, *, scratch: Path | None = None) -> ReadOnlyLevelDB:
    """Open the database in a folder read-only. The overlay is created in `scratch`, by default a temporary folder.

    Raises CorruptStoreError if the database is damaged or missing. Raises StorageError if it cannot be read, or if the
    disk is too full for temporary files.
    """
    try:
        if not holds_database(path):
            raise CorruptStoreError(f"no database found at {path}. Restore it from a backup")
        if is_outdated(path, read_readable(path)):
            raise damaged_for("the end of its manifest is missing")
        others = (file for file in path.iterdir() if file.suffix not in TABLE_SUFFIXES)
        copied = [file for file in others if file.name not in {"LOCK", "LOG", "LOG.old"}]
        if scratch is None:
            size_bytes = sum(file.stat().st_size for file in copied)
            overlay = make_temporary(2 * size_bytes, outside=path.parent)  # twice: LevelDB writes the log to a table
        else:
            overlay = TemporaryFolder(scratch, None)
            scratch.mkdir()
    except OSError as error:
        what_to_do = advice(error.strerror, "Check its permissions")
        raise StorageError(f"cannot read the database at {path}: {error.strerror}. {what_to_do}") from None
    try:
        for file in copied:
            shutil.copyfile(file, overlay.path / file.name)
        for table in listed_tables(path):
            (overlay.path / table.name).symlink_to(table.absolute())
        database = ReadOnlyLevelDB(overlay, tuning)
    except OSError as error:
        overlay.remove()
        what_to_do = advice(error.strerror, "Check the permissions and the free space of both folders")
        raise StorageError(
            f"cannot open the database at {path} over {overlay.path}: {error.strerror}. {what_to_do}"
        ) from None
    except BaseException:
        overlay.remove()
        raise
    _take_names(overlay.path)
    return database


def _take_names(overlay: Path) -> None:
    """Create folders with the names of the next tables. LevelDB numbers all of its files in one sequence."""
    numbers = (file.stem.removeprefix("MANIFEST-") for file in overlay.iterdir())
    last = max(int(number) for number in numbers if number.isdecimal())
    for number in range(last + 1, last + 1 + _NAMES_TAKEN):
        with suppress(FileExistsError):
            (overlay / f"{number:06d}.ldb").mkdir()
