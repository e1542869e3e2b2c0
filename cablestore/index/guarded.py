"""Guards of custom views: they check the results of a view's functions, and add the view's name to errors.

Cablestore's own views are not guarded, because tests check the same rules. A guard raises before the store writes, so
the whole transaction is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from cablestore.errors import CableStoreError, StorageError, StoreClosedError
from cablestore.index.database import Row
from cablestore.index.tombstone import Tombstone
from cablestore.protocol.post import Post

_OF_THE_STORE: Final = (StorageError, StoreClosedError)
"""Errors of the reader that is passed to a view's function. They are raised unchanged, without the view's name."""
_SHORTENING_BYTES: Final = bytes(range(4))
_SHOWN_BYTES: Final = 80


@dataclass(frozen=True)
class _Guard:
    """Guard of a function of the view named `view`. Errors call it `what`. The function must be picklable by name."""

    view: str
    what: str
    function: Callable[..., Any]

    def _called(self, *arguments: Any) -> Any:
        try:
            return self.function(*arguments)
        except _OF_THE_STORE:
            raise
        except Exception as error:
            raise self._error(arguments, f"raised {type(error).__name__}: {error}") from error

    def _error(self, arguments: tuple[Any, ...], what_happened: str) -> CableStoreError:
        about = next((_about(each) for each in arguments if isinstance(each, Post | Tombstone)), "")
        return CableStoreError(f"the view {self.view} failed{about}: `{self.what}` {what_happened}. Correct the view")


@dataclass(frozen=True)
class GuardedRows(_Guard):
    """Guard of a function that returns rows or parts whose keys begin with one of `prefixes`."""

    prefixes: tuple[bytes, ...]

    def __call__(self, argument: Any) -> list[Row]:
        """Call the function and check its result."""
        found = self._called(argument)
        if not isinstance(found, Iterable):
            raise self._error((argument,), f"returned {type(found).__name__}, not a list of (key, value)")
        try:
            rows = list(found)
        except Exception as error:  # generators raise here
            raise self._error((argument,), f"raised {type(error).__name__}: {error}") from error
        for row in rows:
            self._check(argument, row)
        if len({key for key, _ in rows}) < len(rows):
            raise self._error((argument,), "returned several rows with one key")
        return rows

    def _check(self, argument: Any, row: Any) -> None:
        if not (isinstance(row, tuple) and len(row) == 2 and all(isinstance(each, bytes) for each in row)):
            raise self._error((argument,), "returned a row that is not a (key, value) of bytes")
        key: bytes = row[0]
        if not key.startswith(self.prefixes):
            allowed = " or ".join(_shown(prefix) for prefix in self.prefixes)
            raise self._error((argument,), f"returned the key {_shown(key)}, which must begin with {allowed}")
        if any(each in key for each in _SHORTENING_BYTES):
            raise self._error((argument,), f"returned the key {_shown(key)} with a byte from 0 to 3. Use `escape`")


@dataclass(frozen=True)
class GuardedKey(_Guard):
    """Guard of a function that returns the key of a row."""

    prefix: bytes

    def __call__(self, post: Post) -> bytes:
        """Call the function and check its result."""
        key = self._called(post)
        if not isinstance(key, bytes) or not key.startswith(self.prefix):
            raise self._error((post,), f"returned {_shown(key)}, which must begin with {_shown(self.prefix)}")
        return key


@dataclass(frozen=True)
class GuardedValue(_Guard):
    """Guard of a function that returns a value of a given type."""

    kind: type | tuple[type, ...]

    def __call__(self, *arguments: Any) -> Any:
        """Call the function and check its result."""
        found = self._called(*arguments)
        if not isinstance(found, self.kind):
            raise self._error(arguments, f"returned {type(found).__name__}")
        return found


@dataclass(frozen=True)
class GuardedItems(_Guard):
    """Guard of a function that yields rows as they are read."""

    def __call__(self, *arguments: Any) -> Iterator[Row]:
        """Call the function and yield its rows. Add the view's name to errors."""
        found = self._called(*arguments)
        try:
            yield from found
        except _OF_THE_STORE:
            raise
        except Exception as error:
            raise self._error(arguments, f"raised {type(error).__name__}: {error}") from error


def _about(subject: Post | Tombstone) -> str:
    if isinstance(subject, Post):
        return f" on the post {subject.hash.hex()}"
    return f" on the deletion of {subject.target.hex()}"


def _shown(key: object) -> str:
    return key[:_SHOWN_BYTES].decode(errors="backslashreplace") if isinstance(key, bytes) else type(key).__name__
