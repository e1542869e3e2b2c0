"""When work on a whole store was last complete: small JSON files in its folder, such as `last-backup.json`.

    {"format": 1, "at_ms": 1700000000000, ...}

The files are information for operators, and are replaced by rename. If one is lost or damaged, `read_last` returns None.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from cablestore.documents import read_document
from cablestore.errors import StorageError
from cablestore.files import write_atomically


class LastRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The time at which some work was last complete. Subclasses add its result."""

    format: Literal[1] = 1
    at_ms: int


RecordT = TypeVar("RecordT", bound=LastRecord)


def read_last(store: Path, name: str, kind: type[RecordT]) -> RecordT | None:
    """Return the record in a file of a store's folder, None if it is missing or damaged."""
    with suppress(OSError, ValueError):
        return read_document((store / name).read_bytes(), kind)
    return None


def write_last(store: Path, name: str, record: LastRecord) -> None:
    """Replace a record. Errors of the disk are ignored, so that the recorded work does not fail."""
    with suppress(StorageError):
        write_atomically(store / name, msgspec.json.encode(record, order="deterministic") + b"\n")
