"""The folder of a store as an operator sees it: its size, its database, and the last backup and check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cablestore.files import disk_usage
from cablestore.index.header import peek
from cablestore.index.last_backup import last_backup
from cablestore.index.last_check import last_check


@dataclass(frozen=True, slots=True)
class StoreOnDisk:
    """The folder of a store. A field is None if its value is unknown, or if the store is in memory."""

    store: str | None = None
    generation: str | None = None
    store_size_bytes: int | None = None
    disk_free_bytes: int | None = None
    backup_at_ms: int | None = None
    backup_folder: str | None = None
    check_at_ms: int | None = None
    check_problems: int | None = None
    check_signatures: bool | None = None


def store_on_disk(path: Path | None) -> StoreOnDisk:
    """Return the state of a store's folder. The store may be open in any process."""
    if path is None:
        return StoreOnDisk()
    header, usage, backup, check = peek(path), disk_usage(path), last_backup(path), last_check(path)
    return StoreOnDisk(
        store=str(path),
        generation=None if header is None else header.generation,
        store_size_bytes=None if usage is None else usage.store_size_bytes,
        disk_free_bytes=None if usage is None else usage.free_size_bytes,
        backup_at_ms=None if backup is None else backup.at_ms,
        backup_folder=None if backup is None else backup.folder,
        check_at_ms=None if check is None else check.at_ms,
        check_problems=None if check is None else check.problems,
        check_signatures=None if check is None else check.signatures,
    )
