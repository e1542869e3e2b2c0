"""Errors for a store that is locked, or whose disk cannot be written, and for writes to a read-only store."""

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
READ_ONLY_ADVICE: Final = "To read, export or back it up unchanged, use --read-only (in programs read_only=True)"


@contextmanager
def opening(path: Path, header: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError. If writing is impossible but `header` exists, advise to open read-only."""
    with storage_errors(f"the store at {path} cannot be opened"):
        try:
            yield
        except OSError as error:
            if error.errno not in _NOT_WRITABLE or not header.exists():
                raise
            raise StorageError(
                f"cannot open the store at {path} for writing: {error.strerror}. {READ_ONLY_ADVICE}"
            ) from None


def locked_by(path: Path, owner: str) -> StoreLockedError:
    """Return the error for an open store. `owner` is the process, "" for several read-only processes."""
    if not owner:
        return StoreLockedError(
            f"the store at {path} is open read-only, in this process or another. Close the store there first"
        )
    where = "this process" if owner == str(os.getpid()) else f"process {owner}"
    return StoreLockedError(
        f"the store at {path} is open in {where}. Only one process at a time can open a store. Close "
        "the store there first"
    )


def reject_write() -> NoReturn:
    """Raise the error for writes to a read-only store."""
    raise StorageError(
        "cannot write to this store: it is open read-only. Open the store without read_only (--read-only)"
    )
