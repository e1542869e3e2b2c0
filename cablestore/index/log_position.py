"""Position in the history of a database, for files beside the database that depend on it.

A statement such as "all posts up to here are read" is only valid for one database while its posts exist. So the file
also stores a position. If the position is not valid when the file is read, the file is void. Causes of lost posts are a
power failure, damage and a rebuild, `--recover`, `--back-to`, a restored backup, or an older copy of the folder. Then
the name of the database differs, or the arrival log has another entry at this number.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Self

from cablestore.index import arrival_log
from cablestore.index.arrival_log import Arrival
from cablestore.index.notes import has_discarded
from cablestore.index.reader import Reader

_NUMBER_SIZE_BYTES: Final = 8


class LogPosition(NamedTuple):
    """A database, and the number and content of its last log entry of a post (0 and b"" if it does not exist).

    Entries of local changes do not count: a later change of the same row replaces them.
    """

    database: str
    sequence: int
    entry: bytes

    @classmethod
    def after(cls, database: str, last: Arrival | None) -> Self:
        """Return the position after the entry `last` of a post.

        Pass None as `last` if the log contains no entry of a post.
        """
        return cls(database, 0, b"") if last is None else cls(database, last.sequence, _content(last))

    @classmethod
    def of(cls, reader: Reader) -> Self:
        """Return the position after the last log entry of a post in the reader's state."""
        last = arrival_log.last_post_entry(reader, arrival_log.next_sequence(reader) - 1)
        return cls.after(reader.generation, last)

    def holds_in(self, reader: Reader) -> bool:
        """Return True if a state of a database continues the history of this position."""
        return self.database == reader.generation and self == LogPosition.after(
            self.database, arrival_log.last_post_entry(reader, self.sequence)
        )

    def keeps_posts_in(self, reader: Reader) -> bool:
        """Return True if the position is valid, and earlier posts were not discarded (dropped or pruned) since."""
        return self.holds_in(reader) and not has_discarded(reader, arrival_log.end_of_batch(reader, self.sequence))

    def fields(self) -> dict[str, Any]:
        """Return the position for JSON."""
        return {"database": self.database, "sequence": self.sequence, "entry": self.entry.hex()}

    @classmethod
    def read(cls, fields: Any) -> Self:
        """Return the position from JSON. Raises ValueError, TypeError or KeyError if it is malformed."""
        match fields:
            case {"database": str(database), "sequence": int(sequence), "entry": str(entry)}:
                return cls(database, sequence, bytes.fromhex(entry))
        raise ValueError("a log position needs database, sequence and entry")


def mark_at(reader: Reader, position: int) -> bytes:
    """Return bytes that identify the log up to the entry `position`: the last entry of a post up to there.

    kind u8 | hash u8[32] | number u64 of that entry, unless it is `position`. Empty if the log contains no such entry.
    """
    return mark_of(arrival_log.last_post_entry(reader, position), position)


def mark_of(last: Arrival | None, position: int) -> bytes:
    """Return the mark of the log up to the entry `position`. `last` is the last entry of a post up to there."""
    if last is None:
        return b""
    return _content(last) + (b"" if last.sequence == position else last.sequence.to_bytes(_NUMBER_SIZE_BYTES))


def is_shared(reader: Reader, position: int, mark: bytes) -> bool:
    """Return True if the log has this mark at `position`.

    Then it continues the log from which the mark comes, even if that is the log of another database.
    """
    return position < arrival_log.next_sequence(reader) and mark_at(reader, position) == mark


def _content(entry: Arrival) -> bytes:
    return bytes((entry.kind,)) + entry.hash
