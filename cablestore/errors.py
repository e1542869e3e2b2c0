"""Errors that cablestore raises. Each message describes the problem and a remedy.

The classes up to DecodeError concern the whole package. Each class after it concerns one subsystem.
"""

from __future__ import annotations


class CableStoreError(Exception):
    """Base class of all errors that this package raises.

    Raised directly for mistakes of the calling program: a custom view fails, or a forked process uses a store, log or
    node that its parent opened.
    """

    exit_status = 2
    """Exit status of a command that fails with this error."""


class ArgumentError(CableStoreError, ValueError, TypeError):
    """An argument has a wrong type or value.

    This includes an unusable path or URI, a post that exceeds a limit of the protocol or has no effect, and an action
    that the protocol forbids. It also includes a view with an invalid name or keys, and an unreadable chat log.
    """


class NotFoundError(CableStoreError, LookupError):
    """A typed name does not match a user or channel, or matches several. The message lists the matches."""


class CursorError(CableStoreError, ValueError):
    """A cursor is invalid, or belongs to another query or state. Fetch a new page and use its cursor."""


class IdentityError(CableStoreError):
    """The identity key is missing, unreadable, malformed, or readable by other users."""


class OpenError(CableStoreError):
    """A store cannot be opened: it is missing, incomplete, of another format or dialect, or contains unknown views."""


class StoreLockedError(OpenError):
    """The store is already open, in this process or another process."""


class OutdatedViewError(OpenError):
    """A stored view was built by another version of its code, so it is not read. A rebuild builds it again."""


class StorageError(CableStoreError):
    """An I/O error: the disk is full, read-only or missing, or a file is missing."""

    exit_status = 3


class CorruptStoreError(StorageError):
    """Stored data is damaged, or the header or database of a store is missing. Nothing is created in its place."""


class OwnerGoneError(StorageError):
    """The process that has the store open ended before it completed a request of another process."""


class StoreClosedError(CableStoreError):
    """The store, or the snapshot, was closed before this call."""


class MissingExtraError(CableStoreError, ModuleNotFoundError):
    """A dependency is missing. The message names the extra of this package that installs it."""


class DecodeError(CableStoreError):
    """Malformed bytes. The message contains the reason and the position.

    `offset` counts bytes from the start of the decoded document. `is_unknown_type` is True for a post of a type that
    this version does not know; such a post is discarded (wire.md 5.1.4).
    """

    def __init__(self, offset: int, reason: str, *, is_unknown_type: bool = False) -> None:
        super().__init__(offset, reason)  # pickle passes these to a new object
        self.offset = offset
        self.reason = reason
        self.is_unknown_type = is_unknown_type

    def __str__(self) -> str:
        return f"{self.reason} (at byte {self.offset})"


class ExportError(CableStoreError):
    """An export cannot be used: it is missing, damaged, or has another format, dialect or catalog.

    Also raised for a damaged intermediate file of a rebuild or reindexing.
    """


class BackupError(CableStoreError):
    """A backup cannot be created or restored: it is damaged, its folder is in use, or the target is not empty."""


class ReindexError(CableStoreError):
    """A reindexing job fails: Spark or Java fails, workers cannot access its folder, or rows do not agree.

    `exit_status` is 1 if Spark or Java fails.
    """


class ArchiveError(CableStoreError):
    """A history archive, its index or its torrent cannot be created, fetched, stored or verified."""


class NodeError(CableStoreError):
    """A node fails: an address is malformed or in use, or a peer is unreachable or violates the protocol."""


class SdsError(CableStoreError):
    """A message of a causal log is malformed or too large, or the log cannot execute a request."""
