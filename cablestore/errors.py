"""Errors that cablestore raises: few classes, one root. The message says what happened and what to do.

The first classes are those of stores. Of the others each stands for one subsystem.
"""

from __future__ import annotations


class CableStoreError(Exception):
    """Root of every error that this package raises on purpose.

    It is raised itself where programs have nothing to catch: a view of one's own fails, or a forked process uses what
    its parent had open.
    """

    exit_status = 2
    """Exit status of a command that ends with this error."""


class ArgumentError(CableStoreError, ValueError, TypeError):
    """An argument has another type or value than the call expects.

    Also a path or URI that cannot be used, a post that breaks a limit of the protocol or has no effect, an action that
    the protocol forbids, a view whose name or keys are not allowed, and a chat log that cannot be read.
    """


class NotFoundError(CableStoreError, LookupError):
    """A typed name means no user or channel, or several. The message lists them."""


class CursorError(CableStoreError, ValueError):
    """A cursor of messages or changes is invalid, or of another query or state. Fetch a new page and use its cursor."""


class IdentityError(CableStoreError):
    """The identity key is missing, unreadable, malformed, or readable by others."""


class OpenError(CableStoreError):
    """A store cannot be opened: it is missing, incomplete, of another format or dialect, or lacks code of its views."""


class StoreLockedError(OpenError):
    """The store is already open, in this process or another."""


class OutdatedViewError(OpenError):
    """A stored view was built by another version of its code, so it is not read. A rebuild builds it again."""


class StorageError(CableStoreError):
    """An I/O error: the disk is full, read-only or missing, or a file is."""

    exit_status = 3


class CorruptStoreError(StorageError):
    """Stored data is damaged, or a store lacks its header or database. Nothing is made in its place."""


class OwnerGoneError(StorageError):
    """The process that has the store open ended before it completed a request of another process."""


class StoreClosedError(CableStoreError):
    """The store, or the snapshot, was closed before this call."""


class MissingExtraError(CableStoreError, ModuleNotFoundError):
    """Dependencies of what is used are an extra of this package that is not installed. The message names it."""


class DecodeError(CableStoreError):
    """Bytes are malformed: where, and why.

    `offset` counts bytes from the start of the decoded document. With `is_unknown_type` the bytes are a post of a type
    that this version does not know; it is discarded (wire.md 5.1.4).
    """

    def __init__(self, offset: int, reason: str, *, is_unknown_type: bool = False) -> None:
        super().__init__(f"{reason} (at byte {offset})")
        self.offset = offset
        self.reason = reason
        self.is_unknown_type = is_unknown_type


class ExportError(CableStoreError):
    """An export cannot be used: it is missing, damaged, or has another format, dialect or catalog.

    Also an intermediate file of a rebuild or reindexing is damaged.
    """


class BackupError(CableStoreError):
    """A backup cannot be made or restored: it is damaged, its folder is in use, or the target is not empty."""


class ReindexError(CableStoreError):
    """A reindexing job fails: Spark or Java fails, workers do not see its folder, or rows do not agree.

    `exit_status` is 1 if Spark or Java fails.
    """


class ArchiveError(CableStoreError):
    """A history archive, its index or its torrent cannot be made, fetched, stored or trusted."""


class NodeError(CableStoreError):
    """A node fails: an address is malformed or in use, or a peer cannot be reached, refuses, or violates the protocol."""


class SdsError(CableStoreError):
    """A message of a causal log is malformed or too large, or the log cannot carry out a request."""
