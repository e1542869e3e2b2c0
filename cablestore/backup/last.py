"""When a store was last backed up: `last-backup.json` in its folder, replaced by rename after each complete backup.

    {"format": 1, "at_ms": 1700000000000, "folder": "/backup"}

The file is information for operators. If it is lost or damaged, the store counts as never backed up.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from cablestore.documents import read_document
from cablestore.errors import StorageError
from cablestore.files import ObjectFolder, write_atomically

NAME: Final = "last-backup.json"


class LastBackup(msgspec.Struct, frozen=True, kw_only=True):
    """The last complete backup of a store: when it was complete, and its folder or URI."""

    format: Literal[1] = 1
    at_ms: int
    folder: str


def last_backup(store: Path) -> LastBackup | None:
    """Return the last complete backup of the store in a folder, None if none is known."""
    with suppress(OSError, ValueError):
        return read_document((store / NAME).read_bytes(), LastBackup)
    return None


def note_backup(store: Path, at_ms: int, folder: ObjectFolder) -> None:
    """Record a complete backup. A disk that cannot be written does not make the backup fail."""
    place = str(folder.path.absolute()) if folder.is_local else folder.uri
    content = msgspec.json.encode(LastBackup(at_ms=at_ms, folder=place), order="deterministic")
    with suppress(StorageError):
        write_atomically(store / NAME, content + b"\n")
