"""Reading the readable parts of a damaged LevelDB, from a copy."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from cablestore.advice import advice
from cablestore.errors import CorruptStoreError, StorageError
from cablestore.files import is_foreign
from cablestore.index.database import Row
from cablestore.index.leveldb import LevelDB
from cablestore.index.leveldb_binding import plyvel
from cablestore.index.leveldb_errors import damaged
from cablestore.index.leveldb_snapshot import LevelSnapshot


@contextlib.contextmanager
def salvaged(path: Path, scratch: Path) -> Iterator[ReadableSource]:
    """Copy a damaged database to `scratch`, open the copy, and yield a source of its readable rows.

    The damaged database does not change.
    """
    try:
        shutil.copytree(path, scratch, ignore=lambda _, names: filter(is_foreign, names))
    except OSError as error:
        reason = _first_of(error)
        usual = "Check the free space and the permissions of the store's folder"
        raise StorageError(f"cannot copy the damaged database: {reason}. {advice(reason, usual)}") from None
    try:
        try:
            database = LevelDB(scratch, paranoid=False)
        except StorageError:
            try:
                plyvel.repair_db(str(scratch))
            except plyvel.Error as error:
                raise damaged(error) from None
            database = LevelDB(scratch, paranoid=False)
        try:
            with database.snapshot() as snapshot:
                yield ReadableSource(snapshot)
        finally:
            database.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _first_of(error: OSError) -> str:
    """Return the reason of the first failure in `error`, which `copytree` raised.

    `copytree` continues after each failure and raises all of them together.
    """
    return str(error.args[0][0][2]) if isinstance(error, shutil.Error) else str(error)


class ReadableSource:
    """A source that skips unreadable rows."""

    def __init__(self, snapshot: LevelSnapshot) -> None:
        self._snapshot = snapshot

    def get(self, key: bytes) -> bytes | None:
        """Return the value at `key`, None if it does not exist or is unreadable."""
        try:
            return self._snapshot.get(key)
        except CorruptStoreError:
            return None

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False, at_once: int = 0) -> Iterator[Row]:  # noqa: ARG002 - interface of all sources
        """Yield the readable rows of a range. LevelDB's cursor skips unreadable blocks itself."""
        cursor = self._snapshot.raw_cursor()
        _ignoring_damage(lambda: cursor.seek(stop if reverse else start))
        if reverse:
            _ignoring_damage(cursor.prev if cursor.valid() else cursor.seek_to_last)
        while cursor.valid():
            key = cursor.key()
            if not start <= key < stop:
                return
            yield key, cursor.value()
            _ignoring_damage(cursor.prev if reverse else cursor.next)

    def blocks(self, start: bytes, stop: bytes) -> Iterator[list[Row]]:
        """Yield the readable rows of a range in one list."""
        yield list(self.scan(start, stop))


def _ignoring_damage(move: Callable[[], None]) -> None:
    """Call `move`, a step of a cursor, and ignore an error: after an unreadable block it raises, but moves."""
    with contextlib.suppress(plyvel.Error):
        move()
