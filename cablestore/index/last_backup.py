"""When a store was last backed up: `last-backup.json` in its folder.

{"format": 1, "at_ms": 1700000000000, "folder": "/backup"}
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from cablestore.files import ObjectFolder
from cablestore.index.last_records import LastRecord, read_last, write_last

LAST_BACKUP: Final = "last-backup.json"


class LastBackup(LastRecord, frozen=True, kw_only=True):
    """The last complete backup of a store: when it was complete, and its folder or URI."""

    folder: str


def last_backup(store: Path) -> LastBackup | None:
    """Return the last complete backup of the store in a folder, None if no backup is recorded."""
    return read_last(store, LAST_BACKUP, LastBackup)


def note_backup(store: Path, at_ms: int, folder: ObjectFolder) -> None:
    """Record a complete backup."""
    place = str(folder.path.absolute()) if folder.is_local else folder.uri
    write_last(store, LAST_BACKUP, LastBackup(at_ms=at_ms, folder=place))
