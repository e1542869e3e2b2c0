"""The errors that cablestore raises: few types, one root, each message says what to do."""

from __future__ import annotations


class CableStoreError(Exception):
    """Root of every error that this package raises on purpose."""


class DecodeError(CableStoreError):
    """Bytes that are not what they should be: where, and why.

    `offset` counts bytes from the start of the document that was decoded.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"{reason} (at byte {offset})")
        self.offset = offset
        self.reason = reason


class UnknownPostTypeError(DecodeError):
    """A post whose `post_type` no dialect defines (wire.md 5.1.4: discarded)."""


class InvalidPostError(CableStoreError, ValueError):
    """A post that we were asked to write breaks a limit of the protocol."""


class IdentityError(CableStoreError):
    """The identity key is missing, unreadable, malformed, or open to others."""


class OpenError(CableStoreError):
    """A store cannot be opened. The subclasses say why."""


class NotAStoreError(OpenError):
    """The folder is not a store, or holds something else."""


class StoreLockedError(OpenError):
    """The store is open already, in this process or another."""


class FormatError(OpenError):
    """The store was written by a newer version, or for another dialect."""


class OutdatedViewError(OpenError):
    """A view on disk was built by another version of its code, so it refuses to be read."""


class MissingViewError(OutdatedViewError):
    """The store has views whose code is not installed, so it cannot be written, checked or rebuilt."""


class ViewError(CableStoreError):
    """A view cannot be kept: its name or keys are not allowed or taken, or its package cannot be loaded."""


class StorageError(CableStoreError):
    """The disk refused: full, read-only, gone."""


class CorruptStoreError(StorageError):
    """What the disk holds is damaged."""


class MissingDatabaseError(StorageError):
    """The folder of a store lacks its header, or the database that the header names. Nothing is made in its place."""


class OwnerGoneError(StorageError):
    """The process that has the store open ended before it had done what another one asked of it."""


class StoreClosedError(CableStoreError):
    """The store, or the snapshot, was closed before this call."""


class LogFormatError(CableStoreError):
    """A chat log that no known format reads."""


class ExportError(CableStoreError):
    """An export cannot be used: of another format, dialect or catalog, or not an export at all."""


class CorruptExportError(ExportError):
    """A file of an export, or of a reindexing under way, is damaged or missing."""


class ReindexError(CableStoreError):
    """The job cannot do what it was asked: no Java, workers that do not see its folder, rows that do not agree."""


class HandshakeError(CableStoreError):
    """The peer does not hold the same cabal key, or what it sent was changed, repeated, cut or not a handshake."""


class NodeError(CableStoreError):
    """A node cannot do what it was told: an address that is none or is taken, a peer that is not there."""


class ArchiveError(CableStoreError):
    """A history archive, its index or its torrent cannot be made, fetched or believed."""


class IncompleteError(ArchiveError):
    """A folder of archives that is to be given away lacks some: what lies in it is no torrent of its index."""


class NoSuchContentError(ArchiveError):
    """The content store, or the node that was asked, does not have what this content id stands for."""


class NoRoomError(ArchiveError):
    """What was to be stored does not fit: the quota, the disk, or the size of one dataset."""


class UnreachableError(ArchiveError):
    """A node does not answer, or stopped in the middle. What came is kept: ask again, or ask another."""


class ReconcileError(CableStoreError):
    """A reconciliation cannot go on: a peer's bytes are malformed, a limit is reached, a dialect cannot say what is needed."""


class ReconcileLimitError(ReconcileError):
    """A reconciliation found more than it may hold. What it found is transferred; another one finds the rest."""


class PeerRefusedError(ReconcileError):
    """The peer does not begin a reconciliation, or ended it; `reason` is its reason in a word."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class SdsError(CableStoreError):
    """A message of a causal log is malformed or too large, or the log cannot do what it was asked."""
