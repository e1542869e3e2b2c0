"""Cursors: positions from which a later call continues. Each kind has a type of its own.

Cursors are strings. A program can save a cursor, and restores it with its type: `ChangesCursor(text)`. A type checker
finds a cursor that is passed to the wrong method. At run time, the method rejects it.

A cursor of changes contains the name of the database, and the number of the last entry that was read from the arrival
log. It also contains digits that identify the log up to this entry.
"""

from __future__ import annotations

import re
from typing import Final, NewType

import blake3

from cablestore.errors import CursorError
from cablestore.index import arrival_log
from cablestore.index.log_position import mark_at
from cablestore.index.reader import Reader

MessageCursor = NewType("MessageCursor", str)
"""Position of a `Message` or of the next `Page`, among the messages of a channel or among mentions."""
SearchCursor = NewType("SearchCursor", str)
"""Position among the results of a search in one order, such as `SearchPage.cursor`."""
ChangesCursor = NewType("ChangesCursor", str)
"""Position after which `changes` and `next_changes` continue. Pages, snapshots, stores and `Changes` provide it."""

_FORM: Final = re.compile(r"([a-z0-9-]{1,120})-([a-z0-9]+)\.([0-9]{1,16})")
_ADVICE: Final = "Fetch a new page and use its cursor"


def cursor_at(reader: Reader, sequence: int) -> ChangesCursor:
    """Return the cursor for the changes after entry `sequence` of the log."""
    return ChangesCursor(f"{reader.generation}-{_check(reader, sequence)}.{sequence}")


def cursor_of(reader: Reader) -> ChangesCursor:
    """Return the cursor for the changes after the state of a reader."""
    return cursor_at(reader, arrival_log.next_sequence(reader) - 1)


def sequence_of(reader: Reader, cursor: ChangesCursor) -> int:
    """Return the number of the entry after which a cursor continues.

    Raises CursorError if the cursor is invalid or belongs to another database, or if its entry never existed or is
    lost.
    """
    found = _FORM.fullmatch(cursor)
    if found is None:
        raise CursorError(f"invalid cursor of changes: {cursor[:200]!r}. {_ADVICE}")
    generation, check, sequence = found[1], found[2], int(found[3])
    if generation != reader.generation:
        raise CursorError(
            f"the cursor belongs to the database {generation}, but the store now uses {reader.generation}: the store "
            f"was rebuilt, or the cursor is from another store. {_ADVICE}"
        )
    if sequence >= arrival_log.next_sequence(reader) or check != _check(reader, sequence):
        raise CursorError(f"the cursor points to entry {sequence}, which the store never had or has lost. {_ADVICE}")
    return sequence


def _check(reader: Reader, sequence: int) -> str:
    """Return digits that identify the log up to entry `sequence`.

    If the log loses this entry, and another entry then gets its number, the digits differ.
    """
    return blake3.blake3(mark_at(reader, sequence)).hexdigest(length=8)
