"""Databases of a locked folder: opening, creating, and rebuilding them beside the live database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from cablestore.errors import CorruptStoreError, StorageError
from cablestore.index import meta, notes
from cablestore.index.database import Database
from cablestore.index.evidence import Evidence, note_lost_writes
from cablestore.index.folder import Folder
from cablestore.index.header import FORMAT
from cablestore.index.leveldb import LevelDB, Tuning
from cablestore.index.opening import READ_ONLY_ADVICE
from cablestore.index.read_only import open_read_only
from cablestore.index.rebuild import RebuildReport
from cablestore.index.view import Catalog


def open_live(folder: Folder, tuning: Tuning | None = None) -> LevelDB:
    """Open the live database of a locked folder. If the folder is read-only, the database is opened read-only."""
    return open_generation(folder, folder.header.generation, tuning)


def open_generation(folder: Folder, generation: str, tuning: Tuning | None = None) -> LevelDB:
    """Open a database of a locked folder, read-only if the folder is. If the live database lost writes, record that."""
    path = folder.path / generation
    if folder.is_read_only:
        return open_read_only(path, tuning)
    if path == folder.database_path:
        note_lost_writes(path)
    try:
        return LevelDB(path, tuning)
    except CorruptStoreError:
        raise
    except StorageError as error:
        raise StorageError(f"{error}. {READ_ONLY_ADVICE}") from None


def make_database(folder: Folder, catalog: Catalog, tuning: Tuning) -> None:
    """Create the first database of a new store. The header is written after the database is on the disk."""
    name = folder.begin()
    database = LevelDB(folder.path / name, tuning, create=True)
    try:
        database.write(dict([meta.meta_row(catalog, folder.header.dialect, FORMAT)]), sync=True)
    finally:
        database.close()
    folder.activate(name)


def read_meta(database: Database, folder: Folder) -> bytes:
    """Return the meta row of a database. Raises CorruptStoreError if it is missing."""
    with database.snapshot() as state:
        value = state.get(meta.META_KEY)
    if value is None:
        raise CorruptStoreError(
            f"the database in {folder.database_path} lacks its dialect and version. Run `cablestore rebuild` to "
            "create a new one"
        )
    return value


Build = Callable[[Path, Path], RebuildReport]
"""A function that builds a complete, closed database at a path. The second argument is a folder for temporary files."""


def prepare_generation(folder: Folder, build: Build, name: str | None = None) -> tuple[str, RebuildReport]:
    """Build a generation without activating it. Return its name, by default the next number, and the report."""
    name = folder.begin(name)
    try:
        with folder.scratch() as scratch:
            return name, build(folder.path / name, scratch)
    except BaseException:
        folder.remove(name)
        raise


def build_generation(folder: Folder, build: Build, name: str | None = None) -> RebuildReport:
    """Build a generation and activate it. Its name is by default the next number."""
    name, report = prepare_generation(folder, build, name)
    folder.activate(name, keep=bool(report.damaged))
    return report


def rebuild_generation(folder: Folder, build: Build) -> RebuildReport:
    """Build the next generation from the live database, and activate it."""
    return build_generation(folder, without_old_cursors(folder, build))


def weighed(evidence: Evidence, build: Build, *, is_complete: bool = True) -> Build:
    """Return a function that calls `build`, and then `RebuildReport.weigh` with `evidence` and `is_complete`."""

    def build_weighed(path: Path, scratch: Path) -> RebuildReport:
        report = build(path, scratch)
        report.weigh(evidence, is_complete=is_complete)
        return report

    return build_weighed


def without_old_cursors(folder: Folder, build: Build) -> Build:
    """Return a function that calls `build` and then removes the rows that only old cursors need.

    The rows are kept if data was lost, or if the header lists other generations.
    """

    def build_without(path: Path, scratch: Path) -> RebuildReport:
        report = build(path, scratch)
        if not (folder.header.kept or report.damaged):  # else old cursors may become valid again
            with closing(LevelDB(path)) as database:
                notes.forget_touched(database)
        return report

    return build_without


def remove_replaced(folder: Folder, old: str, report: RebuildReport) -> None:
    """Remove the generation `old` after its rebuild. If `report` lists lost data, set it aside instead."""
    if report.damaged:
        report.kept_aside = folder.set_aside(old)
    else:
        folder.remove(old)
