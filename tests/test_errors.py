"""The error classes: few are public, and every other one has a public base that programs catch."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from inspect import getmembers, isclass

import cablestore
from cablestore import errors
from cablestore.errors import (
    ArchiveError,
    ArgumentError,
    CableStoreError,
    ExportError,
    NodeError,
    ReindexError,
    StorageError,
)
from cablestore.reconcile.errors import PeerRefusedError
from cablestore.reindex.causes import SparkError

PUBLIC = """
ArchiveError ArgumentError BackupError CableStoreError CorruptStoreError CursorError DecodeError ExportError
IdentityError MissingExtraError NodeError NotFoundError OpenError OutdatedViewError OwnerGoneError ReindexError SdsError
StorageError StoreClosedError StoreLockedError
"""
INTERNAL: dict[str, type[CableStoreError]] = {
    "cablestore.archive.errors.IncompleteError": ArchiveError,
    "cablestore.archive.errors.NoRoomError": ArchiveError,
    "cablestore.archive.errors.NoSuchContentError": ArchiveError,
    "cablestore.archive.errors.UnreachableError": ArchiveError,
    "cablestore.export.manifest.DamagedManifestError": ExportError,
    "cablestore.files.folder.MissingFileError": StorageError,
    "cablestore.irc.lines.NotALogError": ArgumentError,
    "cablestore.peers.reconciliation.LostError": NodeError,
    "cablestore.peers.reconciliation.SilentError": NodeError,
    "cablestore.protocol.secure_channel.HandshakeError": NodeError,
    "cablestore.reconcile.errors.PeerRefusedError": NodeError,
    "cablestore.reconcile.errors.ReconcileError": NodeError,
    "cablestore.reconcile.errors.ReconcileLimitError": NodeError,
    "cablestore.reindex.causes.SparkError": ReindexError,
    "cablestore.search.index.IndexThrownAwayError": StorageError,
    "cablestore.search.table.DamagedIndexError": CableStoreError,
}
"""Classes that a package raises for itself, each with the class that programs catch."""


def subclasses(kind: type[CableStoreError]) -> set[type[CableStoreError]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_only_the_listed_error_classes_are_public() -> None:
    assert {name for name, kind in getmembers(errors, isclass) if issubclass(kind, Exception)} == set(PUBLIC.split())


def test_every_other_class_has_a_public_base() -> None:
    for module in pkgutil.walk_packages(cablestore.__path__, "cablestore."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    found = {kind for kind in subclasses(CableStoreError) if kind.__module__.startswith("cablestore.")}
    internal = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in found if kind.__module__ != errors.__name__}
    bases = {
        name: next(base for base in kind.__mro__ if base.__module__ == errors.__name__)
        for name, kind in internal.items()
    }
    assert bases == INTERNAL


def test_a_rejection_by_a_peer_is_printed_as_its_text() -> None:
    assert str(PeerRefusedError("busy", "this node is busy")) == "this node is busy"


def test_exit_statuses_depend_on_the_kind_of_error() -> None:
    statuses = {kind.__name__: kind.exit_status for kind in subclasses(CableStoreError) | {SparkError}}
    assert statuses["SparkError"] == 1
    assert {statuses[kind.__name__] for kind in subclasses(StorageError)} == {3}
    assert {statuses[name] for name in PUBLIC.split() if not issubclass(getattr(errors, name), StorageError)} == {2}
