"""Conversion of plyvel's errors to errors of this package."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final

from cablestore.advice import advice
from cablestore.errors import CorruptStoreError, StorageError
from cablestore.index.leveldb_binding import plyvel

_NO_DAMAGE: Final = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Reasons why an undamaged file cannot be read."""


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Convert the error of a failed read in the `with`, as `unreadable` does."""
    try:
        yield
    except plyvel.Error as error:
        raise unreadable(error) from None


def unreadable(error: plyvel.Error) -> StorageError:
    """Return the error for a failed read: damage, or missing permissions or resources."""
    text = _text(error)
    if any(text.endswith(os.strerror(number)) for number in _NO_DAMAGE):
        usual = "Check the permissions of the store's folder and the limits of the process"
        return StorageError(f"cannot read the database: {text}. {advice(text, usual)}, then open the store again")
    return damaged(error)


def damaged(error: plyvel.Error) -> CorruptStoreError:
    """Return the error for damage that LevelDB found."""
    return damaged_for(_text(error))


def damaged_for(reason: str) -> CorruptStoreError:
    """Return the error for damage with this reason."""
    return CorruptStoreError(
        f"the database is damaged: {reason}. Its other parts remain readable. Run `cablestore rebuild` to create a "
        "new database from all readable data"
    )


def write_error(error: plyvel.Error) -> StorageError:
    """Return the error for a failed write."""
    if isinstance(error, plyvel.IOError):
        text = _text(error)
        usual = "Check the free space and the permissions of the store's folder"
        return StorageError(f"writing failed: {text}. {advice(text, usual)}, then open the store again")
    return damaged(error)


def _text(error: plyvel.Error) -> str:
    first = error.args[0] if error.args else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)
