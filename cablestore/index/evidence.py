"""Evidence about a database besides its own rows: its counts at the last clean close, and writes that its log lost.

    counts   JSON: {"generation": "generation-000002", "next": 5, "posts": 4, "deletion_rows": 2, "lost": ""}

If a table or the end of a log is lost, the rows that count posts may be lost with the posts. So a second copy of the
counts is kept beside the database. `lost` is the part of a log that LevelDB dropped without an error, or the missing
entries of the arrival log. It remains until the database is rebuilt.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from cablestore.errors import StorageError
from cablestore.files import atomic_file, storage_errors, write_atomically
from cablestore.index.leveldb_log import find_silent_end
from cablestore.index.leveldb_manifest import is_log_missing, read_readable

COUNTS_FILE: Final = "counts"
COUNTS_DRAFT: Final = ".new"


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of a database at one moment. `next` is the number of the next entry of its arrival log."""

    next: int
    posts: int
    deletion_rows: int
    """Rows of the view of deletions."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence about a database besides its rows."""

    closed: Counts | None = None
    """Counts of the database at the last clean close, None if they were not recorded."""
    lost: str = ""
    """The lost part of LevelDB's logs or of the arrival log, "" if no loss is known."""
    lost_earlier: bool = False
    """True if LevelDB's logs do not show `lost`: an earlier opening found it, and LevelDB then removed the log."""


@dataclass(frozen=True, slots=True)
class _Note:
    """Content of the file `counts`."""

    generation: str
    next: int = 0
    posts: int = 0
    deletion_rows: int = 0
    lost: str = ""


def find_evidence(database: Path, *, is_open: bool = False) -> Evidence:
    """Return the evidence about a database in the folder of a store, before LevelDB opens it. Write nothing.

    If the database `is_open`, its log is in use and is not searched.
    """
    note = _read(database)
    with storage_errors(f"cannot read the logs in {database}"):
        lost = "" if is_open else lost_writes(database)
    closed = Counts(note.next, note.posts, note.deletion_rows) if note.next else None
    return Evidence(closed, lost or note.lost, lost_earlier=not lost)


def note_lost_writes(database: Path) -> None:
    """Record the writes that a live database lost, before LevelDB opens it and removes the log that shows them."""
    _note_loss(database, find_evidence(database).lost)


def note_lost_entries(database: Path, following: int) -> None:
    """Record lost entries if the arrival log is shorter than at the last close.

    `following` is the number of the log's next entry. Causes are a restored older copy of the database, or a disk that
    lost confirmed writes. Later entries reuse the numbers of the lost entries.
    """
    note = _read(database)
    if note.next > following:
        _note_loss(database, f"the arrival log from entry {following:,} to {note.next - 1:,}")


def _note_loss(database: Path, lost: str) -> None:
    note = _read(database)
    if lost and not note.lost:
        with suppress(StorageError):  # a full disk: the next opening finds the loss again, or fails
            write_atomically(_file(database), _encode(replace(note, lost=lost)), COUNTS_DRAFT)


def note_counts(database: Path, counts: Counts) -> None:
    """Record the counts of a database that was just closed.

    If the recorded arrival log is longer, entries were lost, and the earlier counts are kept.
    """
    before = _read(database)
    note = _Note(database.name, **asdict(counts), lost=before.lost)
    if note == before or before.next > counts.next:
        return
    with suppress(OSError), atomic_file(_file(database), COUNTS_DRAFT, sync=False) as file:  # the disk may be full
        file.write(_encode(note))


def lost_writes(database: Path) -> str:
    """Return the part of a database's logs that LevelDB would drop without an error on opening, "" if there is none.

    LevelDB skips a block with zeros, ignores a record that is longer than the file, and does not detect a missing log.
    After a power failure, zeros may replace writes that were not synced. A last log that ends within a record is not
    reported: the killed process had not acknowledged that write.
    """
    listed = read_readable(database)
    if is_log_missing(database, listed):
        return f"the log {listed.live_log:06d}.log, which is missing"
    logs = sorted((int(log.stem), log) for log in database.glob("*.log") if log.stem.isdigit())
    written = [log for number, log in logs if number >= listed.live_log and log.stat().st_size]
    for log in written:
        data = log.read_bytes()
        end, is_lost = find_silent_end(data)
        if is_lost or (end < len(data) and log != written[-1]):
            return f"the log {log.name} from byte {end:,} on"
    return ""


def _file(database: Path) -> Path:
    return database.parent / COUNTS_FILE


def _read(database: Path) -> _Note:
    """Return the note about a database, or an empty note if it is missing or unreadable."""
    try:
        fields = json.loads(_file(database).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        fields = None
    match fields:
        case {
            "generation": database.name,
            "next": int(following),
            "posts": int(posts),
            "deletion_rows": int(deletion_rows),
            "lost": str(lost),
        }:
            return _Note(database.name, following, posts, deletion_rows, lost)
    return _Note(database.name)


def _encode(note: _Note) -> bytes:
    return f"{json.dumps(asdict(note))}\n".encode()
