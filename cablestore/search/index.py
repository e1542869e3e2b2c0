"""Index of one store: it reads the store until it is up to date, and finds texts. Thread-safe.

A new index reads all posts in order of their hashes, which is fastest, and then the posts that arrived meanwhile. After
that, it follows the arrival log. Of a log entry, only the hash is used: the text with this hash is then indexed if the
store contains it, and otherwise removed from the index. Therefore reading an entry twice is harmless.

One lock protects the file. A thread holds it for one query, or for one step of catching up, and reads posts without it.
Searches of other threads are therefore answered between two steps. A step that another thread has already made is
discarded.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cablestore import limits
from cablestore.errors import StorageError, StoreClosedError
from cablestore.extras import naming_extras
from cablestore.forks import ProcessBound, bind
from cablestore.index import arrival_log
from cablestore.index.arrival_log import EventKind
from cablestore.index.batches import Progress, no_progress
from cablestore.index.log_position import is_shared, mark_at
from cablestore.index.meta import NO_SIZE, SIZES_KEY, decode_sizes
from cablestore.index.reader import DATA_PREFIX, Reader, SnapshotReader, fraction_before
from cablestore.protocol.dialect import Dialect
from cablestore.protocol.keys import after_prefix
from cablestore.protocol.post import Post
from cablestore.search.documents import Document, author_word, channel_word, document_of, id_floor
from cablestore.search.query import Term, matches, terms_of
from cablestore.search.words import words_of

if TYPE_CHECKING:
    from cablestore.search.table import IndexState, IndexTable

_LOG: Final = logging.getLogger("cablestore.search")
_POSTS_READ: Final = 50_000
"""Number of posts or log entries in one step without a timeout. A step takes about a second, half of it with the lock.
One step is read while the previous step is written: together, they use 50 MB of memory."""
_HURRIED: Final = 4
"""Divisor for the size of a step with a timeout. Smaller steps end in time, but more of them take longer in total."""
_BYTES_READ: Final = 16_000_000
"""Size of the posts after which a step of the initial build ends, regardless of their number."""


PURGES_BEFORE_ANSWER: Final = 4
"""Maximum number of steps that merge parts of the index before a search answers. They take about 0.3 seconds."""


class IndexThrownAwayError(StorageError):
    """The index was damaged, and an empty index has replaced it."""


@dataclass(frozen=True, slots=True)
class Question:
    """Terms to search, with filters by channel, author, and start <= time < end."""

    terms: list[Term]
    channel: str | None
    author: bytes | None
    start_ms: int
    end_ms: int | None

    @property
    def expression(self) -> str:
        """The query in FTS5's language, without the time range."""
        parts = ["{text} : (" + " AND ".join(term.expression for term in self.terms) + ")"]
        parts += [] if self.channel is None else ["{place} : " + channel_word(self.channel)]
        parts += [] if self.author is None else ["{place} : " + author_word(self.author)]
        return " AND ".join(parts)

    @property
    def ids(self) -> tuple[int, int]:
        """Ids of the time range: the first id, and the id after the last."""
        return id_floor(self.start_ms), id_floor(limits.MAX_TIMESTAMP_MS + 1 if self.end_ms is None else self.end_ms)

    def chooses(self, post: Post) -> bool:
        """Return True if channel, author and time of a post match the filters."""
        return (
            self.channel in {None, post.channel}
            and self.author in {None, post.author}
            and self.start_ms <= post.timestamp_ms
            and (self.end_ms is None or post.timestamp_ms < self.end_ms)
        )


class SearchIndex(ProcessBound):
    """Index of one store. Its file is opened on first use."""

    def __init__(
        self,
        folder: Path | None,
        dialect: Dialect,
        reading: Callable[[], SnapshotReader],
        *,
        read_only: bool = False,
    ) -> None:
        """`reading` returns a reader of the current state of the store. Without a folder, the index is in memory.

        With `read_only`, the index is not changed, and methods raise StorageError if it is missing, damaged or incomplete.
        """
        self._read_only = read_only
        self._folder = folder
        self._dialect = dialect
        self._reading = reading
        self._lock = threading.Lock()
        self._table: IndexTable | None = None
        self._is_open = True
        bind(self)

    @contextmanager
    def _locked(self) -> Iterator[IndexTable]:
        """Acquire the lock, open the file if necessary, and yield the table.

        If the file turns out to be damaged, replaces it by an empty index and raises IndexThrownAwayError, or raises
        StorageError for a read-only store.
        """
        with naming_extras("search needs"):
            from cablestore.search.table import DamagedIndexError, IndexTable  # noqa: PLC0415 - an extra installs apsw
        with self._lock:
            if not self._is_open:
                raise StoreClosedError("the store is closed")
            try:
                if self._table is None:
                    self._table = IndexTable(self._folder, read_only=self._read_only)
                self._table.require_unchanged()
                yield self._table
            except DamagedIndexError as error:
                if self._table is None or self._read_only:
                    raise _unusable(str(error)) from None
                _LOG.warning("rebuilding the search index: %s", error)
                self._clear(self._table)
                raise IndexThrownAwayError("the search index was damaged. Search again to rebuild it") from None

    def _clear(self, table: IndexTable) -> None:
        """Replace the index by an empty index. If that fails, the next use opens the file again."""
        self._table = None
        table.clear()
        self._table = table

    def close(self) -> None:
        """Wait for the running step, then close the file."""
        with self._lock:
            self._is_open = False
            if self._table is not None:
                self._table.close()

    # --- catching up ---------------------------------------------------------------------------

    def catch_up(
        self, timeout_s: float | None = None, progress: Progress = no_progress, *, purges: int | None = None
    ) -> int:
        """Index new posts for at most about `timeout_s`. Return the approximate number of remaining posts.

        `progress` is called with the number of indexed posts and log entries. `purges` is the maximum number of steps
        that merge parts of the index.
        """
        if self._read_only:
            self._require_complete()
            return 0
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._locked() as table:
                known = table.state()
            with self._reading() as reader:  # newer than the indexed state, unless the store is an older copy
                left = self._follow(reader, until, progress, purges) if self._require_fit(known, reader) else None
            if left is not None:
                return left

    def _require_complete(self) -> None:
        """Raise StorageError if the index of a read-only store is incomplete."""
        with self._locked() as table:
            known = table.state()
        with self._reading() as reader:
            if known.source != reader.generation or not is_shared(reader, known.position, known.mark):
                raise _unusable("it belongs to another database")
            later = arrival_log.entries(reader, known.position)
            left = sum(entry.kind is not EventKind.LOCAL for entry in later)
            if known.read_to is not None or left:
                left += 0 if known.read_to is None else _unread(reader, known.read_to)
                raise _unusable(f"it lacks about {left:,} posts and events")

    def _require_fit(self, known: IndexState, reader: Reader) -> bool:
        """Begin a new index if the index is new or does not match `reader`: another database or another arrival log.

        `known` is the state of the index. Returns False, and does nothing, if another thread changed it meanwhile.
        """
        if known.source == reader.generation and is_shared(reader, known.position, known.mark):
            return True
        with self._locked() as table:
            if table.state() != known:
                return False
            if known.source:
                self._clear(table)
            position = arrival_log.next_sequence(reader) - 1
            begun = known._replace(
                source=reader.generation, position=position, mark=mark_at(reader, position), read_to=""
            )
            table.update(begun, (), ())
        return True

    def _follow(self, reader: Reader, until: float | None, progress: Progress, purges: int | None) -> int | None:
        """Run steps until the index is up to date with `reader`, or until the time `until`. None means no time limit.

        At most `purges` steps merge parts of the index. Returns the approximate number of remaining posts, None if the
        index is newer than the state of `reader`.
        """
        last, purged = arrival_log.next_sequence(reader) - 1, 0
        while True:
            with self._locked() as table:
                known, must_purge = table.state(), table.must_purge()
            if known.read_to is not None:
                if known.position > last:  # another thread began the index from a newer state than `reader`
                    return None
                self._read_posts(reader, known, until, progress)
            elif known.position < last:
                progress(self._read_log(reader, known, _step(until)))
            elif must_purge and (purges is None or purged < purges):
                with self._locked() as table:
                    if table.must_purge():
                        table.purge()
                purged += 1
                progress(0)
            else:
                return 0
            if until is not None and time.monotonic() >= until:
                return self._left(reader, last)

    def _left(self, reader: Reader, last: int) -> int:
        """Return the approximate number of posts, and of log entries up to number `last`, that are not indexed yet."""
        with self._locked() as table:
            known = table.state()
        left = max(0, last - known.position)
        return left if known.read_to is None else left + _unread(reader, known.read_to)

    def _read_posts(self, reader: Reader, known: IndexState, until: float | None, progress: Progress) -> None:
        """Index posts in order of hashes until all are read, the time is over or another thread wrote the same step.

        At least one step is read, even if the time is over.

        While SQLite writes one step, the next step is read: writing takes two thirds of the time, and runs without
        Python's lock.
        """
        with ThreadPoolExecutor(1, "cablestore-search") as writer:
            writing, read = None, 0
            while True:
                has_time = writing is None or until is None or time.monotonic() < until
                goes_on = known.read_to is not None and has_time
                docs, following = self._next_posts(reader, known, _step(until)) if goes_on else ([], known)
                if writing is not None:
                    was_faster = not writing.result()
                    progress(read)
                    if was_faster:
                        return
                if not goes_on:
                    return
                writing, read = writer.submit(self._write, known, following, docs, []), len(docs)
                known = following

    def _next_posts(self, reader: Reader, known: IndexState, most: int) -> tuple[list[Document | None], IndexState]:
        """Return the documents of the next up to `most` posts, and the state of the index after they are added.

        The document of a post that is not a text is None.
        """
        start = DATA_PREFIX + known.read_to.encode() + b"\x00" if known.read_to else DATA_PREFIX
        docs, key, size, prefix_size = list[Document | None](), b"", 0, len(DATA_PREFIX)
        for key, raw in islice(reader.scan(start, after_prefix(DATA_PREFIX)), most):
            docs.append(document_of(key[prefix_size:], raw, self._dialect))
            size += len(raw)
            if size > _BYTES_READ:
                break
        is_last = len(docs) < most and size <= _BYTES_READ
        return docs, known._replace(read_to=None if is_last else key[prefix_size:].decode("ascii", "replace"))

    def _read_log(self, reader: Reader, known: IndexState, most: int) -> int:
        entries = list(islice(arrival_log.entries(reader, known.position), most))
        docs, removed = list[Document | None](), list[bytes]()
        for digest in dict.fromkeys(entry.hash for entry in entries if entry.kind is not EventKind.LOCAL):
            hash_hex = digest.hex().encode()
            raw = reader.get(DATA_PREFIX + hash_hex)
            if raw is None:
                removed.append(digest)
            else:
                docs.append(document_of(hash_hex, raw, self._dialect))
        # If the store lost the end of its log, no entries are found: continue at the next entry that it will write.
        position = entries[-1].sequence if entries else arrival_log.next_sequence(reader) - 1
        self._write(known, known._replace(position=position, mark=mark_at(reader, position)), docs, removed)
        return len(entries)

    def _write(
        self, known: IndexState, following: IndexState, docs: list[Document | None], removed: list[bytes]
    ) -> bool:
        """Add `docs`, remove the texts with the hashes `removed`, and set the state `following`, in one transaction.

        If the state is no longer `known`, because another thread wrote a step, write nothing. Return True if written.
        """
        with self._locked() as table:
            fits = table.state() == known
            if fits:
                table.update(following, [doc for doc in docs if doc is not None], removed)
        return fits

    # --- searching -----------------------------------------------------------------------------

    def question(
        self, text: str, channel: str | None, author: bytes | None, start_ms: int, end_ms: int | None
    ) -> Question:
        """Parse a search text. Raises ArgumentError if it contains no words or exceeds a limit."""
        with self._locked() as table:
            return Question(terms_of(text, table.tokenize), channel, author, start_ms, end_ms)

    def newest(self, question: Question, before: int | None, number: int) -> list[int]:
        """Return the positions of up to `number` matching texts, newest first, only below `before` if it is given."""
        with self._locked() as table:
            return table.newest(question.expression, *question.ids, before, number)

    def ranked(self, question: Question, skipped: int, number: int) -> list[int]:
        """Return the positions of up to `number` matching texts, best first, without the best `skipped`.

        Only the newest `limits.MAX_SEARCH_RANKED` matches are ranked.
        """
        with self._locked() as table:
            return table.ranked(question.expression, *question.ids, skipped, number, limits.MAX_SEARCH_RANKED)

    def marks(self, question: Question, texts: list[str]) -> list[Iterator[tuple[int, int]]]:
        """Return, for each of `texts`, an iterator over (begin, end) of its matches.

        The lock is acquired once for all texts, because each time a step of catching up may hold it.
        """
        with self._locked() as table:
            words = [words_of(text, table.tokenize) for text in texts]
        return [matches(question.terms, found) for found in words]


def _unusable(why: str) -> StorageError:
    """Return the error for an index that a read-only store would have to build or update. `why` is the reason."""
    return StorageError(
        f"cannot use the search index: {why}. A read-only store cannot rebuild the index. Open the store for writing, "
        "or copy the store to another disk and search there"
    )


def _unread(reader: Reader, read_to: str) -> int:
    """Return the approximate number of posts, at least 1, whose hashes follow the hash `read_to`."""
    posts = decode_sizes(reader.get(SIZES_KEY)).get("data", NO_SIZE)[0]
    return max(1, round(posts * (1 - fraction_before(read_to.encode()))))


def _step(until: float | None) -> int:
    """Return the maximum number of posts or log entries in the next step: fewer if there is a time limit `until`."""
    return _POSTS_READ if until is None else _POSTS_READ // _HURRIED
