"""Cursors: positions from which a later call continues. Each kind has a type of its own.

Cursors are strings. A program can save a cursor, and restores it with its type: `ChangesCursor(text)`. A type checker
finds a cursor that is passed to the wrong method. At run time, the method rejects it.

A cursor of changes contains the name of the database, and the number of the last entry that was read from the arrival
log. It also contains digits that identify the log up to this entry.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, NewType

import blake3

from cablestore.errors import CursorError
from cablestore.index import arrival_log
from cablestore.index.arrival_log import Arrival
from cablestore.index.log_position import mark_of
from cablestore.index.reader import Reader

MessageCursor = NewType("MessageCursor", str)
"""Position of a `Message` or of the next `Page`, among the messages of a channel or among mentions."""
SearchCursor = NewType("SearchCursor", str)
"""Position among the results of a search in one order, such as `SearchPage.cursor`."""
ChangesCursor = NewType("ChangesCursor", str)
"""Position after which `changes` and `next_changes` continue. Pages, snapshots, stores and `Changes` provide it."""

_FORM: Final = re.compile(r"([a-z0-9-]{1,120})-([a-z0-9]+)\.([0-9]{1,16})")
_ADVICE: Final = "Fetch a new page and use its cursor"


class LogPlace(NamedTuple):
    """Position in the arrival log of a database, after its entry `sequence`."""

    database: str
    sequence: int
    post_entry: Arrival | None
    """The last entry of a post up to `sequence`, None if there was none."""

    @property
    def cursor(self) -> ChangesCursor:
        """The cursor for the changes after this position.

        Its digits identify the log. If the log loses an entry, and another entry then gets its number, they differ.
        """
        digits = blake3.blake3(mark_of(self.post_entry, self.sequence)).hexdigest(length=8)
        return ChangesCursor(f"{self.database}-{digits}.{self.sequence}")


def cursor_of(reader: Reader) -> ChangesCursor:
    """Return the cursor for the changes after the state of a reader."""
    return _place_at(reader, arrival_log.next_sequence(reader) - 1).cursor


def place_of(reader: Reader, after: ChangesCursor | LogPlace) -> LogPlace:
    """Return the position of a cursor. A position in the reader's database is returned without reading the log.

    Raises CursorError if the cursor is invalid or belongs to another database, or if its entry never existed or is
    lost.
    """
    if isinstance(after, LogPlace):
        if after.database == reader.generation:
            return after
        after = after.cursor
    found = _FORM.fullmatch(after)
    if found is None:
        raise CursorError(f"invalid cursor of changes: {after[:200]!r}. {_ADVICE}")
    generation, sequence = found[1], int(found[3])
    if generation != reader.generation:
        raise CursorError(
            f"the cursor belongs to the database {generation}, but the store now uses {reader.generation}: the store "
            f"was rebuilt, or the cursor is from another store. {_ADVICE}"
        )
    place = _place_at(reader, sequence)
    if sequence >= arrival_log.next_sequence(reader) or place.cursor != after:
        raise lost_error(sequence)
    return place


def lost_error(sequence: int) -> CursorError:
    """Return the error for a cursor whose entry `sequence` is not in the log."""
    return CursorError(f"the cursor points to entry {sequence}, which the store never had or has lost. {_ADVICE}")


def _place_at(reader: Reader, sequence: int) -> LogPlace:
    return LogPlace(reader.generation, sequence, arrival_log.last_post_entry(reader, sequence))
