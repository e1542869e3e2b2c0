"""IndexTable of the index: one SQLite database with FTS5, its schema and statements. It knows nothing of a store.

    docs(id, hash)       a text: the beginning of its post's hash, as a signed number
    words(text, place)   FTS5 over the same ids, without a copy of the text. `place` has two words, of the channel and of
                         the author, so that a filter costs what a further word costs
    state                what is read of the store, and whether words of removed texts must still be overwritten

An id is a timestamp in milliseconds and four bits, so FTS5's own order is the order of time. FTS5 removes a text
without a copy of it by a mark. Its words leave the file when the parts of the index with such marks are merged
(`purge`). SQLite overwrites what it frees, and its log is emptied afterwards.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import apsw

from cablestore.errors import CableStoreError, StorageError
from cablestore.index.folder import SEARCH_FILES, SEARCH_INDEX
from cablestore.search.documents import MAX_ID, TIE_BITS, Document, id_floor, number_of, prefix_of
from cablestore.search.words import TOKENIZER

_VERSION: Final = 1
_MERGED_PAGES: Final = 2_000
"""Pages of FTS5 that one step of `purge` writes: 8 MB, about 50 ms."""
_NOT_BEGUN, _BEGUN, _AGAIN = 1, 2, 3
_SCHEMA: Final = f"""
    CREATE TABLE docs(id INTEGER PRIMARY KEY, hash INTEGER NOT NULL UNIQUE);
    CREATE VIRTUAL TABLE words USING fts5(
        text, place, content='', contentless_delete=1,
        tokenize="{TOKENIZER[0]} {" ".join(f"'{word}'" for word in TOKENIZER[1:])}"
    );
    INSERT INTO words(words, rank) VALUES('rank', 'bm25(1.0, 0.0)');
    INSERT INTO words(words, rank) VALUES('hashsize', 16777216);
    CREATE TABLE state(one INTEGER PRIMARY KEY, source TEXT, position INTEGER, mark BLOB, read_to TEXT, purge INTEGER);
    INSERT INTO state VALUES(1, '', 0, x'', '', 0);
    PRAGMA user_version = {_VERSION};
"""


class DamagedIndexError(CableStoreError):
    """The file is damaged: the index must be made again."""


class IndexState(NamedTuple):
    """What the index has read of a store.

    `source` names the store and its database. `read_to` is the last hash, in hex, up to which posts were read in order
    of hashes, None after that. Then the arrival log is followed: `position` is the last entry, and `mark` its content.
    """

    source: str
    position: int
    mark: bytes
    read_to: str | None


class IndexTable:
    """The open database of an index. It is for one thread at a time."""

    def __init__(self, folder: Path | None) -> None:
        """Open the file in a folder, or a database in memory. A file that does not fit is thrown away."""
        self._folder = folder
        try:
            self._open()
        except DamagedIndexError:
            self.clear()

    def _open(self) -> None:
        path = ":memory:" if self._folder is None else str(self._folder / SEARCH_INDEX)
        with _errors():
            connection = self._connection = apsw.Connection(path)
            try:
                # Alone, SQLite needs no shared memory beside the file. What it frees is overwritten.
                for name, value in (("locking_mode", "exclusive"), ("journal_mode", "wal"), ("synchronous", "normal")):
                    connection.pragma(name, value)
                for name, number in (("secure_delete", 1), ("temp_store", 2), ("cache_size", -16_000)):
                    connection.pragma(name, number)
                version = connection.pragma("user_version")
                if version == 0 and not self._ask("SELECT 1 FROM sqlite_schema"):
                    with connection:
                        self._ask(_SCHEMA)
                elif version != _VERSION:  # another version of cablestore made it
                    raise apsw.FormatError(str(version))  # noqa: TRY301 - the same becomes of it as of a damaged file
                self._tokenizer = connection.fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))
            except BaseException:
                connection.close(force=True)
                raise

    def clear(self) -> None:
        """Throw everything away and begin with an empty index."""
        self.close()
        if self._folder is not None:
            for name in SEARCH_FILES:
                with _errors(), suppress(FileNotFoundError):
                    (self._folder / name).unlink()
        self._open()

    def _ask(self, sql: str, *values: str | int | bytes | None) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def close(self) -> None:
        """Close the file."""
        with suppress(AttributeError, apsw.Error):  # it may never have been opened
            self._connection.close(force=True)

    # --- what is read of the store -------------------------------------------------------------

    def state(self) -> IndexState:
        """Return what the index has read."""
        with _errors():
            return IndexState(*self._ask("SELECT source, position, mark, read_to FROM state")[0])

    def update(self, state: IndexState, docs: Iterable[Document], removed: Iterable[bytes]) -> None:
        """Add and remove texts, by their hashes, and say what is read then, in one transaction."""
        with _errors(), self._connection:
            self._remove(removed)
            self._add(list(docs))
            self._ask("UPDATE state SET source = ?, position = ?, mark = ?, read_to = ?", *state)

    def _add(self, docs: list[Document]) -> None:
        if not docs:
            return
        connection = self._connection
        by_id = {doc.id: doc for doc in docs}
        rows = [(place, number_of(doc.hash)) for place, doc in by_id.items()]
        inserted = connection.executemany("INSERT OR IGNORE INTO docs VALUES(?, ?) RETURNING id", rows)
        taken = {place for (place,) in inserted}
        added = {place: doc for place, doc in by_id.items() if place in taken}
        settled = {doc.hash for doc in added.values()}
        for doc in docs:
            if doc.hash not in settled and self._id(doc.hash) is None:
                added[self._free_id(doc)] = doc
        # In order of ids: FTS5 writes a segment to the disk where an id is smaller than the one before.
        found = ((place, doc.text, doc.place) for place, doc in sorted(added.items()))
        connection.executemany("INSERT INTO words(rowid, text, place) VALUES(?, ?, ?)", found)

    def _free_id(self, doc: Document) -> int:
        """Take an id near the time of a text whose own is taken. The more are taken, the farther it may be."""
        for bits in range(TIE_BITS, 62):
            place = min(id_floor(doc.timestamp_ms) + secrets.randbelow(1 << bits), MAX_ID)
            sql = "INSERT OR IGNORE INTO docs VALUES(?, ?) RETURNING id"
            if self._ask(sql, place, number_of(doc.hash)):
                return place
        raise AssertionError("2^61 texts")

    def _remove(self, hashes: Iterable[bytes]) -> None:
        gone = sorted(place for place in map(self._id, hashes) if place is not None)
        if gone:
            for sql in ("DELETE FROM words WHERE rowid = ?", "DELETE FROM docs WHERE id = ?"):
                self._connection.executemany(sql, [(place,) for place in gone])
            self._ask(
                "UPDATE state SET purge = CASE purge WHEN 0 THEN ? WHEN ? THEN ? ELSE purge END",
                _NOT_BEGUN,
                _BEGUN,
                _AGAIN,
            )

    def _id(self, digest: bytes) -> int | None:
        found = self._ask("SELECT id FROM docs WHERE hash = ?", number_of(digest))
        return int(found[0][0]) if found else None

    # --- removed words -------------------------------------------------------------------------

    def must_purge(self) -> bool:
        """Tell whether the file may hold words of texts that were removed."""
        with _errors():
            return bool(self._ask("SELECT purge FROM state")[0][0])

    def purge(self) -> None:
        """Merge some parts of the index, which leaves out removed texts. Call it until `must_purge` is false."""
        connection = self._connection
        with _errors():
            with connection:
                step = self._ask("SELECT purge FROM state")[0][0]
                changes = connection.total_changes()
                pages = -_MERGED_PAGES if step == _NOT_BEGUN else _MERGED_PAGES
                self._ask("INSERT INTO words(words, rank) VALUES('merge', ?)", pages)
                is_done = step != _NOT_BEGUN and connection.total_changes() - changes < 2
                following = {_NOT_BEGUN: _BEGUN, _BEGUN: 0, _AGAIN: _NOT_BEGUN}[step] if is_done or step == 1 else step
                self._ask("UPDATE state SET purge = ?", following)
            if following == 0:
                self._ask("PRAGMA wal_checkpoint(TRUNCATE)")

    # --- finding -------------------------------------------------------------------------------

    def tokenize(self, data: bytes) -> list[tuple[int, int, str]]:
        """Return offset, end and word of each word in UTF-8."""
        return cast(list[tuple[int, int, str]], self._tokenizer(data, apsw.FTS5_TOKENIZE_QUERY, None))

    def newest(self, expression: str, start: int, stop: int, number: int) -> list[tuple[int, bytes]]:
        """Return (id, first 8 bytes of the hash) of texts with start <= id < stop, the newest first."""
        sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid DESC LIMIT ?"
        return self._found(sql, expression, start, stop, number)

    def ranked(
        self, expression: str, start: int, stop: int, skipped: int, number: int, most: int
    ) -> list[tuple[int, bytes]]:
        """Return the same, the best first, among the `most` newest that match. `skipped` are left out."""
        with _errors():
            sql = (
                "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid DESC "
                "LIMIT 1 OFFSET ?"
            )
            oldest = self._ask(sql, expression, start, stop, most - 1)
        start = oldest[0][0] if oldest else start
        sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rank LIMIT ? OFFSET ?"
        return self._found(sql, expression, start, stop, number, skipped)

    def _found(self, sql: str, *values: str | int) -> list[tuple[int, bytes]]:
        with _errors():
            places = self._ask(sql, *values)
            found = []
            for (place,) in places:
                row = self._ask("SELECT hash FROM docs WHERE id = ?", place)
                if not row:
                    raise DamagedIndexError(f"the text {place} has no hash")
                found.append((place, prefix_of(row[0][0])))
            return found


@contextmanager
def _errors() -> Iterator[None]:
    """Raise DamagedIndexError if the file is damaged, StorageError if it cannot be written or removed."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError, apsw.FormatError) as error:
        raise DamagedIndexError(str(error)) from None
    except (apsw.FullError, apsw.IOError, apsw.CantOpenError, apsw.ReadOnlyError, apsw.PermissionsError) as error:
        raise StorageError(
            f"the search index cannot be written: {error}. Check free space and permissions of the store's folder"
        ) from None
    except OSError as error:
        raise StorageError(f"the search index cannot be removed: {error.strerror}") from None
