"""Errors that cablestore raises: few types, one root. Each message says what was found and what to do."""

from __future__ import annotations


class CableStoreError(Exception):
    """Root of every error that this package raises on purpose."""

    exit_status = 2
    """Exit status of a command that ends with this error."""


class ArgumentError(CableStoreError, ValueError, TypeError):
    """An argument has another type or value than the call expects.

    Also a path or URI that cannot be used, a search without words, a malformed invitation or moderation seed, a local
    value that is not JSON, and a moderation action that the protocol forbids.
    """


class MissingExtraError(CableStoreError, ModuleNotFoundError):
    """Dependencies of what is used are an extra of this package that is not installed. The message names it."""


class DecodeError(CableStoreError):
    """Bytes that are malformed: where, and why.

    `offset` counts bytes from the start of the document that was decoded.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} (at byte {offset})")
        self.offset = offset
        self.reason = reason


class UnknownPostTypeError(DecodeError):
    """A post whose `post_type` no dialect defines. It is discarded (wire.md 5.1.4)."""


class InvalidPostError(CableStoreError, ValueError):
    """A post to be written breaks a limit of the protocol or has no effect, or no post can name a requested channel."""


class NotFoundError(CableStoreError, LookupError):
    """A typed name means no user or channel, or several. The message lists them."""


class CursorError(CableStoreError, ValueError):
    """The cursor is invalid or belongs to another query. Use one of an earlier page, unchanged."""


class ChangesCursorError(CableStoreError, ValueError):
    """A cursor of changes is malformed, or of another state of the database: fetch a new page and use its cursor."""


class IdentityError(CableStoreError):
    """The identity key is missing, unreadable, malformed, or readable by others."""


class OpenError(CableStoreError):
    """A store cannot be opened. The subclasses say why."""


class NotAStoreError(OpenError):
    """The folder is not a store, or holds something else."""


class StoreLockedError(OpenError):
    """The store is already open, in this process or another."""


class FormatError(OpenError):
    """The store was written by a newer version, or for another dialect."""


class OutdatedViewError(OpenError):
    """A stored view was built by another version of its code, so it is not read."""


class MissingViewError(OutdatedViewError):
    """The store has views whose code is not installed, so it cannot be written, checked or rebuilt."""


class ViewError(CableStoreError):
    """A view cannot be kept: its name or keys are not allowed or taken, or its package cannot be loaded."""


class StorageError(CableStoreError):
    """An I/O error: the disk is full, read-only or missing."""

    exit_status = 3


class MissingFileError(StorageError, FileNotFoundError):
    """A file that is read is not in its folder or object store."""


class CorruptStoreError(StorageError):
    """Stored data is damaged."""


class MissingDatabaseError(StorageError):
    """The folder of a store lacks its header, or the database that the header names. Nothing is made in its place."""


class OwnerGoneError(StorageError):
    """The process that has the store open ended before it completed a request of another process."""


class StoreClosedError(CableStoreError):
    """The store, or the snapshot, was closed before this call."""


class ForkedError(CableStoreError):
    """The store, log or node was open when this process was forked, so only the parent process can use it."""


class LogFormatError(CableStoreError):
    """A chat log is of no known format, or cannot be unpacked."""


class ExportError(CableStoreError):
    """An export cannot be used: it has another format, dialect or catalog, or it is not an export."""


class CorruptExportError(ExportError):
    """A file of an export, or of a reindexing in progress, is damaged or missing."""


class BackupError(CableStoreError):
    """A backup cannot be made or restored: its folder is in use or holds anything else, or the target is not empty."""


class CorruptBackupError(BackupError):
    """A file of a backup is damaged or missing."""


class ReindexError(CableStoreError):
    """A reindexing job fails: workers do not see its folder, or rows do not agree."""


class SparkError(ReindexError):
    """Spark, its Java or one of its workers does not start, fails or ends. The message has the cause."""

    exit_status = 1


class HandshakeError(CableStoreError):
    """The peer has another cabal key, or its bytes were changed, repeated, cut or not a handshake."""


class NodeError(CableStoreError):
    """A node fails: an address is malformed or in use, or a peer cannot be reached."""


class ArchiveError(CableStoreError):
    """A history archive, its index or its torrent cannot be made, fetched or trusted."""


class IncompleteError(ArchiveError):
    """A folder of archives to be shared is incomplete: its files are not the torrent of its index."""


class NoSuchContentError(ArchiveError):
    """The content store, or the requested node, does not have the content of this id."""


class NoRoomError(ArchiveError):
    """A dataset does not fit: it exceeds the quota, the disk, or the size of one dataset."""


class UnreachableError(ArchiveError):
    """A node does not answer, or stopped in the middle. Received data is kept: try again, or try another node."""


class ReconcileError(CableStoreError):
    """A reconciliation cannot continue: malformed bytes, a limit, or a dialect that cannot express a range."""


class ReconcileLimitError(ReconcileError):
    """A reconciliation found more than it may hold. What it found is transferred; the next one finds the rest."""


class PeerRefusedError(ReconcileError):
    """The peer refused or ended a reconciliation; `reason` is its reason in one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class SdsError(CableStoreError):
    """A message of a causal log is malformed or too large, or the log cannot carry out a request."""
