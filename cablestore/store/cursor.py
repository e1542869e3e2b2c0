"""Cursors: positions from which a later call continues. Each kind has a type of its own.

They are strings. A program can save one, and makes it from the saved string with its type: `ChangesCursor(text)`. So a
type checker finds a cursor that is passed to the wrong method. At run time a cursor of another kind is rejected too.

A cursor of changes contains the database, the number of the last entry that was read of the arrival log, and what
identifies the log up to there.
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
"""Position among the messages of a channel, or among mentions: of a `Message`, or of the next `Page`."""
SearchCursor = NewType("SearchCursor", str)
"""Position among the results of a search in one order: `SearchPage.cursor`."""
ChangesCursor = NewType("ChangesCursor", str)
"""Position after which `changes` and `next_changes` continue. Pages, snapshots, stores and `Changes` have one."""

_FORM: Final = re.compile(r"([a-z0-9-]{1,120})-([a-z0-9]+)\.([0-9]{1,16})")
_ADVICE: Final = "Fetch a new page and use its cursor"


def cursor_at(reader: Reader, sequence: int) -> ChangesCursor:
    """Return the cursor of what follows entry `sequence` of the log."""
    return ChangesCursor(f"{reader.generation}-{_check(reader, sequence)}.{sequence}")


def cursor_of(reader: Reader) -> ChangesCursor:
    """Return the cursor of what follows a state."""
    return cursor_at(reader, arrival_log.next_sequence(reader) - 1)


def sequence_of(reader: Reader, cursor: ChangesCursor) -> int:
    """Return the number of the entry after which a cursor continues. Raises CursorError.

    The cursor must be of this database, and of a state that it has had.
    """
    found = _FORM.fullmatch(cursor)
    if found is None:
        raise CursorError(f"{cursor[:200]!r} is not a cursor of changes. {_ADVICE}")
    generation, check, sequence = found[1], found[2], int(found[3])
    if generation != reader.generation:
        raise CursorError(
            f"the cursor is of the generation {generation}, but the store has {reader.generation}: it was rebuilt, or "
            f"the cursor is from another store. {_ADVICE}"
        )
    if sequence >= arrival_log.next_sequence(reader) or check != _check(reader, sequence):
        raise CursorError(f"the cursor points to entry {sequence}, which the store never had or has lost. {_ADVICE}")
    return sequence


def _check(reader: Reader, sequence: int) -> str:
    """Return digits that differ if the log lost this entry and then continued with other entries."""
    return blake3.blake3(mark_at(reader, sequence)).hexdigest(length=8)
