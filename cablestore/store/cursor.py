"""Cursors of changes: which database, and how far its arrival log was read."""

from __future__ import annotations

import re
from typing import Final

from cablestore.errors import ChangesCursorError
from cablestore.index import arrival_log
from cablestore.index.reader import Reader

_FORM: Final = re.compile(r"([a-z0-9-]{1,120})\.([0-9]{1,16})")
_ADVICE: Final = "Fetch a new page and use its cursor"


def cursor_at(reader: Reader, sequence: int) -> str:
    """Return the cursor of what follows entry `sequence` of the log."""
    return f"{reader.generation}.{sequence}"


def cursor_of(reader: Reader) -> str:
    """Return the cursor of what follows a state."""
    return cursor_at(reader, arrival_log.next_sequence(reader) - 1)


def sequence_of(reader: Reader, cursor: str) -> int:
    """Return the number of the entry after which a cursor continues. Raises ChangesCursorError.

    The cursor must be of this database, and of a state that it has had.
    """
    found = _FORM.fullmatch(cursor)
    if found is None:
        raise ChangesCursorError(f"{cursor[:200]!r} is not a cursor of changes. {_ADVICE}")
    generation, sequence = found[1], int(found[2])
    if generation != reader.generation:
        raise ChangesCursorError(
            f"the cursor is of {generation}, the store has {reader.generation} now: it was rebuilt, or the cursor is of "
            f"another store. {_ADVICE}"
        )
    if sequence >= arrival_log.next_sequence(reader):
        raise ChangesCursorError(f"the cursor is of entry {sequence}, which the store lost or never had. {_ADVICE}")
    return sequence
