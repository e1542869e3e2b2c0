"""Errors that cablestore raises. Each message describes the problem and a remedy."""

from __future__ import annotations


class CableStoreError(Exception):
    """Base class of all errors that this package raises."""

    exit_status = 2
    """Exit status of a command that fails with this error."""


class ArgumentError(CableStoreError, ValueError, TypeError):
    """An argument has a wrong type or value.

    This includes an unusable path or URI, a search without words, and a malformed invitation or moderation seed. It
    also
    includes a local value that is not JSON, and a moderation action that the protocol forbids.
    """


class MissingExtraError(CableStoreError, ModuleNotFoundError):
    """A dependency of the requested function is in an extra that is not installed. The message names the extra."""


class DecodeError(CableStoreError):
    """Bytes are malformed.

    `offset` counts bytes from the start of the decoded document.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} (at byte {offset})")
        self.offset = offset
        self.reason = reason


class UnknownPostTypeError(DecodeError):
    """The dialect does not define the `post_type` of a post. The post is discarded (wire.md 5.1.4)."""


class InvalidPostError(CableStoreError, ValueError):
    """A new post exceeds a protocol limit or has no effect, or a requested channel name is invalid."""


class NotFoundError(CableStoreError, LookupError):
    """A typed name matches no user or channel, or several. The message lists the matches."""


class CursorError(CableStoreError, ValueError):
    """The cursor is invalid or belongs to another query. Use the unchanged cursor of an earlier page."""


class ChangesCursorError(CableStoreError, ValueError):
    """A cursor of changes is malformed or outdated. Fetch a new page and use its cursor."""


class IdentityError(CableStoreError):
    """The identity key is missing, unreadable, malformed, or readable by other users."""


class OpenError(CableStoreError):
    """A store cannot be opened. The subclasses name the reason."""


class NotAStoreError(OpenError):
    """The folder is not a store, or contains other files."""


class StoreLockedError(OpenError):
    """The store is already open, in this process or another."""


class FormatError(OpenError):
    """The store was written by a newer version, or for another dialect."""


class OutdatedViewError(OpenError):
    """A stored view was built by another version of its code, so it cannot be read."""


class MissingViewError(OutdatedViewError):
    """The store has views whose code is not installed, so it cannot be written, checked or rebuilt."""


class ViewError(CableStoreError):
    """A view cannot be used: its name or keys are invalid or taken, or its package cannot be loaded."""


class StorageError(CableStoreError):
    """An I/O error: the disk is full, read-only or missing."""

    exit_status = 3


class MissingFileError(StorageError, FileNotFoundError):
    """A file to be read is not in its folder or object store."""


class CorruptStoreError(StorageError):
    """Stored data is damaged."""


class MissingDatabaseError(StorageError):
    """A store's folder lacks its header, or the database that the header names. No replacement is created."""


class OwnerGoneError(StorageError):
    """The process that has the store open ended before it completed a request of another process."""


class StoreClosedError(CableStoreError):
    """The store, or the snapshot, was closed before this call."""


class ForkedError(CableStoreError):
    """The store, log or node was open when this process was forked, so only the parent process can use it."""


class LogFormatError(CableStoreError):
    """A chat log has an unknown format, or cannot be unpacked."""


class ExportError(CableStoreError):
    """An export cannot be used: it is not an export, or it has another format, dialect or catalog."""


class CorruptExportError(ExportError):
    """A file of an export, or of a reindexing in progress, is damaged or missing."""


class BackupError(CableStoreError):
    """A backup cannot be created or restored: its folder is in use or has other files, or the target is not empty."""


class CorruptBackupError(BackupError):
    """A file of a backup is damaged or missing."""


class ReindexError(CableStoreError):
    """A reindexing job fails: workers cannot access its folder, or rows do not match."""


class SparkError(ReindexError):
    """Spark, Java or a worker does not start, or fails. The message has the cause."""

    exit_status = 1


class HandshakeError(CableStoreError):
    """The peer has another cabal key, or its handshake was altered, replayed, truncated or malformed."""


class NodeError(CableStoreError):
    """A node fails: an address is malformed or in use, or a peer cannot be reached."""


class ArchiveError(CableStoreError):
    """A history archive, its index or its torrent cannot be created, fetched or trusted."""


class IncompleteError(ArchiveError):
    """A folder of archives to share is incomplete: its files do not match the torrent of its index."""


class NoSuchContentError(ArchiveError):
    """The content store, or the requested node, does not have the content with this id."""


class NoRoomError(ArchiveError):
    """A dataset does not fit: it exceeds the quota, the disk, or the size of one dataset."""


class UnreachableError(ArchiveError):
    """A node does not answer, or stopped during a transfer. Received data is kept: try again, or try another node."""


class ReconcileError(CableStoreError):
    """A reconciliation cannot continue: malformed bytes, an exceeded limit, or an unsupported range."""


class ReconcileLimitError(ReconcileError):
    """A reconciliation found more differences than its limit. It transfers these; the next one finds the rest."""


class PeerRefusedError(ReconcileError):
    """The peer rejected or ended a reconciliation; `reason` is its reason in one word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class SdsError(CableStoreError):
    """A message of a causal log is malformed or too large, or the log cannot carry out a request."""
