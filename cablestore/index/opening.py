"""Errors of opening a store: it is locked, or its disk cannot be written; and of writing to a read-only store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn

from cablestore.errors import StorageError, StoreLockedError
from cablestore.files import storage_errors

_NOT_WRITABLE: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT})
READ_ONLY_ADVICE: Final = "To read, export or back it up as it is, use --read-only (in programs read_only=True)"


@contextmanager
def opening(path: Path, header: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError. If there is a header, tell how to read the store without writing to it."""
    with storage_errors(f"the store at {path} cannot be opened"):
        try:
            yield
        except OSError as error:
            if error.errno not in _NOT_WRITABLE or not header.exists():
                raise
            raise StorageError(
                f"the store at {path} cannot be opened to be written: {error.strerror}. {READ_ONLY_ADVICE}"
            ) from None


def locked_by(path: Path, owner: str) -> StoreLockedError:
    """Return the error for a store that a process has open, or several for reading only: then `owner` is ""."""
    if not owner:
        return StoreLockedError(
            f"the store at {path} is open for reading only, in this process or another: close it there first"
        )
    where = "this process" if owner == str(os.getpid()) else f"process {owner}"
    return StoreLockedError(
        f"the store at {path} is open in {where}. One process at a time can have a store open: close it there first"
    )


def refuse_to_write() -> NoReturn:
    """Raise the error of all writes to what is open for reading only."""
    raise StorageError(
        "this store is open for reading only: nothing can be written to it. Open it without read_only (--read-only)"
    )
