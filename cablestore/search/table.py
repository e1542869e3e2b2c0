"""Table of the index: one SQLite database with FTS5, its schema and statements. Independent of a store.

    docs(id, hash, own)  a text: the beginning of its post's hash, and `own`: the id by its time and hash, if another
                         text already has this id
    words(text, place)   FTS5 over the same ids, without a copy of the text. `place` contains two words, of the channel
                         and of the author, so that a filter costs as much as a further word
    state                the indexed part of the store, and if words of removed texts must still be overwritten

An id is a timestamp in milliseconds and four bits of the hash, so FTS5's own order is the order of time. A text whose
id is taken gets a free id above it. The index `moved` gives the maximum distance: a search reads that much further and
sorts by time and hash. Therefore a millisecond can contain any number of texts.

Prefixes of one and two letters have separate indexes. Without these, FTS5 would merge the lists of thousands of words
in each search for such a prefix.

FTS5 has no copy of a text, so it only marks the text as removed. The words are removed from the file when the parts of
the index with such marks are merged (`purge`). SQLite overwrites freed space, and its log is emptied afterwards.

A new index is built with few merges. When all posts are indexed, `purge` merges the parts into one. This takes less
time, and searches of one part are faster.

`page_sums` detects damage of the file.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

import apsw

from cablestore.advice import advice
from cablestore.errors import CableStoreError, StorageError
from cablestore.files import create
from cablestore.forks import ProcessBound, bind
from cablestore.index.folder import SEARCH_FILES, SEARCH_INDEX
from cablestore.search.documents import (
    HASH,
    PREFIX_SIZE_BYTES,
    TIE_BITS,
    Document,
    id_at,
    id_of,
    place_of,
    with_id,
)
from cablestore.search.page_sums import PageSums, WrongSumsError
from cablestore.search.words import TOKENIZER

_LOG: Final = logging.getLogger("cablestore.search")
_VERSION: Final = 4
_MERGED_PAGES: Final = 500
"""Pages of FTS5 that one step of `purge` writes: 2 MB, about 70 ms."""
_MERGES: Final = {"automerge": (16, 4), "crisismerge": (64, 16)}
"""Options of FTS5 for merging parts, each with its values during the initial build and afterwards."""
_NOT_BEGUN, _BEGUN, _AGAIN = 1, 2, 3
_SCHEMA: Final = f"""
    CREATE TABLE docs(id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, own INTEGER);
    CREATE INDEX moved ON docs(id - own) WHERE own IS NOT NULL;
    CREATE VIRTUAL TABLE words USING fts5(
        text, place, content='', contentless_delete=1, prefix='1 2',
        tokenize="{TOKENIZER[0]} {" ".join(f"'{word}'" for word in TOKENIZER[1:])}"
    );
    INSERT INTO words(words, rank) VALUES('rank', 'bm25(1.0, 0.0)');
    INSERT INTO words(words, rank) VALUES('hashsize', 16777216);
    {"".join(f"INSERT INTO words(words, rank) VALUES('{name}', {making});" for name, (making, _) in _MERGES.items())}
    CREATE TABLE state(one INTEGER PRIMARY KEY, source TEXT, position INTEGER, mark BLOB, read_to TEXT, purge INTEGER);
    INSERT INTO state VALUES(1, '', 0, x'', '', 0);
    PRAGMA user_version = {_VERSION};
"""


# Each value of the array is a document: see `Document` for its parts. SQLite counts from 1.
_ADD_DOCS: Final = (
    "INSERT INTO docs(id, hash) SELECT CAST(substr(value, 1, 19) AS INTEGER), substr(value, 20, 8) FROM carray(?)"
)
_ADD_WORDS: Final = """
    INSERT INTO words(rowid, place, text)
    SELECT CAST(substr(value, 1, 19) AS INTEGER), CAST(substr(value, 28, 37) AS TEXT), CAST(substr(value, 65) AS TEXT)
    FROM carray(?)
"""


_RANKED: Final = """
    SELECT id FROM (
        SELECT rowid AS id, rank AS score FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ?
        ORDER BY rowid DESC LIMIT ?
    ) ORDER BY score, id DESC LIMIT ? OFFSET ?
"""
_RANKED_MOVED: Final = """
    SELECT id FROM (
        SELECT id, ifnull(own, id) AS own, hash, rank AS score FROM words CROSS JOIN docs ON id = words.rowid
        WHERE words MATCH ? AND words.rowid >= ? AND words.rowid < ? AND ifnull(own, id) < ?
        ORDER BY words.rowid DESC LIMIT ?
    ) ORDER BY score, own DESC, hash DESC LIMIT ? OFFSET ?
"""
"""`_RANKED` for an index in which ids were taken: texts of one time are sorted by their hashes."""


class DamagedIndexError(CableStoreError):
    """The file is damaged: the index must be rebuilt."""


class IndexState(NamedTuple):
    """Progress of the index through a store.

    `source` identifies the store and its database. `read_to` is the last hash, in hex, up to which posts were indexed
    in order of hashes, None when all are indexed. Then the arrival log is followed: `position` is the last entry, and
    `mark` identifies the log up to this entry (`cablestore.index.log_position`).
    """

    source: str
    position: int
    mark: bytes
    read_to: str | None


class IndexTable(ProcessBound):
    """Open database of an index. Only one thread may use it at a time."""

    def __init__(self, folder: Path | None, *, read_only: bool = False) -> None:
        """Open the file in a folder, or a database in memory. An invalid file is discarded.

        With `read_only`, the file is not changed, and an invalid file raises DamagedIndexError.
        """
        self._folder = folder
        self._read_only = read_only
        self._sums: PageSums | None = None
        try:
            self._open()
        except DamagedIndexError as error:
            if read_only:
                raise
            _LOG.warning("rebuilding the search index: %s", error)
            self.clear()
        bind(self)

    def _native_parts(self) -> Iterable[object]:
        """Return objects that a forked child must not destroy: that would close the connection and remove the log."""
        return self._connection, apsw

    def _open(self) -> None:
        self._sums = None
        with _errors():
            if "ENABLE_CARRAY" not in apsw.compile_options:
                raise StorageError(
                    "the SQLite of the installed apsw lacks `carray`. Run pip install --force-reinstall apsw to "
                    "install a version with `carray`"
                )
            if self._folder is None:
                self._connect(":memory:")
                return
            sums, path = PageSums(self._folder), self._folder / SEARCH_INDEX
            if self._read_only:
                sums.verify(read_only=True)
                self._connect(f"file:{quote(str(path))}?immutable=1")
            elif path.exists():
                sums.verify()
                self._connect(str(path))
                sums.checkpoint(self._connection)
            else:
                self._remove_files()  # of an index whose file was lost
                os.close(
                    create(str(path), os.O_RDWR | os.O_CREAT)
                )  # otherwise SQLite creates it, and its log, readable by others
                self._connect(str(path))
                sums.begin(self._connection)
            self._sums = sums

    def _connect(self, file: str) -> None:
        if self._read_only:
            connection = apsw.Connection(file, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        else:
            connection = apsw.Connection(file)
        self._connection = connection
        try:
            if not self._read_only:
                # In exclusive mode, SQLite does not need shared memory beside the file. It overwrites freed space.
                for name, value in (("locking_mode", "exclusive"), ("journal_mode", "wal"), ("synchronous", "normal")):
                    connection.pragma(name, value)
                # `PageSums` makes all checkpoints.
                connection.pragma("wal_autocheckpoint", 0)
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            for name, number in (("secure_delete", 1), ("temp_store", 2), ("cache_size", -64_000)):
                connection.pragma(name, number)
            version = connection.pragma("user_version")
            if version == 0 and not self._query("SELECT 1 FROM sqlite_schema"):
                with connection:
                    self._query(_SCHEMA)
            elif version != _VERSION:  # created by another version of cablestore
                raise apsw.FormatError(f"it has version {version}, expected {_VERSION}")  # noqa: TRY301 - handled like a damaged file
            self._tokenizer = connection.fts5_tokenizer(TOKENIZER[0], list(TOKENIZER[1:]))
        except BaseException:
            connection.close(force=True)
            raise

    def require_unchanged(self) -> None:
        """Raise DamagedIndexError if another program changed or replaced the file."""
        if self._sums is not None:
            with _errors():
                self._sums.require_unchanged()

    def clear(self) -> None:
        """Discard the index and create an empty index."""
        self._disconnect()
        self._remove_files()
        self._open()

    def _remove_files(self) -> None:
        if self._folder is not None:
            for name in SEARCH_FILES:
                with _errors(), suppress(FileNotFoundError):
                    (self._folder / name).unlink()

    def _query(self, sql: str, *values: str | int | bytes | None) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def close(self) -> None:
        """Close the file."""
        sums, self._sums = (None if self._read_only else self._sums), None
        with suppress(CableStoreError), _errors():  # if the checkpoint fails, the next opening reads the log
            if sums is not None:
                sums.checkpoint(self._connection)
        self._disconnect()
        if sums is not None:
            with suppress(OSError):
                sums.remove_empty_log()

    def _disconnect(self) -> None:
        with suppress(AttributeError, apsw.Error):  # the connection may never have been opened
            self._connection.close(force=True)

    def _commit_is_done(self) -> None:
        """Run a checkpoint if one is due, otherwise record which log belongs to the file. Called after each commit."""
        if self._sums is not None and self._sums.is_due():
            self._sums.checkpoint(self._connection)
        elif self._sums is not None:
            self._sums.note_log()

    # --- progress through the store ------------------------------------------------------------

    def state(self) -> IndexState:
        """Return the progress of the index through the store."""
        with _errors():
            return IndexState(*self._query("SELECT source, position, mark, read_to FROM state")[0])

    def update(self, state: IndexState, docs: Iterable[Document], removed: Iterable[bytes]) -> None:
        """Add texts, remove texts by their hashes, and set the progress, in one transaction."""
        with _errors():
            with self._connection:
                is_made = state.read_to is None and self.state().read_to is not None
                self._remove(removed)
                self._add(sorted(docs))  # if an id is below the previous id, FTS5 writes a part to the disk
                self._query("UPDATE state SET source = ?, position = ?, mark = ?, read_to = ?", *state)
                if is_made:
                    for name, (_, later) in _MERGES.items():
                        self._query("INSERT INTO words(words, rank) VALUES(?, ?)", name, later)
                    self._require_purge()
            self._commit_is_done()

    def _add(self, docs: list[Document]) -> None:
        if not docs:
            return
        try:
            with self._connection:
                self._insert(_ADD_DOCS, docs)
        except apsw.ConstraintError:  # an id is taken, or a text is already indexed
            docs = self._placed(docs)
        self._insert(_ADD_WORDS, docs)

    def _insert(self, sql: str, docs: list[Document]) -> None:
        """Run the statement `sql` for all documents in one call, during which other threads run."""
        if docs:
            self._connection.execute(sql, (apsw.carray(tuple(docs)),))

    def _placed(self, docs: list[Document]) -> list[Document]:
        """Add rows to `docs` for the texts that are not indexed yet. Return these texts, sorted by id.

        A text whose id is taken gets a free id.
        """
        by_id = {id_of(doc): doc for doc in docs}
        rows = [(number, doc[HASH]) for number, doc in by_id.items()]
        inserted = self._connection.executemany("INSERT OR IGNORE INTO docs(id, hash) VALUES(?, ?) RETURNING id", rows)
        added = [by_id[number] for (number,) in inserted]
        settled = {doc[HASH] for doc in added}
        left = (doc for doc in docs if doc[HASH] not in settled and self._id(doc[HASH]) is None)
        return sorted([*added, *(with_id(doc, self._free_id(doc)) for doc in left)])

    def _free_id(self, doc: Document) -> int:
        """Add a row for a text whose own id is taken, with a random free id above it, and return this id.

        The range of random ids is doubled until a free id is found.
        """
        own = id_of(doc)
        for bits in range(TIE_BITS, 62):
            number = own + secrets.randbelow(1 << bits)
            if self._query("INSERT OR IGNORE INTO docs VALUES(?, ?, ?) RETURNING id", number, doc[HASH], own):
                return number
        raise AssertionError("2^61 texts")

    def _remove(self, hashes: Iterable[bytes]) -> None:
        found = (self._id(digest[:PREFIX_SIZE_BYTES]) for digest in hashes)
        gone = sorted(place for place in found if place is not None)
        if gone:
            for sql in ("DELETE FROM words WHERE rowid = ?", "DELETE FROM docs WHERE id = ?"):
                self._connection.executemany(sql, [(place,) for place in gone])
            self._require_purge()

    def _require_purge(self) -> None:
        self._query(
            "UPDATE state SET purge = CASE purge WHEN 0 THEN ? WHEN ? THEN ? ELSE purge END", _NOT_BEGUN, _BEGUN, _AGAIN
        )

    def _id(self, prefix: bytes) -> int | None:
        found = self._query("SELECT id FROM docs WHERE hash = ?", prefix)
        return int(found[0][0]) if found else None

    # --- removed words -------------------------------------------------------------------------

    def must_purge(self) -> bool:
        """Return True if parts of the index must be merged, by calls of `purge`.

        This is necessary to delete the words of removed texts, and after the initial build, which makes many parts.
        """
        with _errors():
            return bool(self._query("SELECT purge FROM state")[0][0])

    def purge(self) -> None:
        """Run one step of merging parts of the index. Call it until `must_purge` returns False.

        The last step also removes the deleted words from SQLite's log.
        """
        connection = self._connection
        with _errors():
            with connection:
                step = self._query("SELECT purge FROM state")[0][0]
                changes = connection.total_changes()
                pages = -_MERGED_PAGES if step == _NOT_BEGUN else _MERGED_PAGES
                self._query("INSERT INTO words(words, rank) VALUES('merge', ?)", pages)
                is_done = step != _NOT_BEGUN and connection.total_changes() - changes < 2
                following = {_NOT_BEGUN: _BEGUN, _BEGUN: 0, _AGAIN: _NOT_BEGUN}[step] if is_done or step == 1 else step
                self._query("UPDATE state SET purge = ?", following)
            if following == 0 and self._sums is not None:
                self._sums.checkpoint(connection)  # removes the deleted words from the log too
            else:
                self._commit_is_done()

    # --- searching -----------------------------------------------------------------------------

    def tokenize(self, data: bytes) -> list[tuple[int, int, str]]:
        """Return (offset, end, word) for each word of `data`, which is UTF-8. Offsets are in bytes."""
        return cast(list[tuple[int, int, str]], self._tokenizer(data, apsw.FTS5_TOKENIZE_QUERY, None))

    def newest(self, expression: str, start: int, stop: int, before: int | None, number: int) -> list[int]:
        """Return the positions of up to `number` texts that match `expression`, newest first.

        Only texts with `start` <= own id < `stop` are searched, and only below the position `before` if it is given.
        """
        places, waiting = list[int](), list[int]()
        with _errors():
            end = stop if before is None else min(stop, id_at(before) + 1)
            sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid DESC"
            with closing(self._connection.cursor()) as rows:
                for (found,) in rows.execute(sql, (expression, start, end + self._farthest())):
                    place = self._place(found)
                    if id_at(place) < end and (before is None or place < before):
                        heappush(waiting, -place)
                    # The remaining rows have smaller ids than `found`, and an own id is never above the id.
                    while waiting and id_at(-waiting[0]) >= found and len(places) < number:
                        places.append(-heappop(waiting))
                    if len(places) == number:
                        return places
        return [*places, *(-place for place in sorted(waiting))][:number]

    def ranked(self, expression: str, start: int, stop: int, skipped: int, number: int, most: int) -> list[int]:
        """Return the positions of up to `number` texts that match `expression`, best first, without the best `skipped`.

        Only texts with `start` <= own id < `stop` are searched, and only the `most` newest matches are ranked.
        """
        with _errors():
            farthest = self._farthest()
            sql, values = (_RANKED_MOVED, (stop + farthest, stop)) if farthest else (_RANKED, (stop,))
            found = self._query(sql, expression, start, *values, most, number, skipped)
            return [self._place(number) for (number,) in found]

    def _farthest(self) -> int:
        """Return the maximum of id - own id over all texts, 0 if no id was taken."""
        return int(self._query("SELECT max(id - own) FROM docs WHERE own IS NOT NULL")[0][0] or 0)

    def _place(self, number: int) -> int:
        row = self._query("SELECT ifnull(own, id), hash FROM docs WHERE id = ?", number)
        if not row:
            raise DamagedIndexError(f"the hash of message {number} is missing")
        return place_of(*row[0])


@contextmanager
def _errors() -> Iterator[None]:
    """Raise DamagedIndexError if the file is damaged, StorageError if it cannot be written or removed."""
    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, WrongSumsError) as error:
        raise DamagedIndexError(str(error)) from None
    except (
        apsw.FullError,
        apsw.IOError,
        apsw.CantOpenError,
        apsw.ReadOnlyError,
        apsw.PermissionsError,
        apsw.BusyError,
    ) as error:
        raise StorageError(
            f"cannot write the search index: {error}. Check the free space and the permissions of the store's folder"
        ) from None
    except OSError as error:
        usual = "Check the free space and the permissions of the store's folder"
        raise StorageError(
            f"cannot read, write or remove the search index: {error.strerror}. {advice(error.strerror, usual)}"
        ) from None
